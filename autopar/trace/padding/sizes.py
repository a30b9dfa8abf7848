"""Which sizes of dims are padded for a number of devices, and to what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from math import prod

from autopar.core.graph import OpGraph, TensorInfo

MOST_ADDED = Fraction(15, 100)
"""A dim grows by at most this part of itself."""
_LITTLE = Fraction(2, 100)
"""A dim that grows by more is also left as it is: what has it is split along others at less cost."""
_WORTH = 0.05
"""Padding is looked into where tensors with uneven dims have this part of the bytes of all tensors."""


def padded_sizes(graph: OpGraph, devices: int) -> Mapping[int, int]:
    """The sizes of dims that are padded, with what they become; none where that is not worth another search.

    A size becomes the next multiple of the largest divisor of `devices` that adds little to it.
    """
    tensors = [*graph.inputs, *(tensor for op in graph.ops for tensor in op.outs)]
    held: Counter[int] = Counter()
    for tensor in tensors:
        held.update(dict.fromkeys(tensor.shape, tensor.size_bytes) if can_pad(tensor) else {})
    found = {size: padded_size(size, devices) for size in held}
    found = {size: padded for size, padded in found.items() if padded != size}
    uneven = sum(
        tensor.size_bytes for tensor in tensors if can_pad(tensor) and not found.keys().isdisjoint(tensor.shape)
    )
    if uneven < _WORTH * sum(tensor.size_bytes for tensor in tensors):
        return {}
    return dict(sorted(found.items()))


def padded_choices(graph: OpGraph, devices: int) -> list[Mapping[int, int]]:
    """The `padded_sizes` to try: all of them; without those that add much, but for the batch, which is split first."""
    sizes = padded_sizes(graph, devices)
    batches = {graph.inputs[position].shape[0] for position in graph.batch_inputs}
    cheap = {size: padded for size, padded in sizes.items() if size in batches or padded <= size * (1 + _LITTLE)}
    return [found for found in ((sizes, cheap) if cheap != sizes else (sizes,)) if found]


def padded_size(size: int, devices: int) -> int:
    """What a dim of `size` elements becomes: `size` itself where it is even enough, or every other adds too much."""
    for parts in range(min(size, devices), 1, -1):
        padded = -(-size // parts) * parts
        if devices % parts == 0 and padded - size <= MOST_ADDED * size:
            return padded
    return size


def can_pad(tensor: TensorInfo) -> bool:
    """Whether a tensor may be padded: it has elements and dims, holds no typed keys, is not manual, not on the host."""
    has_dims = prod(tensor.shape) > 0 and tensor.ndim > 0
    return has_dims and not tensor.dtype.startswith("key<") and not tensor.manual and not tensor.on_host
