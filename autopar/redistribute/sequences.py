"""Sequences: every order of some of a mesh's axes, by number, and tables of what becomes of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, permutations

import numpy as np
from numpy.typing import NDArray

from autopar.core.mesh import DeviceMesh

Ints = NDArray[np.int64]
NONE = -1


@dataclass(frozen=True, eq=False)
class Sequences:
    """The sequences of distinct axes of a mesh: () is number 0, then the shorter ones first, then in mesh order.

    Sets of axes are numbers too: bit a stands for the axis at position a.
    """

    sizes: tuple[int, ...]

    @cached_property
    def every(self) -> tuple[tuple[int, ...], ...]:
        """The sequences, as positions of axes."""
        axes = range(len(self.sizes))
        return tuple(
            chain.from_iterable(permutations(axes, count) for count in range(len(axes) + 1))
        )

    @cached_property
    def length(self) -> Ints:
        """Of each sequence the number of axes."""
        return np.array([len(axes) for axes in self.every], dtype=np.int64)

    @cached_property
    def members(self) -> Ints:
        """The set of each sequence's axes."""
        return np.array([sum(1 << axis for axis in axes) for axes in self.every], dtype=np.int64)

    @cached_property
    def parts(self) -> Ints:
        """Into how many parts each sequence splits a dim."""
        return np.array(
            [np.prod([self.sizes[a] for a in axes], dtype=np.int64) for axes in self.every]
        )

    @cached_property
    def sorted_sets(self) -> Ints:
        """The sequences in mesh order but (): each is one set."""
        return np.array(
            [n for n, axes in enumerate(self.every) if axes and list(axes) == sorted(axes)],
            dtype=np.int64,
        )

    @cached_property
    def of_set(self) -> Ints:
        """For each set of axes its sequence in mesh order."""
        found = np.zeros(1 << len(self.sizes), dtype=np.int64)
        found[self.members[self.sorted_sets]] = self.sorted_sets
        return found

    @cached_property
    def position(self) -> Ints:
        """position[sequence, axis]: where the axis stands in the sequence; NONE where it does not."""
        found = np.full((len(self.every), len(self.sizes)), NONE, dtype=np.int64)
        for number, axes in enumerate(self.every):
            found[number, list(axes)] = range(len(axes))
        return found

    @cached_property
    def stride(self) -> Ints:
        """stride[sequence, axis]: how many parts of the dim one step along the axis skips; 0 where it does not stand.

        Axes that keep this fix the same digit of the part's number, so others can exchange parts among themselves.
        """
        found = np.zeros((len(self.every), len(self.sizes)), dtype=np.int64)
        for number, axes in enumerate(self.every):
            for n, axis in enumerate(axes):
                found[number, axis] = np.prod(
                    [self.sizes[a] for a in axes[n + 1 :]], dtype=np.int64
                )
        return found

    @cached_property
    def joined(self) -> Ints:
        """joined[s, t]: the sequence s followed by t; NONE where they share an axis."""
        codes = self._codes
        disjoint = self.members[:, None] & self.members == 0
        code = codes[:, None] + self._base ** self.length[:, None] * codes
        return np.where(disjoint, self._by_code[np.where(disjoint, code, 0)], NONE)

    @cached_property
    def cuts(self) -> tuple[Ints, Ints]:
        """kept[s, cut], tail[s, cut]: the axes of s before and from position `cut` on; NONE where there is no tail."""
        cut = np.arange(len(self.sizes))
        powers = self._base**cut
        inside = cut < self.length[:, None]
        kept = self._codes[:, None] % powers
        tail = self._codes[:, None] // powers
        return np.where(inside, self._by_code[kept], NONE), np.where(
            inside, self._by_code[tail], NONE
        )

    @property
    def _base(self) -> int:
        return len(self.sizes) + 1

    @cached_property
    def _codes(self) -> Ints:
        """Each sequence as a number of digits, the first axis the lowest; 0 is no axis."""
        codes = [
            sum((axis + 1) * self._base**n for n, axis in enumerate(axes)) for axes in self.every
        ]
        return np.array(codes, dtype=np.int64)

    @cached_property
    def _by_code(self) -> Ints:
        found = np.zeros(self._base ** len(self.sizes), dtype=np.int64)
        found[self._codes] = np.arange(len(self.every))
        return found


@lru_cache(maxsize=64)
def sequences_of(mesh: DeviceMesh) -> Sequences:
    """The sequences of the axes of `mesh`."""
    return Sequences(mesh.sizes)
