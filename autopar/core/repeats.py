"""Repeats: which operators of a graph stand at the same place of what comes again and again, as layers do.

Operators in the order of the graph look like a text whose letters are signatures (`OpGraph.alike`). Where a stretch of
it equals what comes a period later, again and again, operators a period apart are repetitions of one another: layers
written out, their backward pass, the update of their parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.intp]

_PERIODS = 64  # candidates: distances between operators of one signature, by how much lies between them in all


@dataclass(frozen=True, order=True)
class RepeatRun:
    """Positions first <= i < stop, each of which up to the last period looks as the one a period later."""

    first: int
    stop: int
    period: int

    @property
    def saved(self) -> int:
        """The positions that repeat others."""
        return self.stop - self.first - self.period


def repeats(letters: Ints) -> Ints:
    """For every position the first one that it repeats, or itself."""
    first = np.arange(len(letters), dtype=np.intp)
    for run in runs_of(letters):
        first[run.first : run.stop] = run.first + np.arange(run.stop - run.first) % run.period
    return first


def runs_of(letters: Ints) -> list[RepeatRun]:
    """Disjoint runs, chosen by how many positions they save, in order."""
    found: list[RepeatRun] = []
    for period in _periods(letters):
        same = np.concatenate([[False], letters[period:] == letters[:-period], [False]])
        ends = np.flatnonzero(same[1:] != same[:-1]).reshape(-1, 2)
        found += [
            RepeatRun(first, last + period, period)
            for first, last in ends.tolist()
            if last - first >= period
        ]

    chosen: list[RepeatRun] = []
    for run in sorted(found, key=lambda run: (-run.saved, run)):
        if all(run.stop <= other.first or other.stop <= run.first for other in chosen):
            chosen.append(run)

    return sorted(chosen)


def _periods(letters: Ints) -> list[int]:
    """Distances from a position to the next that looks like it: those that span the most, all together."""
    by_letter = np.argsort(letters, kind="stable")
    steps = np.diff(by_letter)[np.diff(letters[by_letter]) == 0]
    periods, counts = np.unique(steps, return_counts=True)
    return [
        int(period) for period in periods[np.argsort(-counts * periods, kind="stable")[:_PERIODS]]
    ]
