"""Halt: who watches a search, and what ends it early: a limit on time that all its solving shares, or Ctrl-C."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf

from autopar.core.mesh import DeviceMesh
from autopar.search.progress import OnProgress, SearchProgress
from autopar.solve import Solution, SolveOptions
from autopar.solve.problem.clock import now
from autopar.solve.problem.problem import Stopped


@dataclass(eq=False)
class Halt:
    """Told of every solution on the way, and asked whether to go on. The clock runs from when this is made."""

    limit_s: float | None = None
    reason: Stopped = ""
    on_progress: OnProgress | None = None
    _began: float = field(default_factory=now)

    @property
    def left_s(self) -> float:
        """Seconds left of the limit, at least 0; inf without one."""
        return max(0.0, self.ends - now()) if self.limit_s is not None else inf

    @property
    def ends(self) -> float:
        """When the time is up, as the solver's clock counts; inf: never."""
        return inf if self.limit_s is None else self._began + self.limit_s

    @property
    def is_over(self) -> bool:
        """Whether to end with what there is; that the time is up is noted."""
        if self.left_s <= 0:
            self.note("time limit")
        return self.reason != ""

    def within(self, options: SolveOptions) -> SolveOptions:
        """`options` with no more than the seconds that are left.

        Raises:
          KeyboardInterrupt: the search was interrupted: nothing more is to be solved.
        """
        if self.reason == "keyboard":
            raise KeyboardInterrupt
        return options if self.limit_s is None else replace(options, time_limit_s=self.left_s)

    def note(self, reason: Stopped) -> None:
        """Something was ended early, or nothing was (""); the keyboard counts more than the clock."""
        self.reason = "keyboard" if "keyboard" in (reason, self.reason) else reason or self.reason

    def tell(self, mesh: DeviceMesh, limit_bytes: float | None, objective_s: float, lower_bound_s: float) -> None:
        """Tells whoever watches what is known of the plans on one mesh within one limit."""
        if self.on_progress is not None:
            self.on_progress(SearchProgress(now() - self._began, mesh, limit_bytes, objective_s, lower_bound_s))

    def noted(self, solution: Solution) -> Solution:
        """`solution`, with what ended its search noted."""
        self.note(solution.stopped)
        return solution

    def __str__(self) -> str:
        """What ended the search, for the user; "" if nothing did."""
        if self.reason == "time limit":
            return f"the time limit after {self.limit_s:g} s" if self.limit_s is not None else "the time limit"
        return "the keyboard" if self.reason else ""
