"""Halo: what a device must hold of its neighbours' shards, for operators that look beyond an element's own place."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache


@dataclass(frozen=True)
class Piece:
    """The elements from `begin` to `end` of the shard of the device `distance` places on; below 0 it is one before."""

    distance: int
    begin: int
    end: int


@dataclass(frozen=True)
class Halo:
    """How the shards of a dim become the runs of elements that its devices need.

    The `pieces` are joined in order, with `before` and `after` elements that are made up around them. Of what results,
    a device at `position` needs the `length` elements that begin at `start + position * shift`. In the whole dim that
    is element `first + position * stride`; `outside` says whether any of them lies beyond the ends of the dim.
    """

    pieces: tuple[Piece, ...]
    before: int
    after: int
    start: int
    shift: int
    length: int
    first: int
    stride: int
    outside: bool


MOST_PIECES = 5
"""A run takes at most so many pieces: a device's own, and two on either side. Beyond that a gather takes no more."""


@lru_cache(maxsize=65536)
def halo(size: int, parts: int, first: int, stride: int, length: int) -> Halo | None:
    """The halo of a dim of `size` elements in `parts` shards; None where runs are made of more than is worth sending.

    Where every run begins as far from its shard as all others, its pieces may come from any device, but are few.
    Elsewhere they come from the shard itself and from its neighbours.

    Args:
      size: the elements of the dim; `parts` divides it.
      parts: the number of devices.
      first: the first element that device 0 needs; below 0 or beyond the end: one that is made up.
      stride: by how many elements each device's run begins after that of the device before it (>= 0).
      length: how many elements a device needs.
    """
    if length < 1 or size < parts:
        return None
    shard = size // parts
    outside = first < 0 or first + (parts - 1) * stride + length > size
    if stride == shard:
        return _of_any(size, shard, first, length, outside)
    return _of_neighbours(size, parts, first, stride, length, outside)


def _of_any(size: int, shard: int, first: int, length: int, outside: bool) -> Halo | None:
    """The halo of runs that begin `first` elements behind their shards, cut to what some device has of them."""
    low = max(first, shard - size)
    high = min(first + length, size)
    pieces = tuple(
        Piece(distance, max(low - distance * shard, 0), min(high - distance * shard, shard))
        for distance in range(low // shard, -(-high // shard))
    )
    if not 0 < len(pieces) <= MOST_PIECES:
        return None
    return Halo(pieces, low - first, first + length - high, 0, 0, length, first, shard, outside)


def _of_neighbours(
    size: int, parts: int, first: int, stride: int, length: int, outside: bool
) -> Halo | None:
    """The halo of runs that begin elsewhere in every shard: cut out of the shard between its neighbours' elements."""
    shard = size // parts
    left = right = 0
    for position in range(parts):
        begin = first + position * stride
        low = max(begin, 0)
        high = min(begin + length, size)
        if low < high:
            left = max(left, position * shard - low)
            right = max(right, high - (position + 1) * shard)
        if max(left, right) > shard:
            return None

    shift = stride - shard
    begins = (first + left, first + left + (parts - 1) * shift)
    before = max(0, -min(begins))
    after = max(0, max(begins) + length - (left + shard + right))
    every = (Piece(-1, shard - left, shard), Piece(0, 0, shard), Piece(1, 0, right))
    pieces = tuple(piece for piece in every if piece.begin < piece.end)
    return Halo(pieces, before, after, begins[0] + before, shift, length, first, stride, outside)


def ring_pieces(size: int, parts: int, begin: int) -> tuple[Piece, ...]:
    """The pieces of which the run is joined that begins `begin` elements behind a shard, in a dim that is a ring.

    Of the ways round the ring the shorter one is taken.
    """
    shard = size // parts
    far, rest = divmod(begin % size, shard)
    pieces = [(far, rest, shard), (far + 1, 0, rest)]
    turned = [
        ((distance + parts // 2) % parts - parts // 2, first, last)
        for distance, first, last in pieces
    ]
    return tuple(Piece(*piece) for piece in turned if piece[1] < piece[2])


def ring_digits(parts: int) -> tuple[int, ...]:
    """The powers of two of which every distance in a ring of `parts` devices is a sum: 1, 2, 4, ..."""
    return tuple(1 << digit for digit in range((parts - 1).bit_length()))


@dataclass(frozen=True)
class Window:
    """How windows lie on a dim of `size` elements.

    Elements stand `base` places apart. The t-th of `width` places of window j, of `count`, is
    `j * stride + t * dilation - low`; a place without an element is padding.
    """

    size: int
    count: int
    stride: int = 1
    width: int = 1
    dilation: int = 1
    low: int = 0
    base: int = 1

    def swapped(self) -> Window:
        """The same places with t and j exchanged: windows of one place t each, over all j."""
        return replace(
            self, count=self.width, stride=self.dilation, width=self.count, dilation=self.stride
        )

    def halo(self, parts: int) -> Halo | None:
        """The elements under a device's share of the windows; None where `parts` devices cannot divide them."""
        local = self.count // parts
        if self.size % parts or self.count % parts or local * self.stride % self.base:
            return None
        first, last = self._run(local)
        return halo(self.size, parts, first, local * self.stride // self.base, last - first + 1)

    def padding(self, parts: int) -> tuple[int, int]:
        """The places before the first and behind the last element of a device's run, as windows on it alone see it."""
        local = self.count // parts
        first, last = self._run(local)
        return first * self.base + self.low, self._reach(local) - self.low - last * self.base

    def sources(self, parts: int) -> Halo | None:
        """The windows that hold a device's elements; for elements without gaps between them."""
        shard = self.size // parts
        if (
            self.size % parts
            or self.count % parts
            or shard % self.stride
            or self.base != 1
            or self.dilation != 1
        ):
            return None
        first = -((self.width - 1 - self.low) // self.stride)
        last = (shard - 1 + self.low) // self.stride
        return halo(self.count, parts, first, shard // self.stride, last - first + 1)

    def under_sources(self, parts: int) -> Halo | None:
        """The elements under the windows that hold a device's elements."""
        sources = self.sources(parts)
        if sources is None:
            return None
        length = (sources.length - 1) * self.stride + self.width
        return halo(
            self.size, parts, sources.first * self.stride - self.low, self.size // parts, length
        )

    def _reach(self, local: int) -> int:
        """The distance from the first to the last place of `local` windows."""
        return (local - 1) * self.stride + (self.width - 1) * self.dilation

    def _run(self, local: int) -> tuple[int, int]:
        """The first and the last element, counted from device 0's first, under `local` windows."""
        return -(self.low // self.base), (self._reach(local) - self.low) // self.base
