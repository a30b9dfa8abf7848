"""Halt: the time that all solving of a search shares, and what ended it."""

from __future__ import annotations

from math import inf

import pytest

from autopar.search.halt import Halt
from autopar.solve import Solution, SolveOptions
from autopar.solve.problem import clock


def solved(stopped: str) -> Solution:
    return Solution((), 0.0, 0.0, 0.0, stopped=stopped)  # type: ignore[arg-type]


def test_solves_share_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    time = [100.0]
    monkeypatch.setattr(clock, "monotonic", lambda: time[0])
    halt, options = Halt(10.0), SolveOptions(seed=3, time_limit_s=10.0)
    assert (halt.left_s, halt.ends, halt.is_over) == (10.0, 110.0, False)
    time[0] = 104.0
    assert halt.within(options) == SolveOptions(seed=3, time_limit_s=6.0)
    assert not halt.is_over
    time[0] = 111.0
    assert halt.within(options).time_limit_s == halt.left_s == 0.0
    assert halt.is_over
    assert str(halt) == "the time limit after 10 s"


def test_without_a_limit_nothing_ends() -> None:
    halt, options = Halt(), SolveOptions(seed=3)
    assert halt.within(options) is options
    assert (halt.left_s, halt.ends, halt.is_over, str(halt)) == (inf, inf, False, "")


def test_what_ended_a_solve_ends_the_search() -> None:
    halt = Halt()
    assert halt.noted(solved("")) == solved("")
    assert not halt.is_over
    halt.noted(solved("time limit"))
    assert (halt.is_over, str(halt)) == (True, "the time limit")
    halt.noted(solved("keyboard"))
    halt.note("time limit")
    halt.note("")
    assert (halt.is_over, str(halt)) == (True, "the keyboard")
    with pytest.raises(KeyboardInterrupt):
        halt.within(SolveOptions())
