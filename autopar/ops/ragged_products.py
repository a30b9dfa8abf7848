"""Ragged products: of groups of rows, each with a matrix of its own."""

from __future__ import annotations

from collections.abc import Sequence

from autopar.core.graph import OpNode
from autopar.ops.picked import Number

RAGGED = "ragged_dot_general"


def group_of(op: OpNode) -> tuple[int, int]:
    """Which tensor, of operands and then results, has a matrix for each group, and along which dim.

    That is the second operand, or the result where the sum is over the rows of a group.
    """
    numbers: dict[str, tuple[int, ...]] = op.params["ragged_dot_dimension_numbers"]
    dims = numbers["rhs_group_dimensions"]
    return (1, dims[0]) if dims else (len(op.ins), 0)


def group_count(op: OpNode, in_bytes: Sequence[Number]) -> Number:
    """How many groups a device has, that holds so many bytes of the operands: as many as it has sizes of."""
    return in_bytes[2] / op.ins[2].itemsize
