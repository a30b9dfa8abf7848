"""Same: equal arrays get equal numbers. Most that differ do so in a few entries, and need not be read whole."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from hashlib import blake2b

import numpy as np

from autopar.solve.problem import Floats

_SAMPLE = 64  # entries, or up to twice as many

Key = Callable[[Floats], bytes]


def contents(array: Floats) -> bytes:
    """All that is in an array, as a hash."""
    return blake2b(np.ascontiguousarray(array).data, digest_size=16).digest()


class Same:
    """Numbers of arrays, counted as they come; those of one shape and key have the same.

    `arrays` has the first of each. If `at_a_glance`, those are the same of which a sample has one key.
    """

    def __init__(self, key: Key = contents, *, at_a_glance: bool = False) -> None:
        self.arrays: list[Floats] = []
        self._key, self._at_a_glance = key, at_a_glance
        self._by_sample: dict[Hashable, int] = {}
        self._by_whole: dict[Hashable, int] = {}
        self._read: set[int] = set()  # of those that are first of their sample: whose whole is known too

    def copy(self) -> Same:
        """The same so far; what either learns the other does not."""
        other = Same(self._key, at_a_glance=self._at_a_glance)
        other.arrays, other._read = self.arrays.copy(), self._read.copy()
        other._by_sample, other._by_whole = self._by_sample.copy(), self._by_whole.copy()
        return other

    def number(self, array: Floats) -> int:
        """The number of an array; read whole only where a sample of it is like that of another."""
        step, fresh = max(1, array.size // _SAMPLE), len(self.arrays)
        found = self._by_sample.setdefault((array.shape, self._key(array.reshape(-1)[::step])), fresh)
        if found < fresh and step > 1 and not self._at_a_glance:
            found = self._by_contents(found, array)
        if found == fresh:
            self.arrays.append(array)
        return found

    def _by_contents(self, like: int, array: Floats) -> int:
        """The number of an array whose sample is like that of the array of another number."""
        if like not in self._read:
            self._read.add(like)
            self._by_whole[array.shape, self._key(self.arrays[like])] = like
        return self._by_whole.setdefault((array.shape, self._key(array)), len(self.arrays))
