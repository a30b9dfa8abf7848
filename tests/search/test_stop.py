"""The stop token: the time that all solving of a search shares, and what ended it."""

from __future__ import annotations

from math import inf

import pytest

from autopar.solve import Solution, SolveOptions
from autopar.solve.problem import stop
from autopar.solve.problem.stop import StopToken, is_up, left_s


def solved(stopped: str) -> Solution:
    return Solution((), 0.0, 0.0, 0.0, stopped=stopped)  # type: ignore[arg-type]


def test_solves_share_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    time = [100.0]
    monkeypatch.setattr(stop, "monotonic", lambda: time[0])
    token, options = StopToken.after(10.0), SolveOptions(seed=3, time_limit_s=10.0)
    assert (token.left_s, token.ends, token.is_over) == (10.0, 110.0, False)
    time[0] = 104.0
    assert token.within(options) == SolveOptions(seed=3, time_limit_s=6.0)
    assert not token.is_over
    time[0] = 111.0
    assert token.within(options).time_limit_s == token.left_s == 0.0
    assert token.is_over
    assert str(token) == "the time limit after 10 s"


def test_without_a_limit_nothing_ends() -> None:
    token, options = StopToken(), SolveOptions(seed=3)
    assert token.within(options) is options
    assert (token.left_s, token.ends, token.is_over, str(token)) == (inf, inf, False, "")


def test_what_ended_a_solve_ends_the_search() -> None:
    token = StopToken()
    token.note(solved("").stopped)
    assert not token.is_over
    token.note(solved("time limit").stopped)
    assert (token.is_over, str(token)) == (True, "the time limit")
    token.note(solved("keyboard").stopped)
    token.note("time limit")
    token.note("")
    assert (token.is_over, str(token)) == (True, "the keyboard")
    with pytest.raises(KeyboardInterrupt):
        token.within(SolveOptions())


def test_loops_look_at_the_current_token(monkeypatch: pytest.MonkeyPatch) -> None:
    time = [100.0]
    monkeypatch.setattr(stop, "monotonic", lambda: time[0])
    assert (left_s(), is_up()) == (inf, False)
    with StopToken.after(10.0).current():
        assert (left_s(), is_up()) == (10.0, False)
        with StopToken.after(2.0).current():
            time[0] = 103.0
            assert is_up()
        assert (left_s(), is_up()) == (7.0, False)
    assert left_s() == inf
