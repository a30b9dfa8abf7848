"""Odd products: products of narrow types with dims that tensor cores do not take, which are padded before.

XLA for GPUs pads both operands to multiples of 8 elements (bfloat16, float16) or 4 (int8), multiplies, and cuts the
result where it is read: 1024 products of 197 x 64 with 64 x 197 are 15.5 us of padding for each operand beside 64.6 of
the product. What it reads in several products is padded once for all, what a loop makes is made padded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from autopar.core.graph import OpGraph, OpNode, TensorInfo
from autopar.core.memo import once_per_graph
from autopar.ops.fusion import Fusing, in_products, loops, rows
from autopar.ops.traits import is_fusible, traits_of

ALIGNED = {"bfloat16": 8, "float16": 8, "int8": 4}
"""By type the multiples of elements that tensor cores take."""
Floats = NDArray[np.float64]
Sizes = float | Floats
Shares = tuple[float, float]
"""Of the padding of each operand, what one product pays."""


def multiple_of(op: OpNode) -> int:
    """What the dims of both matrices have to be multiples of; 1: anything."""
    if op.kind != "dot_general" or op.ins[0].dtype != op.ins[1].dtype:
        return 1
    return ALIGNED.get(op.ins[0].dtype, 1)


def widens(op: OpNode) -> bool:
    """Whether a product's result is of a wider type than what it multiplies."""
    is_product = op.kind == "dot_general"
    return is_product and op.outs[0].itemsize > max(tensor.itemsize for tensor in op.ins)


def longer(elements: Sequence[Sizes], flops: Sizes, multiple: int) -> list[Floats]:
    """How many times as long each operand is padded; exactly 1 where it is not, as beside a vector.

    Args:
      elements: those of both operands and of the result, of b products of m x k with k x n.
      flops: 2 b m n k.
      multiple: of `multiple_of`.
    """
    lhs, rhs, out = elements
    rows, columns, inner = (np.rint(flops * 0.5 / count) for count in (rhs, lhs, out))
    is_matrix = (rows > 1.0) & (columns > 1.0)
    m, n, k = (np.where(is_matrix, _grown(size, multiple), 1.0) for size in (rows, columns, inner))
    return [m * k, k * n]


def padded_bytes(op: OpNode, shapes: Sequence[Sequence[int]]) -> int:
    """What one device holds of padded operands while it multiplies these shapes."""
    multiple = multiple_of(op)
    if multiple == 1:
        return 0
    dims: tuple[tuple[tuple[int, ...], ...], ...] = op.params["dimension_numbers"]
    contracted, batch = dims
    total = 0
    free = [
        prod(size for dim, size in enumerate(shape) if dim not in (*own, *shared))
        for shape, own, shared in zip(shapes, contracted, batch, strict=True)
    ]
    if min(free) == 1:
        return 0

    for shape, own, shared, others, tensor in zip(
        shapes, contracted, batch, free, op.ins, strict=True
    ):
        matrix = [others, prod(shape[dim] for dim in own)]
        padded = [-(-size // multiple) * multiple for size in matrix]
        if padded != matrix:
            total += prod(shape[dim] for dim in shared) * prod(padded) * tensor.itemsize
    return total


@once_per_graph
def most_padded_bytes(graph: OpGraph) -> int:
    """The most that a product of a graph, whole, holds of padded operands."""
    return max((padded_bytes(op, [t.shape for t in op.ins]) for op in graph.ops), default=0)


@once_per_graph
def padding_shares(graph: OpGraph, fusing: Fusing) -> Mapping[int, Shares]:
    """By product of narrow types, which share of the padding of its operands it pays, if they are padded."""
    products = [op for op in graph.ops if multiple_of(op) > 1]
    readers = Counter((tensor.id, op.region) for op in products for tensor in op.ins)
    every = loops(graph, fusing)
    by_rows = {loop for row in rows(graph, fusing) for loop in every[row]}
    absorbed = in_products(graph, fusing)

    def share(op: OpNode, tensor: TensorInfo) -> float:
        maker = graph.producers.get(tensor.id)
        is_made_padded = (
            maker is not None
            and is_fusible(maker)
            and not traits_of(maker.kind).is_view
            and maker.kind != "transpose"
            and maker.id not in absorbed
            and maker.id not in by_rows
        )
        return 0.0 if is_made_padded else 1.0 / readers[tensor.id, op.region]

    return {op.id: (share(op, op.ins[0]), share(op, op.ins[1])) for op in products}


def _grown(size: Floats, multiple: int) -> Floats:
    return np.ceil(size / multiple) * multiple / np.maximum(size, 1.0)
