"""Ragged products: of groups of rows, each with a matrix of its own."""

from __future__ import annotations

from autopar.core.graph import OpNode

RAGGED = "ragged_dot_general"


def group_of(op: OpNode) -> tuple[int, int]:
    """Which tensor, of operands and then results, has a matrix for each group, and along which dim.

    That is the second operand, or the result where the sum is over the rows of a group.
    """
    numbers: dict[str, tuple[int, ...]] = op.params["ragged_dot_dimension_numbers"]
    dims = numbers["rhs_group_dimensions"]
    return (1, dims[0]) if dims else (len(op.ins), 0)
