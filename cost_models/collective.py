"""Seconds that a collective takes on a group: one function for each algorithm, and the best of them.

`size_bytes` is always the LARGER of a device's bytes before and after: all_gather: after; reduce_scatter: before;
the others: both are equal. In the formulas n is the group's size, S is `size_bytes`, alpha_l and beta_l are latency
and bandwidth (one direction) of level l, and s_l, m_l, p_l are the Span's sharing, crossing_members and
crossing_pairs: groups that communicate at the same time share the links. All groups run at once, no overlap with
compute, combining values costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import ceil, log2
from typing import Literal

from cost_models.groups import Group, Span

CollectiveKind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute"]


@dataclass(frozen=True)
class Algorithm:
    """One way to run a collective: its name, its time in s for (size_bytes, group), and the groups it is for."""

    name: str
    time_s: Callable[[float, Group], float]
    applies: Callable[[Group], bool]


def ring_reduce_scatter_time_s(size_bytes: float, group: Group) -> float:
    """Time of a reduce-scatter (or all-gather) on one ring through the members in device order.

        latency + (n - 1) / n * S * max_l s_l / beta_l

    A ring in device order crosses the uplink of each unit once in each direction. The latency is that of the n - 1
    edges a value travels, `edges` of them on level l (the worst group of each level). On a single torus
    axis: `hops` latencies, and twice the bandwidth where the ring closes by itself (half of the data goes each
    way). On several torus axes the edge from row to row goes back along the row: twice `hops` for each row.

    Reference: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations";
    latency of the edges as in NCCL, src/graph/tuning.cc (nInterSteps). Differs from NCCL: no base latency, and
    the whole uplink of a unit serves the ring, as NCCL's several channels do.
    """
    if group.size == 1:
        return 0.0
    lanes = group.tori[0].lanes if len(group.tori) == 1 and not group.switches else 1
    seconds_per_byte = max(s.sharing / s.level.link.bandwidth_bytes_per_s for s in (*group.switches, *group.tori))
    return _ring_latency_s(group) + (group.size - 1) / group.size * size_bytes * seconds_per_byte / lanes


def hierarchical_reduce_scatter_time_s(size_bytes: float, group: Group) -> float:
    """Time of a reduce-scatter level by level, innermost first; an all-gather is the same in reverse.

        sum over l of  hops_l alpha_l + (f_l - 1) S_l / f_l * max over m inside l of m_m / beta_m

    f_l is the fanout, S_l is S divided by the fanouts inside of l. On a switch level all members of a unit run
    their rings through its uplink at once; on a torus axis s_l / (lanes beta_l) stands for the last factor.

    Raises:
      ValueError: if the group is not regular: then it cannot be cut into equal parts.

    Reference: Thakur, Rabenseifner and Gropp 2005, "Optimization of collective communication operations in
    MPICH"; Jia et al. 2018, "Highly scalable deep learning training system with mixed-precision" (hierarchical
    all-reduce); on a torus Ying et al. 2018, "Image classification at supercomputer scale" (2-D summation).
    """
    if not group.regular:
        raise ValueError(f"a hierarchical collective needs equal parts; this group of {group.size} has none")
    total, remaining = 0.0, float(size_bytes)
    for position in reversed(range(len(group.spans))):
        span = group.spans[position]
        if span.fanout == 1:
            continue
        if span.level.kind == "torus":
            seconds_per_byte = _axis_seconds_per_byte(span)
        else:
            seconds_per_byte = _uplink_seconds_per_byte(group.spans[position:])
        total += _phase_time_s(span, remaining, seconds_per_byte)
        remaining /= span.fanout
    return total


def multi_axis_reduce_scatter_time_s(size_bytes: float, group: Group) -> float:
    """Time of a reduce-scatter (or all-gather) that uses all torus axes of the group at once.

        sum over stages of  max over parts of  hops_a alpha_a + (f_a - 1) S_part / f_a * s_a / (lanes_a beta_a)

    The data is cut into as many parts as there are axes, A; part i takes the axes in the order i, i + 1, ...
    (modulo A), so that at each stage every axis carries one part. With A equal wrapped axes and long messages it is
    S / (2 A beta).

    Reference: Sack and Gropp 2015, "Collective algorithms for multiported torus networks"; "How to scale your
    model", Google DeepMind 2025, chapter 3 (all-gather over several axes).
    """
    axes = group.tori
    remaining = [size_bytes / len(axes)] * len(axes)
    total = 0.0
    for stage in range(len(axes)):
        turn = [axes[(part + stage) % len(axes)] for part in range(len(axes))]
        total += max(_phase_time_s(a, r, _axis_seconds_per_byte(a)) for a, r in zip(turn, remaining, strict=True))
        remaining = [r / a.fanout for a, r in zip(turn, remaining, strict=True)]
    return total


def tree_all_reduce_time_s(size_bytes: float, group: Group) -> float:
    """Time of a reduction to one member and a broadcast from it, on a binomial tree; for short messages.

        2 sum over l of  ceil(log2 f_l) (alpha_l + S max over m inside l of s_m / beta_m)

    First inside the innermost units, then among their leaders. Nothing is pipelined.

    Reference: Thakur, Rabenseifner and Gropp 2005 (binomial tree). Differs from NCCL: its double binary tree
    pipelines long messages; for those the ring is as good in this model.
    """
    total = 0.0
    for position, span in enumerate(group.spans):
        rounds = ceil(log2(span.fanout))
        inner = [s.sharing / s.level.link.bandwidth_bytes_per_s for s in group.spans[position:]]
        total += 2 * rounds * (span.level.link.latency_s + size_bytes * max(inner))
    return total


def pairwise_all_to_all_time_s(size_bytes: float, group: Group) -> float:
    """Time of an all-to-all in which each member sends S / n to every other member.

        (u - 1) max alpha + sum of hops_l alpha_l over torus axes + S max_l p_l / beta_l

    u is the number of units of the innermost switch level (members, if there is no torus). On a wrapped ring of n
    and long messages this is n S / (8 beta), a quarter of that ring's all-gather of n S bytes.

    Reference: Thakur, Rabenseifner and Gropp 2005 (pairwise exchange); on a torus "How to scale your model",
    Google DeepMind 2025, chapter 3 (all-to-all), with dimension-ordered routing.
    """
    units = group.switches[-1].units if group.switches else 1
    latency = (units - 1) * _largest_latency_s(group.switches) + _travel_latency_s(group)
    return latency + size_bytes * _crossing_seconds_per_byte(group, "crossing_pairs")


def bruck_all_to_all_time_s(size_bytes: float, group: Group) -> float:
    """Time of an all-to-all in ceil(log2 n) rounds of half of the data each; for short messages.

        ceil(log2 n) (max alpha + S / 2 max_l m_l / beta_l)

    Reference: Bruck et al. 1997, "Efficient algorithms for all-to-all communications in multiport message-passing
    systems", as used in Thakur, Rabenseifner and Gropp 2005.
    """
    transfer = size_bytes / 2 * _crossing_seconds_per_byte(group, "crossing_members")
    return ceil(log2(group.size)) * (_largest_latency_s(group.switches) + transfer)


def permute_time_s(size_bytes: float, group: Group) -> float:
    """Time in which every member sends S to one other member, whatever the pairs are.

        max alpha + sum of hops_l alpha_l over torus axes + S max_l m_l / beta_l

    Priced for the pairs that are worst for each link: as many members as can send across it. On a torus the
    messages are taken to spread evenly over parallel lines (dimension-ordered routing).

    Reference: the bisection bound, Dally and Towles 2004, "Principles and practices of interconnection networks".
    """
    if group.size == 1:
        return 0.0
    latency = _largest_latency_s(group.switches) + _travel_latency_s(group)
    return latency + size_bytes * _crossing_seconds_per_byte(group, "crossing_members")


def collective_time_s(kind: CollectiveKind, size_bytes: float, group: Group) -> float:
    """Seconds of the fastest algorithm for the collective; 0 on a group of one.

    Args:
      kind: all_reduce, all_gather, reduce_scatter, all_to_all or permute.
      size_bytes: the larger of a device's bytes before and after (>= 0).
      group: the groups that communicate at the same time.

    Raises:
      ValueError: if the kind is unknown or `size_bytes` is negative.
    """
    return best_algorithm(kind, size_bytes, group)[1]


def best_algorithm(kind: CollectiveKind, size_bytes: float, group: Group) -> tuple[str, float]:
    """The name and the seconds of the fastest algorithm for the collective; ("none", 0.0) on a group of one.

    Raises:
      ValueError: if the kind is unknown or `size_bytes` is negative.
    """
    if kind not in ALGORITHMS:
        raise ValueError(f"unknown collective {kind!r}; known are {', '.join(ALGORITHMS)}")
    if not size_bytes >= 0:
        raise ValueError(f"{kind}: size_bytes must be >= 0, got {size_bytes}")
    if group.size == 1:
        return "none", 0.0
    times = [(a.name, a.time_s(size_bytes, group)) for a in ALGORITHMS[kind] if a.applies(group)]
    return min(times, key=lambda named: named[1])


def _ring_latency_s(group: Group) -> float:
    """The latency of the n - 1 edges of a ring in device order."""
    total, lines = 0.0, 1
    for span in group.switches:
        total += span.edges * span.level.link.latency_s
        lines = span.units
    there_and_back = 1 if len(group.tori) == 1 else 2
    for span in group.tori:
        total += there_and_back * lines * span.hops * span.level.link.latency_s
        lines *= span.fanout
    return total


def _phase_time_s(span: Span, size_bytes: float, seconds_per_byte: float) -> float:
    """A reduce-scatter of `size_bytes` on one level alone."""
    transfer = (span.fanout - 1) / span.fanout * size_bytes * seconds_per_byte
    return span.hops * span.level.link.latency_s + transfer


def _axis_seconds_per_byte(span: Span) -> float:
    """Of the rings along one torus axis."""
    return span.sharing / (span.lanes * span.level.link.bandwidth_bytes_per_s)


def _uplink_seconds_per_byte(spans: Iterable[Span]) -> float:
    """Of the switch level `spans[0]`, whose messages also pass the uplinks of the switch levels inside."""
    switches = [s for s in spans if s.level.kind == "switch"]
    return max(s.crossing_members / s.level.link.bandwidth_bytes_per_s for s in switches)


def _crossing_seconds_per_byte(group: Group, count: Literal["crossing_members", "crossing_pairs"]) -> float:
    """Of the slowest link, when the messages that `count` counts cross it."""
    spans = (*group.switches, *group.tori)
    return max((getattr(s, count) / s.level.link.bandwidth_bytes_per_s for s in spans), default=0.0)


def _largest_latency_s(spans: Iterable[Span]) -> float:
    """The largest latency of the links of `spans`; 0 if there are none."""
    return max((span.level.link.latency_s for span in spans), default=0.0)


def _travel_latency_s(group: Group) -> float:
    """The latency of a message to the farthest member along all torus axes."""
    return sum(span.hops * span.level.link.latency_s for span in group.tori)


def _twice(time_s: Callable[[float, Group], float]) -> Callable[[float, Group], float]:
    """An all-reduce as a reduce-scatter followed by an all-gather, which takes as long."""
    return lambda size_bytes, group: 2 * time_s(size_bytes, group)


def _always(group: Group) -> bool:
    return group.size >= 1


def _is_regular(group: Group) -> bool:
    return group.regular


def _is_switched(group: Group) -> bool:
    return not group.tori


def _is_torus_grid(group: Group) -> bool:
    return group.regular and len(group.tori) > 1 and not group.switches


_SCATTERS = (
    Algorithm("ring", ring_reduce_scatter_time_s, _always),
    Algorithm("hierarchical", hierarchical_reduce_scatter_time_s, _is_regular),
    Algorithm("multi_axis", multi_axis_reduce_scatter_time_s, _is_torus_grid),
)

ALGORITHMS: dict[CollectiveKind, tuple[Algorithm, ...]] = {
    "all_gather": _SCATTERS,
    "reduce_scatter": _SCATTERS,
    "all_reduce": (
        *(Algorithm(scatter.name, _twice(scatter.time_s), scatter.applies) for scatter in _SCATTERS),
        Algorithm("tree", tree_all_reduce_time_s, _is_switched),
    ),
    "all_to_all": (
        Algorithm("pairwise", pairwise_all_to_all_time_s, _always),
        Algorithm("bruck", bruck_all_to_all_time_s, _is_switched),
    ),
    "permute": (Algorithm("direct", permute_time_s, _always),),
}
"""For each kind its algorithms; a new one is one row."""
