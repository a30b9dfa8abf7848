"""Products and convolutions: the order of dims that their kernels want, and the copies that bring it about."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from autopar.backends.xla_cpu.draft import NodeDraft
from autopar.backends.xla_cpu.library import TYPES
from autopar.backends.xla_cpu.matrices import contracted_first, merges_dims, numbers_of
from autopar.backends.xla_cpu.node import Node
from autopar.core.program import Compute

Unfold = Callable[[NodeDraft, int, Compute, tuple[int, ...], int], None]

_INDEX_BYTES = 4


def lies_as(order: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether the dims of an array lie in `order`, those of size 1 left out."""
    kept = [dim for dim in order if shape[dim] > 1]
    return kept == sorted(kept)


def _dot_general(
    work: NodeDraft, position: int, compute: Compute, ins: tuple[int, ...], beside: int
) -> None:
    """[batch, kept, summed] with [batch, summed, kept]; where one dim is kept and one summed they may change places.

    Several dims that are kept or summed, of size 1 too, are transposed to stand so (`DotDecomposer`) and merged, which
    moves nothing more; unless they were merged before (`merges_dims`).
    """
    summed, batch = numbers_of(compute.op)
    is_merged = merges_dims(compute.op)
    operands: list[int] = []
    for n, value in enumerate(ins):
        shape = work.local_shape(compute.ins[n])
        kept = [d for d in range(len(shape)) if d not in summed[n] and d not in batch[n]]
        orders = [[*batch[n], *kept, *summed[n]], [*batch[n], *summed[n], *kept]]
        orders = orders if n == 0 else orders[::-1]
        if not is_merged and (len(kept) > 1 or len(summed[n]) > 1):
            del orders[1]
        wide = work.widened(value, position, compute.op.ins[n].dtype)
        order = next((order for order in orders if lies_as(order, shape)), orders[0])
        lying = wide if lies_as(order, shape) else work.ordered(wide, order, shape, position)
        sides = [side for side in (kept, list(summed[n])) if side]
        sides.sort(key=lambda side: order.index(side[0]))
        merged = (*(shape[d] for d in batch[n]), *(prod(shape[d] for d in side) for side in sides))
        operands.append(work.seen(lying, merged, position))

    (out,) = compute.outs
    dtype = compute.op.outs[0].dtype
    made = work.narrowed(out, dtype)
    is_one = is_merged or all(len(side) == 1 for side in summed)
    is_plain = is_one and not any(batch) and contracted_first(compute.op) == (True, True)
    operands = operands[::-1] if out in work.turned else operands
    is_library = not is_plain and dtype in TYPES
    work.kernel(position, operands, (made,), (), beside, late=is_plain, library=is_library)
    work.put_narrow(made, out, position)


def _convolution(
    work: NodeDraft, position: int, compute: Compute, ins: tuple[int, ...], beside: int
) -> None:
    """x[n, window, in] with kernel[window, in, out] makes y[n, window, out]: `ConvCanonicalization`."""
    numbers: Mapping[str, tuple[int, ...]] = compute.op.params["dimension_numbers"]
    orders = [_channels_last(numbers["lhs_spec"]), _out_last(numbers["rhs_spec"])]
    lengths = [_lengthened(work, position, compute, n, value) for n, value in enumerate(ins)]
    beside -= 2 * sum(
        work.sizes[long] - work.sizes[value] for long, value in zip(lengths, ins, strict=True)
    )
    wide = [
        work.widened(v, position, t.dtype) for v, t in zip(lengths, compute.op.ins, strict=True)
    ]
    shapes = [work.local_shape(value) for value in compute.ins]
    wanted = zip(wide, orders, shapes, strict=True)
    operands = [work.ordered(value, order, shape, position) for value, order, shape in wanted]
    (out,) = compute.outs
    dtype = compute.op.outs[0].dtype
    made = work.narrowed(out, dtype)
    is_view = lies_as(_channels_last(numbers["out_spec"]), work.local_shape(out))
    turned = made if is_view else work.made(work.sizes[made])
    work.kernel(position, operands, (turned,), (), beside)
    if not is_view:
        work.put_copy(turned, made, position)

    work.put_narrow(made, out, position)


def _lengthened(work: NodeDraft, position: int, compute: Compute, number: int, value: int) -> int:
    """An operand with what neighbours send of theirs beside it, once in a computation for all that want as much."""
    halos = [
        m for m in compute.exchanges if m.kind == "permute" and m.ins == (compute.ins[number],)
    ]
    key = ("halo", value, *((m.hop, m.axes, m.size_bytes) for m in halos))
    known = work.scopes[-1].known
    if not halos or key in known:
        return known[key][0] if halos else value

    arrived: list[int] = []
    for move in halos:
        piece = work.made(move.size_bytes)
        there = work.made(move.size_bytes)
        work.put(Node("loop", (value,), (piece,), position))
        work.kernel(position, (piece,), (there,))
        arrived.append(there)

    known[key] = (work.made(work.sizes[value] + sum(m.size_bytes for m in halos)),)
    work.put(
        Node("loop", (*arrived, value), known[key], position, unary=False, once=True, pieces=True)
    )
    return known[key][0]


def _select_and_scatter(
    work: NodeDraft, position: int, compute: Compute, ins: tuple[int, ...], beside: int
) -> None:
    """The gradient of max pooling, as `SelectAndScatterExpander` rewrites it.

    For each dim the place of every element, which is there from the beginning; the place of the largest of each window,
    made as soon as the pooled operand is there; these side by side; and zeros, over which the source is scattered, or
    what the result is added to.
    """
    dtype = compute.op.outs[0].dtype
    source, operand, *onto = (work.widened(value, position, dtype) for value in ins)
    shape = work.local_shape(compute.ins[1])
    made = work.narrowed(compute.outs[0], dtype)
    count = prod(shape)
    wide = prod(work.local_shape(compute.ins[0]))
    places = [
        work.shared(("place", shape, dim), _INDEX_BYTES * count, position)
        for dim in range(len(shape))
    ]
    largest = [work.made(_INDEX_BYTES * wide) for _ in shape]
    work.kernel(position, (operand, *places), (work.made(work.sizes[source]), *largest))
    indices = work.made(_INDEX_BYTES * wide * len(shape))
    work.put(Node("loop", tuple(largest), (indices,), position, unary=False))
    onto = onto or [
        work.shared(
            ("zeros", shape, work.sizes[operand]), work.sizes[operand], position, is_late=True
        )
    ]
    flat = work.copied(source, position)
    work.kernel(position, (*onto, indices, flat), (made,), onto, beside, inplace=True)

    work.put_narrow(made, compute.outs[0], position)


def _channels_last(spec: Sequence[int]) -> tuple[int, ...]:
    return (spec[0], *spec[2:], spec[1])


def _out_last(spec: Sequence[int]) -> tuple[int, ...]:
    return (*spec[2:], spec[1], spec[0])


UNFOLD: dict[str, Unfold] = {
    "dot_general": _dot_general,
    "conv_general_dilated": _convolution,
    "select_and_scatter_add": _select_and_scatter,
}
