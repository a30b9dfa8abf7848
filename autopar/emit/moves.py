"""Moves between devices, as JAX operations on local shards inside shard_map."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import jax
import numpy as np

from autopar._compat import pcast_varying, row_major, untyped_jax
from autopar.backends.backend import Backend
from autopar.backends.known import UNKNOWN
from autopar.core.mesh import DeviceMesh
from autopar.core.parcels import parcels
from autopar.core.placement import Kind, Placement
from autopar.core.program import Move, ShardedProgram, changed_dim
from autopar.emit.slicing import slice_at

Array = jax.Array
lax = untyped_jax.lax
jnp = untyped_jax.numpy


def run_move(
    program: ShardedProgram, move: Move, values: Sequence[Array], backend: Backend = UNKNOWN
) -> list[Array]:
    """The local results of `move` on the local `values`, as `backend` wants it."""
    if move.kind == "all_reduce":
        return _all_reduce(program, move, values, backend.apart_bytes)
    if len(values) > 1:
        return _PACKED[move.kind](program, move, values)

    (value,) = values
    before, after = (program.values[v[0]].placement for v in (move.ins, move.outs))
    if not value.size:  # XLA gathers nothing of a dim without elements
        return [
            jnp.zeros(
                after.local_shape(program.values[move.outs[0]].tensor.shape, program.mesh),
                value.dtype,
            )
        ]

    run = (
        _BY_SHARDS[move.kind]
        if move.kind in _BY_SHARDS and move.dim and not backend.tiled
        else _RUN[move.kind]
    )
    value = pcast_varying(value, move.axes)
    if move.kind == "all_to_all" and backend.wants_rows:
        value = row_major(value)

    return [run(program, move, value, before, after)]


def linear_index(axes: tuple[str, ...], mesh: DeviceMesh) -> Array:
    """The device's number along `axes`, major to minor."""
    index = jnp.int32(0)
    for axis in axes:
        index = index * mesh.product((axis,)) + lax.axis_index(axis)
    return index


def neutral(kind: Kind, dtype: np.dtype) -> object:
    """The value that changes nothing when combined by `kind`."""
    if kind == "sum":
        return np.zeros((), dtype)
    if dtype == np.bool_:
        return np.array(kind == "min")
    if jnp.issubdtype(dtype, jnp.integer):
        limits = jnp.iinfo(dtype)
    elif np.isinf(np.array(np.inf, dtype)):
        return np.array(-np.inf if kind == "max" else np.inf, dtype)
    else:
        limits = jnp.finfo(dtype)  # a narrow type without infinities, of which numpy would make NaN

    return np.array(limits.min if kind == "max" else limits.max, dtype)


def permutation(
    before: Placement, after: Placement, axes: tuple[str, ...], mesh: DeviceMesh
) -> list[tuple[int, int]]:
    """Pairs (from, to) of device numbers along `axes` (major to minor) that take shards of `before` to `after`.

    Every device sends once and receives once; one that holds what it needs keeps it.
    """
    sizes = [mesh.product((axis,)) for axis in axes]
    devices = [dict(zip(axes, place, strict=True)) for place in product(*map(range, sizes))]
    holders: dict[tuple[int, ...], list[int]] = {}
    for number, device in enumerate(devices):
        holders.setdefault(_shard(before, device, mesh), []).append(number)

    wanted = [_shard(after, device, mesh) for device in devices]
    pairs: list[tuple[int, int]] = []
    for number, shard in enumerate(wanted):
        if number in holders[shard]:
            holders[shard].remove(number)
            pairs.append((number, number))

    settled = {to for _, to in pairs}
    pairs += [
        (holders[shard].pop(0), number)
        for number, shard in enumerate(wanted)
        if number not in settled
    ]
    return sorted(pairs)


def _shard(placement: Placement, device: dict[str, int], mesh: DeviceMesh) -> tuple[int, ...]:
    """Which shard of each dim a device holds, counting only the axes that `device` names."""
    found: list[int] = []
    for axes in placement.dims:
        index = 0
        for axis in axes:
            if axis in device:
                index = index * mesh.product((axis,)) + device[axis]
        found.append(index)
    return tuple(found)


