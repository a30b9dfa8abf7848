"""Alternatives: several graphs of one function, operators kept or expanded, loops whole or in parts; the best plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autopar.core.mesh import DeviceMesh
from autopar.core.stages import Stages
from autopar.search.search import announced, find_at, places_of
from autopar.search.task import Planned, Task, begun


def search_best(tasks: Sequence[Task], meshes: Sequence[DeviceMesh]) -> tuple[int, Planned]:
    """The position of the task with the best plan, and that plan; the first of equals. Its bound holds over all.

    All of them are one search: each gets a choice and a bound on every mesh before any is worked on. A task without a
    plan is passed over where another has one.

    Raises:
      NoFeasiblePlan: none of them has a plan.
      Unsolved: none was found, and it is not proven of all that there is none.
      UnsupportedPrimitive: the first has an operator without a rule, and is strict.
    """
    tasks = begun(tasks)
    planned = find_best(tasks, meshes)
    position = position_of(planned, tasks)
    return position, announced(tasks[position], planned)


def find_best(tasks: Sequence[Task], meshes: Sequence[DeviceMesh]) -> Planned:
    """As `search_best`, in a search that has begun; nothing is said or written."""
    planned = find_at([place for task in tasks for place in places_of(task, meshes)])
    if len(tasks) == 1:
        return planned
    space = planned.plan.space + _variants(tasks)
    return replace(planned, plan=replace(planned.plan, space=space))


def position_of(planned: Planned, tasks: Sequence[Task]) -> int:
    """Which of `tasks` a plan is of."""
    return next(n for n, task in enumerate(tasks) if task.graph is planned.task.graph)


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

    stages = [task.graph.stages for task in tasks if task.graph.stages is not None]
    kept = ", operators kept or expanded" if len(operators) > 1 else ""
    parts = ", loops whole or in parts" if len(loops) > 1 else ""
    words = "in stages" if len(stages) == len(tasks) else "in no stages or in stages"
    return kept + parts + (f", layers {words} {_divisions(stages)}" if stages else "")


def _divisions(stages: Sequence[Stages]) -> str:
    """All stages and micro-batches as words."""
    ways: dict[int, list[str]] = {}
    for one in stages:
        rounds = f" x {one.rounds}" if one.rounds > 1 else ""
        ways.setdefault(one.count, []).append(f"{one.micro_batches}{rounds}")
    shown = ", ".join(f"{count} ({', '.join(mine)})" for count, mine in ways.items())
    return f"(micro-batches x rounds): {shown}"
