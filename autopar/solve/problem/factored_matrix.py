"""A matrix without its repetitions: rows that are equal are one, and so are columns.

    cost[s, t] = entries[rows[s], columns[t]]

Strategies that differ in other tensors only have equal rows. What is done with matrices is done with few entries then.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from autopar._jit import compiled

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
Bools = NDArray[np.bool_]
Words = NDArray[np.uint64]

ALL = slice(None)

_FEWEST = 256  # entries: in smaller matrices equal rows are not looked for
_SMALL = 1024
_WORTH = (
    0.75  # entries of a matrix that is as well whole; of all, more of which are as well all of them
)
_SEED = np.uint64(14695981039346656037)
_FACTOR = np.uint64(1099511628211)  # of the hash FNV-1a, here word by word
# bits: the upper ones of a product depend on all bits of its factors, the lower ones do not
_UPPER = np.uint64(32)


@dataclass(frozen=True, eq=False)
class Thin:
    """A matrix by its distinct rows and columns: all of those of `entries` occur, and few of them twice.

    Invariant: `rows` and `columns` are numbered as they come first. So they are 0, 1, 2, ... where no two are equal,
    and kernels need not look them up.
    """

    entries: Floats
    rows: Ints
    columns: Ints

    @property
    def shape(self) -> tuple[int, int]:
        """Of the matrix."""
        return len(self.rows), len(self.columns)

    @property
    def size(self) -> int:
        """The number of the matrix's entries, repetitions and all."""
        return len(self.rows) * len(self.columns)

    @cached_property
    def whole(self) -> Floats:
        """The matrix as one array, which is kept."""
        return self.entries.take(self.columns, axis=1).take(self.rows, axis=0)

    @property
    def T(self) -> Thin:  # noqa: N802, as arrays call it
        """The matrix transposed."""
        return Thin(self.entries.T, self.columns, self.rows)


Matrix: TypeAlias = Floats | Thin
"""A matrix as an array, or by its distinct rows and columns."""


def whole(matrix: Matrix) -> Floats:
    """The matrix as one array."""
    return matrix.whole if isinstance(matrix, Thin) else matrix


def entries_of(matrix: Matrix) -> Floats:
    """All entries that occur in it, some of them once only."""
    return matrix.entries if isinstance(matrix, Thin) else matrix


def part(matrix: Matrix, rows: Ints | None = None, columns: Ints | None = None) -> Floats:
    """These rows and columns of the matrix, all if None, as an array: of a thin one it is not kept."""
    if isinstance(matrix, Thin):
        columns = matrix.columns if columns is None else matrix.columns[columns]
        return matrix.entries.take(columns, axis=1).take(
            matrix.rows if rows is None else matrix.rows[rows], axis=0
        )
    some = matrix if rows is None else matrix.take(rows, axis=0)
    return some if columns is None else some.take(columns, axis=1)


def finite_in(matrix: Matrix) -> Bools:
    """Where the matrix is finite."""
    finite = np.isfinite(entries_of(matrix))
    return finite[matrix.rows[:, None], matrix.columns] if isinstance(matrix, Thin) else finite


def finite_entries(matrix: Matrix) -> int:
    """How many entries of the matrix are finite, repetitions and all."""
    finite = np.isfinite(entries_of(matrix))
    if isinstance(matrix, Thin):
        tall, wide = finite.shape
        return int(
            np.bincount(matrix.rows, minlength=tall)
            @ finite
            @ np.bincount(matrix.columns, minlength=wide)
        )
    return int(np.count_nonzero(finite))


def at(matrix: Matrix, s: Ints | int | slice, t: Ints | int | slice) -> Floats:
    """The entries at rows s and columns t."""
    return (
        matrix.entries[matrix.rows[s], matrix.columns[t]]
        if isinstance(matrix, Thin)
        else matrix[s, t]
    )


def matrix_of(entries: Floats, rows: Ints, columns: Ints) -> Matrix:
    """entries[rows[s], columns[t]] as a matrix: thin where that saves much."""
    size = len(rows) * len(columns)
    if size < _SMALL or entries.size > _WORTH * size:
        return entries.take(columns, axis=1).take(rows, axis=0)
    return Thin(entries, rows, columns)


