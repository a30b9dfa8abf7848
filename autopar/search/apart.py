"""Apart: the plan that is best where no gradient shares a collective, if its program takes less time.

The search lets the collectives of gradients share what one of all of them costs (`cost.buckets`). Where few are reduced
in the end they share with nothing, and the program takes longer than its objective says: where latencies count, longer
than one that sends nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from autopar.core.graph import OpGraph
from autopar.core.mesh import DeviceMesh
from autopar.cost.pricing import MakePricing, Pricing, Wrapped
from autopar.errors import NoFeasiblePlan, Unsolved
from autopar.search.search import find_plan
from autopar.search.single_changes import choice_of
from autopar.search.task import Planned
from autopar.solve.problem.problem import objective

_MORE = 0.1
"""By which share a program may take longer than its objective before another is looked for."""


@dataclass(frozen=True)
class _Apart(Wrapped):
    """A pricing under which every collective is paid alone."""

    @property
    def shares(self) -> bool:
        """They do not."""
        return False


def or_apart(planned: Planned, step_time_s: Callable[[Planned], float]) -> Planned:
    """`planned`, or one on its mesh whose step takes less time; the bound is the same.

    Only where memory does not bind: there a choice is one of the Problem that was solved.

    Args:
      planned: the best plan.
      step_time_s: seconds of a step of a plan.
    """
    serial_s = planned.account.serial_time_s
    solution = planned.solution
    attempt = planned.attempt
    takes_longer = serial_s > planned.plan.objective_s * (1 + _MORE)
    is_free = (
        planned.rewritten is None and planned.problem is not None and not planned.problem.usages
    )
    if not takes_longer or not is_free or solution is None or attempt is None:
        return planned
    if planned.task.stop.is_over:
        return planned

    apart = replace(planned.task, make_pricing=partial(_made, planned.task.make_pricing))
    try:
        stage = find_plan(apart, [planned.ground.mesh]).plan.stage
    except (NoFeasiblePlan, Unsolved):
        return planned
    except KeyboardInterrupt:  # what was found before is kept
        planned.task.stop.note("keyboard")
        return planned
    choice = choice_of(planned.ground.space, stage)
    if choice is None:
        return planned

    cost = objective(attempt.problem(None), choice)
    found = attempt.planned_freely(replace(solution, choice=choice, objective=cost))
    limit = planned.task.memory_limit_bytes
    is_over = limit is not None and found.account.peak_memory_bytes > limit
    if is_over or step_time_s(found) >= step_time_s(planned):
        return planned
    own = planned.plan
    plan = replace(
        found.plan, lower_bound_s=own.lower_bound_s, space=own.space, stopped=own.stopped
    )
    return replace(found, task=planned.task, plan=plan, is_unlimited=planned.is_unlimited)


def _made(make: MakePricing, graph: OpGraph, mesh: DeviceMesh) -> Pricing:
    return _Apart(make(graph, mesh))