def _all_reduce(
    program: ShardedProgram, move: Move, values: Sequence[Array], apart_bytes: int | None
) -> list[Array]:
    """One all-reduce of each parcel of values."""
    combine = _COMBINE[program.values[move.ins[0]].placement.kind]
    found = list(values)
    for parcel in parcels([value.size * value.dtype.itemsize for value in values], apart_bytes):
        if len(parcel) == 1:
            found[parcel[0]] = combine(pcast_varying(values[parcel[0]], move.axes), move.axes)
            continue
        members = [values[n] for n in parcel]
        flat = jnp.concatenate(
            [value.reshape(-1) for value in _alike_varying(program, move, members, parcel)]
        )
        parts = jnp.split(combine(flat, move.axes), _ends(members))
        for n, part, value in zip(parcel, parts, members, strict=True):
            found[n] = part.reshape(value.shape)

    return found


def _largest(value: Array, axes: tuple[str, ...]) -> Array:
    """The largest of all devices' values, element by element; NaN where one of them is."""
    return _in_order(lax.pmax, lambda limits: limits.max, value, axes)


def _smallest(value: Array, axes: tuple[str, ...]) -> Array:
    """The smallest of all devices' values, element by element; NaN where one of them is."""
    return _in_order(lax.pmin, lambda limits: limits.min, value, axes)


def _in_order(
    combine: Callable[[Array, tuple[str, ...]], Array],
    winner: Callable[[Any], int],
    value: Array,
    axes: tuple[str, ...],
) -> Array:
    """`combine` of `value`: of integers in the order of its numbers, of which NaN is the `winner`.

    All-reduces of floating point numbers lose NaNs, in XLA for CPUs even other devices' numbers with them: they compare
    as `<` does. The integers have as many bytes, and the result's are a NaN where one won.
    """
    if not jnp.issubdtype(value.dtype, jnp.floating):
        return combine(value, axes)
    if value.dtype.itemsize == 1:  # some have one NaN alone, whose bits are not the last in order
        wide = _in_order(combine, winner, value.astype(jnp.float32), axes)
        return wide.astype(value.dtype)

    integer = jnp.dtype(f"int{8 * value.dtype.itemsize}")
    ordered = _reversed_below_zero(lax.bitcast_convert_type(value, integer))
    last = jnp.asarray(winner(jnp.iinfo(integer)), integer)
    found = combine(jnp.where(jnp.isnan(value), last, ordered), axes)
    return lax.bitcast_convert_type(_reversed_below_zero(found), value.dtype)


def _reversed_below_zero(bits: Array) -> Array:
    """Integers in the order of the numbers that have such bits; its own inverse."""
    return jnp.where(bits < 0, bits ^ jnp.iinfo(bits.dtype).max, bits)


_COMBINE: dict[Kind, Callable[[Array, tuple[str, ...]], Array]] = {
    "sum": lax.psum,
    "max": _largest,
    "min": _smallest,
}


def _scatter_packed(program: ShardedProgram, move: Move, values: Sequence[Array]) -> list[Array]:
    """One reduce-scatter of several values: a row for each device, which has its shards end to end."""
    count = program.mesh.product(move.axes)
    apart = [
        _apart(value, dim, count)
        for value, dim in zip(
            _alike_varying(program, move, values), _changed(program, move), strict=True
        )
    ]
    shards = [value[0] for value in apart]
    rows = jnp.concatenate([value.reshape(count, -1) for value in apart], axis=1)
    parts = jnp.split(lax.psum_scatter(rows, move.axes, scatter_dimension=0), _ends(shards))
    return [part.reshape(shard.shape) for part, shard in zip(parts, shards, strict=True)]


def _gather_packed(program: ShardedProgram, move: Move, values: Sequence[Array]) -> list[Array]:
    """One all-gather of several values: a row from each device, which has its shards end to end."""
    flat = jnp.concatenate([value.reshape(-1) for value in _alike_varying(program, move, values)])
    rows = lax.all_gather(flat, move.axes, axis=0, to="invarying")
    parts = zip(
        jnp.split(rows, _ends(values), axis=1), values, _changed(program, move), strict=True
    )
    return [_together(part.reshape(len(rows), *value.shape), dim) for part, value, dim in parts]


