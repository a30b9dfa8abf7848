"""Running sums and extrema, positions of extrema and top-k along a split dim: first locally, then among devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autopar._compat import untyped_jax
from autopar.emit.local.halo import lowest
from autopar.emit.local.shard import Array, LocalOp, Run

lax = untyped_jax.lax
jnp = untyped_jax.numpy

_JOINED: dict[str, Callable[[Array, Array], Array]] = {
    "cumsum": lax.add,
    "cumprod": lax.mul,
    "cummax": lax.max,
    "cummin": lax.min,
    "cumlogsumexp": jnp.logaddexp,
}


def cumulative(local: LocalOp) -> Run:
    """A shard's own running values, joined with the total of all shards before it (after it, if reversed)."""
    axis: int = local.op.params["axis"]
    axes = local.strategy.ins[0].dims[axis]
    run = local.bind()
    if not axes:
        return run

    total = local.bind(reverse=False)
    join = _JOINED[local.op.kind]
    is_reversed: bool = local.op.params["reverse"]

    def joined(operand: Array) -> Sequence[Array]:
        (own,) = run(operand)
        last = _at(own, 0 if is_reversed else own.shape[axis] - 1, axis)
        totals = local.exchanger.all_gather(last, axes, axis)
        count = totals.shape[axis]
        places = lax.iota(np.int32, count).reshape(
            [-1 if d == axis else 1 for d in range(own.ndim)]
        )
        here = local.offset_of(axes)
        others = places > here if is_reversed else places < here
        neutral = jnp.asarray(_neutral(local.op.kind, own.dtype), own.dtype)
        (sums,) = total(jnp.where(others, totals, neutral))
        return [join(own, _at(sums, count - 1, axis))]

    return joined


def arg_extremum(local: LocalOp) -> Run:
    """The first of the devices with the best value tells the place: ties go to the smallest index, NaN wins."""
    axis: int = local.op.params["axes"][0]
    axes = local.strategy.ins[0].dims[axis]
    run = local.bind()
    if not axes:
        return run

    among = local.bind(axes=(0,))
    best = lax.reduce_max if local.op.kind == "argmax" else lax.reduce_min
    shard = local.in_shape(0)[axis]

    def winner(operand: Array) -> Sequence[Array]:
        (index,) = run(operand)
        index = index + jnp.asarray(local.offset_of(axes) * shard, index.dtype)
        values = local.exchanger.all_gather(best(operand, (axis,))[None], axes, 0)
        indices = local.exchanger.all_gather(index[None], axes, 0)
        (first,) = among(values)
        return [jnp.take_along_axis(indices, first[None], axis=0, mode="clip")[0]]

    return winner


def top_k(local: LocalOp) -> Run:
    """The k first of every device's k first; candidates stand in the order of their indices where they are equal."""
    operand = local.op.ins[0]
    axis: int = local.op.params.get("axis", -1) % operand.ndim
    axes = local.strategy.ins[0].dims[axis]
    if not axes:
        return local.bind()

    shard = local.in_shape(0)[axis]
    own = local.bind(k=min(local.op.params["k"], shard))
    among = local.bind()

    def first(values: Array) -> Sequence[Array]:
        values, indices = own(values)
        indices = indices + jnp.asarray(local.offset_of(axes) * shard, indices.dtype)
        values, places = among(local.exchanger.all_gather(values, axes, axis))
        indices = local.exchanger.all_gather(indices, axes, axis)
        return [values, jnp.take_along_axis(indices, places, axis=axis, mode="clip")]

    return first


def _at(value: Array, place: int, dim: int) -> Array:
    return lax.slice_in_dim(value, place, place + 1, axis=dim)


def _neutral(kind: str, dtype: Any) -> Any:
    """What changes nothing when joined."""
    if kind in ("cumsum", "cumprod"):
        return 0 if kind == "cumsum" else 1
    return lowest("min" if kind == "cummin" else "max", dtype)
