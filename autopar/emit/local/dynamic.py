"""Dynamic slices of and into a tensor whose sliced dim is split: a device reads and writes what lies in its shard."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autopar import _compat
from autopar._compat import untyped_jax
from autopar.core.graph import TensorInfo
from autopar.emit.local.shard import Array, LocalOp, Run
from autopar.emit.slicing import slice_at

lax = untyped_jax.lax
jnp = untyped_jax.numpy


def dynamic_slice(local: LocalOp) -> Run:
    """The elements of the slice that lie in this shard, zeros for the others."""
    sliced = _cut(local, local.op.outs[0])
    sizes = local.out_shape()
    shard = local.in_shape(0)
    run = local.bind(
        slice_sizes=tuple(shard[d] if d in sliced else size for d, size in enumerate(sizes))
    )

    def read(operand: Array, *starts: Array) -> Sequence[Array]:
        within = _clamped(local, starts, sizes)
        (found,) = run(
            operand, *(start * 0 if d in sliced else start for d, start in enumerate(within))
        )
        for d in sliced:
            begin = _begin(local, starts[d], d, sizes[d])
            found = lax.pad(found, jnp.zeros((), found.dtype), _around(found.ndim, d, sizes[d]))
            begin = jnp.clip(begin + sizes[d], 0, shard[d] + sizes[d])
            found = slice_at(found, begin, sizes[d], d)
        return [found]

    return read


def dynamic_update_slice(local: LocalOp) -> Run:
    """The part of the update that lies in this shard is written; what is beside it is read and written again."""
    written = _cut(local, local.op.ins[1])
    run = local.bind()
    shard = local.in_shape(0)

    def write(operand: Array, update: Array, *starts: Array) -> Sequence[Array]:
        begins = _clamped(local, starts, local.op.ins[1].shape)
        mine = jnp.ones((1,) * operand.ndim, bool)
        for d in written:
            size = update.shape[d]
            width = min(size, shard[d])
            begin = _begin(local, starts[d], d, size)
            begins[d] = jnp.clip(begin, 0, shard[d] - width)
            first = begins[d] - begin
            update = lax.pad(update, jnp.zeros((), update.dtype), _around(update.ndim, d, width))
            update = slice_at(update, jnp.clip(first + width, 0, size + width), width, d)
            places = (first + lax.iota(np.int32, width)).reshape(
                [-1 if e == d else 1 for e in range(operand.ndim)]
            )
            mine = mine & (places >= 0) & (places < size)

        if not written:
            return run(operand, update, *begins)

        begins = [lax.convert_element_type(begin, starts[0].dtype) for begin in begins]
        there = lax.dynamic_slice(operand, begins, update.shape, allow_negative_indices=False)
        return run(operand, jnp.where(mine, update, there), *begins)

    return write


def _cut(local: LocalOp, part: TensorInfo) -> list[int]:
    """The split dims of the first operand of which `part` has fewer elements."""
    dims = zip(local.strategy.ins[0].dims, local.op.ins[0].shape, part.shape, strict=True)
    return [d for d, (axes, size, kept) in enumerate(dims) if axes and size != kept]


def _clamped(local: LocalOp, starts: Sequence[Array], sizes: Sequence[int]) -> list[Array]:
    """The starts of whole dims, where XLA would add to them what a later slice begins at: these may lie outside.

    Of writes as of reads, as those at the same starts are in place.
    """
    if not _compat.ADDS_STARTS:
        return list(starts)
    shape = local.op.ins[0].shape
    limits = [
        min(n - size, int(jnp.iinfo(start.dtype).max))
        for n, size, start in zip(shape, sizes, starts, strict=True)
    ]
    return [jnp.clip(start, 0, limit) for start, limit in zip(starts, limits, strict=True)]


def _begin(local: LocalOp, start: Array, dim: int, size: int) -> Array:
    """Where a slice of `size` elements begins, counted from this shard's beginning; `start` is clamped as XLA does."""
    shape = local.op.ins[0].shape
    limit = min(shape[dim] - size, int(jnp.iinfo(start.dtype).max))
    start = jnp.clip(start, 0, limit).astype(np.int32)
    return start - local.start(local.strategy.ins[0].dims[dim], shape[dim])


def _around(ndim: int, dim: int, width: int) -> list[tuple[int, int, int]]:
    return [(width, width, 0) if d == dim else (0, 0, 0) for d in range(ndim)]
