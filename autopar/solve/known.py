"""What a search knows: the best choice, the bound, what is to be undercut, and whether that is enough."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from autopar.solve.ascent import Answer, better, is_closed
from autopar.solve.exact import weight
from autopar.solve.options import SolveOptions
from autopar.solve.problem import Problem
from autopar.solve.proof import Prices
from autopar.solve.watch import Watch

MAX_DEPTH = 12  # of windows in windows
_NARROW = 1_000_000  # edge entries

Search = Callable[[Problem, SolveOptions, Watch, float, int, Prices], Answer]
"""What looks for a choice that costs less than a cost, at a depth of windows, from memory prices by time."""


@dataclass(frozen=True)
class Known:
    """The best choice, the bound, and the cost below which choices are wanted."""

    best: Answer
    low: float
    upper: float

    @property
    def cutoff(self) -> float:
        """The cost below which a choice would be news."""
        return min(self.upper, self.best.objective)

    def is_enough(self, problem: Problem, options: SolveOptions) -> bool:
        """Whether a choice is known, or one is to be undercut, and its gap is one that the options let be."""
        allowed = _allowed_gap(problem, options)
        return math.isfinite(self.cutoff) and self.cutoff - self.low <= allowed * abs(self.cutoff)

    def enough(self, problem: Problem, options: SolveOptions) -> float:
        """What a choice may cost whose gap is one that the options let be."""
        allowed = _allowed_gap(problem, options)
        if self.low > 0:
            return self.low / (1 - allowed) if allowed < 1 else math.inf
        return self.low / (1 + allowed)

    def answer(self) -> Answer:
        """The best choice with the bound; nothing if all below `upper` is ruled out."""
        return answer(self.best, self.low, self.upper)


def answer(best: Answer, low: float, upper: float) -> Answer:
    """`best` with a bound; nothing if all below `upper` is ruled out."""
    if best.choice is None:
        return replace(best, bound=np.inf if low >= upper else low)
    return replace(best, bound=min(low, best.objective))


def known_after(known: Known, found: Answer) -> Known:
    """What is known after an answer whose bound is about what is cheaper."""
    return Known(better(known.best, found), max(known.low, min(found.bound, known.cutoff)), known.upper)


def is_left(known: Known, watch: Watch) -> bool:
    """Whether there is a gap, and time."""
    return not is_closed(known.low, known.cutoff) and watch.left_s() > 0


def is_large(problem: Problem, options: SolveOptions) -> bool:
    """Whether it is too large for CP-SAT."""
    return weight(problem) > options.max_cp_sat_entries


def edge_entries(problem: Problem) -> int:
    """The pairs of strategies of all edges."""
    return sum(edge.matrix.size for edge in problem.edges)


def _allowed_gap(problem: Problem, options: SolveOptions) -> float:
    return max(options.enough_gap, options.large_gap if is_large(problem, options) else 0.0)


def is_narrow(problem: Problem) -> bool:
    """Whether reductions and sweeps are cheap beside what they save."""
    return edge_entries(problem) <= _NARROW
