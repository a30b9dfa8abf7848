"""Gather and scatter on a tensor whose indexed dim is split: a device reads and writes the rows of its shard only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from autopar._compat import row_major, untyped_jax
from autopar.emit.local.runs import SlicedRuns, on_places
from autopar.emit.local.shard import Array, LocalOp, Run

_barrier: Callable[[Array], Array] = untyped_jax.lax.optimization_barrier


def _as_it_is(array: Array) -> Array:
    return array


def gather(local: LocalOp) -> Run:
    """Rows of this shard; zeros for rows of other shards, and one shard holds the fill value of rows of none.

    What is in range is decided on the whole tensor, as the operator's mode says, of indices of the type that JAX
    compares: where a value fills, it takes their low 32 bits. Indices out of range of which the caller promised that
    there are none are clamped, as XLA does. Where arrays lie in tiles, rows are kept as they are found: their readers
    are given the sum of all shards, often a part of it, in the order that suits these.
    """
    op = local.op
    numbers = op.params["dimension_numbers"]
    dims: tuple[int, ...] = numbers["start_index_map"]
    single = numbers["collapsed_slice_dims"]
    batch = numbers["operand_batching_dims"]
    runs = SlicedRuns.of(
        local, op.params["slice_sizes"], dims, single, batch, numbers["offset_dims"]
    )
    if runs.runs:
        return _gather_places(local, runs)

    split = zip(
        op.params["slice_sizes"], local.in_shape(0), local.strategy.ins[0].dims, strict=True
    )
    slice_sizes = tuple(min(size, part) if axes else size for size, part, axes in split)
    if not any(local.strategy.ins[0].dims[d] for d in dims if op.params["slice_sizes"][d] == 1):
        return local.bind(slice_sizes=slice_sizes)

    fills = op.params["mode"] == "FILL_OR_DROP"
    read = local.bind(
        slice_sizes=slice_sizes,
        mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS,
        fill_value=None,
        indices_are_sorted=False,  # those of other shards are replaced by 0
        unique_indices=False,
    )
    bounds = [op.ins[0].shape[d] - op.params["slice_sizes"][d] for d in dims]
    local_bounds = [local.in_shape(0)[d] - slice_sizes[d] for d in dims]

    last = op.outs[0].ndim - len(numbers["offset_dims"])
    is_by_rows = tuple(numbers["offset_dims"]) == (*range(last, op.outs[0].ndim),)
    as_found = row_major if local.backend.tiled and is_by_rows else _as_it_is

    def run(operand: Array, indices: Array) -> Sequence[Array]:
        indices = indices.astype(_compared(local)) if fills else _clamped(indices, bounds)
        shifted, starts = _shifted(local, dims, bounds, indices)
        valid = _within(indices, bounds) if fills else None
        mine = (
            _within(shifted, local_bounds)
            if valid is None
            else _within(shifted, local_bounds) & valid
        )
        rows = read(operand, jnp.where(mine[..., None], shifted, np.zeros((), shifted.dtype)))[0]
        rows = jnp.where(_along(mine, numbers["offset_dims"]), rows, np.zeros((), rows.dtype))
        if valid is None:
            return [as_found(rows)]

        first = (starts == 0).all()
        missing = _along(~valid & first, numbers["offset_dims"])
        return [as_found(jnp.where(missing, _fill_value(local, rows.dtype), rows))]

    return run


def _gather_places(local: LocalOp, runs: SlicedRuns) -> Run:
    """Every place of every run, put where the run has it."""
    numbers = local.op.params["dimension_numbers"]
    shape = local.op.ins[0].shape
    order = runs.order(local.op.outs[0].ndim)
    first = len(order) - len(runs.rest)
    plain = dict(numbers) | {
        "offset_dims": tuple(range(first, len(order))),
        "collapsed_slice_dims": tuple(sorted((*numbers["collapsed_slice_dims"], *runs.runs))),
        "start_index_map": runs.components,
    }
    sizes = tuple(1 if d in runs.runs else width for d, width in enumerate(runs.widths))
    params = {
        "dimension_numbers": plain,
        "numbers": lax.GatherDimensionNumbers(**plain),
        "slice_sizes": sizes,
    }
    read = gather(on_places(local, runs, params, 1, 2))
    back = tuple(int(e) for e in np.argsort(order))

    fills = local.op.params["mode"] == "FILL_OR_DROP"

    def run(operand: Array, indices: Array) -> Sequence[Array]:
        indices = indices.astype(_compared(local)) if fills else indices
        found = read(operand, runs.places(indices, shape, clips=not fills))
        return [lax.transpose(found[0], back)]

    return run


def scatter(local: LocalOp) -> Run:
    """Updates of rows of this shard; those of other shards fall out of range and are dropped.

    Where the compiler wants that, behind a barrier, so that the operand is an array before (`Backend.scatters_apart`).
    """
    op = local.op
    numbers = op.params["dimension_numbers"]
    dims: tuple[int, ...] = numbers["scatter_dims_to_operand_dims"]
    widths = _widths(local)
    single = numbers["inserted_window_dims"]
    batch = numbers["operand_batching_dims"]
    runs = SlicedRuns.of(local, widths, dims, single, batch, numbers["update_window_dims"])
    if runs.runs:
        return _scatter_places(local, runs)
    if not any(local.strategy.ins[0].dims[d] for d in dims if widths[d] == 1):
        return local.bind()

    write = local.bind(mode=lax.GatherScatterMode.FILL_OR_DROP)
    bounds = [op.ins[0].shape[d] - widths[d] for d in dims]
    clips = op.params["mode"] == "CLIP"
    apart = _barrier if local.backend.scatters_apart else _as_it_is

    def run(operand: Array, indices: Array, updates: Array) -> Sequence[Array]:
        shifted, _ = _shifted(local, dims, bounds, _clamped(indices, bounds) if clips else indices)
        return write(apart(operand), shifted, updates)

    return run


def _scatter_places(local: LocalOp, runs: SlicedRuns) -> Run:
    """Every place of every run, taken from where the run has it."""
    numbers = local.op.params["dimension_numbers"]
    shape = local.op.ins[0].shape
    order = runs.order(local.op.ins[2].ndim)
    first = len(order) - len(runs.rest)
    plain = dict(numbers) | {
        "update_window_dims": tuple(range(first, len(order))),
        "inserted_window_dims": tuple(sorted((*numbers["inserted_window_dims"], *runs.runs))),
        "scatter_dims_to_operand_dims": runs.components,
    }
    params = {"dimension_numbers": plain, "numbers": lax.ScatterDimensionNumbers(**plain)}
    write = scatter(on_places(local, runs, params, 1, 2))

    def run(operand: Array, indices: Array, updates: Array) -> Sequence[Array]:
        places = runs.places(indices, shape, clips=local.op.params["mode"] == "CLIP")
        return write(operand, places, lax.transpose(updates, order))

    return run


def _compared(local: LocalOp) -> Any:
    """The type in which JAX compares the indices of a gather that fills with the dims of its operand."""
    return np.int64 if max(local.op.ins[0].shape) > np.iinfo(np.int32).max else np.int32


def _widths(local: LocalOp) -> list[int]:
    """The size of a scattered slice in each dim of the operand."""
    numbers = local.op.params["dimension_numbers"]
    dropped = (*numbers["inserted_window_dims"], *numbers["operand_batching_dims"])
    windows = iter(numbers["update_window_dims"])
    return [
        1 if d in dropped else local.op.ins[2].shape[next(windows)]
        for d in range(local.op.ins[0].ndim)
    ]


def _shifted(
    local: LocalOp, dims: tuple[int, ...], bounds: list[int], indices: Array
) -> tuple[Array, Any]:
    """The indices counted from where this shard begins, signed; and where it begins in each indexed dim.

    In a dim of which slices take the whole shard begins at 0: a device takes its part of the slice.
    """
    placement = local.strategy.ins[0]
    shape = local.op.ins[0].shape
    dtype = np.dtype(np.int64 if indices.dtype.itemsize == 8 else np.int32)
    axes = [placement.dims[d] if bound else () for d, bound in zip(dims, bounds, strict=True)]
    starts: Any = jnp.stack(
        [
            lax.convert_element_type(local.start(along, shape[d]), dtype)
            for d, along in zip(dims, axes, strict=True)
        ]
    )
    return indices.astype(dtype) - starts, starts


def _clamped(indices: Array, bounds: list[int]) -> Array:
    """The indices moved into 0..bound, each component into its own."""
    limit = int(jnp.iinfo(indices.dtype).max)
    upper = np.asarray([min(bound, limit) for bound in bounds], indices.dtype)
    return jnp.clip(indices, np.zeros_like(upper), upper)


def _within(indices: Array, bounds: list[int]) -> Array:
    """Whether all components of an index are in 0..bound."""
    limit = int(jnp.iinfo(indices.dtype).max)
    upper = np.asarray([min(bound, limit) for bound in bounds], indices.dtype)
    return ((indices >= 0) & (indices <= upper)).all(axis=-1)


def _along(mask: Array, offset_dims: tuple[int, ...]) -> Array:
    """The mask of slices, with dims of size 1 where the result has the dims of a slice."""
    return jnp.expand_dims(mask, offset_dims)


def _fill_value(local: LocalOp, dtype: Any) -> Any:
    """The value of a row out of range: the operator's own, or NaN, the lowest signed or highest unsigned integer."""
    value = local.payload.params["fill_value"]
    if value is not None:
        return np.asarray(value).astype(dtype)
    if jnp.issubdtype(dtype, jnp.inexact):
        return np.asarray(np.nan).astype(dtype)
    if jnp.issubdtype(dtype, jnp.bool_):
        return np.asarray(True)
    limits = np.iinfo(dtype)
    return np.asarray(limits.min if jnp.issubdtype(dtype, jnp.signedinteger) else limits.max, dtype)
