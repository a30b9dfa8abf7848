"""What each strategy costs at best, exactly, for all nodes at once: an elimination and a pass back through its tables.

With J_p the sum of all tables of p's bucket and of what comes from outside it, and m_c what child c handed to p:

    marginal_p[s] = min over the rest of J_p;     outside_c[scope of c] = min over the rest of J_p  -  m_c

R. Dechter, "Bucket elimination: a unifying framework for reasoning", Artificial Intelligence 113 (1999).
"""

from __future__ import annotations

import math

import numpy as np

from autopar.solve.elimination.bucket_elimination import Bucket, Elimination
from autopar.solve.problem.options import SolveOptions
from autopar.solve.problem.problem import Floats
from autopar.solve.problem.stop import keep_on


def min_marginals(elimination: Elimination, options: SolveOptions) -> list[Floats | None]:
    """Min over all choices with strategy s at node v of their cost, for every v and s.

    None for the nodes whose bucket (or one after it) is more than four tables of the largest size: unknown.

    Raises:
      TimeUp: before the end.
    """
    outside: dict[int, Floats | None] = {}
    result: list[Floats | None] = [None] * len(elimination.buckets)
    children: dict[int, list[Bucket]] = {}
    rank = {bucket.node: i for i, bucket in enumerate(elimination.buckets)}
    for bucket in elimination.buckets:
        if bucket.scope:
            parent = min(bucket.scope, key=lambda v: rank[v])
            children.setdefault(parent, []).append(bucket)
    for bucket in reversed(elimination.buckets):
        keep_on()
        elsewhere = elimination.cost - float(bucket.left) if not bucket.scope else 0.0  # other components
        known = outside.pop(bucket.node) if bucket.scope else np.array(elsewhere)
        joint = _joint(elimination.counts, bucket, known, 4 * options.max_table_entries)
        if joint is not None:
            result[bucket.node] = joint.reshape(len(joint), -1).min(axis=1)
        for child in children.get(bucket.node, ()):
            outside[child.node] = _outside(bucket, child, joint)
    return result


def _joint(counts: tuple[int, ...], bucket: Bucket, outside: Floats | None, most: int) -> Floats | None:
    """All costs of the node (first axis) and its scope together; None if unknown or too large."""
    axes = (bucket.node, *bucket.scope)
    shape = [counts[v] for v in axes]
    if outside is None or math.prod(shape) > most:
        return None
    total = np.zeros(shape) + outside
    for table in bucket.tables:
        place = [axes.index(v) for v in table.scope]
        order = np.argsort(place)
        lengths = [1] * len(axes)
        for i in place:
            lengths[i] = shape[i]
        total += table.cost.transpose(order).reshape(lengths)
    return total


def _outside(bucket: Bucket, child: Bucket, joint: Floats | None) -> Floats | None:
    """What the child's scope costs without the child's part; anything where the child has no finite cost."""
    if joint is None:
        return None
    axes = (bucket.node, *bucket.scope)
    rest = tuple(i for i, v in enumerate(axes) if v not in child.scope)
    best = joint.min(axis=rest) if rest else joint
    left = [v for v in axes if v in child.scope]
    best = best.transpose([left.index(v) for v in child.scope])
    finite = np.isfinite(child.left)
    return np.where(finite, best - np.where(finite, child.left, 0.0), 0.0)
