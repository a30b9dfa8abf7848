"""Fourier transforms of several dims of which some are split: one after the other, each while it is whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from autopar._compat import row_major, untyped_jax
from autopar.emit.local.shard import Array, LocalOp, Run

lax = untyped_jax.lax
jnp = untyped_jax.numpy
Axes = tuple[str, ...]


class Transform(NamedTuple):
    """Dims, counted from the first transformed one, are transformed."""

    dims: tuple[int, ...]


class DimExchange(NamedTuple):
    """What splits the dim `before` splits `after` from now on; that is filled up for it, or cut if it was."""

    axes: Axes
    before: int
    after: int


Step = Transform | DimExchange


def fft(local: LocalOp) -> Run:
    """Row-major in and out: XLA lets neighbours choose the layout, and its CPU runtime then refuses the transform."""
    kind = local.op.params["fft_type"]
    lengths = local.op.params["fft_lengths"]
    first = local.op.ins[0].ndim - len(lengths)
    todo = steps(kind, local.strategy.ins[0].dims[first:], local.strategy.outs[0].dims[first:])
    sizes = _complex_sizes(local)

    def run(value: Array) -> Sequence[Array]:
        for step in todo:
            if isinstance(step, Transform):
                dims = [first + d for d in step.dims]
                shape = tuple(lengths[d] for d in step.dims)
                value = _transformed(value, dims, _kind(kind, step.dims, len(lengths)), shape)
            else:
                value = _exchanged(local, value, step, first, sizes)
        return [value]

    return run


def steps(kind: str, before: Sequence[Axes], after: Sequence[Axes]) -> list[Step]:
    """What is done in turn where these axes split the transformed dims before and after.

    Whole dims first, but for one that becomes real: that is the last of all. Then dims that stay split, each exchanged
    for the last dim and back, or those whose split goes into a dim that is transformed.
    """
    last = len(before) - 1
    late = {last} if kind == "IRFFT" else set[int]()
    done = [d for d, axes in enumerate(before) if not axes and d not in late]
    found: list[Step] = [Transform(tuple(done))] if done else []
    for d, axes in enumerate(before):
        if axes and axes == after[d]:
            found += [DimExchange(axes, d, last), Transform((d,)), DimExchange(axes, last, d)]
            done.append(d)

    moves = {d: after.index(axes) for d, axes in enumerate(before) if axes and d not in done}
    while moves:
        d = next(d for d, into in moves.items() if into in done)
        found += [DimExchange(before[d], d, moves.pop(d)), Transform((d,))]
        done.append(d)

    if late.difference(done):
        found.append(Transform((last,)))

    return found


def _kind(kind: str, dims: Sequence[int], count: int) -> str:
    """What the transform of some of the dims is: of complex numbers, unless the last one is among them."""
    return kind if count - 1 in dims else kind.removeprefix("R").replace("IRFFT", "IFFT")


def _transformed(value: Array, dims: list[int], kind: str, lengths: tuple[int, ...]) -> Array:
    ends = [*range(value.ndim - len(dims), value.ndim)]
    moved = row_major(jnp.moveaxis(value, dims, ends))
    return row_major(jnp.moveaxis(row_major(lax.fft(moved, kind, lengths)), ends, dims))


def _complex_sizes(local: LocalOp) -> tuple[int, ...]:
    """The sizes of the dims, whole, as complex numbers have them."""
    return (local.op.ins[0] if local.op.params["fft_type"] == "IRFFT" else local.op.outs[0]).shape


def _exchanged(
    local: LocalOp, value: Array, step: DimExchange, first: int, sizes: tuple[int, ...]
) -> Array:
    before = first + step.before
    after = first + step.after
    size = value.shape[after]
    rest = -size % local.mesh.product(step.axes)
    if rest:
        value = lax.pad(
            value,
            jnp.zeros((), value.dtype),
            [(0, rest * (d == after), 0) for d in range(value.ndim)],
        )

    value = local.exchanger.all_to_all(value, step.axes, after, before)
    if value.shape[before] > sizes[before]:
        value = lax.slice_in_dim(value, 0, sizes[before], axis=before)

    return value
