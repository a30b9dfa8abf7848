"""Batch rows: data that a step only reads lies split along its rows, as loaders give them out, where that costs next to
nothing.

Whether every device gets all rows, or its own and gathers them, is often the same to a hundredth of a percent. So the
choice that was found is looked at once more, one input after another: what it would cost with the rows of that input
split over the axes that most of the computing splits the batch over is known exactly (`single_changes`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from autopar.core.placement import Placement
from autopar.core.plan import Stage
from autopar.cost.assemble import placement_choice
from autopar.search.best_bound_first import TIE
from autopar.search.dims import labels_of_data
from autopar.search.single_changes import Near
from autopar.search.task import Planned
from autopar.solve import Problem, Solution
from autopar.solve.problem.problem import objective, peak

if TYPE_CHECKING:
    from autopar.search.limited_solve import LimitedSolve

_MOST = 1e-3
"""Of the objective: what splitting the rows of one input may cost, as far as the gap tolerance leaves it."""


def with_rows_split(
    attempt: LimitedSolve, problem: Problem, solution: Solution, lower_bound: float
) -> Solution:
    """`solution` of `problem`, with rows of data split where that keeps to constraints and costs next to nothing.

    What is proven within the gap tolerance by `lower_bound` still is. The memory of the program is not looked at.
    """
    wanted = dict(_wanted(attempt, solution))
    if not wanted:
        return solution

    space = attempt.ground.space
    near = Near(problem, solution.choice, space.copy_variables)
    most = _MOST * solution.objective
    left = _left_s(solution.objective, lower_bound, attempt.task.options.gap_tolerance)
    for node, placement in wanted.items():
        if placement in space.inputs[node]:
            number = space.inputs[node].index(placement)
            costs = near.costs(node)
            more = float(costs[number] - costs[near.choice[node]])
            if more <= min(left, most):
                left -= max(0.0, more)
                near = replace(near, choice=near.chosen(node, number))

    choice = near.choice
    used = peak(problem, choice)
    if choice == solution.choice or (problem.usage_limit or used) < used:
        return solution
    return replace(solution, choice=choice, objective=objective(problem, choice), peak=used)


def within_limit_with_rows_split(planned: Planned) -> Planned:
    """As `with_rows_split`, of a plan that was found within a memory limit, which its program keeps; else as it is."""
    attempt = planned.attempt
    problem = planned.problem
    solution = planned.solution
    limit = planned.task.memory_limit_bytes
    if attempt is None or problem is None or solution is None or problem.usage_limit is None:
        return planned

    changed = with_rows_split(attempt, problem, solution, planned.plan.lower_bound_s)
    if changed is solution:
        return planned

    found = attempt.planned(changed)
    if limit is not None and found.account.peak_memory_bytes > limit:
        return planned

    plan = replace(planned.plan, stages=found.plan.stages, objective_s=found.plan.objective_s)
    return replace(
        planned,
        plan=plan,
        program=found.program,
        account=found.account,
        counted_bytes=found.counted_bytes,
        solution=changed,
    )


def _wanted(attempt: LimitedSolve, solution: Solution) -> Iterator[tuple[int, Placement]]:
    """The inputs whose rows are not split, and how they would be."""
    graph = attempt.ground.graph
    space = attempt.ground.space
    choice = solution.choice
    carried = {position for _, position in graph.carry}
    placed = {n: space.inputs[n][choice[n]] for n in graph.batch_inputs if n not in carried}
    data = {n: placement for n, placement in placed.items() if not placement.dims[0]}
    if not data:
        return

    own = placement_choice(space, choice[: len(space.counts)])
    axes = _batch_axes(attempt, space.stage(own))
    for n, placement in data.items() if axes else ():
        others = (tuple(a for a in dim if a not in axes) for dim in placement.dims[1:])
        yield n, Placement((axes, *others))


def _batch_axes(attempt: LimitedSolve, stage: Stage) -> tuple[str, ...]:
    """The axes over which most of the computing splits the batch, by time; () where that is none."""
    graph = attempt.ground.graph
    pricing = attempt.ground.pricing(attempt.step_kinds)
    labels = labels_of_data(graph, attempt.task.find)
    taken_s: dict[tuple[str, ...], float] = defaultdict(float)
    for op, strategy in zip(graph.ops, stage.strategies, strict=True):
        own = labels.get(op.outs[0].id, ()) if op.outs else ()
        rows = [dim for dim, label in enumerate(own) if label[0] == "batch"]
        if (
            rows and op.recomputes is None
        ):  # of what may run once more nothing is chosen where it does not
            axes = strategy.outs[0].dims[rows[0]]
            taken_s[axes] += graph.tree.weight(op.region) * pricing.op_cost(op, strategy)
    return max(taken_s, key=lambda axes: taken_s[axes], default=())


def _left_s(cost: float, bound: float, tolerance: float) -> float:
    """What more may be spent, and what is proven within the tolerance now still be."""
    left = tolerance * cost
    if bound >= cost * (1 - tolerance):
        left = min(left, bound / (1 - tolerance) - cost)
    return max(left, TIE * cost)
