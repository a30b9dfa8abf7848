"""Batch rows: data that a step only reads lies split along its rows, as loaders give them out, where that costs next to
nothing.

Whether every device gets all rows, or its own and gathers them, is often the same to a hundredth of a percent. So the
plan that was found is looked at once more, one input after another: what it would cost with the rows of that input
split over the axes that most of the computing splits the batch over is known exactly (`single_changes`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from autopar.core.placement import Placement
from autopar.search.best_bound_first import TIE
from autopar.search.dims import labels_of_data
from autopar.search.single_changes import Near
from autopar.search.task import Planned
from autopar.solve.problem.problem import objective, peak

_MOST = 1e-3
"""Of the objective: what splitting the rows of one input may cost, as far as the gap tolerance leaves it."""


def with_rows_split(planned: Planned) -> Planned:
    """`planned`, with the rows of its data split where that is among the candidates, keeps to constraints and to the
    memory limit, and costs next to nothing.
    """
    attempt = planned.attempt
    problem = planned.problem
    solution = planned.solution
    wanted = dict(_wanted(planned))
    if not wanted or attempt is None or problem is None or solution is None:
        return planned

    space = attempt.ground.space
    near = Near(problem, solution.choice, space.copy_variables)
    most = _MOST * planned.plan.objective_s
    left = _left_s(planned)
    for node, placement in wanted.items():
        if placement in space.inputs[node]:
            number = space.inputs[node].index(placement)
            costs = near.costs(node)
            more = float(costs[number] - costs[near.choice[node]])
            if more <= min(left, most):
                left -= max(0.0, more)
                near = replace(near, choice=near.chosen(node, number))

    if near.choice == solution.choice:
        return planned
    return _of_choice(planned, near.choice)


def _wanted(planned: Planned) -> Iterator[tuple[int, Placement]]:
    """The inputs whose rows are not split as the batch is, and how they would be."""
    graph = planned.graph
    carried = {position for _, position in graph.carry}
    stage = planned.plan.stage
    data = [n for n in graph.batch_inputs if n not in carried and not stage.inputs[n].dims[0]]
    axes = _batch_axes(planned) if data else ()
    for n in data if axes else ():
        others = (tuple(a for a in dim if a not in axes) for dim in stage.inputs[n].dims[1:])
        yield n, Placement((axes, *others))


def _batch_axes(planned: Planned) -> tuple[str, ...]:
    """The axes over which most of the computing splits the batch, by time; () where that is none."""
    graph = planned.graph
    labels = labels_of_data(graph, planned.task.find)
    taken_s: dict[tuple[str, ...], float] = defaultdict(float)
    for op, strategy in zip(graph.ops, planned.plan.stage.strategies, strict=True):
        own = labels.get(op.outs[0].id, ()) if op.outs else ()
        rows = [dim for dim, label in enumerate(own) if label[0] == "batch"]
        if rows:
            runs = graph.tree.weight(op.region)
            taken_s[strategy.outs[0].dims[rows[0]]] += runs * planned.pricing.op_cost(op, strategy)
    return max(taken_s, key=lambda axes: taken_s[axes], default=())


def _left_s(planned: Planned) -> float:
    """What more the plan may cost, and be proven within the gap tolerance if it is now."""
    plan = planned.plan
    tolerance = planned.task.options.gap_tolerance
    left = tolerance * plan.objective_s
    if plan.gap <= tolerance:
        left = min(left, plan.lower_bound_s / (1 - tolerance) - plan.objective_s)
    return max(left, TIE * plan.objective_s)


def _of_choice(planned: Planned, choice: tuple[int, ...]) -> Planned:
    """The plan of another choice, proven as `planned` is; `planned` itself where that exceeds the memory limit."""
    assert planned.attempt is not None
    assert planned.problem is not None
    assert planned.solution is not None
    problem = planned.problem
    solution = replace(
        planned.solution,
        choice=choice,
        objective=objective(problem, choice),
        peak=peak(problem, choice),
    )
    limit = planned.task.memory_limit_bytes
    if problem.usage_limit is not None and solution.peak > problem.usage_limit:
        return planned
    found = planned.attempt.planned(solution)
    if limit is not None and found.account.peak_memory_bytes > limit:
        return planned

    plan = replace(planned.plan, stages=found.plan.stages, objective_s=found.plan.objective_s)
    return replace(
        planned,
        plan=plan,
        program=found.program,
        account=found.account,
        counted_bytes=found.counted_bytes,
        solution=solution,
    )
