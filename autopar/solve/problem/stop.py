"""The stop token: when work is to end, and what ended it. One goes with everything that a search does.

The search asks the token that its task carries; inside `StopToken.current` the solver's loops ask for it by `is_up`,
`keep_on` and `left_s`, wherever they are. A reduction may stop at any time: what it leaves has the same optimum. What
is of no use half done raises `TimeUp`, and whoever began it goes on without. Without a limit the time is never up.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from math import inf
from time import monotonic

from autopar.solve.problem.options import SolveOptions
from autopar.solve.problem.problem import Stopped


class TimeUp(Exception):
    """Work was given up half-way because the time is up; never raised without a limit, never left to the user."""


@dataclass(eq=False)
class StopToken:
    """Work ends at `ends`, seconds as `now` counts them (inf: never), or once it is stopped for a reason.

    `limit_s` is the limit as the user stated it.
    """

    ends: float = inf
    limit_s: float | None = None
    reason: Stopped = ""

    @staticmethod
    def after(limit_s: float | None) -> StopToken:
        """One whose time is up after so many seconds from now; None: never."""
        return StopToken(inf if limit_s is None else now() + limit_s, limit_s)

    @property
    def left_s(self) -> float:
        """Seconds left, at least 0; inf without a limit."""
        return inf if self.ends == inf else max(0.0, self.ends - now())

    @property
    def is_over(self) -> bool:
        """Whether to end with what there is; that the time is up is noted."""
        if self.left_s <= 0:
            self.note("time limit")
        return self.reason != ""

    def note(self, reason: Stopped) -> None:
        """Something was ended early, or nothing was (""); the keyboard counts more than the clock."""
        self.reason = "keyboard" if "keyboard" in (reason, self.reason) else reason or self.reason

    def within(self, options: SolveOptions) -> SolveOptions:
        """`options` with no more than the seconds that are left.

        Raises:
          KeyboardInterrupt: the search was interrupted: nothing more is to be solved.
        """
        if self.reason == "keyboard":
            raise KeyboardInterrupt
        return options if self.ends == inf else replace(options, time_limit_s=self.left_s)

    @contextmanager
    def current(self) -> Generator[None]:
        """Inside, it is the one that loops look at."""
        before = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(before)

    def __str__(self) -> str:
        """What ended the work, for the user; "" if nothing did."""
        if self.reason == "time limit":
            return (
                f"the time limit after {self.limit_s:g} s"
                if self.limit_s is not None
                else "the time limit"
            )
        return "the keyboard" if self.reason else ""


_CURRENT: ContextVar[StopToken | None] = ContextVar("_CURRENT", default=None)


def now() -> float:
    """Seconds, from no time in particular."""
    return monotonic()


def ending_at(ends: float) -> AbstractContextManager[None]:
    """Inside, the time is up at `ends`; inf: never."""
    return StopToken(ends).current()


def left_s() -> float:
    """Seconds that are left to the current token, at least 0; inf without a limit."""
    token = _CURRENT.get()
    return inf if token is None else token.left_s


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
