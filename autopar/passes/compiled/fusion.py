"""Fusion: which results are written to memory, and which buffers every kernel reads.

As XLA decides it on CPU (`InstructionFusion`): a loop is computed inside each of its readers that is a loop too. Where
some reader is none it is written for that one, and computed again inside the others if that reads no more than one
operand of its size, or if those that are none see it with its dims merged. What is dear is computed inside one kernel
only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from autopar.passes.compiled.node import Node

MOST_COPIES = 15
"""How often the code of a loop is put into one kernel at most: once for each place that elements are read from."""


@dataclass(frozen=True, eq=False)
class Kernel:
    """A node whose results are written, and the buffers that it reads, those of what is computed inside it included.

    `same` are those of which it reads only the element at the place that it writes. `body` are the kernels of a control
    node.
    """

    node: Node
    reads: tuple[int, ...]
    same: frozenset[int] = frozenset()
    body: tuple[Kernel, ...] = ()


def fused(nodes: Sequence[Node], kept: Collection[int] = ()) -> tuple[Kernel, ...]:
    """The kernels of `nodes`, in their order. The buffers `kept` are written, whoever reads them here."""
    nodes = _with_products(nodes, kept)
    readers = _readers(nodes)
    written, again = _fates(nodes, readers, kept)
    inside: dict[int, dict[int, bool]] = {}
    found: list[Kernel] = []
    for n, node in enumerate(nodes):
        reads: dict[int, bool] = {}
        for value in node.ins:
            parts = inside[value] if node.kind == "loop" and value in inside else {value: True}
            for read, same in parts.items():
                reads[read] = reads.get(read, True) and same and node.elementwise
        if (node.kind == "loop" and n not in written) or n in again:
            inside[node.outs[0]] = reads
        if node.kind != "loop" or n in written:
            same = frozenset(value for value, is_same in reads.items() if is_same)
            body = fused(node.body, {value for _, value in node.carried}) if node.body else ()
            found.append(Kernel(node, tuple(reads), same, body))
    return tuple(found)


def _readers(nodes: Sequence[Node]) -> dict[int, list[int]]:
    """The positions of the nodes that read each buffer, loops and branches for what is in them."""
    found: dict[int, list[int]] = {}
    for n, node in enumerate(nodes):
        for value in dict.fromkeys((*node.ins, *_read_inside(node))):
            found.setdefault(value, []).append(n)
    return found


def _read_inside(node: Node) -> set[int]:
    return {value for inner in node.body for value in (*inner.ins, *_read_inside(inner))}


def _with_products(nodes: Sequence[Node], kept: Collection[int]) -> tuple[Node, ...]:
    """`nodes` with products that only a sum reads as a part of it."""
    readers = _readers(nodes)
    makers = {value: n for n, node in enumerate(nodes) for value in node.outs}
    gone: set[int] = set()
    found = list(nodes)
    for n, node in enumerate(nodes):
        made = makers.get(node.ins[0]) if node.sums else None
        if made is not None and nodes[made].product and len(readers[node.ins[0]]) == 1 and node.ins[0] not in kept:
            gone.add(made)
            found[n] = replace(node, ins=nodes[made].ins, sums=False)
    return tuple(node for n, node in enumerate(found) if n not in gone)


def _fates(nodes: Sequence[Node], readers: dict[int, list[int]], kept: Collection[int]) -> tuple[set[int], set[int]]:
    """The loops whose result is written, and those of them that are computed again inside other loops."""
    written: set[int] = set()
    again: set[int] = set()
    places: list[dict[int, int]] = [{} for _ in nodes]
    for n in range(len(nodes) - 1, -1, -1):
        node = nodes[n]
        if node.kind != "loop" or not node.outs:
            written.add(n)
            places[n] = {n: 1}
            continue
        mine = readers.get(node.outs[0], [])
        loops = [r for r in mine if nodes[r].kind == "loop" and not (node.dear and nodes[r].spreads)]
        within = _within(loops, nodes, places)
        most = max(within.values(), default=0)
        is_read_whole = len(loops) < len(mine) or node.outs[0] in kept or not mine
        is_too_often = most > MOST_COPIES or (node.once and (most > 1 or len(mine) > 1))
        if is_read_whole or (node.dear and len(within) > 1) or is_too_often:
            written.add(n)
            places[n] = {n: 1}
            is_cheap = node.unary or (node.outs[0] not in kept and _is_merged(node.outs[0], mine, nodes))
            if loops and is_cheap and not node.dear and not is_too_often:
                again.add(n)
                places[n] |= within
        else:
            places[n] = within
    return written, again


def _is_merged(value: int, readers: Sequence[int], nodes: Sequence[Node]) -> bool:
    """Whether all kernels that read a value as it is see it with its dims merged: XLA asks what to compute again of the
    value and those who read it at once, and between these there is another instruction then, which moves nothing.
    """
    return all(nodes[r].kind == "loop" or value in nodes[r].merged for r in readers)


def _within(loops: Sequence[int], nodes: Sequence[Node], places: Sequence[Mapping[int, int]]) -> dict[int, int]:
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
