"""Seconds that one algorithm takes for a collective on a group: a formula, its assumptions and its source, each.

`size_bytes` is always the LARGER of a device's bytes before and after: all_gather: after; reduce_scatter: before;
the others: both are equal. In the formulas n is the group's size, S is `size_bytes`, alpha_l and beta_l are latency
and bandwidth (one direction) of level l, and s_l, m_l, p_l are the Span's sharing, crossing_members and
crossing_pairs: groups that communicate at the same time share the links. All groups run at once, no overlap with
compute, combining values costs nothing. `collective` picks the fastest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil, log2, sqrt
from typing import Literal

from cost_models.spans import Group, Span


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
    seconds_per_byte = max(
        s.sharing / s.level.link.bandwidth_bytes_per_s for s in (*group.switches, *group.tori)
    )
    return (
        _ring_latency_s(group)
        + (group.size - 1) / group.size * size_bytes * seconds_per_byte / lanes
    )


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
        raise ValueError(
            f"a hierarchical collective needs equal parts; this group of {group.size} has none"
        )

    total = 0.0
    remaining = float(size_bytes)
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
        total += max(
            _phase_time_s(a, r, _axis_seconds_per_byte(a))
            for a, r in zip(turn, remaining, strict=True)
        )
        remaining = [r / a.fanout for a, r in zip(turn, remaining, strict=True)]
    return total


def tree_all_reduce_time_s(size_bytes: float, group: Group) -> float:
    """Time of a reduction to one member and a broadcast from it, on a binomial tree; for short messages.

        2 sum over l of  ceil(log2 f_l) (alpha_l + S max over m inside l of s_m / beta_m)

    First inside the innermost units, then among their leaders. Nothing is pipelined. A message on a full level has
    one link.

    Reference: Thakur, Rabenseifner and Gropp 2005 (binomial tree). Differs from NCCL: its double binary tree
    pipelines long messages; for those the ring is as good in this model.
    """
    total = 0.0
    for position, span in enumerate(group.spans):
        rounds = ceil(log2(span.fanout))
        total += (
            2
            * rounds
            * (
                span.level.link.latency_s
                + size_bytes * _message_seconds_per_byte(group.spans[position:])
            )
        )
    return total


def tree_broadcast_time_s(size_bytes: float, group: Group) -> float:
    """Time of a broadcast from one member on a binomial tree: half of `tree_all_reduce_time_s`; for short messages.

    Reference: Thakur, Rabenseifner and Gropp 2005 (binomial tree).
    """
    return tree_all_reduce_time_s(size_bytes, group) / 2


def chain_broadcast_time_s(size_bytes: float, group: Group) -> float:
    """Time of a broadcast along a chain of the members in device order, in k pieces that follow one another.

        L + T + (k - 1) alpha + (n - 2) T / k        k = max(1, sqrt((n - 2) T / alpha))

    L is the latency of all n - 1 edges, T = S max_l s_l / beta_l the time of the whole message on the slowest edge,
    alpha the longest latency of an edge. The k that is best is taken as if it could be a fraction, so the time is
    continuous in S. With latencies of 0 it is T.

    Reference: van de Geijn and Watts 1997, "SUMMA" (pipelined ring broadcast); NCCL broadcasts so.
    """
    if group.size == 1:
        return 0.0

    whole = size_bytes * max(
        s.sharing / s.level.link.bandwidth_bytes_per_s for s in (*group.switches, *group.tori)
    )
    longest = max(
        _largest_latency_s(group.switches),
        *(s.hops * s.level.link.latency_s for s in group.tori),
        0.0,
    )
    if (group.size - 2) * whole <= longest:
        return _ring_latency_s(group) + (group.size - 1) * whole

    return _ring_latency_s(group) + whole - longest + 2 * sqrt((group.size - 2) * whole * longest)


def binomial_scatter_time_s(size_bytes: float, group: Group) -> float:
    """Time in which one member hands each other member its part of S / n, on a binomial tree.

        sum over l of  rounds_l alpha_l + (n - 1) / n * S * max_l s_l / beta_l

    rounds_l is ceil(log2 f_l), on a torus axis hops_l. The first half of a broadcast of long messages.

    Reference: Barnett et al. 1994, "Interprocessor collective communication library (InterCom)" (scatter-collect);
    Thakur, Rabenseifner and Gropp 2005 (broadcast).
    """
    if group.size == 1:
        return 0.0
    spans = (*group.switches, *group.tori)
    rounds = (
        (s.hops if s.level.kind == "torus" else ceil(log2(s.fanout))) * s.level.link.latency_s
        for s in spans
    )
    slowest = max(
        _message_seconds_per_byte(group.spans[position:]) for position in range(len(group.spans))
    )
    return sum(rounds) + (group.size - 1) / group.size * size_bytes * slowest


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


def _ring_latency_s(group: Group) -> float:
    """The latency of the n - 1 edges of a ring in device order."""
    total = 0.0
    lines = 1
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


def _uplink_seconds_per_byte(spans: Sequence[Span]) -> float:
    """Of the level `spans[0]`, whose messages also pass the uplinks of the switch levels inside.

    On a full level all links are used at once: the parts go straight to their members.
    """
    if spans[0].level.kind == "full":
        return _one_ring_seconds_per_byte(spans[0])
    switches = [s for s in spans if s.level.kind == "switch"]
    return max(s.crossing_members / s.level.link.bandwidth_bytes_per_s for s in switches)


def _message_seconds_per_byte(spans: Sequence[Span]) -> float:
    """Of one message of each group over the level `spans[0]`, and over the uplinks of the levels inside.

    On a full level it has one link, and what comes from outside passes none.
    """
    own = spans[0]
    inside = [s for s in spans[1:] if s.level.kind != "full"]
    load = own.crossing_members if own.level.kind == "full" else own.sharing
    return max(
        load / own.level.link.bandwidth_bytes_per_s,
        *(_one_ring_seconds_per_byte(s) for s in inside),
        0.0,
    )


def _one_ring_seconds_per_byte(span: Span) -> float:
    """Of a link of `span` that each group uses for one ring, or one message."""
    return span.sharing / span.level.link.bandwidth_bytes_per_s


def _crossing_seconds_per_byte(
    group: Group, count: Literal["crossing_members", "crossing_pairs"]
) -> float:
    """Of the slowest link, when the messages that `count` counts cross it."""
    spans = (*group.switches, *group.tori)
    return max((getattr(s, count) / s.level.link.bandwidth_bytes_per_s for s in spans), default=0.0)


def _largest_latency_s(spans: Iterable[Span]) -> float:
    """The largest latency of the links of `spans`; 0 if there are none."""
    return max((span.level.link.latency_s for span in spans), default=0.0)


def _travel_latency_s(group: Group) -> float:
    """The latency of a message to the farthest member along all torus axes."""
    return sum(span.hops * span.level.link.latency_s for span in group.tori)
