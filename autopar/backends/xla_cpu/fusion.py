"""Fusion: which results are written to memory, and which buffers every kernel reads.

As XLA decides it on CPU (`InstructionFusion`): a loop is computed inside each of its readers that is a loop too, and so
is the same buffer in another shape. Where some reader is none it is written for that one, and computed again inside the
others if that reads no more than one operand of its size. What is dear is computed inside one kernel only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from autopar.backends.xla_cpu.library import with_taken
from autopar.backends.xla_cpu.node import Node, ranked, read_inside
from autopar.backends.xla_cpu.paths import kept_whole

MOST_COPIES = 15
"""How often the code of a loop is put into one kernel at most: once for each place that elements are read from."""
Slot = tuple[bool, int]
"""Where a reader stands among those of a buffer: whether it comes late, and the position of the node that reads it."""


@dataclass(frozen=True, eq=False)
class Kernel:
    """A node whose results are written, and the buffers that it reads, those of what is computed inside it included.

    `same` are those of which it reads only the element at the place that it writes. `body` are the kernels of a control
    node. `slots` say for a buffer which node inside reads it, `slot` which is the kernel's own.
    """

    node: Node
    reads: tuple[int, ...]
    same: frozenset[int] = frozenset()
    body: tuple[Kernel, ...] = ()
    slots: Mapping[int, Slot] = field(default_factory=dict[int, Slot])
    slot: Slot | None = None


class _Read(NamedTuple):
    """How a node reads a buffer: whether in place only, and from which slot."""

    is_same: bool
    slot: Slot


def fused(nodes: Sequence[Node], kept: Sequence[int] = ()) -> tuple[Kernel, ...]:
    """The kernels of `nodes`, in their order. The buffers `kept` are written, whoever reads them here."""
    nodes = _with_products(_needed(nodes, kept), kept)
    nodes = with_taken(nodes, _readers(nodes), kept)
    written, again = _fates(nodes, _readers(nodes), kept)
    ranks = ranked(
        [(*node.ins, *sorted(read_inside(node))) for node in nodes],
        [node.outs for node in nodes],
        kept,
    )
    inside: dict[int, dict[int, _Read]] = {}
    operands: dict[int, tuple[int, ...]] = {}
    same_as: dict[int, int] = {}
    found: list[Kernel] = []
    for n, node in enumerate(nodes):
        if node.view and node.ins[0] not in inside:
            same_as[node.outs[0]] = node.ins[0]
            continue
        node, slot = _reading(node, same_as), (node.late, n)
        reads = _reads(node, slot, inside)
        if (node.kind == "loop" and n not in written) or n in again:
            inside[node.outs[0]] = reads
            operands[node.outs[0]] = node.ins
        if node.kind != "loop" or n in written:
            same = frozenset(value for value, read in reads.items() if read.is_same)
            body = fused(node.body, [value for _, value in node.carried]) if node.body else ()
            order = _operands(node, operands, ranks) if node.kind == "loop" else tuple(reads)
            found.append(
                Kernel(
                    node,
                    order,
                    same,
                    body,
                    {value: read.slot for value, read in reads.items()},
                    slot,
                )
            )

    return tuple(found)


def _reads(node: Node, slot: Slot, inside: Mapping[int, Mapping[int, _Read]]) -> dict[int, _Read]:
    """The buffers that a node reads, what is computed `inside` it included, in no certain order."""
    found: dict[int, _Read] = {}
    for value in node.ins:
        parts = (
            inside[value] if node.kind == "loop" and value in inside else {value: _Read(True, slot)}
        )
        for buffer, read in parts.items():
            known = found.get(buffer, read)
            is_same = known.is_same and read.is_same and node.elementwise
            found[buffer] = _Read(is_same, min(known.slot, read.slot))
    return found


def _operands(
    node: Node, inside: Mapping[int, tuple[int, ...]], ranks: Mapping[int, int]
) -> tuple[int, ...]:
    """The buffers that a loop reads, in XLA's order: what is computed `inside` it is taken in one by one, that of the
    highest rank first, and its operands come behind those that are there.
    """
    found = dict.fromkeys(node.ins)
    at = {ranks[value]: value for value in found if value in inside}
    waiting = [-rank for rank in at]
    heapify(waiting)
    while waiting:
        value = at[-heappop(waiting)]
        del found[value]
        for more in inside[value]:
            if more in found:
                continue
            found[more] = None
            if more in inside:
                at[ranks[more]] = more
                heappush(waiting, -ranks[more])

    return tuple(found)


def _reading(node: Node, same_as: Mapping[int, int]) -> Node:
    """`node`, which reads what its operands are the same as."""
    if not same_as.keys() & {*node.ins, *node.over}:
        return node
    ins, over = (
        tuple(same_as.get(value, value) for value in values) for values in (node.ins, node.over)
    )
    return replace(node, ins=ins, over=over)


def _needed(nodes: Sequence[Node], kept: Sequence[int]) -> tuple[Node, ...]:
    """`nodes` without loops whose result nobody reads."""
    read = set(kept)
    found: list[Node] = []
    for node in reversed(nodes):
        if node.kind != "loop" or not node.outs or node.outs[0] in read:
            read.update(node.ins, read_inside(node))
            found.append(node)
    return tuple(reversed(found))


def _readers(nodes: Sequence[Node]) -> dict[int, list[int]]:
    """The positions of the nodes that read each buffer, loops and branches for what is in them."""
    found: dict[int, list[int]] = {}
    for n, node in enumerate(nodes):
        for value in dict.fromkeys((*node.ins, *read_inside(node))):
            found.setdefault(value, []).append(n)
    return found


def _with_products(nodes: Sequence[Node], kept: Sequence[int]) -> tuple[Node, ...]:
    """`nodes` with products that only a sum reads as a part of it; what it reads negated is negated behind it."""
    readers = _readers(nodes)
    makers = {value: n for n, node in enumerate(nodes) for value in node.outs}
    gone: set[int] = set()
    found = list(nodes)

    def alone(node: Node) -> int | None:
        value = node.ins[0]
        return makers.get(value) if len(readers[value]) == 1 and value not in kept else None

    for n, node in enumerate(nodes):
        made = alone(node) if node.sums else None
        if made is not None and nodes[made].negates:
            gone.add(made)
            found[n] = node = replace(node, ins=nodes[made].ins)
            made = alone(node)
        if made is not None and nodes[made].product:
            gone.add(made)
            found[n] = replace(node, ins=nodes[made].ins, sums=False)

    return tuple(node for n, node in enumerate(found) if n not in gone)


def _fates(
    nodes: Sequence[Node], readers: dict[int, list[int]], kept: Sequence[int]
) -> tuple[set[int], set[int]]:
    """The loops whose result is written, and those of them that are computed again inside other loops."""
    written: set[int] = set()
    again: set[int] = set()
    whole = kept_whole(nodes, readers)
    places: list[dict[int, int]] = [{} for _ in nodes]
    for n in range(len(nodes) - 1, -1, -1):
        node = nodes[n]
        if node.kind != "loop" or node.view or not node.outs:
            written.add(n)
            places[n] = {n: 1}
            continue
        mine = readers.get(node.outs[0], [])
        loops = [
            r for r in mine if nodes[r].kind == "loop" and not (node.dear and nodes[r].spreads)
        ]
        within = _within(loops, nodes, places)
        most = max(within.values(), default=0)
        is_read_whole = n in whole or len(loops) < len(mine) or node.outs[0] in kept or not mine
        is_apart = node.once and (most > 1 or len(mine) > 1 or (node.pieces and len(within) > 1))
        is_too_often = most > MOST_COPIES or is_apart
        if is_read_whole or (node.dear and len(within) > 1) or is_too_often:
            written.add(n)
            places[n] = {n: 1}
            if loops and node.unary and n not in whole and not node.dear and not is_too_often:
                again.add(n)
                places[n] |= within
        else:
            places[n] = within

    return written, again


def _within(
    loops: Sequence[int], nodes: Sequence[Node], places: Sequence[Mapping[int, int]]
) -> dict[int, int]:
    """The kernels that hold one of the readers `loops`, and how often each would compute what these read: once for all
    that read in place, and once for every place of each other.
    """
    found: dict[int, int] = {}
    for r in loops:
        for kernel, count in places[r].items():
            if nodes[r].elementwise:
                found[kernel] = max(found.get(kernel, 0), count)
    for r in loops:
        for kernel, count in places[r].items():
            if not nodes[r].elementwise:
                found[kernel] = found.get(kernel, 0) + count
    return found
