"""Donate: which donated arguments are copied first, since something may still read them when their result is made."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from autopar.backends.xla_cpu.fusion import Kernel
from autopar.backends.xla_cpu.node import Node
from autopar.backends.xla_cpu.order import ancestors, reads_of


def with_copies(
    kernels: Sequence[Kernel], donations: Mapping[int, int], sizes: dict[int, int], first_new: int
) -> tuple[Kernel, ...]:
    """The kernels with a copy of each donated argument that a kernel reads which need not run before the one that
    writes over it: kernels are not in order yet when XLA looks. Everything reads the copy then.

    Args:
      kernels: of the whole program, before they are ordered.
      donations: the argument in whose memory each result lies.
      sizes: bytes of every buffer; those of the copies are added.
      first_new: a number from which on buffers are free.
    """
    maker = {value: n for n, kernel in enumerate(kernels) for value in kernel.node.outs}
    reads = [reads_of(kernel) for kernel in kernels]
    readers: dict[int, list[int]] = {argument: [] for argument in donations.values()}
    for n, values in enumerate(reads):
        for value in readers.keys() & values:
            readers[value].append(n)

    before = ancestors(kernels)
    copies: dict[int, int] = {}
    for result, argument in donations.items():
        writer = maker.get(result)
        if writer is None or result == argument:
            continue
        others = (n for n in readers[argument] if n != writer)
        is_over = argument not in reads[writer] or argument in kernels[writer].same
        if not is_over or any(not before[writer] >> n & 1 for n in others):
            copies[argument] = first_new + len(copies)
            sizes[copies[argument]] = sizes[argument]

    made = [Kernel(Node("kernel", (old,), (new,), -1), (old,)) for old, new in copies.items()]
    return *made, *(_reading(kernel, copies) for kernel in kernels)


def with_own(
    kernels: Sequence[Kernel], arguments: Collection[int], sizes: dict[int, int], first_new: int
) -> tuple[Kernel, ...]:
    """The kernels with a copy of what one has to write over, where it is an argument or another that reads it need not
    run before; that one reads the copy.

    Args:
      kernels: before they are ordered.
      arguments: buffers that may not be written.
      sizes: bytes of every buffer; those of the copies are added.
      first_new: a number from which on buffers are free.
    """
    writers = [n for n, kernel in enumerate(kernels) if kernel.node.inplace]
    if not writers:
        return tuple(kernels)

    reads = [reads_of(kernel) for kernel in kernels]
    before = ancestors(kernels)
    found = list(kernels)
    made = list[Kernel]()
    for n in writers:
        old = kernels[n].node.over[0]
        node = kernels[n].node
        others = (m for m, values in enumerate(reads) if old in values and m != n)
        if old in arguments or any(not before[n] >> m & 1 for m in others):
            new = first_new + len(made)
            sizes[new] = sizes[old]
            made.append(Kernel(Node("kernel", (old,), (new,), node.position, late=True), (old,)))
            copied = _reading(kernels[n], {old: new})
            found[n] = replace(copied, node=replace(node, over=(new, *node.over[1:])))

    return *found, *made


def _reading(kernel: Kernel, copies: Mapping[int, int]) -> Kernel:
    if not copies.keys() & reads_of(kernel):
        return kernel
    reads = tuple(copies.get(value, value) for value in kernel.reads)
    same = frozenset(copies.get(value, value) for value in kernel.same)
    slots = {copies.get(value, value): slot for value, slot in kernel.slots.items()}
    return replace(
        kernel,
        reads=reads,
        same=same,
        slots=slots,
        body=tuple(_reading(inner, copies) for inner in kernel.body),
    )
