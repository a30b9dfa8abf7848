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
    loop of one round is none. In one that is unrolled slices are taken out of what is around it: once for all rounds of
    the loop around where they are the same in each; and what is stacked is joined where it is read.
    """
    return frozenset(
        op.id for op in graph.ops if _is_copied_in(graph, op) or _is_copied_out(graph, op)
    )


def _is_copied_in(graph: OpGraph, op: OpNode) -> bool:
    if op.kind != "scan_slice" or op.ins[0].shape[0] == 1:
        return False
    if _is_unrolled(graph, op) and not _changes_around(graph, op):
        return False
    return any(
        reader is None
        or not (
            reads_fused(reader) or (reader.kind == "scan_slice" and _is_unrolled(graph, reader))
        )
        for reader in _readers(graph, op)
    )


def _is_copied_out(graph: OpGraph, op: OpNode) -> bool:
    if op.kind != "scan_stack" or op.outs[0].shape[0] == 1:
        return False
    if _is_unrolled(graph, op):
        return any(
            reader is None or not (reads_fused(reader) or reader.kind == "scan_stack")
            for reader in _readers(graph, op)
        )
    producer = graph.producers.get(op.ins[0].id)
    alone = len(uses_of(graph).get(op.ins[0].id, ())) == 1
    return producer is None or not (alone and is_fusible(producer))


def _is_unrolled(graph: OpGraph, op: OpNode) -> bool:
    return op.region is not None and graph.tree[op.region].unrolled


def _changes_around(graph: OpGraph, op: OpNode) -> bool:
    """Whether what a loop goes through is made anew in each round of the loop around it."""
    around = next((r for r in graph.tree.path(op.region)[1:] if graph.tree.kind(r) == "body"), None)
    return around is not None and around in graph.tree.path(graph.made_in(op.ins[0]))


def _readers(graph: OpGraph, op: OpNode) -> list[OpNode | None]:
    """Those that read the result of `op`; None for who called the function."""
    uses = uses_of(graph).get(op.outs[0].id, ())
    return [None if use.op is None else graph.ops[use.op] for use in uses]
