"""Arena: how large a stretch of memory is in which every buffer has one offset for as long as it lives.

XLA places the largest buffers first, each in the smallest gap that it fits in, among those placed that live at the same
time (`GlobalDecreasingSizeBestFitHeap`). What that leaves unused is fragmentation.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import replace

from autopar.backends.xla_cpu.place import HeldBuffer, most

ALIGNMENT = 64
SMALL = 2_000
"""Buffers of less than this part of all that is held at once are added up: they fit into gaps."""


def arena_bytes(buffers: Sequence[HeldBuffer], ranks: Mapping[int, int]) -> int:
    """The bytes of the arena of `buffers`; a lower bound is the most that is held at once.

    The smaller of two: the largest buffers first, or those that live longest; of equal ones that of the least rank.
    Buffers that are written over one another have one place; where sizes are equal it counts how long the first lives.
    """
    peak, _ = most(buffers)
    large = [one for one in buffers if one.size_bytes * SMALL >= peak]
    small = [one for one in buffers if one.size_bytes * SMALL < peak]
    begins, ends = _clock(buffers)
    places = _places(large)
    own = {one.buffer: ends[one.buffer] - begins[one.buffer] for one in large}
    whole = {one.buffer: ends[final] - begins[one.buffer] for one, final in places}
    together = [one for one, _ in places]
    size = _stretch(
        sorted(together, key=lambda one: (-one.size_bytes, -own[one.buffer], ranks[one.buffer]))
    )
    if size > most(large)[0]:
        longest = sorted(
            together, key=lambda one: (-whole[one.buffer], -one.size_bytes, ranks[one.buffer])
        )
        size = min(size, _stretch(longest))

    return size + most(small)[0]


def _places(buffers: Sequence[HeldBuffer]) -> list[tuple[HeldBuffer, int]]:
    """What lies in one place: the first of the buffers that are written over one another, until the last one's last
    time, and the last one.
    """
    first: dict[int, int] = {}
    found: dict[int, tuple[HeldBuffer, int]] = {}
    for one in sorted(buffers, key=lambda one: one.first):
        root = one.buffer if one.over is None else first.get(one.over, one.buffer)
        first[one.buffer] = root
        found[root] = (
            (one if root == one.buffer else replace(found[root][0], last=one.last)),
            one.buffer,
        )
    return list(found.values())


def _clock(buffers: Sequence[HeldBuffer]) -> tuple[dict[int, int], dict[int, int]]:
    """When each buffer begins and ends by XLA's clock, which moves with each of these."""
    begins = [(one.first, 0, one.buffer) for one in buffers]
    events = sorted([*begins, *((one.last, 1, one.buffer) for one in buffers)])
    at: tuple[dict[int, int], dict[int, int]] = {}, {}
    for now, (_, which, buffer) in enumerate(events):
        at[which][buffer] = now
    return at


def _stretch(buffers: Sequence[HeldBuffer]) -> int:
    """The bytes of buffers that are placed one after the other."""
    placed: list[tuple[int, int, int, int]] = []
    size = 0
    for one in buffers:
        wanted = -(-one.size_bytes // ALIGNMENT) * ALIGNMENT
        offset = _best_gap(placed, one, wanted)
        insort(placed, (offset, offset + wanted, one.first, one.last))
        size = max(size, offset + wanted)
    return size


def _best_gap(placed: Sequence[tuple[int, int, int, int]], one: HeldBuffer, wanted: int) -> int:
    """The offset of the smallest gap of at least `wanted` bytes beside what lives at the same time as `one`."""
    best = -1
    best_gap = 0
    free = 0
    first = one.first
    last = one.last
    for start, stop, begins, ends in placed:
        if begins > last or ends < first:
            continue
        gap = start - free
        if gap >= wanted and (best < 0 or gap < best_gap):
            best = free
            best_gap = gap
        free = max(free, stop)

    return best if best >= 0 else free
