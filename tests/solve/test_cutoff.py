"""A cutoff: `solve(problem, below=cost)` against exhaustive search, and limited problems against the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.solve import (
    Edge,
    Infeasible,
    NothingCheaper,
    Problem,
    Progress,
    Solution,
    SolveOptions,
    Usage,
    solve,
)
from autopar.solve.pipeline.rounds import by_messages
from autopar.solve.problem.incumbent import Best
from tests.solve.draw import chain_with_skips, problems
from tests.solve.oracle import optimum

PATHS = {
    "default": SolveOptions(),
    "core": SolveOptions(max_table_entries=1, max_sweeps=15),
    "cp_sat": SolveOptions(max_table_entries=1, max_sweeps=1, anneal_passes=0),
    "bounds": SolveOptions(max_table_entries=8, max_rounds=0),
}


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=80, deadline=None)
@given(problem=problems(), share=st.sampled_from([0.5, 0.9, 1.0, 1.0 + 1e-6, 1.1, 3.0]))
def test_a_cutoff_leaves_what_is_cheaper_and_nothing_else(
    path: str, problem: Problem, share: float
) -> None:
    best = optimum(problem)
    below = share * best if np.isfinite(best) else 1.0
    found = outcome(problem, PATHS[path], below)
    if isinstance(found, Infeasible):
        assert optimum(problem, slack=-1e-9) == np.inf
        return
    assert found.lower_bound <= best * (1 + 1e-9) + 1e-12
    if isinstance(found, Solution):
        assert found.objective < below
        assert found.objective >= optimum(problem, slack=1e-12) * (1 - 1e-9)
        return
    assert found.below == below
    assert found.lower_bound <= below
    assert found.is_proven == (found.lower_bound == below)
    if path != "bounds":
        assert optimum(problem, slack=-1e-9) >= below * (1 - 1e-6) - 1e-12


def outcome(
    problem: Problem, options: SolveOptions, below: float
) -> Solution | Infeasible | NothingCheaper:
    """The solution, or the reason why there is none."""
    try:
        return solve(problem, options=options, below=below)
    except (Infeasible, NothingCheaper) as error:
        return error


@settings(max_examples=40, deadline=None)
@given(problem=problems(limited=True))
def test_what_is_enough_is_within_the_gap(problem: Problem) -> None:
    content = SolveOptions(max_table_entries=1, gap_tolerance=0.2)
    try:
        solution = solve(problem, options=content)
    except Infeasible:
        assert optimum(problem, slack=-1e-9) == np.inf
        return
    best = optimum(problem, slack=1e-12)
    assert solution.lower_bound <= optimum(problem) * (1 + 1e-9)
    assert solution.objective <= best / (1 - 0.2) * (1 + 1e-6) + 1e-12


def test_a_training_step_with_a_cutoff() -> None:
    """Too wide for elimination: the answer just above the optimum is the optimum, and at it nothing."""
    problem = chain_with_skips(60, 12, period=20, seed=2)
    narrow = SolveOptions(max_table_entries=143)
    best = solve(problem)
    found = solve(problem, options=narrow, below=best.objective * (1 + 1e-6))
    assert found.objective == pytest.approx(best.objective, rel=1e-9)
    assert found.gap == 0
    with pytest.raises(NothingCheaper, match="there is none") as caught:
        solve(problem, options=narrow, below=best.objective)
    assert caught.value.is_proven


def test_what_ended_the_work_is_told() -> None:
    """What a caller with a cutoff has to know: that the next search would be ended too."""
    problem = chain_with_skips(20, 6, period=10, seed=1)

    def press(_moment: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(NothingCheaper) as caught:
        solve(problem, below=1e-9)
    assert caught.value.stopped == ""
    with pytest.raises(NothingCheaper) as caught:
        solve(problem, below=1e-9, on_progress=press)
    assert caught.value.stopped == "keyboard"
    with pytest.raises(NothingCheaper) as caught:
        solve(problem, below=1e-9, options=SolveOptions(time_limit_s=0.0))
    assert caught.value.stopped == "time limit"


def test_without_a_choice_no_cost_is_told() -> None:
    told: list[Progress] = []
    problem = chain_with_skips(20, 6, period=10, seed=1)
    with pytest.raises(NothingCheaper):
        solve(problem, below=1e-9, on_progress=told.append)
    assert told
    assert all(moment.objective == np.inf for moment in told)


def test_a_warm_choice_that_is_too_dear_is_not_the_answer() -> None:
    problem = Problem((np.array([2.0, 1.0]),), ())
    warm = Solution((0,), 2.0, 0.0, 0.0)
    assert solve(problem, warm=warm, below=1.5).choice == (1,)
    with pytest.raises(NothingCheaper, match="costs less than 1"):
        solve(problem, warm=warm, below=1.0)
    with pytest.raises(ValueError, match="below is NaN"):
        solve(problem, below=float("nan"))


def test_a_limited_training_step_of_equal_layers_is_nearly_closed_by_mixtures() -> None:
    """The best prices leave a choice above the limit and one far below it: what lies between is a mixture of both."""
    layers = 8
    costs = (np.array([1.0, 1.5]),) * layers
    switch = np.array([[0.0, 0.01], [0.01, 0.0]])
    edges = tuple(
        Edge(min(v, u), max(v, u), switch) for v in range(layers) for u in [(v + 1) % layers]
    )
    usages = tuple(Usage(v, 0, 1, np.array([4.0, 1.0])) for v in range(layers))
    problem = Problem(costs, edges, usages, 21.0)
    watch = Best(problem, None, None)
    by_messages(problem, SolveOptions(max_rounds=0, anneal_passes=0), watch, np.inf)
    assert watch.objective == pytest.approx(optimum(problem))
    assert watch.bound <= optimum(problem) * (1 + 1e-9)
