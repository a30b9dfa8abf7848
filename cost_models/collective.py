"""Seconds that a collective takes on a group: the best of its algorithms, which `algorithms` prices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cost_models.algorithms import (
    binomial_scatter_time_s,
    bruck_all_to_all_time_s,
    chain_broadcast_time_s,
    hierarchical_reduce_scatter_time_s,
    multi_axis_reduce_scatter_time_s,
    pairwise_all_to_all_time_s,
    permute_time_s,
    ring_reduce_scatter_time_s,
    tree_all_reduce_time_s,
    tree_broadcast_time_s,
)
from cost_models.spans import Group
from cost_models.terms import CollectiveKind, measured_time_s


@dataclass(frozen=True)
class Algorithm:
    """One way to run a collective: its name, its time in s for (size_bytes, group), and the groups it is for."""

    name: str
    time_s: Callable[[float, Group], float]
    applies: Callable[[Group], bool]


def collective_time_s(kind: CollectiveKind, size_bytes: float, group: Group) -> float:
    """Seconds of the fastest algorithm for the collective; 0 on a group of one.

    Args:
      kind: all_reduce, all_gather, reduce_scatter, all_to_all, permute or broadcast.
      size_bytes: the larger of a device's bytes before and after (>= 0).
      group: the groups that communicate at the same time.

    Raises:
      ValueError: if the kind is unknown or `size_bytes` is negative.
    """
    return best_algorithm(kind, size_bytes, group)[1]


def best_algorithm(kind: CollectiveKind, size_bytes: float, group: Group) -> tuple[str, float]:
    """The name and the seconds of the fastest algorithm for the collective; ("none", 0.0) on a group of one.

    Where the level was measured it is ("measured", seconds): see `terms`. Elsewhere the seconds begin with the
    longest start of the levels that are crossed (`Level.start_s`).

    Raises:
      ValueError: if the kind is unknown or `size_bytes` is negative.
    """
    if kind not in ALGORITHMS:
        raise ValueError(f"unknown collective {kind!r}; known are {', '.join(ALGORITHMS)}")
    if not size_bytes >= 0:
        raise ValueError(f"{kind}: size_bytes must be >= 0, got {size_bytes}")
    if group.size == 1:
        return "none", 0.0
    measured = measured_time_s(kind, size_bytes, group)
    if measured is not None:
        return "measured", measured

    times = [(a.name, a.time_s(size_bytes, group)) for a in ALGORITHMS[kind] if a.applies(group)]
    name, time_s = min(times, key=lambda named: named[1])
    return name, time_s + max(
        (span.level.start_s for span in group.spans if span.sharing), default=0.0
    )


def _twice(time_s: Callable[[float, Group], float]) -> Callable[[float, Group], float]:
    """An all-reduce as a reduce-scatter followed by an all-gather, which takes as long."""
    return lambda size_bytes, group: 2 * time_s(size_bytes, group)


def _after_scatter(time_s: Callable[[float, Group], float]) -> Callable[[float, Group], float]:
    """A broadcast as a scatter from one member, followed by an all-gather."""
    return lambda size_bytes, group: (
        binomial_scatter_time_s(size_bytes, group) + time_s(size_bytes, group)
    )


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
        *(
            Algorithm(scatter.name, _twice(scatter.time_s), scatter.applies)
            for scatter in _SCATTERS
        ),
        Algorithm("tree", tree_all_reduce_time_s, _is_switched),
    ),
    "all_to_all": (
        Algorithm("pairwise", pairwise_all_to_all_time_s, _always),
        Algorithm("bruck", bruck_all_to_all_time_s, _is_switched),
    ),
    "permute": (Algorithm("direct", permute_time_s, _always),),
    "broadcast": (
        Algorithm("chain", chain_broadcast_time_s, _always),
        *(Algorithm(f"scatter_{s.name}", _after_scatter(s.time_s), s.applies) for s in _SCATTERS),
        Algorithm("tree", tree_broadcast_time_s, _is_switched),
    ),
}
"""For each kind its algorithms; a new one is one row."""
