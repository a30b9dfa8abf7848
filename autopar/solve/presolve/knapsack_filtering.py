"""Reduction: strategies go whose bytes find no room at some time, even if every other node takes the least there.

least use at t  +  size[s] - min size  >  limit        for some time t of the usage

M. Trick, "A dynamic programming approach for consistency and propagation for knapsack constraints", Annals of
Operations Research 118 (2003).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autopar.solve.certificate.proof import Kept, Overflow
from autopar.solve.problem.problem import Floats, Infeasible, Problem
from autopar.solve.problem.reduction import Reduction, kept, restrict, unchanged
from autopar.solve.problem.rows import memory_rows

_NONE = np.zeros(0, dtype=np.intp)
_TOLERANCE = 1e-9  # of the bytes: what exceeds the limit by less may be rounding


def drop_oversized(problem: Problem) -> Reduction:
    """Drops strategies until the least of all others leaves room for each; equal nodes share what they keep.

    Raises:
      Infeasible: if the least of the others leaves no room for any strategy of some node.
    """
    result = unchanged(problem)
    while True:
        before = result.problem
        result = result.then(_drop)
        if result.problem is before:
            return result


def _drop(problem: Problem) -> Reduction:
    rows = memory_rows(problem)
    if not rows.count:
        return unchanged(problem)

    smallest, largest = _extremes([segment.size_bytes for segment in rows.segments])
    least = rows.sums(smallest)
    room = rows.limit - least + _TOLERANCE * max(rows.limit, float(least.max()))
    keep = [np.ones(count, dtype=bool) for count in problem.counts]
    if room.min() < 0:
        row = int(room.argmin())
        node = next(segment.node for segment in rows.segments if segment.low <= row < segment.high)
        raise _infeasible(rows.limit, {node: _NONE})

    for i in np.flatnonzero(largest - smallest > room.min()).tolist():
        segment = rows.segments[i]
        keep[segment.node] &= (
            segment.size_bytes - smallest[i] <= room[segment.low : segment.high].min()
        )

    masks = {mask.tobytes(): mask for mask in keep}
    if not all(mask.any() for mask in masks.values()):
        raise _infeasible(rows.limit, kept(keep))

    return restrict(problem, [masks[mask.tobytes()] for mask in keep], Overflow)


def _extremes(parts: Sequence[Floats]) -> tuple[Floats, Floats]:
    """The least and the largest number of each part; none is empty."""
    starts = np.cumsum([0, *(len(part) for part in parts[:-1])])
    numbers = np.concatenate(parts)
    return np.minimum.reduceat(numbers, starts), np.maximum.reduceat(numbers, starts)


def _infeasible(limit: float, left: Kept) -> Infeasible:
    return Infeasible(
        f"there is a node none of whose strategies finds room in {limit} bytes",
        witness=(Overflow(left),),
    )
