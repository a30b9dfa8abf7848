"""What a search knows: the best choice, the bound, what is to be undercut, and whether that is enough."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from autopar.solve.certificate.proof import Prices
from autopar.solve.elimination.exact import weight
from autopar.solve.problem.incumbent import Watch
from autopar.solve.problem.options import SolveOptions
from autopar.solve.problem.problem import Problem
from autopar.solve.trws.ascent import Answer, better, is_closed

MAX_DEPTH = 12  # of windows in windows
_NARROW = 1_000_000  # edge entries

Search = Callable[[Problem, SolveOptions, Watch, float, int, Prices], Answer]
"""What looks for a choice that costs less than a cost, at a depth of windows, from memory prices by time."""


@dataclass(frozen=True)
class Known:
    """The best choice, the bound, the cost below which choices are wanted, and who wants them."""

    best: Answer
    low: float
    upper: float
    watch: Watch

    @property
    def cutoff(self) -> float:
        """The cost below which a choice would be news."""
        return min(self.upper, self.watch.news(self.best.objective))

    @property
    def is_left(self) -> bool:
        """Whether there is a gap, and time."""
        return not is_closed(self.low, self.cutoff) and self.watch.left_s() > 0

    @property
    def enough(self) -> float:
        """What a choice may cost whose gap may be left."""
        return self.watch.allowed(self.low)

    def met(self, found: Answer) -> Known:
        """With an answer whose bound says nothing of all choices."""
        return replace(self, best=better(self.best, found))

    def after(self, found: Answer) -> Known:
        """With an answer whose bound is about what is cheaper than the cutoff."""
        return replace(self.met(found), low=max(self.low, min(found.bound, self.cutoff)))

    def closed(self) -> Answer:
        """The answer where all below the cutoff is ruled out."""
        return answer(self.best, max(self.low, self.cutoff), self.upper)

    def answer(self) -> Answer:
        """The best choice with the bound; nothing if all below `upper` is ruled out."""
        return answer(self.best, self.low, self.upper)


def answer(best: Answer, low: float, upper: float) -> Answer:
    """`best` with a bound; nothing if all below `upper` is ruled out."""
    if best.choice is None:
        return replace(best, bound=np.inf if low >= upper else low)
    return replace(best, bound=min(low, best.objective))


def is_large(problem: Problem, options: SolveOptions) -> bool:
    """Whether it is too large for CP-SAT."""
    return weight(problem) > options.max_cp_sat_entries


def edge_entries(problem: Problem) -> int:
    """The pairs of strategies of all edges."""
    return sum(edge.matrix.size for edge in problem.edges)


def is_narrow(problem: Problem) -> bool:
    """Whether reductions and sweeps are cheap beside what they save."""
    return edge_entries(problem) <= _NARROW
