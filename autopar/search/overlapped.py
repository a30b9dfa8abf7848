"""Overlapped: of plans that weigh communicating differently, the one whose step takes the least time.

How much of a collective hides behind computing depends on what else there is at its time: no sum over operators knows.
But a step never takes less than

    computing + weight * communicating    for weight <= `cost_models.Overlap.least_weight`

so what is least at that weight is the best where all hides that may, as what is least at weight 1 is where nothing
does. Between them lies the weight for what nothing near waits for alone (`cost.hiding`). Plans at all of them are
simulated on two streams, on the mesh of the one at weight 1, and so is data parallelism, all of whose collectives may
hide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from autopar.errors import NoFeasiblePlan, Unsolved
from autopar.search.search import announced, find_on
from autopar.search.task import Planned

Weights = tuple[float, float]
"""Of communicating (`SearchOptions.communication_weight`), and of what may hide beside that (`hidden_weight`)."""
_SEARCHED = ("auto", "semi_auto")  # the modes that leave something to choose


def shortest_step(
    planned: Planned, weights: Sequence[Weights], step_time_s: Callable[[Planned], float]
) -> Planned:
    """`planned`, or one at another of `weights` whose step takes less time on its mesh, or that of data parallelism.

    Ctrl-C and the time limit leave the best so far, as does what takes too much work. Where no weight can make a
    difference beyond the tolerance, none is tried.

    Args:
      planned: the best at the weight that its task states.
      weights: of communicating, and of what may hide beside that, each above 0; (): nothing overlaps.
      step_time_s: seconds of a step of a plan.
    """
    task = planned.task
    least_s = step_time_s(planned)
    least = min((weight * hidden for weight, hidden in weights), default=1.0)
    most_hidden_s = (1 - least) * planned.account.communication_time_s
    if most_hidden_s <= task.options.gap_tolerance * least_s:
        return planned

    best = planned
    for rival in _rivals(planned, weights):
        if task.stop.is_over:
            break
        try:
            other = rival()
        except (NoFeasiblePlan, Unsolved):
            continue
        except KeyboardInterrupt:
            break
        if other is not None and (other_s := step_time_s(other)) < least_s:
            best = other
            least_s = other_s

    if best is not planned:
        announced(best.task, best)
        space = f"{best.plan.space}, compared with {planned.plan.space}"
        best = replace(best, plan=replace(best.plan, space=space))
    return best


def _rivals(planned: Planned, weights: Sequence[Weights]) -> Iterator[Callable[[], Planned | None]]:
    """What finds each of the others; None: it does not fit."""
    task = planned.task
    if task.mode not in _SEARCHED:
        return
    for weight in weights:
        yield partial(find_on, task.at_weights(*weight), [planned.ground.at_weights(*weight)])
    if task.mode == "auto" and not task.constraints:
        yield partial(_data_parallel, planned)


def _data_parallel(planned: Planned) -> Planned | None:
    """The plan of data parallelism on the mesh of `planned`; None where it would have to save memory to fit."""
    task = replace(planned.task, mode="data_parallel")
    limit = task.memory_limit_bytes
    found = find_on(replace(task, memory_limit_bytes=None), [planned.ground])
    if limit is not None and found.account.peak_memory_bytes > limit:
        return None
    return replace(found, task=task)
