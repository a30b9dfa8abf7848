"""Archive: the choices met that no other met undercuts in cost and peak."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from autopar.solve.problem.problem import Problem, objective, peak
from autopar.solve.problem.reduction import Choice, Ints


@dataclass(frozen=True, eq=False)
class Met:
    """A choice of some reduced problem, its cost and peak as one of the whole, and the way back to the whole."""

    choice: Ints
    cost: float
    peak: float
    lift: Callable[[Ints], Choice]

    @property
    def whole(self) -> Choice:
        """The choice of the whole problem."""
        return self.lift(self.choice)


def met_as(problem: Problem, choice: Choice) -> Met:
    """A choice of a whole problem."""
    return Met(
        np.array(choice, dtype=np.intp), objective(problem, choice), peak(problem, choice), _same
    )


def lifted_from(lift: Callable[[Choice], Choice], rank: Ints, choice: Ints) -> Choice:
    """The choice of a whole problem, of one of a reduced problem in the order of its messages."""
    return lift(tuple(choice[rank].tolist()))


def _same(choice: Ints) -> Choice:
    return tuple(choice.tolist())


@dataclass(eq=False)
class Pareto:
    """What was met and is not undercut: of two, one is cheaper and the other is smaller.

    Invariant: `met` begins with the smallest, `_peaks` are theirs; each costs less than all before.
    """

    met: list[Met] = field(default_factory=list[Met])
    _peaks: list[float] = field(default_factory=list[float], init=False)

    def wants(self, cost: float, peak: float) -> bool:
        """Whether no choice met is as cheap and as small."""
        fitting = bisect_right(self._peaks, peak)
        return not fitting or cost < self.met[fitting - 1].cost

    def meet(self, new: Met) -> None:
        """Keeps a choice if no other met is as cheap and as small; those that it undercuts go."""
        if not self.wants(new.cost, new.peak):
            return
        first = last = bisect_left(self._peaks, new.peak)
        while last < len(self.met) and self.met[last].cost >= new.cost:
            last += 1
        self.met[first:last] = [new]
        self._peaks[first:last] = [new.peak]

    def best(self, limit: float) -> Met | None:
        """The cheapest within a limit; None if none is."""
        fitting = bisect_right(self._peaks, limit)
        return self.met[fitting - 1] if fitting else None

    def by_peak(self) -> list[Met]:
        """All, the smallest first: each costs less than all before."""
        return list(self.met)

    def spread(self, count: int) -> list[Met]:
        """At most `count`, the smallest and the largest among them: again and again one goes that has close company.

        That is the one whose neighbours are closest in peak, as a ratio.
        """
        kept = self.by_peak()
        while len(kept) > max(2, count):
            ratios = [
                kept[n + 1].peak / max(kept[n - 1].peak, 1.0) for n in range(1, len(kept) - 1)
            ]
            del kept[1 + ratios.index(min(ratios))]
        return kept
