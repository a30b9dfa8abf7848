"""Join: all-reduces that do not need one another become one, as XLA's CPU compiler does whatever their bytes.

Then all their operands are there at once, and so are their results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush

from autopar.backends.xla_cpu.fusion import Kernel
from autopar.backends.xla_cpu.order import ancestors, readers_of


def joined(kernels: Sequence[Kernel]) -> tuple[Kernel, ...]:
    """The kernels, those of control nodes included, with groups of all-reduces as one; readers come behind makers."""
    kernels = tuple(
        replace(kernel, body=joined(kernel.body)) if kernel.body else kernel for kernel in kernels
    )
    done: set[int] = set()
    while group := _next_group(kernels, done):
        done.update(id(kernels[n]) for n in group)
        if len(group) > 1:
            one = _together([kernels[n] for n in group])
            done.add(id(one))
            rest = (
                one if n == group[-1] else kernel
                for n, kernel in enumerate(kernels)
                if n not in group[:-1]
            )
            kernels = _sorted(tuple(rest))

    return kernels


def _next_group(kernels: Sequence[Kernel], done: set[int]) -> list[int]:
    """The first all-reduces that are not `done`, alike, and not needed for one another; [] if there are no two left."""
    waiting = [
        n for n, kernel in enumerate(kernels) if kernel.node.joins and id(kernel) not in done
    ]
    if len(waiting) < 2:
        return []

    before = ancestors(kernels)
    group = waiting[:1]
    for n in waiting[1:]:
        if kernels[n].node.joins == kernels[group[0]].node.joins:
            if any(before[n] >> other & 1 for other in group):
                break
            group.append(n)

    return group


def _sorted(kernels: Sequence[Kernel]) -> tuple[Kernel, ...]:
    """The kernels in their order, but readers behind makers."""
    readers, missing = readers_of(kernels)
    ready = [n for n, count in enumerate(missing) if not count]
    heapify(ready)
    found: list[Kernel] = []
    while ready:
        n = heappop(ready)
        found.append(kernels[n])
        for reader in readers[n]:
            missing[reader] -= 1
            if not missing[reader]:
                heappush(ready, reader)
    return tuple(found)


def _together(kernels: Sequence[Kernel]) -> Kernel:
    node = kernels[-1].node
    reads = tuple(dict.fromkeys(value for kernel in kernels for value in kernel.reads))
    outs = tuple(value for kernel in kernels for value in kernel.node.outs)
    slots = {value: slot for kernel in kernels for value, slot in kernel.slots.items()}
    return Kernel(replace(node, ins=reads, outs=outs), reads, slots=slots)
