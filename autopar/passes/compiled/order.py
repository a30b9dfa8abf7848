"""Order: when kernels run. XLA's CPU compiler lets each run as soon as its operands are there, first come first served.

So whatever needs arguments only (masks, gathers of weights, casts) runs at the beginning, however late it is used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from autopar.passes.compiled.fusion import Kernel


def ready_first(kernels: Sequence[Kernel]) -> tuple[Kernel, ...]:
    """The kernels in breadth-first order; those of control nodes stay inside them, as they are."""
    readers, missing = readers_of(kernels)
    queue = deque(n for n, count in enumerate(missing) if not count)
    found: list[Kernel] = []
    while queue:
        n = queue.popleft()
        found.append(kernels[n])
        for reader in readers[n]:
            missing[reader] -= 1
            if not missing[reader]:
                queue.append(reader)
    return tuple(found)


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
