"""The whole solver against exhaustive search, on every path, and the verifier against planted corruption."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from autopar.solve import (
    Edge,
    Infeasible,
    InvalidSolution,
    Problem,
    Solution,
    SolveOptions,
    Unsolved,
    Usage,
    solve,
    verify,
)
from tests.solve.draw import chain_with_skips, problems
from tests.solve.oracle import cost_of, least_peak, optimum, peak_of
from tests.solve.paths import LAZY, PATHS, outcome


@pytest.mark.quick_share(3)
@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=150, deadline=None)
@given(problem=problems())
def test_optimal_or_proven_infeasible(path, problem):
    best = optimum(problem)
    solution = outcome(problem, PATHS[path])
    if isinstance(solution, Infeasible):
        assert optimum(problem, slack=-1e-9) == np.inf
        found = np.inf if solution.min_peak_bytes is None else solution.min_peak_bytes
        assert found == pytest.approx(least_peak(problem), rel=1e-9)
        return
    assert isinstance(solution, Solution)
    assert solution.lower_bound <= best * (1 + 1e-9)
    assert solution.objective == pytest.approx(optimum(problem, slack=1e-12), rel=1e-6, abs=1e-12)
    assert solution.gap <= 1e-6
    assert cost_of(problem, solution.choice) == pytest.approx(solution.objective, rel=1e-9)
    assert peak_of(problem, solution.choice) == pytest.approx(solution.peak, rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(problem=problems(limited=False, max_nodes=5))
def test_no_work_still_gives_valid_answers(problem):
    solution = outcome(problem, LAZY)
    if isinstance(solution, Infeasible):
        assert optimum(problem) == np.inf
    if not isinstance(solution, Solution):
        return
    assert solution.lower_bound <= optimum(problem) * (1 + 1e-9) + 1e-12


@settings(max_examples=60, deadline=None)
@given(problem=problems(limited=True))
def test_more_memory_never_costs_more(problem):
    assert problem.usage_limit is not None
    costs = []
    for limit in (problem.usage_limit, problem.usage_limit + 2, None):
        wider = Problem(problem.node_costs, problem.edges, problem.usages, limit)
        solution = outcome(wider, SolveOptions())
        costs.append(solution.objective if isinstance(solution, Solution) else np.inf)
    assert costs[0] >= costs[1] * (1 - 1e-6)
    assert costs[1] >= costs[2] * (1 - 1e-6)


@settings(max_examples=20, deadline=None)
@given(problem=problems())
def test_deterministic(problem):
    first, second = outcome(problem, PATHS["core"]), outcome(problem, PATHS["core"])
    assert first == second if isinstance(first, Solution) else str(first) == str(second)


def test_training_step_is_proven_optimal():
    solution = solve(chain_with_skips(240, 30, period=20, seed=1))
    assert solution.gap == 0


def test_training_step_within_memory():
    problem = chain_with_skips(60, 12, period=20, seed=2, memory=True)
    free = solve(problem)
    limited = replace(problem, usage_limit=0.8 * free.peak)
    solution = solve(limited)
    assert solution.peak <= 0.8 * free.peak
    assert solution.objective >= free.objective
    assert solution.gap < 1e-2
    assert solve(limited) == solution


def test_core_path_agrees_with_elimination():
    problem = chain_with_skips(40, 8, period=10, seed=3)
    exact = solve(problem)
    core = solve(problem, options=SolveOptions(max_table_entries=63))
    assert core.objective == pytest.approx(exact.objective, rel=1e-6)
    assert core.lower_bound <= exact.objective * (1 + 1e-9)


def test_unproven_is_not_called_infeasible():
    """Four nodes, all different, three strategies: no choice, but it takes search, or joins, to know."""
    different = np.where(np.eye(3, dtype=bool), np.inf, 0.1)
    edges = tuple(Edge(u, v, different) for u in range(4) for v in range(u))
    problem = Problem((np.zeros(3),) * 4, edges)
    lazy = SolveOptions(max_table_entries=1, max_cp_sat_entries=0).without("fixing.fixed_point")
    unknown = outcome(problem, lazy)
    assert isinstance(unknown, Unsolved)
    assert "no choice found for 4 nodes; not proven infeasible" in str(unknown)
    assert isinstance(outcome(problem, SolveOptions(max_table_entries=1)), Infeasible)
    assert isinstance(outcome(problem, SolveOptions()), Infeasible)


def test_infeasible_names_the_smallest_peak():
    uses = (Usage(0, 0, 2, np.array([5.0, 7.0])), Usage(1, 1, 3, np.array([4.0, 1.0])))
    tie = Edge(0, 1, np.array([[0.0, np.inf], [np.inf, 0.0]]))
    with pytest.raises(Infeasible, match="limit of 7") as caught:
        solve(Problem((np.zeros(2), np.zeros(2)), (tie,), uses, 7.0))
    assert caught.value.min_peak_bytes == 8.0


PROBLEM = Problem(
    (np.array([1.0, 5.0, np.inf]), np.array([2.0, 0.5])),
    (Edge(0, 1, np.array([[0.0, 3.0], [0.0, 0.0], [0.0, 0.0]])),),
    (Usage(0, 0, 2, np.array([4.0, 9.0, 1.0])), Usage(1, 1, 2, np.array([3.0, 2.0]))),
    8.0,
)


@pytest.mark.parametrize(
    "corruption",
    [
        {"choice": (0,)},
        {"choice": (0, 2)},
        {"choice": (0, -1)},
        {"choice": (0, 1)},
        {"choice": (1, 0)},
        {"choice": (2, 0)},
        {"objective": 2.9},
        {"objective": 3.1},
        {"objective": float("nan")},
        {"lower_bound": 3.0001},
        {"lower_bound": float("nan")},
        {"peak": 6.0},
    ],
    ids=str,
)
def test_verifier_rejects_corruption(corruption):
    solution = solve(PROBLEM)
    assert (solution.choice, solution.objective, solution.lower_bound, solution.peak) == (
        (0, 0),
        3.0,
        3.0,
        7.0,
    )
    verify(PROBLEM, solution)
    with pytest.raises(InvalidSolution):
        verify(PROBLEM, replace(solution, **corruption))


def test_options_are_checked():
    with pytest.raises(ValueError, match="positive"):
        SolveOptions(max_sweeps=0)
