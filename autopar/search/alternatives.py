"""Alternatives: several graphs of one function, operators kept or expanded, loops whole or in parts; the best plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from autopar.core.mesh import DeviceMesh
from autopar.errors import NoFeasiblePlan, Unsolved, UnsupportedPrimitive
from autopar.search.race import TIE
from autopar.search.search import announced, find_plan, search
from autopar.search.task import Planned, Task, begun
from autopar.solve import NothingCheaper


def search_best(tasks: Sequence[Task], meshes: Sequence[DeviceMesh]) -> tuple[int, Planned]:
    """The position of the task with the best plan, and that plan; the first of equals. Its bound holds over all.

    A task without a plan is passed over where another has one.

    Raises:
      NoFeasiblePlan: none of them has a plan; what the first was refused for.
      Unsolved: none was found, and it is not proven of all that there is none.
      UnsupportedPrimitive: the same.
    """
    if len(tasks) == 1:
        return 0, search(tasks[0], meshes)
    tasks = begun(tasks)
    found, bounds = dict[int, Planned](), list[float]()
    refusals: list[Exception] = []
    for position, task in enumerate(tasks):
        if found and task.halt.is_over:
            break
        try:
            least = min((planned.plan.objective_s for planned in found.values()), default=inf)
            found[position] = find_plan(task, meshes, least)
        except NothingCheaper as nothing:
            bounds.append(nothing.lower_bound)
        except KeyboardInterrupt:
            if not found:
                raise
            task.halt.note("keyboard")
        except (NoFeasiblePlan, Unsolved, UnsupportedPrimitive) as error:
            refusals.append(error)
    if not found:
        raise next((error for error in refusals if isinstance(error, Unsolved)), refusals[0])
    least = min(planned.plan.objective_s for planned in found.values())
    position = next(n for n, planned in found.items() if planned.plan.objective_s <= least * (1 + TIE))
    plan = found[position].plan
    bound = min(plan.objective_s, *bounds, *(planned.plan.lower_bound_s for planned in found.values()))
    space = plan.space + (_variants(tasks) if len(found) + len(bounds) > 1 else "")
    stopped = str(tasks[position].halt)
    planned = replace(found[position], plan=replace(plan, lower_bound_s=bound, space=space, stopped=stopped))
    return position, announced(tasks[position], planned)


def _variants(tasks: Sequence[Task]) -> str:
    """In what the graphs of the tasks differ, as words behind those for a space."""
    operators = {any(op.body is not None for op in task.graph.ops) for task in tasks}
    loops = {
        (
            tuple((region.kind, region.trips) for region in task.graph.regions),
            any(op.params.get("in_parts") for op in task.graph.ops),
        )
        for task in tasks
    }
    kept = ", operators kept or expanded" if len(operators) > 1 else ""
    return kept + (", loops whole or in parts" if len(loops) > 1 else "")