def taken(matrix: Matrix, rows: Ints | None, columns: Ints | None) -> Matrix:
    """The matrix with these of its rows and columns; None: all of them, in order."""
    if not isinstance(matrix, Thin):
        return part(matrix, rows, columns)
    entries = matrix.entries
    of_rows = matrix.rows
    of_columns = matrix.columns
    if rows is not None:
        used, of_rows = _as_they_come(of_rows[rows])
        entries = entries.take(used, axis=0)
    if columns is not None:
        used, of_columns = _as_they_come(of_columns[columns])
        entries = entries.take(used, axis=1)
    return matrix_of(entries, of_rows, of_columns)


def added(a: Matrix, b: Matrix) -> Matrix:
    """The sum of two matrices."""
    if not (isinstance(a, Thin) and isinstance(b, Thin)):
        return part(a) + part(b)
    rows_of_a, rows_of_b, rows = pairs(a.rows, b.rows)
    columns_of_a, columns_of_b, columns = pairs(a.columns, b.columns)
    of_a = a.entries.take(columns_of_a, axis=1).take(rows_of_a, axis=0)
    of_b = b.entries.take(columns_of_b, axis=1).take(rows_of_b, axis=0)
    return matrix_of(of_a + of_b, rows, columns)


def pairs(a: Ints, b: Ints) -> tuple[Ints, Ints, Ints]:
    """The distinct pairs of classes, those of a and those of b, as they come; and which of them every place has."""
    width = int(b.max(initial=0)) + 1
    found, each = _as_they_come(a * width + b)
    return *divmod(found, width), each


def twice(matrix: Matrix) -> Matrix:
    """The matrix with all its rows again below them."""
    if isinstance(matrix, Thin):
        return Thin(matrix.entries, np.concatenate([matrix.rows, matrix.rows]), matrix.columns)
    return np.vstack([matrix, matrix])


def thin(matrix: Matrix) -> Thin:
    """The matrix by its distinct rows and columns, looked for where it is an array."""
    return matrix if isinstance(matrix, Thin) else thinned(matrix)


def thinned(cost: Floats) -> Thin:
    """An array without its repetitions: distinct rows and columns numbered as they come first."""
    if cost.size < _FEWEST:
        rows, columns = (np.arange(count, dtype=np.intp) for count in cost.shape)
        return Thin(cost, rows, columns)
    return _distinct(cost)


def _distinct(cost: Floats) -> Thin:
    entries, rows = distinct_rows(cost)
    turned, columns = distinct_rows(entries.T)
    return Thin(turned.T, rows, columns)


def in_order(matrix: Thin) -> Thin:
    """The one form of all thin matrices that are equal: nothing is there twice, classes are numbered as they come."""
    distinct = _distinct(matrix.entries)
    by_row, rows = _as_they_come(distinct.rows[matrix.rows])
    by_column, columns = _as_they_come(distinct.columns[matrix.columns])
    return Thin(distinct.entries.take(by_column, axis=1).take(by_row, axis=0), rows, columns)


def _as_they_come(classes: Ints) -> tuple[Ints, Ints]:
    """The classes in the order in which they come first, and each by its place in that order."""
    found, first, each = np.unique(classes, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return found[order], place[each]


def distinct_rows(cost: Floats) -> tuple[Floats, Ints]:
    """The distinct rows in the order in which they come first, and for every row which of them it is."""
    first = np.empty(len(cost), dtype=np.intp)
    classes = np.empty(len(cost), dtype=np.intp)
    count = number_rows(np.ascontiguousarray(cost).view(np.uint64), first, classes)
    return (cost, classes) if count == len(cost) else (cost[first[:count]], classes)


@compiled
def number_rows(words: Words, first: Ints, classes: Ints) -> int:
    """Writes which of the distinct rows every row is, and where each of them comes first; returns how many there are.

    Distinct rows are found by a hash table, and compared word by word.
    """
    rows = len(words)
    columns = words.shape[1]
    count = 0
    size = 2
    while size < 2 * rows:
        size *= 2

    table = np.full(size, -1, dtype=np.intp)
    for s in range(rows):
        row = words[s]
        mixed = _SEED
        for t in range(columns):
            mixed = (mixed ^ row[t]) * _FACTOR
        slot = np.intp(mixed >> _UPPER) & (size - 1)
        while table[slot] >= 0:
            other = words[first[table[slot]]]
            t = 0
            while t < columns and other[t] == row[t]:
                t += 1
            if t == columns:
                break
            slot = (slot + 1) & (size - 1)
        if table[slot] < 0:
            table[slot] = count
            first[count] = s
            count += 1
        classes[s] = table[slot]

    return count
