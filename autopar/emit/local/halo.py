"""Lengthened shards: a shard with the elements of its neighbours, and what stands in for those beyond the ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autopar._compat import untyped_jax
from autopar.core.halo import Halo
from autopar.core.strategy import Hop
from autopar.emit.local.shard import Array, LocalOp
from autopar.emit.moves import neutral
from autopar.emit.slicing import slice_at

lax = untyped_jax.lax
jnp = untyped_jax.numpy


@dataclass(frozen=True)
class Lengthening:
    """A dim of a tensor of `size` elements that `axes` split, and the run of elements that a device needs of it."""

    dim: int
    size: int
    axes: tuple[str, ...]
    halo: Halo


def lengthened(local: LocalOp, value: Array, dims: Sequence[Lengthening], fill: Any = 0) -> Array:
    """The run of elements that this device needs of `value`, in every one of `dims`; `fill` beyond the ends."""
    for dim in dims:
        value = _lengthened(local, value, dim, fill)
    return value


def run_at(value: Array, dim: int, begin: Any, count: int, fill: Any = 0) -> Array:
    """The `count` elements of a dim from the place `begin` on, which may lie anywhere; `fill` beyond the ends."""
    size = value.shape[dim]
    if size > count:
        first = jnp.clip(begin, 0, size - count)
        value = slice_at(value, first, count, dim)
        begin = begin - first
        size = count
    widths = [(count, count, 0) if d == dim else (0, 0, 0) for d in range(value.ndim)]
    around = lax.pad(value, jnp.asarray(fill, value.dtype), widths)
    return slice_at(around, jnp.clip(begin + count, 0, size + count), count, dim)


def lowest(kind: str, dtype: Any) -> Any:
    """The value that loses against all others where the largest ("max") or smallest ("min") wins."""
    return neutral("max" if kind == "max" else "min", np.dtype(dtype))


def _lengthened(local: LocalOp, value: Array, along: Lengthening, fill: Any) -> Array:
    dim = along.dim
    halo = along.halo
    parts: list[Array] = []
    for piece in halo.pieces:
        part = lax.slice_in_dim(value, piece.begin, piece.end, axis=dim)
        if piece.distance:
            part = local.exchanger.permute(part, along.axes, Hop(-piece.distance))
        parts.append(part)

    joined = lax.concatenate(parts, dim) if len(parts) > 1 else parts[0]
    run = _run(local, joined, along)
    if not halo.outside or (isinstance(fill, int) and fill == 0):
        return run

    places = (
        halo.first + local.offset_of(along.axes) * halo.stride + lax.iota(np.int32, halo.length)
    )
    inside = ((places >= 0) & (places < along.size)).reshape(
        [-1 if d == dim else 1 for d in range(value.ndim)]
    )
    return jnp.where(inside, run, jnp.asarray(fill, value.dtype))


def _run(local: LocalOp, value: Array, along: Lengthening) -> Array:
    """The elements that are needed, zeros beyond what was sent."""
    dim = along.dim
    halo = along.halo
    if halo.before or halo.after:
        widths = [
            (halo.before, halo.after, 0) if d == dim else (0, 0, 0) for d in range(value.ndim)
        ]
        value = lax.pad(value, jnp.zeros((), value.dtype), widths)

    if halo.shift:
        start = halo.start + local.offset_of(along.axes) * halo.shift
        return slice_at(value, start, halo.length, dim)

    if halo.length == value.shape[dim]:
        return value

    return lax.slice_in_dim(value, halo.start, halo.start + halo.length, axis=dim)
