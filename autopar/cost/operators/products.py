"""Products: what one device holds of the operands and the result of a product of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from autopar.core.graph import OpNode
from autopar.core.mesh import DeviceMesh
from autopar.core.strategy import Strategy
from autopar.ops.ragged_products import RAGGED, group_of
from cost_models.curves import Number, convolution_elements

Floats = NDArray[np.float64]
Size = TypeVar("Size")


def as_product(
    op: OpNode, elements: tuple[Number, Number, Number], flops: Number
) -> tuple[Number, Number, Number]:
    """The elements that one device holds of a product, as one of matrices: of a convolution its patches, unrolled."""
    if op.kind == "dot_general":
        return elements
    _, window, out = elements
    features: int = op.params["dimension_numbers"]["out_spec"][1]
    groups: int = op.params["feature_group_count"] * op.params["batch_group_count"]
    channels = cast(
        Number, np.minimum(2.0 * window * out / flops, op.outs[0].shape[features] / groups)
    )
    return convolution_elements(window, out, channels, flops)


def elements_of(op: OpNode, parts: NDArray[np.int64]) -> tuple[Floats, Floats, Floats]:
    """Of a product of matrices the elements that one device holds of both operands and the result."""
    lhs, rhs, out = (
        prod(t.shape) / mine for t, mine in zip((*op.ins, *op.outs), parts, strict=True)
    )
    return lhs, rhs, out


def whole_elements(op: OpNode) -> tuple[float, float, float]:
    """The elements of both operands and the result of a product of matrices that one device has whole."""
    lhs, rhs, out = (float(prod(tensor.shape)) for tensor in (*op.ins, *op.outs))
    return lhs, rhs, out


def with_groups(
    op: OpNode, sizes: Sequence[Size], strategies: Sequence[Strategy], mesh: DeviceMesh
) -> Sequence[Size | Floats]:
    """`sizes` of operands and results, of a ragged product that of the groups whose matrices a device has, or makes."""
    if op.kind != RAGGED:
        return sizes
    position, dim = group_of(op)
    tensor = (*op.ins, *op.outs)[position]
    placed = [(*each.ins, *each.outs)[position] for each in strategies]
    groups = [one.local_shape(tensor.shape, mesh)[dim] * op.ins[2].itemsize for one in placed]
    return [*sizes[:2], np.array(groups, dtype=np.float64), *sizes[3:]]
