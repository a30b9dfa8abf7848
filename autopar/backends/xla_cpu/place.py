"""Place: from when to when buffers are held, and what that comes to. As XLA's buffer assignment does it.

Arguments and results have memory of their own. Smaller buffers lie in that of a result until it is made (or in that of
a donated argument, once it is no longer read), the largest first; a kernel that works element by element writes over an
operand that nobody reads later. The rest shares one arena.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from autopar.backends.xla_cpu.fusion import Kernel
from autopar.backends.xla_cpu.order import reads_of, ready_first

END = 1 << 60
Room = tuple[int, list[tuple[int, int]]]
"""Memory that is there already: its bytes, and from when to when it is taken, both included."""


@dataclass(eq=False)
class Timed:
    """Kernels one after the other: when each buffer is written and when it is read last, both included.

    `taken` are the buffers whose memory another takes at their last reader. `steps` are the kernels in their order.
    """

    sizes: Mapping[int, int]
    made: dict[int, int] = field(default_factory=dict[int, int])
    last: dict[int, int] = field(default_factory=dict[int, int])
    same_as: dict[int, int] = field(default_factory=dict[int, int])
    onto: dict[int, int] = field(default_factory=dict[int, int])
    steps: list[Kernel] = field(default_factory=list[Kernel])

    def run(self, kernels: Sequence[Kernel], results: Sequence[int] = ()) -> None:
        """Puts `kernels` behind what is there."""
        for kernel in ready_first(kernels, results):
            position = len(self.steps)
            self.steps.append(kernel)
            for value in kernel.node.outs:
                self.made[value] = position
            if kernel.node.kind == "control":
                self.run(kernel.body, [value for _, value in kernel.node.carried])
                self._carry(kernel)
            end = len(self.steps) - 1
            for value in reads_of(kernel):
                if (
                    self.made.get(value, -1) <= position
                ):  # what a loop makes itself is read inside it
                    until = position if value in kernel.node.over else end
                    self.last[value] = max(until, self.last.get(value, 0))
            for buffer, _ in kernel.node.carried:
                self.last[buffer] = end

    def _carry(self, kernel: Kernel) -> None:
        """The next content of a carry is written over the last, unless that is read later in the round."""
        end = len(self.steps) - 1
        for buffer, value in kernel.node.carried:
            begins = self.made.get(buffer, -1)
            if self.made.get(value, -1) > begins and self.last.get(buffer, -1) <= self.made[value]:
                self.same_as[value] = buffer
            else:
                self.last[value] = max(end, self.last.get(value, 0))

    def write_over(self, results: Collection[int]) -> None:
        """Makes one buffer of what a kernel has to write over and what it makes of that, once all have run."""
        for kernel in self.steps:
            if not kernel.node.inplace:
                continue
            old = kernel.node.over[0]
            new = kernel.node.outs[0]
            old = self.onto.get(old, old)
            if old not in self.made:
                continue
            if new in results:
                self.made[new] = self.made[old]
                self.onto[old] = new
            else:
                self.last[old] = max(self.last.get(old, 0), self.last.get(new, 0))
                self.onto[new] = old


@dataclass(frozen=True)
class HeldBuffer:
    """A buffer: first <= time <= last, in bytes. It may be written `over` another of its size that ends before."""

    buffer: int
    first: int
    last: int
    size_bytes: int
    over: int | None = None


def held(timed: Timed, fixed: frozenset[int]) -> list[HeldBuffer]:
    """The buffers that need memory, but the `fixed` ones."""
    last = dict(timed.last)
    below = dict[int, int]()
    for position, kernel in enumerate(timed.steps):
        over = {*kernel.same, *kernel.node.over}
        free = [
            v
            for v in kernel.reads
            if v in over and last.get(v) == position and timed.made.get(v, position) < position
        ]
        for value in kernel.node.outs:
            fitting = [v for v in free if timed.sizes[v] == timed.sizes[value] and v not in fixed]
            if fitting:
                free.remove(fitting[0])
                below[value] = timed.onto.get(fitting[0], fitting[0])
                last[below[value]] = position - 1

    gone = timed.same_as.keys() | timed.onto.keys()
    found = (
        (value, first, last.get(value, first), timed.sizes[value], below.get(value))
        for value, first in timed.made.items()
    )
    return [
        HeldBuffer(*one) for one in found if one[0] not in fixed and one[0] not in gone and one[3]
    ]


def left_over(
    buffers: Sequence[HeldBuffer], rooms: Sequence[Room], ranks: Mapping[int, int]
) -> list[HeldBuffer]:
    """The buffers that find no place in any of `rooms`, the smallest that fits being tried first; of buffers of one
    size that of the least rank comes first.
    """
    rooms = sorted(rooms, key=lambda room: room[0])
    found: list[HeldBuffer] = []
    for one in sorted(buffers, key=lambda one: (-one.size_bytes, ranks[one.buffer])):
        for size, taken in rooms:
            if size >= one.size_bytes and all(
                stop < one.first or one.last < start for start, stop in taken
            ):
                taken.append((one.first, one.last))
                break
        else:
            found.append(one)
    return found


def most(buffers: Sequence[HeldBuffer]) -> tuple[int, int]:
    """The most bytes that are held at once, and when."""
    if not buffers:
        return 0, 0
    change = [0] * (max(one.last for one in buffers) + 2)
    for one in buffers:
        change[one.first] += one.size_bytes
        change[one.last + 1] -= one.size_bytes
    sums = list(accumulate(change))
    peak = max(sums)
    return peak, sums.index(peak)
