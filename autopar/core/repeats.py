"""Repeats: which operators of a graph stand at the same place of what comes again and again, as layers do.

Operators in the order of the graph look like a text whose letters are signatures (`OpGraph.alike`). Where a stretch of
it equals what comes a period later, again and again, operators a period apart are repetitions of one another: layers
written out, their backward pass, the update of their parameters. A few operators may differ from layer to layer, as
those that take the n-th of all keys: they stand for themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.intp]

_PERIODS = 64  # candidates: distances between operators of one signature, by how much lies between them in all
_ALIKE = 16  # times as long as what differs is a stretch next to it that does not


@dataclass(frozen=True, order=True)
class RepeatRun:
    """Positions first <= i < stop; up to the last period all but a few look as the one a period later."""

    first: int
    stop: int
    period: int


def repeats(letters: Ints) -> Ints:
    """For every position the first one that it repeats, or itself."""
    first = np.arange(len(letters), dtype=np.intp)
    for run in runs_of(letters):
        place = np.arange(run.stop - run.first) % run.period
        looks = np.stack([place, letters[run.first : run.stop]])
        _, earliest, each = np.unique(looks, axis=1, return_index=True, return_inverse=True)
        first[run.first : run.stop] = run.first + earliest[each.reshape(-1)]
    return first


def runs_of(letters: Ints) -> list[RepeatRun]:
    """Disjoint runs, chosen by how many positions they save, in order; of two that overlap one is cut short."""
    found = [each for period in _periods(letters) for each in _runs(letters, period)]
    chosen: list[RepeatRun] = []
    for _, run in sorted(found, key=lambda each: (-each[0], each[1])):
        first = max((other.stop for other in chosen if other.first <= run.first), default=0)
        stop = min((other.first for other in chosen if other.first > run.first), default=run.stop)
        left = RepeatRun(max(first, run.first), min(stop, run.stop), run.period)
        if left.stop - left.first >= 2 * left.period:
            chosen.append(left)

    return sorted(chosen)


def _runs(letters: Ints, period: int) -> list[tuple[int, RepeatRun]]:
    """The runs of one period, each with the positions in it that repeat others."""
    same = np.concatenate([[False], letters[period:] == letters[:-period], [False]])
    begin, end = np.flatnonzero(same[1:] != same[:-1]).reshape(-1, 2).T
    if not len(begin):
        return []

    length = end - begin
    apart = _ALIKE * (begin[1:] - end[:-1]) > np.maximum(length[1:], length[:-1])
    heads = np.flatnonzero(np.concatenate([[True], apart]))
    tails = np.append(heads[1:], len(begin)) - 1
    saved = np.add.reduceat(length, heads)

    return [
        (many, RepeatRun(first, last + period, period))
        for first, last, many in zip(
            begin[heads].tolist(), end[tails].tolist(), saved.tolist(), strict=True
        )
        if last - first >= period
    ]


def _periods(letters: Ints) -> list[int]:
    """Distances from a position to the next that looks like it: those that span the most, all together."""
    by_letter = np.argsort(letters, kind="stable")
    steps = np.diff(by_letter)[np.diff(letters[by_letter]) == 0]
    periods, counts = np.unique(steps, return_counts=True)
    return [
        int(period) for period in periods[np.argsort(-counts * periods, kind="stable")[:_PERIODS]]
    ]
