"""Loops: what a loop copies of what it goes through, and of what it stacks."""

from __future__ import annotations

from autopar.core.dataflow import uses_of
from autopar.core.graph import OpGraph, OpNode
from autopar.core.memo import once_per_graph
from autopar.ops.traits import is_fusible, reads_fused


@once_per_graph
def copied(graph: OpGraph) -> frozenset[int]:
    """The ids of the boundary operators of scans that copy what they pass on.

    A slice is computed within the kernels that read it; a product of matrices, or a loop inside, is given a copy. What
    is stacked is written to its place by the kernel that makes it where nothing else reads it; else it is a copy. A
    loop of one round is none.
    """
    return frozenset(op.id for op in graph.ops if _is_copied_in(graph, op) or _is_copied_out(graph, op))


def _is_copied_in(graph: OpGraph, op: OpNode) -> bool:
    if op.kind != "scan_slice" or op.ins[0].shape[0] == 1:
        return False
    readers = [use.op for use in uses_of(graph).get(op.outs[0].id, ())]
    return any(reader is not None and not reads_fused(graph.ops[reader]) for reader in readers)


def _is_copied_out(graph: OpGraph, op: OpNode) -> bool:
    if op.kind != "scan_stack" or op.outs[0].shape[0] == 1:
        return False
    producer = graph.producers.get(op.ins[0].id)
    alone = len(uses_of(graph).get(op.ins[0].id, ())) == 1
    return producer is None or not (alone and is_fusible(producer))
