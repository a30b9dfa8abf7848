"""Overlapped: of plans that weigh communicating differently, the one whose step takes the least time, and a bound.

How much of a collective hides behind computing depends on what else there is at its time: no sum over operators knows.
But a step never takes less than

    share * (computing + weight * communicating)    at any weight, share = `cost_models.Overlap.share_at(weight)`

and the least of that sum over all plans is what the search proves, with what it takes to be given arguments anew, which
is no part of a step: at most that of all of them, whole, is taken off. No collectives but gradients' are fused in the
sum; what a program fuses besides, its step may take less.

Most is proven at one of two weights: at the least, where all hides that may, or the most, where computing does. Between
them and 1, where nothing hides, lies the weight for what nothing near waits for alone (`cost.hiding`). Plans at all of
them are simulated on two streams, and so is data parallelism, all of whose collectives may hide, until one is proven to
be within the tolerance of the shortest step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from autopar.core.mesh import DeviceMesh
from autopar.cost.assemble import most_arrival_cost
from autopar.errors import NoFeasiblePlan, Unsolved
from autopar.search.alternatives import find_best
from autopar.search.search import announced, find_on
from autopar.search.task import Planned, Task

_SEARCHED = ("auto", "semi_auto")  # the modes that leave something to choose
_LEAST_WEIGHT = 0.01
"""Of communicating: it never counts as nothing, as the plan that communicates less is to win among equals."""
_MOST_WEIGHT = 1 / _LEAST_WEIGHT
_HIDDEN_WEIGHTS = 3
"""How many of what may hide are tried, at equal steps down to the least."""


class Overlap(Protocol):
    """How computing and communicating slow each other, as `cost_models.Overlap`, which says what the numbers mean."""

    @property
    def pays(self) -> bool:
        """Whether both at once get more done than one after the other."""
        ...

    @property
    def least_weight(self) -> float:
        """What a second of communicating costs at least."""
        ...

    @property
    def most_weight(self) -> float:
        """What it has to cost so that all of it counts."""
        ...

    def share_at(self, weight: float) -> float:
        """The share of computing + weight * communicating than which no step takes less."""
        ...


@dataclass(frozen=True)
class _Shortest:
    """The plan of the shortest step so far, its seconds, and those that no plan's step goes below."""

    planned: Planned
    step_s: float
    bound_s: float

    def with_plan(self, other: Planned, step_s: float) -> _Shortest:
        """With `other`, if its step takes less."""
        return replace(self, planned=other, step_s=step_s) if step_s < self.step_s else self

    @property
    def is_enough(self) -> bool:
        """Whether no step can be shorter by more than the tolerance."""
        return self.bound_s >= self.step_s * (1 - self.planned.task.options.gap_tolerance)


def shortest_step(
    planned: Planned,
    tasks: Sequence[Task],
    meshes: Sequence[DeviceMesh],
    overlap: Overlap,
    step_time_s: Callable[[Planned], float],
) -> Planned:
    """`planned`, or one found at another weight whose step takes less time, or that of data parallelism.

    Its `step_bound_s` is proven for the step of every plan of `tasks` on `meshes`. Ctrl-C and the time limit leave the
    best so far, as does what takes too much work.

    Args:
      planned: the best of `tasks` at the weights that they state.
      tasks: one search: their graphs differ.
      meshes: those that were searched.
      overlap: how computing and communicating slow each other.
      step_time_s: seconds of a step of a plan.
    """
    if planned.task.mode not in _SEARCHED:
        return planned
    shared = [replace(task, stop=planned.task.stop, began=planned.task.began) for task in tasks]
    stated = planned.task.options
    given_s = max(most_arrival_cost(task.graph, planned.pricing) for task in tasks)

    def bound_s(found: Planned, weight: float) -> float:
        return overlap.share_at(weight) * max(0.0, found.plan.lower_bound_s - given_s)

    known_s = bound_s(planned, stated.communication_weight) if stated.hidden_weight == 1 else 0.0
    shortest = _Shortest(planned, step_time_s(planned), known_s)

    try:
        for weight in _bounding(planned, overlap):
            if shortest.is_enough or planned.task.stop.is_over:
                break
            other = _found(find_best, [task.at_weights(weight, 1.0) for task in shared], meshes)
            if other is None:
                continue
            shortest = replace(shortest, bound_s=max(shortest.bound_s, bound_s(other, weight)))
            shortest = shortest.with_plan(other, step_time_s(other))
        for rival in _rivals(shortest.planned, overlap):
            if shortest.is_enough or planned.task.stop.is_over:
                break
            other = rival()
            if other is not None:
                shortest = shortest.with_plan(other, step_time_s(other))
    except KeyboardInterrupt:
        planned.task.stop.note("keyboard")
    return _described(shortest, planned)


def _described(shortest: _Shortest, planned: Planned) -> Planned:
    """The plan, with what is proven of its step and what it was compared with."""
    best = shortest.planned
    plan = replace(best.plan, step_bound_s=min(shortest.bound_s, shortest.step_s))
    if best is not planned:
        announced(best.task, best)
        plan = replace(plan, space=f"{plan.space}, compared with {planned.plan.space}")
    return replace(best, plan=plan)


def _bounding(planned: Planned, overlap: Overlap) -> tuple[float, ...]:
    """The weights at which most is proven, that first at which most is of `planned`, unless it is its own."""
    account = planned.account

    def proven_s(weight: float) -> float:
        total_s = account.compute_time_s + weight * account.communication_time_s
        return overlap.share_at(weight) * total_s

    ends = max(overlap.least_weight, _LEAST_WEIGHT), min(overlap.most_weight, _MOST_WEIGHT)
    return tuple(sorted(ends, key=proven_s, reverse=True)) if overlap.pays else ()


def _rivals(planned: Planned, overlap: Overlap) -> Iterator[Callable[[], Planned | None]]:
    """What finds each of the others, on the mesh of `planned`; None: there is none, or it does not fit."""
    task = planned.task
    for hidden in _hidden_weights(overlap):
        yield partial(_at_weights, planned, hidden)
    if task.mode == "auto" and not task.constraints:
        yield partial(_data_parallel, planned)


def _hidden_weights(overlap: Overlap) -> tuple[float, ...]:
    """The weights that are tried of what may hide, less and less."""
    least = max(overlap.least_weight, _LEAST_WEIGHT)
    return tuple(1 - (1 - least) * part / _HIDDEN_WEIGHTS for part in range(1, _HIDDEN_WEIGHTS + 1))


def _at_weights(planned: Planned, hidden: float) -> Planned | None:
    ground = planned.ground.at_weights(1.0, hidden)
    return _found(find_on, planned.task.at_weights(1.0, hidden), [ground])


def _data_parallel(planned: Planned) -> Planned | None:
    """The plan of data parallelism; None where it would have to save memory to fit."""
    task = replace(planned.task, mode="data_parallel")
    limit = task.memory_limit_bytes
    found = _found(find_on, replace(task, memory_limit_bytes=None), [planned.ground])
    if found is None or (limit is not None and found.account.peak_memory_bytes > limit):
        return None
    return replace(found, task=task)


def _found(find: Callable[..., Planned], *args: Any) -> Planned | None:
    """What `find` finds; None where there is nothing, or it takes too much work."""
    try:
        return find(*args)
    except (NoFeasiblePlan, Unsolved):
        return None
