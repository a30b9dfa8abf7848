"""The clock that the solver's loops look at, so that a time limit holds wherever the search is.

A reduction may stop at any time: what it leaves has the same optimum. What is of no use half done raises `TimeUp`, and
whoever began it goes on without. Without a limit the time is never up.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf
from time import monotonic

_ENDS: ContextVar[float] = ContextVar("_ENDS", default=inf)


class TimeUp(Exception):
    """Work was given up half-way because the time is up; never raised without a limit, never left to the user."""


@contextmanager
def ending_at(ends: float) -> Generator[None]:
    """Inside, the time is up at `ends`, seconds as `now` counts them; inf: never."""
    before = _ENDS.set(ends)
    try:
        yield
    finally:
        _ENDS.reset(before)


def now() -> float:
    """Seconds, from no time in particular."""
    return monotonic()


def left_s() -> float:
    """Seconds that are left, at least 0; inf without a limit."""
    ends = _ENDS.get()
    return inf if ends == inf else max(0.0, ends - now())


def is_up() -> bool:
    """Whether no time is left."""
    return left_s() <= 0


def keep_on() -> None:
    """Returns if there is time left.

    Raises:
      TimeUp: there is none.
    """
    if is_up():
        raise TimeUp
