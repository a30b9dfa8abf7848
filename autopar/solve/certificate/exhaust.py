"""Asks CP-SAT anew, by a plain model, what a proof only states: that no choice that is left costs less than a bound.

    find x, e in {0, 1} with   sum_s x_vs = 1,   sum_t e_st = x_us,   sum_s e_st = x_vt
    such that   sum of cost_v[s] x_vs + sum of cost_uv[s, t] e_st  <=  most   and   sum of size_v[s] x_vs  <=  limit

No such x, says CP-SAT: then the bound holds, as far as CP-SAT can be trusted. Costs and sizes are rounded down to whole
numbers of a small unit, which only adds choices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from autopar.solve.certificate.tables import Tables
from autopar.solve.cp_sat.library import cp_model, run

_COST_BITS = 42  # of the dearest term: sums of thousands of them stay below 2**63
_BYTE_BITS = 40  # as above; there are more bytes in a row than costs that count
_NEW_TIMES = 20  # at which the limit is held after a choice that exceeds it

Terms: TypeAlias = "list[tuple[cp_model.IntVar, float]]"
Variables: TypeAlias = "Mapping[int, list[cp_model.IntVar]]"


def none_below(tables: Tables, most: float, first: Sequence[int], work: float) -> bool:
    """Whether CP-SAT finds, within `work` of its deterministic seconds, that every choice costs more than `most`.

    The model holds the limit at the times in `first`, and at others as choices exceed it there: fewer rows leave more
    choices, so that none is left proves it.
    """
    costs = tables.tables
    if any(len(scope) > 2 for scope in costs):
        return False

    lows = {scope: float(cost.min()) for scope, cost in costs.items()}
    spare = most - math.fsum([*tables.constants, *lows.values()])
    if spare < 0:
        return True

    model = cp_model.CpModel()
    nodes = {v: [model.new_bool_var("") for _ in costs[v,]] for v in tables.names}
    terms: Terms = []
    for scope, cost in costs.items():
        variables = _node(model, nodes, *scope) if len(scope) == 1 else _edge(model, nodes, *scope)
        for variable, value in zip(variables, (cost - lows[scope]).ravel().tolist(), strict=True):
            if math.isfinite(value) and value <= spare:
                terms.append((variable, value))
            else:  # alone it costs too much
                model.add(variable == 0)

    if terms and math.isfinite(spare):
        unit = max((value for _, value in terms), default=0.0) / 2**_COST_BITS or 1.0
        model.add(_sum(terms, unit) <= math.floor(spare / unit))

    return _is_impossible(model, nodes, tables, list(first), work)


def _is_impossible(
    model: cp_model.CpModel, nodes: Variables, tables: Tables, times: list[int], work: float
) -> bool:
    """Whether the model has no solution within the limit, which is held at more and more times."""
    held: set[int] = set()
    while work > 0:
        for time in set(times) - held:
            _hold(model, nodes, tables, time)
        held |= set(times)
        solver = _solver(work)
        status = run(solver, model)
        if status == cp_model.INFEASIBLE:
            return True
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return False
        times = _exceeded(
            tables,
            {v: [solver.boolean_value(x) for x in xs].index(True) for v, xs in nodes.items()},
        )
        if not times or held.issuperset(times):
            return False
        work -= solver.response_proto.deterministic_time

    return False


def _exceeded(tables: Tables, choice: Mapping[int, int]) -> list[int]:
    """The times just before something is freed at which a choice exceeds the limit the most."""
    usages = [
        (start, stop, float(size[choice[v]]))
        for v in tables.names
        for start, stop, size in tables.usages[v]
    ]
    if tables.limit is None or not usages:
        return []

    start, stop, size = (np.array(column) for column in zip(*usages, strict=True))
    used = np.cumsum(
        np.bincount(start, size, stop.max() + 1) - np.bincount(stop, size, stop.max() + 1)
    )
    times = np.unique(stop) - 1
    worst = times[np.argsort(-used[times], kind="stable")][:_NEW_TIMES]
    return [int(time) for time in worst if used[time] > tables.limit]


def _node(model: cp_model.CpModel, nodes: Variables, v: int) -> list[cp_model.IntVar]:
    """One of a node's strategies is taken."""
    model.add_exactly_one(nodes[v])
    return nodes[v]


def _edge(model: cp_model.CpModel, nodes: Variables, u: int, v: int) -> list[cp_model.IntVar]:
    """The entries of an edge, row by row: the one beside the strategies that are taken is."""
    taken = [[model.new_bool_var("") for _ in nodes[v]] for _ in nodes[u]]
    for variable, entries in zip(nodes[u], taken, strict=True):
        model.add(sum(entries) == variable)
    for variable, entries in zip(nodes[v], zip(*taken, strict=True), strict=True):
        model.add(sum(entries) == variable)
    return [entry for row in taken for entry in row]


def _hold(model: cp_model.CpModel, nodes: Variables, tables: Tables, time: int) -> None:
    """The bytes in use at a time are within the limit."""
    terms: Terms = []
    limit = tables.limit or 0.0
    for v in tables.names:
        for start, stop, size in tables.usages[v]:
            if start <= time < stop:
                terms += zip(nodes[v], size.tolist(), strict=True)
    if not terms:
        return
    whole = float(limit).is_integer() and all(size.is_integer() for _, size in terms)
    unit = 1.0 if whole else max([limit, *(size for _, size in terms)]) / 2**_BYTE_BITS
    model.add(_sum(terms, unit) <= math.floor(limit / unit))


def _sum(terms: Terms, unit: float) -> Any:
    weights = np.floor(np.array([value for _, value in terms]) / unit).astype(np.int64)
    expression: Any = cp_model.LinearExpr  # its stub leaves the argument types out
    return expression.weighted_sum([variable for variable, _ in terms], weights.tolist())


def _solver(work: float) -> cp_model.CpSolver:
    """One whose answer depends on the model alone."""
    solver = cp_model.CpSolver()
    parameters: Any = solver.parameters
    parameters.num_workers = 2
    parameters.interleave_search = True
    parameters.linearization_level = 2
    parameters.max_deterministic_time = work
    parameters.subsolvers.extend(["max_lp", "reduced_costs"])
    return solver
