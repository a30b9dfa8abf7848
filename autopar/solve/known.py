"""What a search knows: the best choice, the bound, what is to be undercut, and whether that is enough."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from autopar.solve.ascent import Answer
from autopar.solve.exact import weight
from autopar.solve.options import SolveOptions
from autopar.solve.problem import Problem

_NARROW = 1_000_000  # edge entries


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
        allowed = max(options.enough_gap, options.large_gap if is_large(problem, options) else 0.0)
        return math.isfinite(self.cutoff) and self.cutoff - self.low <= allowed * abs(self.cutoff)

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
    return sum(edge.cost.size for edge in problem.edges)


def is_narrow(problem: Problem) -> bool:
    """Whether reductions and sweeps are cheap beside what they save."""
    return edge_entries(problem) <= _NARROW
