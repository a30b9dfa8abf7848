"""A time limit that is up anywhere: what is said is true nevertheless, and it is said soon."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from threading import Event
from time import monotonic, process_time, sleep
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.solve import Infeasible, Problem, Solution, SolveOptions, Unsolved, solve, verify
from autopar.solve.pipeline.incremental import standing
from autopar.solve.problem import stop
from autopar.solve.problem.incumbent import Best
from autopar.solve.problem.rows import memory_rows
from autopar.solve.trws import ascent
from autopar.solve.trws.ascent import Ascent
from autopar.solve.trws.dual import Dual, Single
from tests.solve.draw import chain_with_skips, problems, tangled
from tests.solve.oracle import optimum
from tests.solve.paths import PATHS, outcome


def looks(patch: pytest.MonkeyPatch) -> None:
    """From now on a second passes whenever anything looks at the clock."""
    ticks = count()
    patch.setattr(stop, "monotonic", lambda: float(next(ticks)))


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=150, deadline=None)
@given(problem=problems(), seconds=st.integers(0, 80))
def test_wherever_the_time_is_up_what_is_said_is_true(
    path: str, problem: Problem, seconds: int
) -> None:
    """Bounds are bounds with a witness, choices fit; without a limit on memory there always is one."""
    best = optimum(problem)
    with pytest.MonkeyPatch.context() as patch:
        looks(patch)
        found = outcome(problem, replace(PATHS[path], time_limit_s=float(seconds)))
    if isinstance(found, Infeasible):
        assert optimum(problem, slack=-1e-9) == np.inf
    elif isinstance(found, Solution):
        verify(problem, found, search_work=1.0)
        assert found.lower_bound <= best * (1 + 1e-9) + 1e-12
    else:
        assert problem.usage_limit is not None or best == np.inf


@pytest.mark.parametrize("seconds", range(1, 60, 3))
@pytest.mark.parametrize("limit", [None, 0.3])
def test_wherever_in_the_core_the_time_is_up(
    limit: float | None, seconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above, where reductions and elimination do not solve all at once."""
    options = SolveOptions(
        max_table_entries=9, max_sweeps=12, anneal_passes=5, time_limit_s=float(seconds)
    )
    problem = tangled(seconds % 5, limit=limit)
    with monkeypatch.context() as patch:
        looks(patch)
        found = outcome(problem, options)
    if isinstance(found, Solution):
        verify(problem, found, search_work=1.0)
        assert found.lower_bound <= optimum(problem) * (1 + 1e-9)
    else:
        assert isinstance(found, Unsolved)
        assert limit is not None


@settings(max_examples=60, deadline=None)
@given(problem=problems(limited=False), seconds=st.integers(0, 60))
def test_what_stands_when_the_time_is_up_is_right_or_nothing(
    problem: Problem, seconds: int
) -> None:
    best = optimum(problem)
    try:
        with pytest.MonkeyPatch.context() as patch:
            looks(patch)
            with stop.ending_at(stop.now() + seconds):
                found = standing(problem, SolveOptions(max_table_entries=4))
        solution = None if found is None else found.solve(problem)
    except Infeasible:
        assert best == np.inf
        return
    if solution is not None:
        verify(problem, solution)
        assert solution.objective == pytest.approx(best, rel=1e-9, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [None, 402.0, 900.0])
def test_a_limit_on_time_holds(limit: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that counts what this process works, so that others do not matter; without it six times that.

    Nor does what is to be compiled, or what other tests left to the garbage collector to look through.
    """
    drawn = chain_with_skips(400, 60, period=400, seed=2, memory=True)
    problem = replace(drawn, usage_limit=limit) if limit else tangled(1, nodes=120, strategies=20)
    few = SolveOptions(max_table_entries=4, anneal_passes=30, region_steps=120, max_sweeps=20)
    solve(replace(chain_with_skips(24, 4, 6, 1, memory=True), usage_limit=60.0), options=few)
    solve(
        tangled(1, nodes=30, strategies=20),
        options=replace(few, cp_sat_work=0.2, branch_entries=100_000),
    )
    Single(Dual(problem, memory_rows(problem))).settled(10, lambda: True, lambda _: None)
    monkeypatch.setattr(stop, "monotonic", process_time)
    gc.collect()
    gc.freeze()
    try:
        began = process_time()
        solution = solve(problem, options=SolveOptions(time_limit_s=1.0, max_rounds=10**6))
        assert process_time() - began < 1.0 * 1.05 + 0.5
    finally:
        gc.unfreeze()
    assert solution.stopped == "time limit"
    assert limit is None or solution.peak <= limit


def test_an_interruption_ends_annealing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C reaches the main thread, which waits; those that anneal are told, and it goes on after their end."""
    begun, ended = Event(), list[bool]()

    def endless(
        _flat: Any, _prices: Any, _schedule: Any, wanted: Callable[[float], bool]
    ) -> tuple[None, float]:
        begun.set()
        latest = monotonic() + 2.0
        while (goes_on := wanted(np.inf)) and monotonic() < latest:
            sleep(0.01)
        ended.append(not goes_on)
        return None, np.inf

    class Pressed(ascent.ThreadPoolExecutor):
        """Ctrl-C while results are waited for."""

        def map(self, *args: Any, **options: Any) -> Any:
            super().map(*args, **options)
            assert begun.wait(20.0)
            raise KeyboardInterrupt

    monkeypatch.setattr(ascent, "anneal", endless)
    monkeypatch.setattr(ascent, "ThreadPoolExecutor", Pressed)
    problem = chain_with_skips(20, 4, 10, 1)
    work = Ascent(problem, SolveOptions())
    with pytest.raises(KeyboardInterrupt):
        work.anneal(np.inf, (0,) * 20, Best(problem, None, None))
    assert ended
    assert all(ended)
