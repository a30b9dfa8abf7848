"""Ragged: what XLA's CPU compiler makes of products of ragged groups, found by measuring (JAX 0.10.2).

One product of all rows with the matrices of all groups: the rows are written once for each group, with zeros for those
of the others, in float32. Of 4096 rows of 64 with 8 groups of 64 x 128 that is 8.4 MB beside 1 MB of rows; of a sum
over the rows both operands are, 25.2 MB. A product of 4096 rows of 256 with 8 matrices takes 41 ms for the 4 of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from autopar.core.graph import OpNode
from autopar.core.program import Compute, ShardedProgram
from autopar.ops.picked import Number
from autopar.ops.ragged_products import RAGGED, group_count, group_of
from cost_models.compute import Device, moving_time_s

_AROUND = 2
"""Groups that a device has more where groups are split, for the rows of others (`emit.local.ragged`)."""
_PASSES = 2.0
_FLOAT32_BYTES = 4


def workspace_bytes(op: OpNode, in_bytes: Sequence[int], in_shapes: Sequence[Sequence[int]]) -> int:
    """The rows for each group, of a sum over them both operands'; narrow ones also as they are cast."""
    position, dim = group_of(op)
    is_summed = position == len(op.ins)
    groups = in_shapes[2][-1] if is_summed else in_shapes[position][dim]
    whole = op.outs[0].shape[0] if is_summed else op.ins[position].shape[dim]
    count = groups + (_AROUND if groups < whole else 0)
    rows = in_bytes[: 2 if is_summed else 1]
    wide = [
        size * max(_FLOAT32_BYTES, tensor.itemsize) // tensor.itemsize
        for size, tensor in zip(rows, op.ins, strict=False)
    ]
    cast = sum(rows) // 2 if wide != list(rows) else 0
    return count * (sum(wide) + cast)


def kept_bytes(program: ShardedProgram) -> int:
    """What is kept for all products: matrices in another order, which are put in it as early as can be; and which rows
    are of which group, a byte for each element, once for products that lie alike.
    """
    matrices = 0
    masks: dict[tuple[int, ...], int] = {}
    for product in program.instructions:
        if not isinstance(product, Compute) or product.op.kind != RAGGED:
            continue
        position, dim = group_of(product.op)
        if position < len(product.ins):
            rows, groups = (product.in_shapes(program.mesh)[n] for n in (0, position))
            matrices += program.device_bytes(product.ins[1])
            masks[groups[dim], *rows] = groups[dim] * prod(rows)
    return matrices + sum(masks.values())


def beside_s(op: OpNode, in_bytes: Sequence[Number], device: Device) -> Number:
    """Seconds of writing the rows for each group, and of reading them."""
    rows = group_count(op, in_bytes) * in_bytes[0]
    return rows * _PASSES * moving_time_s(1.0, device)
