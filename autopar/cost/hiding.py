"""Hiding: the tensors whose collectives may run beside the computing of others, as nothing near waits for them.

Parameters are there from the start: what gathers them for the forward or the backward pass is issued ahead of its
reader. Gradients are read by the update only, or put on a stack: what reduces them ends behind. What passes from one
operator to the next is on the way of all that follows, and so is what the update does at the end of a step.
"""

from __future__ import annotations

from collections.abc import Sequence

from autopar.core.dataflow import Use
from autopar.core.graph import OpGraph, OpNode
from autopar.core.memo import once_per_graph
from autopar.core.regions import ENTERING, LEAVING
from autopar.cost.buckets import waiting
from autopar.ops.traits import is_cast_or_rearrangement


def may_hide(graph: OpGraph, tensor: int, uses: Sequence[Use]) -> bool:
    """Whether what redistributes a tensor, by its id, for `uses` may run beside others' computing.

    A stack that a loop is to go through is waited for by its first round, and one that it leaves ends with its last.
    """
    if tensor in hidden_gradients(graph):
        return graph.producers[tensor].kind not in LEAVING
    return tensor in parameters(graph) and all(
        use.op is not None
        and graph.ops[use.op].phase != "update"
        and graph.ops[use.op].kind not in ENTERING
        for use in uses
    )


@once_per_graph
def parameters(graph: OpGraph) -> frozenset[int]:
    """The ids of what a step is given of its state, in every form that it has before anything is computed with it."""
    state = {*graph.resident, *(position for _, position in graph.carry)}
    found = {graph.inputs[position].id for position in state}
    for op in graph.ops:
        if op.phase != "update" and _passes_on(op) and op.ins[0].id in found:
            found.update(tensor.id for tensor in op.outs)
    return frozenset(found)


@once_per_graph
def hidden_gradients(graph: OpGraph) -> frozenset[int]:
    """The ids of what becomes a gradient that the update reads, by casts, views and stacks alone."""
    found = set(waiting(graph))
    for op in reversed(graph.ops):
        if (
            op.phase == "backward"
            and op.outs
            and op.outs[0].id in found
            and (op.kind in LEAVING or is_cast_or_rearrangement(op))
        ):
            found.update(tensor.id for tensor in op.ins)
    return frozenset(found)


def _passes_on(op: OpNode) -> bool:
    return bool(op.ins) and (op.kind == "scan_slice" or is_cast_or_rearrangement(op))
