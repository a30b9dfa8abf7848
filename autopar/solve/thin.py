"""A matrix without its repetitions: rows that are equal are one, and so are columns.

    cost[s, t] = thin[rows[s], columns[t]]

Strategies that differ in other tensors only have equal rows. Those that are left are numbered as they come first.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autopar._jit import compiled_or
from autopar.solve.problem import Floats
from autopar.solve.reduction import Ints

Words = NDArray[np.uint64]

_FEWEST = 256  # entries: in smaller matrices equal rows are not looked for
_SEED, _FACTOR = np.uint64(14695981039346656037), np.uint64(1099511628211)  # of the hash FNV-1a, here word by word
_UPPER = np.uint64(32)  # bits: the upper ones of a product depend on all bits of its factors, the lower ones do not


def thinned(cost: Floats) -> tuple[Floats, Ints, Ints]:
    """The matrix without its repetitions, which of its rows every row is, and which of its columns every column."""
    if cost.size < _FEWEST:
        rows, columns = (np.arange(count, dtype=np.intp) for count in cost.shape)
        return cost, rows, columns
    thin, rows = distinct_rows(cost)
    turned, columns = distinct_rows(thin.T)
    return turned.T, rows, columns


def distinct_rows(cost: Floats) -> tuple[Floats, Ints]:
    """The distinct rows in the order in which they come first, and for every row which of them it is."""
    first, classes = np.empty(len(cost), dtype=np.intp), np.empty(len(cost), dtype=np.intp)
    count = number_rows(np.ascontiguousarray(cost).view(np.uint64), first, classes)
    return (cost, classes) if count == len(cost) else (cost[first[:count]], classes)


def _number_by_bytes(words: Words, first: Ints, classes: Ints) -> int:
    known: dict[bytes, int] = {}
    for s, row in enumerate(words):
        before = len(known)
        classes[s] = known.setdefault(row.tobytes(), before)
        if len(known) > before:
            first[before] = s
    return len(known)


@compiled_or(_number_by_bytes)
def number_rows(words: Words, first: Ints, classes: Ints) -> int:
    """Writes which of the distinct rows every row is, and where each of them comes first; returns how many there are.

    Distinct rows are found by a hash table, and compared word by word.
    """
    rows, columns, count, size = len(words), words.shape[1], 0, 2
    while size < 2 * rows:
        size *= 2
    table = np.full(size, -1, dtype=np.intp)
    for s in range(rows):
        row, mixed = words[s], _SEED
        for t in range(columns):
            mixed = (mixed ^ row[t]) * _FACTOR
        slot = np.intp(mixed >> _UPPER) & (size - 1)
        while table[slot] >= 0:
            other, t = words[first[table[slot]]], 0
            while t < columns and other[t] == row[t]:
                t += 1
            if t == columns:
                break
            slot = (slot + 1) & (size - 1)
        if table[slot] < 0:
            table[slot], first[count] = count, s
            count += 1
        classes[s] = table[slot]
    return count
