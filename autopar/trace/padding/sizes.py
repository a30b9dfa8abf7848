"""Which sizes of dims are padded for a number of devices, and to what."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import prod

from autopar.core.graph import OpGraph, TensorInfo

MOST_ADDED = Fraction(15, 100)
"""A dim grows by at most this part of itself."""
_LITTLE = Fraction(2, 100)
"""A dim that grows by more is also left as it is: what has it is split along others at less cost."""
_EVEN_ENOUGH = 128
"""A dim that this many devices share evenly is not padded for more: what is left of them splits other dims."""
_WORTH = 0.05
"""Padding is looked into where tensors with uneven dims have this part of the bytes that are made, round by round."""


def padded_sizes(graph: OpGraph, devices: int) -> Mapping[int, int]:
    """The sizes of dims that are padded, with what they become; none where that is not worth another search.

    A size becomes the next multiple of the largest divisor of `devices` that adds little to it.
    """
    made = _bytes_made(graph)
    sizes = {size for tensor, _ in made if can_pad(tensor) for size in tensor.shape} - _stacked(
        graph
    )
    padded = {size: padded_size(size, devices) for size in sorted(sizes)}
    found = {size: longer for size, longer in padded.items() if longer != size}

    def is_uneven(tensor: TensorInfo) -> bool:
        return can_pad(tensor) and not found.keys().isdisjoint(tensor.shape)

    uneven = sum(made_bytes for tensor, made_bytes in made if is_uneven(tensor))
    return found if uneven >= _WORTH * sum(made_bytes for _, made_bytes in made) else {}


def _stacked(graph: OpGraph) -> set[int]:
    """Sizes of the dims that scans go along, one index a round, but for the batch."""
    batches = {graph.inputs[position].shape[0] for position in graph.batch_inputs}
    return {
        int(region.trips) for region in graph.regions if graph.tree.kind(region.parent) == "scan"
    } - batches


def _bytes_made(graph: OpGraph) -> list[tuple[TensorInfo, float]]:
    """Every tensor with the bytes that a step makes of it: once for an input, in every round for what is in a loop."""
    inputs = [(tensor, float(tensor.size_bytes)) for tensor in graph.inputs]
    made = [(tensor, op) for op in graph.ops for tensor in op.outs]
    return [
        *inputs,
        *((tensor, tensor.size_bytes * graph.tree.weight(op.region)) for tensor, op in made),
    ]


def padded_choices(graph: OpGraph, devices: int) -> list[Mapping[int, int]]:
    """The `padded_sizes` to try: all of them; without those that add much, but for the batch, which is split first."""
    sizes = padded_sizes(graph, devices)
    batches = {graph.inputs[position].shape[0] for position in graph.batch_inputs}
    cheap = {
        size: padded
        for size, padded in sizes.items()
        if size in batches or padded <= size * (1 + _LITTLE)
    }
    return [found for found in ((sizes, cheap) if cheap != sizes else (sizes,)) if found]


def padded_size(size: int, devices: int) -> int:
    """What a dim of `size` elements becomes: `size` itself where it is even enough, or every other adds too much."""
    if size % _EVEN_ENOUGH == 0:
        return size
    for parts in range(min(size, devices), 1, -1):
        padded = -(-size // parts) * parts
        if devices % parts == 0 and padded - size <= MOST_ADDED * size:
            return padded
    return size


def can_pad(tensor: TensorInfo) -> bool:
    """Whether a tensor may be padded: it has elements and dims, holds no typed keys, is not manual, not on the host."""
    has_dims = prod(tensor.shape) > 0 and tensor.ndim > 0
    return (
        has_dims
        and not tensor.dtype.startswith("key<")
        and not tensor.manual
        and not tensor.on_host
    )
