"""The search while it runs: progress, a time limit, an interruption, a solution to start from."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from autopar.solve import Problem, Progress, SolveOptions, solve, verify
from tests.solve.draw import chain_with_skips

CORE = SolveOptions(max_table_entries=1, max_cp_sat_entries=1, anneal_passes=50)


def limited() -> Problem:
    return replace(chain_with_skips(40, 6, 40, 1, memory=True), usage_limit=120.0)


def test_progress_only_gets_better() -> None:
    moments: list[Progress] = []
    solution = solve(limited(), options=CORE, on_progress=moments.append)
    assert len(moments) > 2
    for before, after in pairwise(moments):
        assert after.time_s >= before.time_s
        assert after.objective <= before.objective
        assert after.bound >= before.bound
    assert moments[-1].objective == solution.objective
    assert all(moment.bound <= solution.objective for moment in moments)


def test_a_time_limit_ends_the_search() -> None:
    """A million rounds would take hours."""
    options = replace(CORE, time_limit_s=1.0, max_rounds=10**6)
    solution = solve(limited(), options=options)
    verify(limited(), solution)
    best = solve(limited())
    assert best.gap == 0
    assert solution.lower_bound <= best.objective * (1 + 1e-9)


def test_an_interruption_keeps_the_best() -> None:
    def interrupt(now: Progress) -> None:
        if np.isfinite(now.objective) and np.isfinite(now.bound):
            raise KeyboardInterrupt

    solution = solve(limited(), options=CORE, on_progress=interrupt)
    verify(limited(), solution)
    assert np.isfinite(solution.lower_bound)


def test_an_interruption_before_any_choice_is_one() -> None:
    def interrupt(_: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        solve(replace(limited(), usage_limit=60.0), on_progress=interrupt)


def test_a_warm_choice_is_never_lost() -> None:
    best = solve(limited())
    poor = replace(CORE, anneal_passes=0, max_sweeps=1, max_rounds=1)
    assert solve(limited(), options=poor, warm=best).objective == best.objective


def test_a_warm_choice_that_does_not_fit_is_left() -> None:
    free = solve(replace(limited(), usage_limit=None))
    assert free.peak > 120.0
    found = solve(limited(), options=CORE, warm=free)
    verify(limited(), found)
    assert found.objective >= free.objective


def test_a_warm_choice_of_another_problem_is_refused() -> None:
    with pytest.raises(
        ValueError, match="a choice for 40 nodes, not one of this problem's 10 nodes"
    ):
        solve(chain_with_skips(10, 6, 10, 1), warm=solve(limited()))
