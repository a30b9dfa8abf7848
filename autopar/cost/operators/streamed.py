"""Streamed: what a loop takes for each element beside the bytes that it reads and writes, as more bytes of these."""

from __future__ import annotations

from math import prod

from autopar.core.graph import OpGraph, OpNode
from autopar.core.memo import once_per_graph
from autopar.cost.operators.moved import kernels, moved
from autopar.ops.fusion import Fusing, materialised, moving_way
from autopar.ops.traits import is_fusible


@once_per_graph
def streamed(graph: OpGraph, fusing: Fusing) -> tuple[tuple[float, ...], ...]:
    """`moved`, and what loops take for each element (`Fusing.loop_bytes`), as a share of what they write or reduce.

    What is put together is made of pads, which are copies. What is recomputed counts as if it were not.
    """
    shares = moved(graph, fusing)
    if not fusing.loop_bytes:
        return shares

    kept = materialised(graph, fusing)
    found = [[*mine] for mine in shares]
    for op in {op.id: op for kernel in kernels(graph, fusing) for op in kernel}.values():
        place = _iterated(op, fusing.loop_bytes)
        if place is not None and moving_way(op) not in fusing.moving and op.outs[0].id in kept:
            found[op.id][place] += fusing.loop_bytes / (*op.ins, *op.outs)[place].itemsize

    return tuple(tuple(found[graph.original(op).id]) for op in graph.ops)


def _iterated(op: OpNode, loop_bytes: int) -> int | None:
    """The place of what a loop that ends with `op` goes over and does not write in so many bytes an element, if any."""
    if is_fusible(op):
        return len(op.ins) if op.outs[0].itemsize < loop_bytes else None
    return max(range(len(op.ins)), key=lambda n: prod(op.ins[n].shape))
