"""Choices without forbidden entries: against plain decoding and all choices of drawn problems."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.solve import Edge, Infeasible, Problem, SolveOptions, Usage
from autopar.solve.parametric import dual_curve as curve
from autopar.solve.presolve.arc_consistency import possible
from autopar.solve.problem.problem import objective
from autopar.solve.problem.reduction import unchanged
from autopar.solve.problem.rows import memory_rows
from autopar.solve.trws.dual import Dual
from tests.solve.draw import problems
from tests.solve.oracle import choices, cost_of


def dual_of(problem: Problem, sweeps: int) -> Dual:
    """After that many sweeps, or after none where a strategy has no finite partner: sweeps want one for each."""
    dual = Dual(problem, memory_rows(problem))
    for _ in range(sweeps if is_supported(problem) else 0):
        dual.sweep()
    return dual


def is_supported(problem: Problem) -> bool:
    try:
        return all(mask.all() for mask in possible(problem))
    except Infeasible:
        return False


def with_finite_nodes(problem: Problem) -> Problem:
    costs = tuple(np.where(np.isfinite(cost), cost, 9.0) for cost in problem.node_costs)
    return Problem(costs, problem.edges)


def looking_back(nodes: int = 6, strategies: int = 4) -> Problem:
    """Every node has to be of the same strategy as the last, which the first ones do not see."""
    random = np.random.default_rng(0)
    same = np.where(np.eye(strategies, dtype=bool), 0.0, np.inf)
    edges = tuple(Edge(v, nodes, same) for v in range(nodes))
    usages = tuple(Usage(v, v, v + 1, np.arange(1.0, strategies + 1)) for v in range(nodes))
    return Problem((*random.random((nodes, strategies)), np.zeros(strategies)), edges, usages, 3.0)


@settings(max_examples=300, deadline=None)
@given(
    problems(limited=False, max_nodes=7, max_strategies=4).map(with_finite_nodes), st.integers(0, 3)
)
def test_it_is_the_plain_choice_where_that_is_allowed_and_else_an_allowed_one(
    problem: Problem, sweeps: int
) -> None:
    dual = dual_of(problem, sweeps)
    plain, found = dual.decode().tolist(), dual.decode_allowed()
    if np.isfinite(cost_of(problem, plain)):
        assert found is not None
        assert found.tolist() == plain
    elif found is not None:
        assert np.isfinite(cost_of(problem, found.tolist()))
    if all(np.isinf(cost_of(problem, choice)) for choice in choices(problem)):
        assert found is None


def test_what_a_strategy_forbids_further_on_is_not_taken() -> None:
    """Each node alone is cheapest elsewhere."""
    problem = looking_back()
    dual = dual_of(problem, 0)
    assert np.isinf(objective(problem, dual.decode().tolist()))
    found = dual.decode_allowed()
    assert found is not None
    assert len(set(found.tolist())) == 1


def test_what_leaves_a_node_nothing_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three nodes have to differ, and the last two may take two strategies only: the first has to take the other."""
    monkeypatch.setattr(
        "autopar.solve.trws.dual.sweep_order", lambda problem: np.arange(len(problem.counts))
    )
    differ, few = np.where(np.eye(3, dtype=bool), np.inf, 0.0), np.array([[np.inf, 0.0, 0.0]])
    edges = (
        Edge(0, 1, differ),
        Edge(0, 2, differ),
        Edge(1, 2, differ),
        Edge(3, 1, few),
        Edge(3, 2, few),
    )
    for costs in permutations((0.0, 1.0, 2.0)):
        problem = Problem((np.array(costs), np.zeros(3), np.zeros(3), np.zeros(1)), edges)
        found = dual_of(problem, 0).decode_allowed()
        assert found is not None
        assert np.isfinite(objective(problem, found.tolist()))


def test_a_curve_meets_choices_where_plain_decoding_meets_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a problem of which reductions leave all, before messages say what is forbidden further on."""
    problem = looking_back()
    monkeypatch.setattr(curve, "reduce_cheaply", lambda problem, options: unchanged(problem))
    monkeypatch.setattr(Dual, "sweep", lambda _: None)
    whole = SolveOptions().without("presolve.variable_elimination")
    met = list[bool]()
    for options in (whole, whole.without("trws.consistent_decoding")):
        drawn = curve.DualCurve(problem, options)
        drawn.prove()
        met.append(bool(drawn.choices()))
    assert met == [True, False]
