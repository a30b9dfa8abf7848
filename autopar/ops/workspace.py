"""Workspace: what a device holds while it runs an operator, besides operands and results."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from autopar.core.dataflow import uses_of
from autopar.core.graph import OpGraph, OpNode
from autopar.core.mesh import DeviceMesh
from autopar.core.strategy import Strategy
from autopar.ops.exchanged import joined_bytes, lengthening, sent_bytes, turns
from autopar.ops.fusion import materialised
from autopar.ops.rules.attention import ATTENTION, BACKWARD, slowest

_WITH_WORKSPACE = ("conv_general_dilated", *ATTENTION, "select_and_scatter_add")


def workspace_bytes(op: OpNode, in_bytes: Sequence[int]) -> int:
    """What XLA holds while the operator runs, besides operands (of `in_bytes` on one device) and results.

    A convolution: both operands once more, in the order of dims that its kernel wants. The scatter of max pooling's
    gradient: for each dim an array of indices as large as both operands. Measured on CPU. Attention backwards: the
    gradient of its queries in float32, which blocks of keys add to. A function treated as one operator: what is alive
    inside it, its operands' share of the whole. Otherwise nothing.
    """
    if op.kind == BACKWARD:
        return in_bytes[0] * 4 // op.ins[0].itemsize

    if op.kind == "conv_general_dilated":
        return sum(in_bytes)
    if op.kind == "select_and_scatter_add":
        return len(op.ins[0].shape) * sum(in_bytes)
    if op.body is not None:
        whole = sum(tensor.size_bytes for tensor in op.ins)
        return (
            int(_body_peak_bytes(op.body) * sum(in_bytes) / whole)
            if whole
            else _body_peak_bytes(op.body)
        )
    return 0


def beside_bytes(op: OpNode, strategy: Strategy, mesh: DeviceMesh, read: Sequence[bool]) -> int:
    """What a device holds while it runs the operator so, besides operands and results.

    Workspace; what it sends and receives; a copy of an operand for every group of devices it is lengthened over.
    `read` says which operands are read from memory; the others take none.
    """
    if not strategy.exchanges and op.body is None and op.kind not in _WITH_WORKSPACE:
        return 0

    placed = zip(op.ins, strategy.ins, read, strict=True)
    sizes = [
        placement.local_size(t.shape, mesh) * t.itemsize * is_read
        for t, placement, is_read in placed
    ]
    lengthened = {
        (op.ins[e.tensor].id, strategy.ins[e.tensor], e.axes): sizes[e.tensor]
        for e in lengthening(op, strategy, mesh)
        if e.tensor < len(sizes)
    }
    around = sum(lengthened.values()) + sent_bytes(op, strategy.exchanges)
    held = workspace_bytes(op, sizes) // (turns(strategy) + 1 if op.body is not None else 1)
    return held + around + second_bytes(op, strategy, mesh)


def second_bytes(op: OpNode, strategy: Strategy, mesh: DeviceMesh) -> int:
    """Results for a part of the keys, which join those for the others: in float32 where blocks of keys go round."""
    if turns(strategy):
        return joined_bytes(op, strategy, mesh)
    if slowest(op, strategy, mesh) == 1:
        return 0
    placed = zip(op.outs, strategy.outs, strict=True)
    return sum(placement.local_size(t.shape, mesh) * t.itemsize for t, placement in placed)


@lru_cache(maxsize=1024)
def _body_peak_bytes(body: OpGraph) -> int:
    """The most bytes that tensors within the body take at once, run whole: without its inputs and outputs."""
    uses = uses_of(body)
    in_memory = materialised(body)
    boundary = {tensor.id for tensor in (*body.inputs, *body.outputs)}
    change = [0] * (len(body.ops) + 1)
    for op in body.ops:
        for tensor in op.outs:
            if tensor.id in in_memory and tensor.id not in boundary:
                last = uses[tensor.id][-1].time if tensor.id in uses else op.id
                change[op.id] += tensor.size_bytes
                change[last + 1] -= tensor.size_bytes

    peak = live = 0
    for step in change:
        live += step
        peak = max(peak, live)

    return peak
