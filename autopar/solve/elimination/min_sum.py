"""Min-sum of tables: the one numerical kernel of elimination, in pieces that fit the cache, each product made once.

R. Dechter, "Bucket elimination: a unifying framework for reasoning", Artificial Intelligence 113 (1999).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from autopar._jit import compiled
from autopar.solve.problem.factored_matrix import (
    Ints,
    Matrix,
    Thin,
    matrix_of,
    pairs,
    thin,
    thinned,
    whole,
)
from autopar.solve.problem.problem import Floats

Axes = tuple[int, ...]

_BLOCK_ENTRIES = 1 << 15  # 256 kB: a block and its parts stay in the cache
_WHOLE_ENTRIES = 1 << 17  # 1 MB: made as a whole, which takes fewer calls


class MinSum:
    """Min-sums of tables, remembered by the identity of the tables, so that equal layers cost nothing."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[int, Axes], ...], Floats] = {}
        self._held: list[Floats] = []  # keeps the ids in `_known` valid
        self.entries = 0  # of all tables made here

    def eliminate(self, shape: tuple[int, ...], tables: Sequence[tuple[Floats, Axes]]) -> Floats:
        """Min over k of the sum of the tables: result[x] = min_k sum_f table_f[k, x].

        Args:
          shape: of the result.
          tables: each with what its axes are: -1 for k (in every table, once), else an axis of the result.
        """
        key = tuple((id(table), axes) for table, axes in tables)
        if key not in self._known:
            pieces = [_aligned(table, axes, len(shape)) for table, axes in tables]
            self._held.extend(table for table, _ in tables)
            self._known[key] = _min_sum(shape, pieces)
            self.entries += self._known[key].size
        return self._known[key]


def least_to_one(cost: Floats, a: Matrix) -> Floats:
    """result[s] = min over k of cost[k] + a[s, k]."""
    if not isinstance(a, Thin):
        return (a + cost).min(axis=1)
    return (a.entries + _least_of(cost, a.columns, a.entries.shape[1])).min(axis=1)[a.rows]


def least_to_two(cost: Floats, a: Matrix, b: Matrix) -> Matrix:
    """result[s, t] = min over k of cost[k] + a[s, k] + b[t, k]."""
    if isinstance(a, Thin) or isinstance(b, Thin) or len(cost) * len(a) * len(b) > _WHOLE_ENTRIES:
        return _product(cost, thin(a), thin(b))
    return (cost[:, None, None] + a.T[:, :, None] + b.T[:, None, :]).min(axis=0)


def _least_of(cost: Floats, classes: Ints, count: int) -> Floats:
    """The least cost of each of `count` classes."""
    least = np.full(count, np.inf)
    np.minimum.at(least, classes, cost)
    return least


def _aligned(table: Floats, axes: Axes, ndim: int) -> Floats:
    """The table with k first, then the result's axes in order, of length 1 where it does not depend on them."""
    order = sorted(range(len(axes)), key=lambda i: axes[i])
    lengths = {axes[i]: table.shape[i] for i in order}
    return table.transpose(order).reshape([lengths.get(axis, 1) for axis in range(-1, ndim)])


def _min_sum(shape: tuple[int, ...], pieces: list[Floats]) -> Floats:
    count = pieces[0].shape[0]
    entries = math.prod(shape)
    if count * entries <= _WHOLE_ENTRIES:
        total = pieces[0]
        for piece in pieces[1:]:
            total = total + piece
        return np.broadcast_to(total.min(axis=0), shape).copy()

    if len(shape) == 2 and [piece.shape[1:] for piece in pieces] == [
        (1, 1),
        (shape[0], 1),
        (1, shape[1]),
    ]:
        return whole(
            _product(pieces[0].ravel(), thinned(pieces[1][:, :, 0].T), thinned(pieces[2][:, 0].T))
        )

    pieces = [np.ascontiguousarray(piece) for piece in pieces]
    result = np.empty(shape)
    step = max(1, _BLOCK_ENTRIES * shape[0] // entries)
    for start in range(0, shape[0], step):
        block = slice(start, start + step)
        parts = [piece[:, block] if piece.shape[1] > 1 else piece for piece in pieces]
        _min_sum_block(parts, result[block])

    return result


def _product(cost: Floats, a: Thin, b: Thin) -> Matrix:
    """The min over k of cost[k] + a[s, k] + b[t, k]: one of equal rows, and of k with equal columns in both."""
    of_a, of_b, classes = pairs(a.columns, b.columns)
    cost = _least_of(cost, classes, len(of_a))
    left = np.ascontiguousarray(a.entries.take(of_a, axis=1))
    right = np.ascontiguousarray(b.entries.T.take(of_b, axis=0))
    least = np.empty((len(left), right.shape[1]))
    min_product(cost, left, right, least)
    return matrix_of(least, a.rows, b.rows)


@compiled
def min_product(cost: Floats, a: Floats, b: Floats, result: Floats) -> None:
    """Writes result[s, t] = min over k of cost[k] + a[s, k] + b[k, t], row by row, so that a row stays in the cache."""
    for s in range(len(result)):
        least = result[s]
        least[:] = np.inf
        for k in range(len(cost)):
            base = cost[k] + a[s, k]
            if base == np.inf:
                continue
            row = b[k]  # a slice, since only those are turned into vector instructions
            for t in range(len(row)):
                value = base + row[t]
                least[t] = value if value < least[t] else least[t]


def _min_sum_block(parts: list[Floats], result: Floats) -> None:
    """Writes min over k of the sum of the parts into `result`, one k at a time."""
    total = np.empty_like(result)
    result.fill(np.inf)
    for k in range(len(parts[0])):
        if len(parts) == 1:
            np.minimum(result, parts[0][k], out=result)
            continue
        np.add(parts[0][k], parts[1][k], out=total)
        for part in parts[2:]:
            total += part[k]
        np.minimum(result, total, out=result)
