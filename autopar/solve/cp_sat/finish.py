"""The exact finish: CP-SAT on a core, its costs reparametrised, entries outside a window left out, memory rows lazy.

minimise sum of cost'_v[s] x_vs + sum of cost'_uv[s, t] e_st;   sum_s x_vs = 1;   sum_t e_st = x_us;   sum_s e_st = x_vt
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autopar.solve.cp_sat.library import cp_model, run
from autopar.solve.problem.factored_matrix import finite_entries
from autopar.solve.problem.incumbent import Watch
from autopar.solve.problem.options import SolveOptions
from autopar.solve.problem.problem import Floats
from autopar.solve.problem.reduction import Bools, Choice
from autopar.solve.problem.rows import Rows
from autopar.solve.problem.stop import left_s
from autopar.solve.trws.dual import Certificate, rounding_error

_COST_BITS = 42  # of the dearest term: sums of thousands of them stay below 2**63
_BYTE_BITS = 40  # as above; there are more bytes in a row than costs that count
_MAX_ROUNDS = 12  # of rows taken up as choices exceed them: with prices, nearly all that bind are there at first

Variables: TypeAlias = "list[list[cp_model.IntVar]]"


@dataclass(frozen=True)
class CpSatFinish:
    """What CP-SAT found: a choice, if any, and a bound on every choice within the window (inf: there is none)."""

    choice: Choice | None
    bound: float


def to_integers(values: Floats, unit: float) -> NDArray[np.int64]:
    """Values / unit, rounded down: sums of the integers, times the unit, never exceed the sums of the values.

    The one place where numbers are rounded for CP-SAT. Rounding costs and sizes down and keeping the limit's own
    integer part relaxes the problem, so bounds and infeasibility carry over; choices are checked exactly.
    """
    return np.floor(values / unit).astype(np.int64)


def byte_unit(rows: Rows) -> float:
    """1 if all sizes are whole (then rounding changes nothing), else a tiny part of the largest."""
    if all((segment.size_bytes == np.floor(segment.size_bytes)).all() for segment in rows.segments):
        return 1.0
    return max(float(segment.size_bytes.max()) for segment in rows.segments) / 2**_BYTE_BITS


def entries(certificate: Certificate) -> int:
    """Edge entries that a model of the core would have at most."""
    return sum(finite_entries(edge.matrix) for edge in certificate.problem.edges)


class _Model:
    """A CP-SAT model of a core, to which memory rows are added as they are violated.

    Its objective is the cost of a choice less `base`: messages move costs between nodes and edges, but the prices of
    memory are taken out again (a choice under the limit does not pay for the memory that it leaves free).
    """

    def __init__(self, certificate: Certificate, window: float) -> None:
        self.certificate = certificate
        self.rows = certificate.rows
        self.model = cp_model.CpModel()
        self.nodes: Variables = []
        self.terms: list[tuple[cp_model.IntVar, float]] = []
        self.base = certificate.bound + (
            float(certificate.prices.sum()) * self.rows.limit if self.rows.count else 0.0
        )
        limit = window + rounding_error(certificate)
        unpriced = self.rows.priced(-certificate.prices, certificate.node_costs)
        for excess, cost in zip(certificate.excess, unpriced, strict=True):
            self._add_node(excess <= limit, cost)

        for edge, cost in zip(certificate.problem.edges, certificate.edge_costs(), strict=True):
            self._add_edge(self.nodes[edge.u], self.nodes[edge.v], cost, limit)

        self.present: set[int] = set()
        self.unit = self._set_objective()
        self.byte_unit = byte_unit(self.rows)

    def _add_node(self, allowed: Bools, cost: Floats) -> None:
        variables = [self.model.new_bool_var("") for _ in cost]
        self.model.add_exactly_one(variables)
        least = float(cost[allowed].min(initial=np.inf))
        self.base += least if allowed.any() else 0.0
        for variable, may, value in zip(variables, allowed, cost, strict=True):
            if may:
                self.terms.append((variable, float(value) - least))
            else:
                self.model.add(variable == 0)
        self.nodes.append(variables)

    def _add_edge(
        self, u: list[cp_model.IntVar], v: list[cp_model.IntVar], cost: Floats, limit: float
    ) -> None:
        allowed = np.isfinite(cost) & (cost <= limit)
        if allowed.all() and not cost.any():
            return
        by_row: list[list[cp_model.IntVar]] = [[] for _ in u]
        by_column: list[list[cp_model.IntVar]] = [[] for _ in v]
        for s, t in np.argwhere(allowed).tolist():
            pair = self.model.new_bool_var("")
            by_row[s].append(pair)
            by_column[t].append(pair)
            self.terms.append((pair, float(cost[s, t])))
        for own, pairs in (*zip(u, by_row, strict=True), *zip(v, by_column, strict=True)):
            self.model.add(sum(pairs) == own)

    def _set_objective(self) -> float:
        used = [(variable, cost) for variable, cost in self.terms if cost > 0]
        most = max((cost for _, cost in used), default=1.0)
        unit = max(most / 2**_COST_BITS, float(np.finfo(np.float64).tiny))
        weights = to_integers(np.array([cost for _, cost in used]), unit)
        self.model.minimize(weighted([variable for variable, _ in used], weights))
        return unit

    def add_row(self, row: int, spare: float = 0.0) -> None:
        """Holds a row to the limit less `spare`."""
        self.present.add(row)
        limit = to_integers(np.array([self.rows.limit - spare]), self.byte_unit)
        self.model.add(bytes_in_row(self.rows, row, self.nodes, self.byte_unit) <= int(limit[0]))


def weighted(variables: list[cp_model.IntVar], weights: NDArray[np.int64]) -> cp_model.LinearExprT:
    """The sum of the variables times their weights."""
    expression: Any = cp_model.LinearExpr  # its stub leaves the argument types out
    return expression.weighted_sum(variables, weights.tolist())


def bytes_in_row(rows: Rows, row: int, nodes: Variables, unit: float) -> cp_model.LinearExprT:
    """The use of a row, in units, rounded down: none where nothing is live, which sums may miss by rounding."""
    live = [segment for segment in rows.segments if segment.low <= row < segment.high]
    variables = [variable for segment in live for variable in nodes[segment.node]]
    sizes = np.concatenate([np.zeros(0), *(segment.size_bytes for segment in live)])
    return weighted(variables, to_integers(sizes, unit))


def add_hint(model: cp_model.CpModel, nodes: Variables, hint: Choice | None) -> None:
    """Starts the search at a choice that the model allows.

    Else the model may allow none: OR-Tools 9.15 ends the process where it sees that as it loads a model with a hint,
    by two workers or more.
    """
    for variables, s in zip(nodes, hint or (), strict=False):
        for i, variable in enumerate(variables):
            model.add_hint(variable, i == s)


def solver_of(options: SolveOptions, work: float) -> cp_model.CpSolver:
    """A solver whose result depends on the model and the options only, unless a time limit cuts it short."""
    solver = cp_model.CpSolver()
    parameters: Any = solver.parameters
    parameters.num_workers = options.cp_sat_workers
    parameters.random_seed = options.seed
    parameters.interleave_search = True
    parameters.linearization_level = 2
    parameters.max_deterministic_time = work
    if math.isfinite(left := left_s()):
        parameters.max_time_in_seconds = left

    parameters.relative_gap_limit = 0.0
    if options.cp_sat_workers == 1:
        parameters.cp_model_probing_level = 0  # alone it takes longer than what it saves

    parameters.subsolvers.extend(["max_lp", "reduced_costs"])
    return solver


def chosen(solver: cp_model.CpSolver, nodes: Variables) -> Choice:
    """The choice of the solver's last solution."""
    return tuple(
        next(s for s, x in enumerate(variables) if solver.boolean_value(x)) for variables in nodes
    )


