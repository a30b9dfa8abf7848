"""Products and convolutions: the order of dims that their kernels want, and the copies that bring it about."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import cast

from autopar.passes.compiled.draft import Draft
from autopar.passes.compiled.node import Node
from autopar.passes.program import Compute

Dims = tuple[int, ...]
Numbers = tuple[tuple[Dims, Dims], tuple[Dims, Dims]]
Unfold = Callable[[Draft, int, Compute, tuple[int, ...], int], None]

_INDEX_BYTES = 4


def lies_as(order: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether the dims of an array lie in `order`, those of size 1 left out."""
    kept = [dim for dim in order if shape[dim] > 1]
    return kept == sorted(kept)


def _dot_general(work: Draft, position: int, compute: Compute, ins: tuple[int, ...], beside: int) -> None:
    """[batch, kept, summed] with [batch, summed, kept]; where one dim is kept and one summed they may change places."""
    summed, batch = cast(Numbers, compute.op.params["dimension_numbers"])
    operands: list[int] = []
    for n, value in enumerate(ins):
        shape = work.local_shape(compute.ins[n])
        kept = [d for d in range(len(shape)) if d not in summed[n] and d not in batch[n]]
        inner = [*kept, *summed[n]] if n == 0 else [*summed[n], *kept]
        orders = [[*batch[n], *inner]]
        if sum(shape[d] > 1 for d in kept) <= 1 and sum(shape[d] > 1 for d in summed[n]) <= 1:
            orders.append([*batch[n], *reversed(inner)])
        is_view = any(lies_as(order, shape) for order in orders)
        wide = work.widened(value, position, compute.op.ins[n].dtype)
        operands.append(work.copied(wide, position, is_view=is_view))
    (out,), dtype = compute.outs, compute.op.outs[0].dtype
    made = work.narrowed(out, position, dtype)
    work.kernel(position, operands, (made,), (), beside)
    work.put_narrow(made, out, position)


def _convolution(work: Draft, position: int, compute: Compute, ins: tuple[int, ...], beside: int) -> None:
    """x[n, window, in] with kernel[window, in, out] makes y[n, window, out]: `ConvCanonicalization`."""
    numbers: Mapping[str, tuple[int, ...]] = compute.op.params["dimension_numbers"]
    orders = [_channels_last(numbers["lhs_spec"]), _out_last(numbers["rhs_spec"])]
    pairs = zip(ins, compute.ins, orders, strict=True)
    operands = [work.copied(v, position, is_view=lies_as(order, work.local_shape(i))) for v, i, order in pairs]
    (out,) = compute.outs
    if lies_as(_channels_last(numbers["out_spec"]), work.local_shape(out)):
        work.kernel(position, operands, (out,), (), beside)
        return
    made = work.made(work.sizes[out])
    work.kernel(position, operands, (made,), (), beside)
    work.put_copy(made, out, position)


def _select_and_scatter(work: Draft, position: int, compute: Compute, ins: tuple[int, ...], beside: int) -> None:
    """The gradient of max pooling, as `SelectAndScatterExpander` rewrites it.

    For each dim the place of every element, which is there from the beginning; the place of the largest of each window,
    made as soon as the pooled operand is there; these side by side; and zeros, over which the source is scattered.
    """
    source, operand = ins
    shape, (out,) = work.local_shape(compute.ins[1]), compute.outs
    count, wide = prod(shape), prod(work.local_shape(compute.ins[0]))
    places = [work.shared(("place", shape, dim), _INDEX_BYTES * count, position) for dim in range(len(shape))]
    largest = [work.made(_INDEX_BYTES * wide) for _ in shape]
    work.kernel(position, (operand, *places), (work.made(work.sizes[source]), *largest))
    indices = work.made(_INDEX_BYTES * wide * len(shape))
    work.put(Node("loop", tuple(largest), (indices,), position, unary=False))
    zeros = work.shared(("zeros", shape, work.sizes[operand]), work.sizes[operand], position)
    flat = work.copied(source, position, is_view=False)
    work.kernel(position, (zeros, indices, flat), (out,), (zeros,), beside)


def _channels_last(spec: Sequence[int]) -> tuple[int, ...]:
    return (spec[0], *spec[2:], spec[1])


def _out_last(spec: Sequence[int]) -> tuple[int, ...]:
    return (*spec[2:], spec[1], spec[0])


UNFOLD: dict[str, Unfold] = {
    "dot_general": _dot_general,
    "conv_general_dilated": _convolution,
    "select_and_scatter_add": _select_and_scatter,
}
