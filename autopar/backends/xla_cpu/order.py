"""Order: when kernels run. XLA's CPU compiler lets each run as soon as its operands are there, first come first served.

So whatever needs arguments only (masks, gathers of weights, casts) runs at the beginning, however late it is used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from autopar.backends.xla_cpu.fusion import Kernel, Slot
from autopar.backends.xla_cpu.node import ranked

_CONSTANTS = -1
"""No buffer: all constants."""


def ready_first(kernels: Sequence[Kernel], results: Sequence[int] = ()) -> tuple[Kernel, ...]:
    """The kernels in breadth-first order; those of control nodes stay inside them, as they are.

    What is there already comes first. Each of several results is taken out of their tuple by an instruction of its own,
    which waits in line too. Copies that a compiler adds late are the last of those that wait for the same.
    """
    makers = {value: n for n, kernel in enumerate(kernels) for value in kernel.node.outs}
    readers: dict[int, list[int]] = {}
    missing: list[int] = []
    for n, kernel in enumerate(kernels):
        values = [value for value in reads_of(kernel) if makers.get(value) != n]
        missing.append(len(values))
        for value in values:
            readers.setdefault(value, []).append(n)

    ranks = post_order(kernels, results)
    queue: deque[int | tuple[int, ...]] = deque(
        [(value,) for value in sorted(readers) if value not in makers]
    )
    first = [n for n, count in enumerate(missing) if not count]
    queue.extend(n for n in first if not kernels[n].node.late)
    found: list[Kernel] = []
    readers[_CONSTANTS] = [n for n in first if kernels[n].node.late]
    for n in readers[_CONSTANTS]:
        missing[n] = 1

    queue.append((_CONSTANTS,))
    while queue:
        ready = queue.popleft()
        if isinstance(ready, int):
            found.append(kernels[ready])
            ready = tuple(value for value in kernels[ready].node.outs if value in readers)
        if len(ready) > 1:
            queue.extend((value,) for value in ready)
            continue
        for reader in (
            n for value in ready for n in _in_line(value, readers[value], kernels, ranks)
        ):
            missing[reader] -= 1
            if not missing[reader]:
                queue.append(reader)

    return tuple(found)


def _in_line(
    value: int, readers: Sequence[int], kernels: Sequence[Kernel], ranks: Mapping[int, int]
) -> list[int]:
    """The kernels `readers` in the order in which XLA lists those that read a buffer.

    They stand where the node does that reads it. Of several inside which it is computed that which has it for its own,
    or else the one of the least rank, has its place; the others were made from the last rank to the first, and stand
    behind all.
    """
    slots: dict[Slot, list[int]] = {}
    for n in readers:
        slots.setdefault(_slot(kernels[n], value, n), []).append(n)

    def rank(n: int) -> int:
        return min((ranks[made] for made in kernels[n].node.outs), default=0)

    found: list[int] = []
    behind: list[int] = []
    for slot, mine in sorted(slots.items()):
        first, *others = sorted(mine, key=lambda n: (kernels[n].slot != slot, rank(n)))
        found.append(first)
        behind.extend(others)

    return found + sorted(behind, key=rank, reverse=True)


def _slot(kernel: Kernel, value: int, place: int) -> Slot:
    own = (kernel.node.late, place) if kernel.slot is None else kernel.slot
    return kernel.slots.get(value, own)


def post_order(kernels: Sequence[Kernel], results: Sequence[int]) -> dict[int, int]:
    """The place of every buffer when `results` are made one after the other, and each one's operands before it: those
    of control nodes behind all others, the last node's first.
    """
    found = ranked(
        [_operands(kernel) for kernel in kernels], [kernel.node.outs for kernel in kernels], results
    )
    for kernel in reversed(kernels):
        if kernel.body:
            inner = post_order(kernel.body, [value for _, value in kernel.node.carried])
            found.update((value, len(found)) for value in inner if value not in found)
    return found


def _operands(kernel: Kernel) -> tuple[int, ...]:
    return (
        tuple(dict.fromkeys((*kernel.reads, *sorted(reads_of(kernel)))))
        if kernel.body
        else kernel.reads
    )


def readers_of(kernels: Sequence[Kernel]) -> tuple[list[list[int]], list[int]]:
    """The positions of the kernels that read what each makes, and of how many others each reads."""
    maker = {value: n for n, kernel in enumerate(kernels) for value in kernel.node.outs}
    readers: list[list[int]] = [[] for _ in kernels]
    missing: list[int] = []
    for n, kernel in enumerate(kernels):
        makers = {maker[value] for value in reads_of(kernel) if value in maker} - {n}
        missing.append(len(makers))
        for made in makers:
            readers[made].append(n)
    return readers, missing


def reads_of(kernel: Kernel) -> set[int]:
    """All buffers that a kernel reads, those read inside a control node included."""
    found = set(kernel.reads)
    for inner in kernel.body:
        found |= reads_of(inner)
    return found


def ancestors(kernels: Sequence[Kernel]) -> list[int]:
    """For every kernel those that run before it in any order, as the bits of a number. Readers come behind makers."""
    maker = {value: n for n, kernel in enumerate(kernels) for value in kernel.node.outs}
    before: list[int] = []
    for n, kernel in enumerate(kernels):
        mask = 0
        for value in reads_of(kernel):
            made = maker.get(value, n)
            if made < n:
                mask |= before[made] | 1 << made
        before.append(mask)
    return before