def finish(
    certificate: Certificate,
    window: float,
    hint: Choice | None,
    options: SolveOptions,
    watch: Watch,
) -> CpSatFinish:
    """The best choice within `window` of the certificate's bound, or a bound on all such choices.

    `hint`: one within it and the limit.
    """
    work = _Model(certificate, window if math.isfinite(window) else _no_window(certificate))
    for row in np.flatnonzero(certificate.prices > 0):
        work.add_row(int(row))

    add_hint(work.model, work.nodes, hint if options.cp_sat.hints else None)
    bound = certificate.bound
    budget = options.cp_sat_work
    for _ in range(_MAX_ROUNDS):
        solver = solver_of(options, budget)
        status = run(solver, work.model, (watch.enough - work.base) / work.unit)
        if status == cp_model.INFEASIBLE:
            return CpSatFinish(None, math.inf)
        bound = max(bound, work.base + solver.best_objective_bound * work.unit)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            break
        choice = chosen(solver, work.nodes)
        violated = np.flatnonzero(work.rows.used(choice) > work.rows.limit).tolist()
        if not violated:
            return CpSatFinish(choice, bound)
        budget -= solver.response_proto.deterministic_time
        if budget <= 0 or watch.left_s() <= 0:
            break
        if work.present.intersection(violated):  # rounding is to blame
            return CpSatFinish(_with_margin(work, options, budget), bound)
        for row in violated:
            work.add_row(row)

    return CpSatFinish(None, bound)


def _with_margin(work: _Model, options: SolveOptions, budget: float) -> Choice | None:
    """A choice that keeps a margin for rounding in every row, if there is one: no bound comes of it."""
    work.model.clear_hints()
    for row in range(work.rows.count):
        work.add_row(row, spare=work.byte_unit * len(work.rows.segments))
    solver = solver_of(options, budget)
    if run(solver, work.model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    choice = chosen(solver, work.nodes)
    return choice if (work.rows.used(choice) <= work.rows.limit).all() else None


def _no_window(certificate: Certificate) -> float:
    """A window that leaves out forbidden entries only."""
    finite = [float(cost[np.isfinite(cost)].max()) for cost in certificate.edge_costs()]
    return sum(finite) + sum(float(cost.max()) for cost in certificate.excess) + 1.0
