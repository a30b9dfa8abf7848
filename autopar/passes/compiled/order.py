"""Order: when kernels run. XLA's CPU compiler lets each run as soon as its operands are there, first come first served.

So whatever needs arguments only (masks, gathers of weights, casts) runs at the beginning, however late it is used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from autopar.passes.compiled.fusion import Kernel


def ready_first(kernels: Sequence[Kernel]) -> tuple[Kernel, ...]:
    """The kernels in breadth-first order; those of control nodes stay inside them, unordered."""
    maker = {value: n for n, kernel in enumerate(kernels) for value in kernel.node.outs}
    waits = [{maker[v] for v in reads_of(kernel) if v in maker} - {n} for n, kernel in enumerate(kernels)]
    readers: list[list[int]] = [[] for _ in kernels]
    for n, makers in enumerate(waits):
        for made in makers:
            readers[made].append(n)
    missing = [len(makers) for makers in waits]
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


def reads_of(kernel: Kernel) -> set[int]:
    """All buffers that a kernel reads, those read inside a control node included."""
    found = set(kernel.reads)
    for inner in kernel.body:
        found |= reads_of(inner)
    return found
