"""Touched: how much of its operands and results an operator reads and writes, where that is not all of them."""

from __future__ import annotations

from math import prod

from autopar.core.graph import OpGraph, OpNode, TensorInfo
from autopar.core.in_place import updates
from autopar.core.regions import BOUNDARY
from autopar.ops.traits import traits_of

_UPDATE = {"dynamic_update_slice": 1}
"""Which operand is written over the first one; of scatters it is the third."""


def touched(graph: OpGraph, op: OpNode) -> tuple[float, ...]:
    """The share of each operand, then of each result, that is read or written.

    A sort goes over all once for every byte of its keys, as radix sorts do. Of what is sliced or gathered from as many
    elements are read as there are in the result. What is updated in place is written where the update goes, and read
    there only where the update is added to it. What a loop goes through is read round by round; what it stacks is read so,
    and written over zeros.
    """
    shares = [1.0] * (len(op.ins) + len(op.outs))
    if op.kind == "sort":
        return (float(sum(key.itemsize for key in op.ins[: op.params["num_keys"]])),) * len(shares)
    if op.kind == "scan_slice":
        return (1.0, _share(op.ins[0], op.outs[0]))
    if op.kind == "scan_stack":
        return (_share(op.outs[0], op.ins[0]), 2.0)
    if traits_of(op.kind).touches == "slice":
        shares[0] = min(1.0, _share(op.outs[0], op.ins[0]))
    if is_in_place(graph, op):
        written = _share(op.ins[_UPDATE.get(op.kind, 2)], op.outs[0])
        shares[0] = written if op.kind.startswith("scatter-") else 0.0
        shares[len(op.ins)] = written
    return tuple(shares)


def reads_what_it_writes(op: OpNode) -> bool:
    """Whether a device reads of each operand no more than it makes: of what is whole only what its shard holds."""
    return traits_of(op.kind).touches == "as_written"


def is_in_place(graph: OpGraph, op: OpNode) -> bool:
    """Whether `op` updates part of its first operand where that lies (`updates`): all else is copied first.

    Of what is a view, such as zeros, the result is written whole.
    """
    return op.id in updates(graph) and not _is_view(graph, op.ins[0])


def _is_view(graph: OpGraph, tensor: TensorInfo) -> bool:
    """Whether nothing was written for it."""
    producer = graph.producers.get(tensor.id)
    return (
        producer is not None and traits_of(producer.kind).is_view and producer.kind not in BOUNDARY
    )


def _share(part: TensorInfo, whole: TensorInfo) -> float:
    return prod(part.shape) / max(1, prod(whole.shape))
