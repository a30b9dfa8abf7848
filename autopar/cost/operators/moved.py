"""Moved: what operators read and write that run as one kernel, and which do: what stays within it costs nothing."""

from __future__ import annotations

from collections import defaultdict

from autopar.core.graph import OpGraph, OpNode
from autopar.core.manual import BORDERS
from autopar.core.memo import once_per_graph
from autopar.ops.fusion import (
    PLAIN,
    Fusing,
    computes_read,
    first_made,
    fuses,
    in_products,
    loops,
    materialised,
)
from autopar.ops.touched import touched
from autopar.ops.traits import traits_of


@once_per_graph
def moved(graph: OpGraph, fusing: Fusing = PLAIN) -> tuple[tuple[float, ...], ...]:
    """By operator the share of each operand, then of each result, that it moves to or from memory.

    Nothing of what stays within a kernel (`work.materialised`), of the rest what is `touched`. What several operators
    of a kernel read is read once: each of them counts a part of it. What runs in several kernels reads in each. What is
    recomputed counts as if it were not.
    """
    kept = materialised(graph, fusing)
    absorbed = in_products(graph, fusing)
    first = first_made(graph)
    alone = [
        (0.0,) * (len(op.ins) + len(op.outs)) if op.id in absorbed else _in_memory(graph, op, kept)
        for op in graph.ops
    ]
    found = [[*shares] for shares in alone]
    all_kernels = kernels(graph, fusing)
    for op in {op.id: op for kernel in all_kernels for op in kernel}.values():
        found[op.id][: len(op.ins)] = [0.0] * len(op.ins)

    for kernel in all_kernels:
        read: dict[int, float] = defaultdict(float)
        for op in kernel:
            for tensor, share in zip(op.ins, alone[op.id], strict=False):
                read[first.get(tensor.id, tensor.id)] += share
        for op in kernel:
            for n, tensor in enumerate(op.ins):
                total = read[first.get(tensor.id, tensor.id)]
                found[op.id][n] += alone[op.id][n] / max(1.0, total)

    return tuple([tuple(found[graph.original(op).id]) for op in graph.ops])


@once_per_graph
def kernels(graph: OpGraph, fusing: Fusing) -> tuple[tuple[OpNode, ...], ...]:
    """The operators of each fused loop, without views, as if nothing were recomputed."""
    found: dict[int, list[OpNode]] = {}
    absorbed = in_products(graph, fusing)
    for op, lasts in zip(graph.ops, loops(graph, fusing), strict=True):
        is_fused = computes_read(op, fusing) or fuses(op, fusing)
        computes = is_fused and not traits_of(op.kind).is_view and op.id not in absorbed
        if computes and op.recomputes in (None, op.id) and (op.ins or op.outs):
            for last in lasts:
                found.setdefault(last, []).append(op)
    return tuple(map(tuple, found.values()))


def _in_memory(graph: OpGraph, op: OpNode, kept: frozenset[int]) -> tuple[float, ...]:
    if (
        op.kind in BORDERS and op.ins[0].id in kept and op.outs[0].id in kept
    ):  # one array under two names
        return (0.0, 0.0)
    shares = zip((*op.ins, *op.outs), touched(graph, op), strict=True)
    return tuple([share if tensor.id in kept else 0.0 for tensor, share in shares])