def _changed(program: ShardedProgram, move: Move) -> list[int]:
    """The dim of each value that a bucket splits or joins."""
    pairs = zip(move.ins, move.outs, strict=True)
    dims = [changed_dim(program.values[v].placement, program.values[w].placement) for v, w in pairs]
    return [dim for dim in dims if dim is not None]


def _alike_varying(
    program: ShardedProgram,
    move: Move,
    values: Sequence[Array],
    positions: Sequence[int] | None = None,
) -> list[Array]:
    """The values at `positions` (all), each said to vary wherever one of them does: they become one."""
    ins = move.ins if positions is None else [move.ins[n] for n in positions]
    varying = frozenset(axis for v in ins for axis in program.values[v].placement.varying_axes)
    return [pcast_varying(value, varying) for value in values]


def _ends(values: Sequence[Array]) -> list[int]:
    """Where each of several values laid end to end ends, but for the last."""
    ends: list[int] = np.cumsum([value.size for value in values])[:-1].tolist()
    return ends


def _apart(value: Array, dim: int, count: int) -> Array:
    """The shards of a dim, along a new first dim."""
    shape = value.shape
    cut = value.reshape(*shape[:dim], count, shape[dim] // count, *shape[dim + 1 :])
    return jnp.moveaxis(cut, dim, 0)


def _together(shards: Array, dim: int) -> Array:
    """The whole of shards along the first dim: the inverse of `_apart`."""
    cut = jnp.moveaxis(shards, 0, dim)
    shape = cut.shape
    return cut.reshape(*shape[:dim], shape[dim] * shape[dim + 1], *shape[dim + 2 :])


def _all_gather(
    _: ShardedProgram, move: Move, value: Array, before: Placement, after: Placement
) -> Array:
    del before, after
    return lax.all_gather(value, move.axes, axis=move.dim or 0, tiled=True, to="invarying")


def _reduce_scatter(
    _: ShardedProgram, move: Move, value: Array, before: Placement, after: Placement
) -> Array:
    del before, after
    return lax.psum_scatter(value, move.axes, scatter_dimension=move.dim or 0, tiled=True)


def _gather_shards(
    _: ShardedProgram, move: Move, value: Array, before: Placement, after: Placement
) -> Array:
    del before, after
    return _together(lax.all_gather(value, move.axes, axis=0, to="invarying"), move.dim or 0)


def _scatter_shards(
    program: ShardedProgram, move: Move, value: Array, before: Placement, after: Placement
) -> Array:
    del before, after
    shards = _apart(value, move.dim or 0, program.mesh.product(move.axes))
    return lax.psum_scatter(shards, move.axes, scatter_dimension=0)


def _all_to_all(
    _: ShardedProgram, move: Move, value: Array, before: Placement, after: Placement
) -> Array:
    del before, after
    return lax.all_to_all(value, move.axes, move.to_dim or 0, move.dim or 0, tiled=True)


def _permute(
    program: ShardedProgram, move: Move, value: Array, before: Placement, after: Placement
) -> Array:
    # ppermute numbers a group's devices in mesh order, whatever order is named
    axes = program.mesh.sort(move.axes)
    return lax.ppermute(value, axes, permutation(before, after, axes, program.mesh))


def _slice(
    program: ShardedProgram, move: Move, value: Array, before: Placement, after: Placement
) -> Array:
    del before, after
    dim = move.dim or 0
    size = value.shape[dim] // program.mesh.product(move.axes)
    return slice_at(value, linear_index(move.axes, program.mesh) * size, size, dim)


def _mask(
    program: ShardedProgram, move: Move, value: Array, before: Placement, after: Placement
) -> Array:
    del before
    first = linear_index(move.axes, program.mesh) == 0
    return jnp.where(first, value, jnp.asarray(neutral(after.kind, value.dtype), value.dtype))


_RUN: dict[str, Callable[[ShardedProgram, Move, Array, Placement, Placement], Array]] = {
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "permute": _permute,
    "slice": _slice,
    "mask": _mask,
}
_BY_SHARDS = {"all_gather": _gather_shards, "reduce_scatter": _scatter_shards}
"""Those that need not go along a dim."""
_PACKED: dict[str, Callable[[ShardedProgram, Move, Sequence[Array]], list[Array]]] = {
    "all_gather": _gather_packed,
    "reduce_scatter": _scatter_packed,
}
