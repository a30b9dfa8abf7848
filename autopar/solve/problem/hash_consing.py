"""Hash-consing: arrays by number, equal ones by the same, so that work on thousands of nodes is work on a few kinds.

What is made of kinds is made once for each combination that occurs, and has a kind again. Most arrays that differ do so
in a few entries, and need not be read whole (`HashConsing`).

A. Ershov, "On programming of arithmetic operations", Communications of the ACM 1 (1958).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from hashlib import blake2b
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from autopar.solve.problem.factored_matrix import Floats, Matrix, Thin, at, in_order
from autopar.solve.problem.reduction import Bools, Ints

_SAMPLE = 64  # entries, or up to twice as many

A = TypeVar("A", bound=Matrix)


class HashConsing(Generic[A]):
    """Numbers of arrays, counted as they come; those of one shape and equal entries have the same.

    `arrays` has the first of each. A thin matrix and an array are never the same.
    """

    def __init__(self) -> None:
        self.arrays: list[A] = []
        self._by_sample: dict[Hashable, int] = {}
        self._by_whole: dict[Hashable, int] = {}
        # of those that are first of their sample: whose whole is known too
        self._read: set[int] = set()

    def copy(self) -> HashConsing[A]:
        """The same so far; what either learns the other does not."""
        other = HashConsing[A]()
        other.arrays = self.arrays.copy()
        other._read = self._read.copy()
        other._by_sample = self._by_sample.copy()
        other._by_whole = self._by_whole.copy()
        return other

    def number(self, array: A) -> int:
        """The number of an array; read whole only where a sample of it is like that of another."""
        step = max(1, array.size // _SAMPLE)
        fresh = len(self.arrays)
        sample = _digest(_sampled(array, step))
        found = self._by_sample.setdefault((array.shape, sample), fresh)
        if found < fresh and step > 1:
            found = self._by_contents(found, array)
        if found == fresh:
            self.arrays.append(array)
        return found

    def _by_contents(self, like: int, array: A) -> int:
        """The number of an array whose sample is like that of the array of another number."""
        if like not in self._read:
            self._read.add(like)
            self._by_whole[array.shape, self._whole(self.arrays[like])] = like
        return self._by_whole.setdefault((array.shape, self._whole(array)), len(self.arrays))

    def _whole(self, array: A) -> bytes:
        """What is equal of those that are the same."""
        if not isinstance(array, Thin):
            return _digest(array)
        found = in_order(array)
        return b"".join(map(_digest, (found.entries, found.rows, found.columns)))


def _sampled(array: Matrix, step: int) -> Floats:
    """Every `step`-th entry, row by row."""
    if isinstance(array, Thin):
        return at(array, *divmod(np.arange(0, array.size, step), len(array.columns)))
    return array.reshape(-1)[::step]


def _digest(array: NDArray[Any]) -> bytes:
    return blake2b(np.ascontiguousarray(array).data, digest_size=16).digest()


NONE = -1
"""The kind of what is not there: nothing is added."""
_WORD = 1 << 62  # keys of rows are made in one word up to that


class Kinds:
    """Arrays by number. `entries`: of all that were made here, rather than given."""

    def __init__(self) -> None:
        self.entries = 0
        self._same = HashConsing[Floats]()
        self._of_id: dict[int, int] = {}
        self._made: dict[Hashable, int] = {}
        self._held: list[Floats] = []  # keeps the ids in `_of_id` valid

    def fork(self) -> Kinds:
        """The same kinds so far; what either learns the other does not."""
        other = Kinds()
        other.entries = self.entries
        other._same = self._same.copy()
        other._held = self._held.copy()
        other._of_id = self._of_id.copy()
        other._made = self._made.copy()
        return other

    @property
    def arrays(self) -> list[Floats]:
        """The array of every kind."""
        return self._same.arrays

    def of(self, arrays: Sequence[Floats]) -> Ints:
        """The kinds of arrays, new ones numbered in order; an array object is looked at once."""
        ids: Ints = np.fromiter(map(id, arrays), dtype=np.intp, count=len(arrays))
        first, each = distinct(ids)
        found = np.empty_like(first)
        for n in np.argsort(
            first
        ):  # in order, wherever the objects lie: sums must not depend on that
            found[n] = self._kind(arrays[int(first[n])])
        return found[each]

    def arrays_of(self, kinds: Ints) -> list[Floats]:
        """The inverse of `of`: equal arrays are one object."""
        numbers: list[int] = kinds.tolist()
        return [self.arrays[kind] for kind in numbers]

    def made(self, key: Hashable, make: Callable[[], Floats]) -> int:
        """The kind of what `make` gives, which is called once for every key."""
        if key not in self._made:
            array = make()
            self.entries += array.size
            self._made[key] = self._kind(array)
        return self._made[key]

    def sums(self, a: Ints, b: Ints) -> Ints:
        """The kinds of the sums of pairs; either may be NONE."""
        first, each = distinct(a, b)
        found = [self._sum(int(a[n]), int(b[n])) for n in first]
        return np.array(found, dtype=np.intp)[each]

    def add(self, totals: Ints, places: Ints, kinds: Ints) -> None:
        """Adds arrays of `kinds` to those of totals[places], which are changed; places may repeat."""
        order = np.lexsort((kinds, places))
        first = np.flatnonzero(_differs(places[order]) | _differs(kinds[order]))
        times = np.diff(np.append(first, len(order)))
        places = places[order[first]]
        kinds = self._multiples(kinds[order[first]], times)
        while len(places):
            leads = _differs(places)
            to = places[leads]
            totals[to] = self.sums(totals[to], kinds[leads])
            places = places[~leads]
            kinds = kinds[~leads]

    def _multiples(self, kinds: Ints, times: Ints) -> Ints:
        found = kinds.copy()
        for n in np.flatnonzero(times > 1).tolist():
            kind = int(kinds[n])
            count = int(times[n])
            found[n] = self.made(
                ("times", kind, count), lambda kind=kind, count=count: count * self.arrays[kind]
            )
        return found

    def _sum(self, a: int, b: int) -> int:
        if NONE in (a, b):
            return max(a, b)
        return self.made(("plus", a, b), lambda: self.arrays[a] + self.arrays[b])

    def _kind(self, array: Floats) -> int:
        if id(array) not in self._of_id:
            self._of_id[id(array)] = self._same.number(np.asarray(array, order="C"))
            self._held.append(array)
        return self._of_id[id(array)]


def distinct(*columns: Ints) -> tuple[Ints, Ints]:
    """Where each distinct row of the columns stands first, and for every row which of them it is."""
    key = np.zeros(len(columns[0]), dtype=np.intp)
    size = 1
    first = np.zeros(min(1, len(key)), dtype=np.intp)
    each = key
    for column in columns:
        low = int(column.min(initial=0))
        width = int(column.max(initial=0)) - low + 1
        if size * width >= _WORD:
            _, column = np.unique(column, return_inverse=True)
            _, key = np.unique(key, return_inverse=True)
            low = 0
            width = int(column.max(initial=0)) + 1
            size = int(key.max(initial=0)) + 1
        key = key * width + (column - low)
        size = size * width

    _, first, each = np.unique(key, return_index=True, return_inverse=True)
    return first, each


def ascending(values: Ints) -> Ints:
    """The distinct values in order (numpy's own way, by hashing, is slower)."""
    found = np.sort(values)
    return found[_differs(found)]


def is_among(values: Ints, ordered: Ints) -> Bools:
    """Which of the values, none below 0, are among others that are in order."""
    return np.append(ordered, NONE)[np.searchsorted(ordered, values)] == values


def present(kinds: Ints) -> Ints:
    """The distinct kinds in order; there are few, so they are counted."""
    return np.flatnonzero(np.bincount(kinds))


def _differs(values: Ints) -> Bools:
    """Whether each is another than the one before it."""
    changes = np.ones(len(values), dtype=np.bool_)
    changes[1:] = values[1:] != values[:-1]
    return changes
