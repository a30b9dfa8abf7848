"""Every reduction keeps the optimum, and its lift gives back a choice that costs no more than it says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from autopar.solve import Infeasible, Problem, SolveOptions
from autopar.solve.contract import contract_functional
from autopar.solve.contract_chains import contract_chains
from autopar.solve.dominate import drop_dominated
from autopar.solve.dual import Dual
from autopar.solve.eliminate import eliminate, minimise_exactly, plan_elimination
from autopar.solve.forbid import drop_forbidden
from autopar.solve.marginals import min_marginals
from autopar.solve.merge import drop_lone, fold_constant, merge_parallel, share_equal
from autopar.solve.reduce import reduce_cheaply, reduce_fully
from autopar.solve.reduction import size, without_limit
from autopar.solve.rows import drop_slack, memory_rows
from tests.solve.draw import problems
from tests.solve.oracle import choices, cost_of, optimum, peak_of

OPTIONS = SolveOptions()
REDUCTIONS = [
    drop_forbidden,
    contract_functional,
    share_equal,
    merge_parallel,
    fold_constant,
    drop_lone,
    drop_dominated,
    drop_slack,
    reduce_cheaply,
    reduce_fully,
    lambda problem: contract_chains(problem, OPTIONS),
]
NAMES = [getattr(step, "__name__", "") for step in REDUCTIONS[:-1]] + ["contract_chains"]


@pytest.mark.parametrize("step", REDUCTIONS, ids=NAMES)
@settings(max_examples=120, deadline=None)
@given(problem=problems())
def test_optimum_is_kept_and_lifted(step, problem):
    best = optimum(problem)
    try:
        reduction = step(problem)
    except Infeasible:
        assert best == np.inf
        return
    small = reduction.problem
    assert sum(size(small)) <= sum(size(problem))
    kept = optimum(small) + reduction.offset
    assert kept == pytest.approx(best, rel=1e-9, abs=1e-12)
    for choice in choices(small):
        lifted = reduction.lift(choice)
        inside = small.usage_limit is None or peak_of(small, choice) <= small.usage_limit
        if np.isfinite(cost_of(small, choice)) and inside:
            assert cost_of(problem, lifted) <= cost_of(small, choice) + reduction.offset + 1e-9
            limit = np.inf if problem.usage_limit is None else problem.usage_limit
            assert peak_of(problem, lifted) <= limit * (1 + 1e-12)


@settings(max_examples=150, deadline=None)
@given(problem=problems(limited=False))
def test_elimination_is_exact(problem):
    choice, cost = minimise_exactly(problem, plan_elimination(problem))
    assert cost == pytest.approx(optimum(problem), rel=1e-9, abs=1e-12)
    if np.isfinite(cost):
        assert cost_of(problem, choice) == pytest.approx(cost, rel=1e-9, abs=1e-12)


@settings(max_examples=150, deadline=None)
@given(problem=problems(limited=False))
def test_marginals_are_exact(problem):
    elimination = eliminate(problem, plan_elimination(problem))
    if not np.isfinite(elimination.cost):
        return
    costs = [(choice, cost_of(problem, choice)) for choice in choices(problem)]
    for v, marginal in enumerate(min_marginals(elimination, OPTIONS)):
        assert marginal is not None
        for s, value in enumerate(marginal):
            best = min(cost for choice, cost in costs if choice[v] == s)
            assert value == pytest.approx(best, rel=1e-9, abs=1e-12)


def _finite(problem: Problem) -> Problem | None:
    try:
        return drop_forbidden(problem).problem
    except Infeasible:
        return None


@settings(max_examples=100, deadline=None)
@given(problem=problems())
def test_dual_bounds_hold_for_every_choice(problem):
    problem = _finite(problem)
    if problem is None:
        return
    rows = memory_rows(problem)
    dual, before = Dual(problem, rows), -np.inf
    for sweep in range(4):
        dual.sweep()
        certificate = dual.certificate()
        assert certificate.bound >= before - 1e-9
        before = certificate.bound if sweep != 1 else -np.inf
        if sweep == 1:
            dual.set_prices(np.linspace(0, 0.3, rows.count))
    for choice in choices(problem):
        if rows.count and (rows.used(choice) > rows.limit).any():
            continue
        cost = cost_of(problem, choice)
        for v, s in enumerate(choice):
            assert certificate.bound + certificate.excess[v][s] <= cost + 1e-9


@settings(max_examples=150, deadline=None)
@given(problem=problems(limited=True))
def test_rows_say_what_the_limit_says(problem):
    rows = memory_rows(problem)
    for choice in choices(problem):
        assert problem.usage_limit is not None
        peak = peak_of(problem, choice)
        worst = rows.used(choice).max(initial=-np.inf)
        if abs(peak - problem.usage_limit) > 1e-9:
            assert (worst > problem.usage_limit) == (peak > problem.usage_limit)


def test_relaxation_drops_memory_only():
    problem = Problem((np.zeros(2),), (), (), 3.0)
    assert without_limit(problem).usage_limit is None
