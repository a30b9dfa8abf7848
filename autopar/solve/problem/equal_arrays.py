"""Equal arrays: equal arrays get equal numbers. Most that differ do so in a few entries, and need not be read whole."""

from __future__ import annotations

from collections.abc import Hashable
from hashlib import blake2b
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from autopar.solve.problem.factored_matrix import Floats, Matrix, Thin, at, in_order

_SAMPLE = 64  # entries, or up to twice as many

A = TypeVar("A", bound=Matrix)


class Same(Generic[A]):
    """Numbers of arrays, counted as they come; those of one shape and equal entries have the same.

    `arrays` has the first of each. A thin matrix and an array are never the same.
    """

    def __init__(self) -> None:
        self.arrays: list[A] = []
        self._by_sample: dict[Hashable, int] = {}
        self._by_whole: dict[Hashable, int] = {}
        self._read: set[int] = set()  # of those that are first of their sample: whose whole is known too

    def copy(self) -> Same[A]:
        """The same so far; what either learns the other does not."""
        other = Same[A]()
        other.arrays, other._read = self.arrays.copy(), self._read.copy()
        other._by_sample, other._by_whole = self._by_sample.copy(), self._by_whole.copy()
        return other

    def number(self, array: A) -> int:
        """The number of an array; read whole only where a sample of it is like that of another."""
        step, fresh = max(1, array.size // _SAMPLE), len(self.arrays)
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
