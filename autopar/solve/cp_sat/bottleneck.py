"""Costs aside: is a limit feasible (`feasible`), and what is the smallest peak memory of any choice (`least_peak`)?

Rows of memory are taken up as choices exceed them.

J. Edmonds, D. Fulkerson, "Bottleneck extrema", Journal of Combinatorial Theory 8 (1970).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from autopar.solve.cp_sat.finish import (
    Variables,
    byte_unit,
    bytes_in_row,
    chosen,
    solver_of,
    to_integers,
)
from autopar.solve.cp_sat.library import cp_model, run
from autopar.solve.presolve.reduce import reduce_fully
from autopar.solve.problem.options import SolveOptions
from autopar.solve.problem.problem import Floats, Infeasible, Problem, derived, peak
from autopar.solve.problem.reduction import Choice
from autopar.solve.problem.rows import Rows, least_use, memory_rows, rounding_of_uses, row_times
from autopar.solve.problem.verifier import TOLERANCE

_MAX_ROUNDS = 40  # of rows that a choice exceeds and the next model holds


@dataclass(frozen=True)
class Feasibility:
    """`is_feasible`: True with a `choice`; False, proven by the limit at `times` alone; None: not known."""

    is_feasible: bool | None
    choice: Choice | None = None
    times: tuple[int, ...] = ()


def feasible(problem: Problem, options: SolveOptions) -> Feasibility:
    """Whether some choice takes finite entries only and keeps within the limit.

    `problem` should have no costs but 0 and infinity: what reductions remove depends on costs, the answer does not.
    """
    try:
        reduction = reduce_fully(problem, options.presolve)
    except Infeasible:
        return Feasibility(False)

    small = reduction.problem
    rows = memory_rows(small)
    least = rows.sums(np.array([segment.size_bytes.min() for segment in rows.segments]))
    rounding = rounding_of_uses(small)
    if rows.count and least.max() > rows.limit * (1 + TOLERANCE) + rounding:
        return Feasibility(False, times=(int(row_times(small)[least.argmax()]),))

    found = _searched(small, rows, rounding, int(least.argmax()) if rows.count else None, options)
    if found.choice is not None:
        return replace(found, choice=reduction.lift(found.choice))

    return replace(found, times=tuple(sorted(int(row_times(small)[row]) for row in found.times)))


def _searched(
    problem: Problem, rows: Rows, rounding: float, first: int | None, options: SolveOptions
) -> Feasibility:
    """What CP-SAT finds; `times` are numbers of rows. Sizes are rounded down: what is infeasible then is so exactly."""
    model, nodes = _model(problem)
    unit = byte_unit(rows) if rows.count else 1.0
    present = dict[int, None]()
    budget = options.cp_sat_work
    for _ in range(_MAX_ROUNDS):
        if first is not None:
            present[first] = None
            limit = int(to_integers(np.array([rows.limit]), unit)[0])
            model.add(bytes_in_row(rows, first, nodes, unit) <= limit)
        solver = solver_of(options, budget)
        status = run(solver, model)
        if status == cp_model.INFEASIBLE:
            return Feasibility(False, times=tuple(present))
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            break
        choice = chosen(solver, nodes)
        used = rows.used(choice)
        if not rows.count or used.max() <= rows.limit + rounding:
            return Feasibility(True, choice)
        budget -= solver.response_proto.deterministic_time
        first = int(used.argmax())
        if first in present or budget <= 0:  # rounding is to blame, or the work is done
            break

    return Feasibility(None)


def _model(problem: Problem) -> tuple[cp_model.CpModel, Variables]:
    """One strategy for every node, no infinite pair, no memory row yet."""
    model = cp_model.CpModel()
    nodes: Variables = [[model.new_bool_var("") for _ in cost] for cost in problem.node_costs]
    for variables in nodes:
        model.add_exactly_one(variables)
    for edge in problem.edges:
        for s, t in np.argwhere(np.isinf(edge.cost)).tolist():
            model.add_bool_or([nodes[edge.u][s].Not(), nodes[edge.v][t].Not()])
    return model, nodes


def forbidding(problem: Problem) -> Problem:
    """The same choices at no cost: what is infinite stays so, all else is 0; edges without infinite entries go."""
    bare: dict[int, Floats | None] = {}
    for edge in problem.edges:
        if id(edge.cost) not in bare:
            finite = np.isfinite(edge.cost)
            bare[id(edge.cost)] = None if finite.all() else np.where(finite, 0.0, np.inf)
    edges = tuple(
        edge._replace(matrix=cost)
        for edge in problem.edges
        if (cost := bare[id(edge.cost)]) is not None
    )
    costs = tuple(np.where(np.isfinite(cost), 0.0, np.inf) for cost in problem.node_costs)
    return derived(costs, edges, problem.usages, problem.usage_limit)


@dataclass(frozen=True)
class LeastPeak:
    """The choice of smallest peak found (None: none found), its peak, and a bound below every choice's peak."""

    choice: Choice | None
    peak: float
    bound: float


def least_peak(problem: Problem, options: SolveOptions, enough: float = -np.inf) -> LeastPeak:
    """Minimises the peak, rows added as they are exceeded; whatever peaks at `enough` or below is as good.

    Raises:
      Infeasible: if forbidden entries alone rule out every choice that arc consistency can see.
    """
    bare = forbidding(problem)
    every_row = derived(bare.node_costs, bare.edges, bare.usages, 0.0)  # counts without a limit
    reduction = reduce_fully(every_row, options.presolve)
    small = reduction.problem
    rows = memory_rows(small)
    model, nodes = _model(small)
    unit = byte_unit(rows) if rows.count else 1.0
    floor = max(0, math.floor(enough / unit)) if math.isfinite(enough) else 0
    top = model.new_int_var(floor, max(floor, 2**61), "")
    model.minimize(top)
    best = LeastPeak(None, np.inf, 0.0)
    bound = least_use(problem.usages)
    budget = options.cp_sat_work
    present = set[int]()
    for _ in range(_MAX_ROUNDS):
        solver = solver_of(options, budget)
        status = run(solver, model)
        if status == cp_model.INFEASIBLE:
            return LeastPeak(None, np.inf, np.inf)
        if solver.best_objective_bound > floor:
            bound = max(bound, solver.best_objective_bound * unit)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            break
        local = chosen(solver, nodes)
        choice = reduction.lift(local)
        if (found := peak(problem, choice)) < best.peak:
            best = LeastPeak(choice, found, 0.0)
        budget -= solver.response_proto.deterministic_time
        worst = _worst_row(rows.used(local), present)
        if best.peak <= max(enough, bound) or worst is None or budget <= 0:
            break
        present.add(worst)
        model.add(bytes_in_row(rows, worst, nodes, unit) <= top)

    return LeastPeak(best.choice, best.peak, min(bound, best.peak))


def _worst_row(used: Floats, present: set[int]) -> int | None:
    """The row of largest use that the model does not have yet."""
    order = np.argsort(-used, kind="stable")
    return next((int(row) for row in order if int(row) not in present), None)
