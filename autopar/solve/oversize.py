"""Reduction: strategies go whose bytes find no room at some time, even if every other node takes the least there.

    least use at t  +  size[s] - min size  >  limit        for some time t of the usage
"""

from __future__ import annotations

import numpy as np

from autopar.solve.problem import Infeasible, Problem
from autopar.solve.proof import Overflow
from autopar.solve.reduction import Bools, Reduction, kept, restrict, unchanged
from autopar.solve.rows import least_uses

_TOLERANCE = 1e-9  # of the limit: what exceeds it by less may be rounding


def drop_oversized(problem: Problem) -> Reduction:
    """Drops strategies until the least of all others leaves room for each; equal nodes share what they keep.

    Raises:
      Infeasible: if the least of all nodes exceeds the limit.
    """
    result = unchanged(problem)
    while True:
        before = result.problem
        result = result.then(_drop)
        if result.problem is before:
            return result


def _drop(problem: Problem) -> Reduction:
    if problem.usage_limit is None or not problem.usages:
        return unchanged(problem)
    limit, least = problem.usage_limit * (1 + _TOLERANCE), least_uses(problem)
    keep, known = [np.ones(count, dtype=bool) for count in problem.counts], dict[bytes, Bools]()
    most = float(least.max())
    for use in problem.usages:
        more = use.size_bytes - use.size_bytes.min()
        if most + float(more.max()) > limit:
            keep[use.node] &= least[use.start : use.stop].max() + more <= limit
    keep = [known.setdefault(mask.tobytes(), mask) for mask in keep]
    if not all(mask.any() for mask in known.values()):
        message = f"the least that all nodes use together exceeds the limit of {problem.usage_limit} bytes"
        raise Infeasible(message, least_peak_bytes=most, witness=(Overflow(kept(keep)),))
    return restrict(problem, keep, Overflow)
