"""The least peak by CP-SAT, or one that is small enough: against all choices of drawn problems."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from autopar.solve import Infeasible, Problem, SolveOptions, Usage
from autopar.solve.cp_sat import bottleneck as least_peak
from autopar.solve.problem.problem import peak
from tests.solve import oracle
from tests.solve.draw import problems

OPTIONS = SolveOptions(cp_sat_workers=1)
# Sums over time leave 6e-17 bytes at time 2, where nothing is held.
ROUNDED = Problem(
    (np.zeros(2),),
    (),
    (
        Usage(0, 0, 1, np.array([0.0, 0.1])),
        Usage(0, 0, 2, np.array([0.3, 0.0])),
        Usage(0, 2, 3, np.zeros(2)),
    ),
    0.0,
)


@settings(deadline=None, max_examples=60)
@given(problems(limited=True), st.integers(0, 30))
@example(ROUNDED, 0)
def test_what_is_small_enough_will_do_and_bounds_are_below_all_peaks(
    problem: Problem, enough: int
) -> None:
    truth = oracle.least_peak(problem)
    assume(truth < np.inf)
    found = least_peak.least_peak(problem, OPTIONS, enough)
    assert found.choice is not None
    assert peak(problem, found.choice) == pytest.approx(found.peak)
    assert found.bound <= truth * (1 + 1e-9)
    assert found.peak <= max(enough, truth) * (1 + 1e-9)
    if truth > enough:
        assert found.bound >= truth * (1 - 1e-9)


@settings(deadline=None, max_examples=30)
@given(problems(limited=True))
def test_without_what_is_enough_it_is_the_least(problem: Problem) -> None:
    try:
        found = least_peak.least_peak(problem, OPTIONS)
    except Infeasible:
        return
    assert found.peak == pytest.approx(oracle.least_peak(problem))
    assert found.bound == pytest.approx(found.peak)


def test_nothing_smaller_is_looked_for_than_what_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """The solver's objective ends there."""
    ended = list[float]()
    run = least_peak.run

    def noted(solver: Any, model: Any) -> Any:
        status = run(solver, model)
        ended.append(solver.best_objective_bound)
        return status

    monkeypatch.setattr(least_peak, "run", noted)
    sizes = np.arange(1.0, 9.0)
    usages = tuple(Usage(v, 0, 3, sizes) for v in range(6))
    problem = Problem((np.zeros(8),) * 6, (), usages, 0.0)
    found = least_peak.least_peak(problem, OPTIONS, 20.0)
    assert set(ended) == {20.0}
    assert 6 <= found.peak <= 20
    assert found.bound == 6  # what the least of all strategies use
