"""Products and convolutions: the order of dims that their kernels want, and the copies that bring it about."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from autopar.passes.compiled.draft import Draft
from autopar.passes.program import Compute

Unfold = Callable[[Draft, int, Compute, tuple[int, ...], int], None]


def lies_as(order: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether the dims of an array lie in `order`, those of size 1 left out."""
    kept = [dim for dim in order if shape[dim] > 1]
    return kept == sorted(kept)


def _dot_general(work: Draft, position: int, compute: Compute, ins: tuple[int, ...], beside: int) -> None:
    """[batch, kept, summed] or [batch, summed, kept], of both operands."""
    summed, batch = compute.op.params["dimension_numbers"]
    operands: list[int] = []
    for n, value in enumerate(ins):
        shape = work.local_shape(compute.ins[n])
        kept = [d for d in range(len(shape)) if d not in summed[n] and d not in batch[n]]
        orders = [*batch[n], *kept, *summed[n]], [*batch[n], *summed[n], *kept]
        operands.append(work.copied(value, position, is_view=any(lies_as(order, shape) for order in orders)))
    work.kernel(position, operands, compute.outs, (), beside)


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


def _channels_last(spec: Sequence[int]) -> tuple[int, ...]:
    return (spec[0], *spec[2:], spec[1])


def _out_last(spec: Sequence[int]) -> tuple[int, ...]:
    return (*spec[2:], spec[1], spec[0])


UNFOLD: dict[str, Unfold] = {"dot_general": _dot_general, "conv_general_dilated": _convolution}
