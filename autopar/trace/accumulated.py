"""Accumulated: what a loop adds up of updates scattered over zeros is scattered over the sum so far.

The derivative of a loop that reads a part of an array in each round scatters each gradient over zeros as large as the
array, and adds all of them to the sum. XLA's simplifier drops the zeros, and the sum stays where it is; so does a plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from autopar.core.graph import TensorInfo
from autopar.trace.draft import DraftOp

_SUMS = ("add", "add_any")


def accumulated(ops: Sequence[DraftOp], outputs: Sequence[TensorInfo]) -> list[DraftOp]:
    """`ops`, in which carry + scatter-add(zeros, updates) is scatter-add(carry, updates).

    Only what nobody else reads is changed, and only sums that loops carry; zeros that nobody reads then are dead.
    """
    makers = {tensor.id: op for op in ops for tensor in op.outs}
    readers = Counter(tensor.id for op in ops for tensor in op.ins)
    readers.update(tensor.id for tensor in outputs)

    def over_zeros(tensor: TensorInfo, region: int | None) -> DraftOp | None:
        op = makers.get(tensor.id)
        if op is None or (op.kind, op.region) != ("scatter-add", region) or readers[tensor.id] > 1:
            return None
        zeros = makers.get(op.ins[0].id)
        if zeros is None or zeros.kind != "broadcast_in_dim" or zeros.ins[0].literal != 0:
            return None
        return op

    def summed(op: DraftOp) -> DraftOp:
        if op.kind not in _SUMS:
            return op
        for total, part in (op.ins, op.ins[::-1]):
            carry = makers.get(total.id)
            scatter = over_zeros(part, op.region)
            if carry is not None and carry.kind == "carry_in" and scatter is not None:
                return replace(scatter, ins=(total, *scatter.ins[1:]), outs=op.outs)
        return op

    return [summed(op) for op in ops]
