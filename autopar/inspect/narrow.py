"""Narrow: collectives that XLA's CPU compiler widened, as they are on accelerators.

It runs collectives of bfloat16, and of smaller floats, as float32 or float16. How wide one was is told by its sizes: by
the tensors of the program that have so many elements on one device, or on all along some of the mesh's axes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from math import prod

from autopar.core.graph import OpGraph
from autopar.core.mesh import DeviceMesh
from autopar.inspect.hlo_text import HloArray, dtype_bits
from autopar.inspect.lines import LocatedCollective

_WIDENED = frozenset({"f16", "f32"})
Widths = Mapping[int, frozenset[int]]
"""The bytes of an element of all tensors that may have so many elements on one device."""


def widths_of(graph: OpGraph, mesh: DeviceMesh) -> Widths:
    """Those of the floats of `graph` on `mesh`."""
    parts = {
        mesh.product(axes)
        for count in range(len(mesh.names) + 1)
        for axes in combinations(mesh.names, count)
    }
    tensors = {t.id: t for op in graph.ops for t in (*op.ins, *op.outs)}
    found: dict[int, set[int]] = defaultdict(set)
    for tensor in (*tensors.values(), *graph.inputs):
        size = prod(tensor.shape)
        if "float" in tensor.dtype:
            for part in parts:
                found[size // part].add(tensor.itemsize)

    return {size: frozenset(widths) for size, widths in found.items()}


def narrowed(one: LocatedCollective, widths: Widths) -> LocatedCollective:
    """The collective with the bytes that it has before it is widened; as it is where that is not known."""
    results = one.results
    if len(results) != len(one.collective.operand_bytes):
        return one  # an all_to_all in pieces: its results are not its operands'
    sizes = tuple(
        size * _width(array, widths) * 8 // dtype_bits(array.dtype)
        if array.dtype in _WIDENED
        else size
        for size, array in zip(one.collective.operand_bytes, results, strict=True)
    )
    return replace(one, collective=replace(one.collective, operand_bytes=sizes))


def _width(array: HloArray, widths: Widths) -> int:
    """The bytes of an element: its own, unless all tensors of its size have fewer."""
    own = dtype_bits(array.dtype) // 8
    known = widths.get(prod(array.dims), frozenset({own}))
    return min(own, max(known))
