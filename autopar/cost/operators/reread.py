"""Reread: what a kernel reads more than once, since it repeats it: each time but the first from a cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from autopar.core.graph import OpGraph, OpNode, TensorInfo
from autopar.core.memo import once_per_graph
from autopar.cost.operators.moved import kernels
from autopar.cost.operators.streamed import streamed
from autopar.ops.fusion import Fusing, materialised, rows
from autopar.ops.traits import is_fusible, traits_of


@once_per_graph
def all_moved(graph: OpGraph, fusing: Fusing, devices: int) -> tuple[tuple[float, ...], ...]:
    """`streamed`, and as a share of what it is repeated to what kernels read again of smaller arrays (`Fusing.caches`).

    A column that is subtracted from every row's elements is read once for each of them. A kernel that reduces rows has
    it in registers. Whether a cache holds an array is decided with all that split over all `devices`.
    """
    alone = streamed(graph, fusing)
    if not fusing.caches:
        return alone

    kept = materialised(graph, fusing)
    in_rows = rows(graph, fusing)
    more: dict[int, list[float]] = {}
    for kernel in kernels(graph, fusing):
        if any(op.id in in_rows for op in kernel):
            continue
        seen: set[int] = set()
        for op in kernel:
            for place, source in _repeated(graph, op, kept):
                fresh = [leaf for leaf in _leaves(graph, source, kept) if leaf.id not in seen]
                seen.update(leaf.id for leaf in fresh)
                shares = more.setdefault(op.id, [0.0] * (len(op.ins) + len(op.outs)))
                largest = (*op.ins, *op.outs)[place]
                shares[place] += sum(_share(leaf, largest, fusing, devices) for leaf in fresh)

    for op in graph.ops:
        if op.recomputes in more:
            more[op.id] = more[op.recomputes]

    return tuple(
        tuple(map(sum, zip(shares, more[n], strict=True))) if n in more else shares
        for n, shares in enumerate(alone)
    )


def _repeated(graph: OpGraph, op: OpNode, kept: frozenset[int]) -> Iterator[tuple[int, TensorInfo]]:
    """What `op` repeats of what it reads: the place of the largest of its arrays, and what has fewer elements."""
    tensors = (*op.ins, *op.outs)
    place = max(range(len(tensors)), key=lambda n: prod(tensors[n].shape))
    largest = tensors[place].shape
    if traits_of(op.kind).touches != "all":
        return
    for tensor in op.ins:
        source = _seen(graph, tensor, kept)
        if prod(source.shape) < prod(largest) and _spreads(op, tensor.shape, largest):
            yield place, source


def _spreads(op: OpNode, shape: Sequence[int], largest: Sequence[int]) -> bool:
    """Whether each element of `largest` is computed with one of an operand of this shape."""
    if len(shape) != len(largest):
        return False
    return shape == largest or (
        is_fusible(op) and all(size in (1, most) for size, most in zip(shape, largest, strict=True))
    )


def _seen(graph: OpGraph, tensor: TensorInfo, kept: frozenset[int]) -> TensorInfo:
    """What a tensor shows that is not written: the operand of the views before it."""
    producer = graph.producers.get(tensor.id)
    while (
        tensor.id not in kept
        and producer is not None
        and producer.ins
        and traits_of(producer.kind).is_view
    ):
        tensor = producer.ins[0]
        producer = graph.producers.get(tensor.id)
    return tensor


def _leaves(graph: OpGraph, tensor: TensorInfo, kept: frozenset[int]) -> list[TensorInfo]:
    """The arrays in memory that a tensor is made of within its kernel, each once."""
    found: dict[int, TensorInfo] = {}
    open_ones = [tensor]
    while open_ones:
        one = open_ones.pop()
        if one.id in found or one.literal is not None:
            continue
        producer = graph.producers.get(one.id)
        found[one.id] = one
        if one.id not in kept and producer is not None:
            open_ones.extend(producer.ins)
    return [one for one in found.values() if one.id in kept]


def _share(leaf: TensorInfo, largest: TensorInfo, fusing: Fusing, devices: int) -> float:
    """What reading an array again for each element of `largest` takes, as a share of reading that from memory once."""
    size_bytes = leaf.size_bytes / devices
    cost = next((cost for most, cost in fusing.caches if size_bytes < most), 1.0)
    again = 1.0 - prod(leaf.shape) / prod(largest.shape)
    return cost * again * leaf.itemsize / largest.itemsize
