"""Streams: how long a program takes whose computing and communicating run side by side, each in its order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from cost_models.overlap import Overlap

Stream = Literal["computation", "communication", "both"]


class Item(NamedTuple):
    """What occupies a stream, or both, for `time_s` if nothing slows it.

    `after` is the position of the last item of the other stream that must have ended before this one starts; -1: none.
    """

    stream: Stream
    time_s: float
    after: int = -1


@dataclass(frozen=True)
class Timing:
    """When items start and end, and what the makespan owes to each: `weights_s` add up to it.

    An item's weight is its derivative: if it took 1 % longer the makespan would grow by 1 % of its weight. An item that
    is hidden behind others has little or none. `slowed_s` is how much of computing's weight, and of communicating's,
    was done while both went on: the makespan's derivatives by the logarithms of the two slowdowns.
    """

    starts_s: tuple[float, ...]
    ends_s: tuple[float, ...]
    weights_s: tuple[float, ...]
    makespan_s: float
    slowed_s: tuple[float, float] = (0.0, 0.0)


def simulate(items: Sequence[Item], overlap: Overlap | None) -> Timing:
    """The two streams of a device, simulated.

    Each stream runs its items in the order of `items`, one at a time; an item starts as soon as the one before it in
    its stream and the one that it is `after` have ended. While both streams run, each is slowed as `overlap` says. One
    of stream "both" waits for all before it, and all behind it wait for it.

    Fixed orders have no anomalies: with all else equal the makespan never falls when an item takes longer. It is at
    least the sum of either stream and at most the sum of all; that is what it is with no `overlap`, or one that does
    not pay.

    Args:
      items: `after` of each is an earlier position.
      overlap: None: nothing runs beside anything.

    Raises:
      ValueError: an item is not after an earlier one, or takes less than no time.
    """
    for position, item in enumerate(items):
        if not -1 <= item.after < position or not item.time_s >= 0:
            raise ValueError(
                f"item {position} takes {item.time_s} s after item {item.after}: give >= 0 s, an earlier one"
            )
    if overlap is None or not overlap.pays:
        return _one_by_one(items)
    return _Race(items, overlap).run()


def _one_by_one(items: Sequence[Item]) -> Timing:
    starts: list[float] = []
    ends: list[float] = []
    now: float = 0
    for item in items:
        starts.append(now)
        now += item.time_s
        ends.append(now)
    return Timing(tuple(starts), tuple(ends), tuple(item.time_s for item in items), now)


_Stretch = tuple[float, int, int]
"""Some seconds in which the same items run: one of computation (-1: none), and one of communication."""


class _Race:
    """The state of a simulation: the heads of both streams, and what is left of them."""

    def __init__(self, items: Sequence[Item], overlap: Overlap) -> None:
        self.items = items
        self.overlap = overlap
        self.queues = tuple(
            [n for n, item in enumerate(items) if item.stream != other]
            for other in ("communication", "computation")
        )
        self.heads = [0, 0]
        self.left = [item.time_s for item in items]
        self.starts: list[float] = [-1] * len(items)
        self.ends: list[float] = [-1] * len(items)
        self.now: float = 0
        self.stretches: list[_Stretch] = []

    def run(self) -> Timing:
        while True:
            computing = self._ready(0)
            communicating = self._ready(1)
            if computing >= 0 and communicating >= 0:
                self._run_both(computing, communicating)
            elif computing >= 0:
                self._run_alone(0)
            elif communicating >= 0:
                self._run_alone(1)
            else:
                break

        weights, slowed = self._weights()
        return Timing(tuple(self.starts), tuple(self.ends), weights, self.now, slowed)

    def _ready(self, stream: int) -> int:
        """The item at the head of a stream, if it may run; -1."""
        head = self._head(stream)
        if head < 0:
            return -1
        item = self.items[head]
        if item.after >= 0 and self.ends[item.after] < 0:
            return -1
        return -1 if item.stream == "both" and self._head(1 - stream) != head else head

    def _head(self, stream: int) -> int:
        queue = self.queues[stream]
        head = self.heads[stream]
        return queue[head] if head < len(queue) else -1

    def _run_alone(self, stream: int) -> None:
        """One item of a stream after the other, while the head of the other stream cannot run."""
        queue = self.queues[stream]
        items = self.items
        left = self.left
        starts = self.starts
        ends = self.ends
        other = self._head(1 - stream)
        now = self.now
        stretches = self.stretches
        awaited = items[other].after if other >= 0 else -1
        for head in range(self.heads[stream], len(queue)):
            n = queue[head]
            kind, _, after = items[n]
            if kind == "both" or (after >= 0 and ends[after] < 0):
                break
            if starts[n] < 0:
                starts[n] = now
            time = left[n]
            now += time
            if time > 0:
                stretches.append((time, -1, n) if stream else (time, n, -1))
            ends[n] = now
            self.heads[stream] = head + 1
            if n == awaited:
                break

        self.now = now

    def _run_both(self, computing: int, communicating: int) -> None:
        """On to the next end of an item, of the two that run; they may be one."""
        x = computing
        y = communicating
        left = self.left
        for n in (x, y):
            if self.starts[n] < 0:
                self.starts[n] = self.now

        a = self.overlap.computing_slowdown
        b = self.overlap.communicating_slowdown
        if x == y:
            time = left[x]
            left[x] = 0
        elif left[x] * a <= left[y] * b:
            time = left[x] * a
            left[x], left[y] = 0, max(0, left[y] - time / b)
        else:
            time = left[y] * b
            left[x] = max(0, left[x] - time / a)
            left[y] = 0

        self.now += time
        if time > 0:
            self.stretches.append((time, x, y))

        for stream, n in enumerate((x, y)):
            if left[n] == 0:
                self.ends[n] = self.now
                self.heads[stream] += 1

    def _weights(self) -> tuple[tuple[float, ...], tuple[float, float]]:
        """Each item's share of every stretch, from the last to the first.

        Where one stream runs alone, it has the whole stretch. Where both run, and then computing runs alone, more
        computing (s) makes the makespan longer by as much; more communicating makes it longer by what that slows
        computing: b (1 - 1 / a), with a and b the slowdowns of computing and communicating. And the other way round.
        """
        a = self.overlap.computing_slowdown
        b = self.overlap.communicating_slowdown
        found: list[float] = [0] * len(self.items)
        slowed: list[float] = [0, 0]
        computes_next = True
        for time, x, y in reversed(self.stretches):
            if x == y or x < 0 or y < 0:
                found[max(x, y)] += time
                computes_next = x == y or y < 0
                continue
            computing = time / a if computes_next else time * (1 - 1 / b)
            found[x] += computing
            found[y] += time - computing
            slowed[0] += computing
            slowed[1] += time - computing

        return tuple(found), (slowed[0], slowed[1])
