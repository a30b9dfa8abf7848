"""The smallest peak memory of any choice, costs aside: is a limit feasible at all, and if not, which would be?

J. Edmonds, D. Fulkerson, "Bottleneck extrema", Journal of Combinatorial Theory 8 (1970).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from ortools.sat.python import cp_model

from autopar.solve.cp_sat.finish import byte_unit, bytes_in_row, chosen, solver_of
from autopar.solve.cp_sat.interrupt import run
from autopar.solve.presolve.reduce import reduce_fully
from autopar.solve.problem.options import SolveOptions
from autopar.solve.problem.problem import Edge, Floats, Problem, peak
from autopar.solve.problem.reduction import Choice
from autopar.solve.problem.rows import least_use, memory_rows

_MAX_ROUNDS = 40


@dataclass(frozen=True)
class LeastPeak:
    """The choice of smallest peak found (None: none found), its peak, and a bound below every choice's peak."""

    choice: Choice | None
    peak: float
    bound: float


def without_costs(problem: Problem) -> Problem:
    """The same choices at no cost, with a limit of 0 bytes so that every row counts."""
    free = {id(edge.cost): np.where(np.isfinite(edge.cost), 0.0, np.inf) for edge in problem.edges}
    return Problem(
        tuple(np.where(np.isfinite(cost), 0.0, np.inf) for cost in problem.node_costs),
        tuple(Edge(edge.u, edge.v, free[id(edge.cost)]) for edge in problem.edges),
        problem.usages,
        0.0,
    )


def least_peak(problem: Problem, options: SolveOptions, enough: float = -np.inf) -> LeastPeak:
    """Minimises the peak, rows added as they are exceeded; whatever peaks at `enough` or below is as good.

    Raises:
      Infeasible: if forbidden entries alone rule out every choice that arc consistency can see.
    """
    reduction = reduce_fully(without_costs(problem), options.presolve)
    small = reduction.problem
    rows = memory_rows(small)
    model = cp_model.CpModel()
    nodes = [[model.new_bool_var("") for _ in cost] for cost in small.node_costs]
    for variables in nodes:
        model.add_exactly_one(variables)
    for edge in small.edges:
        for s, t in np.argwhere(np.isinf(edge.cost)).tolist():
            model.add_bool_or([nodes[edge.u][s].Not(), nodes[edge.v][t].Not()])
    unit = byte_unit(rows) if rows.count else 1.0
    floor = max(0, math.floor(enough / unit)) if math.isfinite(enough) else 0
    top = model.new_int_var(floor, max(floor, 2**61), "")
    model.minimize(top)
    best, bound, budget, present = LeastPeak(None, np.inf, 0.0), least_use(problem), options.cp_sat_work, set[int]()
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
