"""Products: the dims of `dot_general`, as far as it matters how its operands lie in memory."""

from __future__ import annotations

from typing import cast

from autopar.core.graph import OpNode

Dims = tuple[int, ...]
Numbers = tuple[tuple[Dims, Dims], tuple[Dims, Dims]]
"""What is contracted, and the batch dims, each of the left and of the right operand."""


def numbers_of(op: OpNode) -> Numbers:
    """The dimension numbers of a `dot_general`."""
    return cast(Numbers, op.params["dimension_numbers"])


def contracted_first(op: OpNode) -> tuple[bool, bool] | None:
    """Of a product that is one of matrices as its operands lie: whether each has what is contracted before the rest.

    None if one of them does not lie so: batch dims first and in order, then what is contracted and what is kept, or the
    other way round, each in order.
    """
    contracted, batches = numbers_of(op)
    count = len(batches[0])
    found: list[bool] = []
    for tensor, dims, batch in zip(op.ins, contracted, batches, strict=True):
        is_first = dims == tuple(range(count, count + len(dims)))
        if not dims or batch != tuple(range(count)):
            return None
        if not is_first and dims != tuple(range(tensor.ndim - len(dims), tensor.ndim)):
            return None
        found.append(is_first)
    return found[0], found[1]


def merges_dims(op: OpNode) -> bool:
    """Whether a product is one of matrices as its operands lie (`contracted_first`) once dims are merged, of an operand
    that has what is contracted before the rest.
    """
    first = contracted_first(op) if op.kind == "dot_general" else None
    matrix = len(numbers_of(op)[1][0]) + 2 if first is not None else 0
    return first is not None and any(
        f and t.ndim > matrix for f, t in zip(first, op.ins, strict=True)
    )
