"""Slices, paddings, reversals and joins along split dims: elements that belong to a neighbour's part are sent there."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np

from autopar._compat import untyped_jax
from autopar.core.halo import Window, ring_digits, ring_pieces
from autopar.core.placement import Placement
from autopar.core.strategy import MIRROR, Hop
from autopar.core.windows import WindowRun, joined_runs, pad_windows, slice_windows
from autopar.emit.local.halo import Lengthening, lengthened, run_at
from autopar.emit.local.shard import Array, LocalOp, Run

lax = untyped_jax.lax
jnp = untyped_jax.numpy


def slice_(local: LocalOp) -> Run:
    """Where a dim is split, every device cuts its part of the result out of a lengthened shard.

    Where it is split in the operand only, a device has the rows that lie in its shard and zeros for the others.
    """
    windows = slice_windows(local.op)
    placement = local.strategy.ins[0]
    apart = _apart(windows, placement, local.strategy.outs[0])
    dims = _lengthenings(local, windows, apart)
    starts = list(local.op.params["start_indices"])
    limits = list(local.op.params["limit_indices"])
    for d, size in enumerate(local.in_shape(0)):
        if placement.dims[d]:
            starts[d] = 0
            limits[d] = size

    for dim in dims:
        limits[dim.dim] = dim.halo.length

    spans = {d: max(0, (windows[d].count - 1) * windows[d].stride + 1) for d in apart}
    limits = [spans.get(d, limit) for d, limit in enumerate(limits)]
    run = local.bind(start_indices=tuple(starts), limit_indices=tuple(limits))

    def cut(operand: Array) -> Sequence[Array]:
        operand = lengthened(local, operand, dims)
        for d, span in spans.items():
            begin = -windows[d].low - local.start(placement.dims[d], windows[d].size)
            operand = run_at(operand, d, begin, span)
        return run(operand)

    return cut


def pad(local: LocalOp) -> Run:
    """Where a dim is split, the padding at its ends is made on the devices that hold it.

    Where it is split in the result only, a device takes its part out of the whole dim.
    """
    windows = pad_windows(local.op)
    placement = local.strategy.outs[0]
    apart = _apart(windows, local.strategy.ins[0], placement)
    dims = _lengthenings(local, windows, apart)
    config = [tuple(one) for one in local.op.params["padding_config"]]
    for dim in dims:
        config[dim.dim] = (
            *windows[dim.dim].padding(local.mesh.product(dim.axes)),
            config[dim.dim][2],
        )

    for d in apart:
        config[d] = (0, 0, config[d][2])

    run = local.bind(padding_config=tuple(config))

    def padded(operand: Array, value: Array) -> Sequence[Array]:
        (operand,) = run(lengthened(local, operand, dims, value), value)
        for d in apart:
            begin = local.start(placement.dims[d], windows[d].count) - windows[d].low
            operand = run_at(operand, d, begin, local.out_shape()[d], value)
        return [operand]

    return padded


def rev(local: LocalOp) -> Run:
    """Shards change places with those at the other end, and are reversed."""
    dims: tuple[int, ...] = local.op.params["dimensions"]
    run = local.bind()

    def mirrored(operand: Array) -> Sequence[Array]:
        for d, axes in enumerate(local.strategy.ins[0].dims):
            if axes and d in dims:
                operand = local.exchanger.permute(operand, axes, MIRROR)
        return run(operand)

    return mirrored


def join(local: LocalOp) -> Run:
    """Along a split dim, a device's part of the result is cut out of every run, padded to the whole.

    Of an operand that is whole the device takes the part that it has, of one that is split it is sent what it lacks.
    """
    axis: int = local.op.params["dimension"]
    axes = local.strategy.outs[0].dims[axis]
    runs = joined_runs(local.op)

    def whole(*operands: Array) -> Sequence[Array]:
        begins = [0, *(run.end for run in runs)]
        parts = [
            _taken(operands, run, begin, axis) for run, begin in zip(runs, begins, strict=False)
        ]
        return [lax.concatenate(parts, axis)]

    def parted(*operands: Array) -> Sequence[Array]:
        size = local.out_shape()[axis]
        start = local.offset_of(axes) * size
        found = [_cut(local, operands, run, axis, start) for run in runs]
        places = (start + lax.iota(np.int32, size)).reshape(
            [-1 if d == axis else 1 for d in range(operands[0].ndim)]
        )
        later = zip(found[1:], runs, strict=False)

        return [
            reduce(
                lambda before, next_: jnp.where(places < next_[1].end, before, next_[0]),
                later,
                found[0],
            )
        ]

    if axes:
        return parted

    return local.bind() if local.op.kind == "concatenate" else whole


def _taken(operands: Sequence[Array], run: WindowRun, begin: int, axis: int) -> Array:
    """A run that stands from place `begin` on, of whole operands."""
    if run.window is None:
        shape = [run.end - begin if d == axis else size for d, size in enumerate(operands[0].shape)]
        return jnp.zeros_like(operands[0], shape=shape)
    low = run.window.low
    return lax.slice_in_dim(operands[run.operand], begin - low, run.end - low, axis=axis)


def _cut(
    local: LocalOp, operands: Sequence[Array], run: WindowRun, axis: int, start: Array
) -> Array:
    """What the device's part of the result would be if all of it were of this run; one zero for zeros."""
    if run.window is None:
        return jnp.zeros((), operands[0].dtype)
    axes = local.strategy.ins[run.operand].dims[axis]
    if axes:
        lengthening = _lengthening(run.window, axis, axes, local.mesh.product(axes))
        return lengthened(local, operands[run.operand], [lengthening])
    return run_at(operands[run.operand], axis, start - run.window.low, local.out_shape()[axis])


def roll(local: LocalOp) -> Run:
    """Along a split dim, what moves on to the next shards is sent round a ring."""
    axis: int = local.op.params["dimension"]
    begin: int = local.op.params["begin"]
    axes = local.strategy.ins[0].dims[axis]
    size = local.op.ins[0].shape[axis]
    pieces = ring_pieces(size, local.mesh.product(axes), begin)

    def rolled(operand: Array) -> Sequence[Array]:
        parts: list[Array] = []
        for piece in pieces:
            part = lax.slice_in_dim(operand, piece.begin, piece.end, axis=axis)
            if piece.distance:
                part = local.exchanger.permute(part, axes, Hop(-piece.distance, "ring"))
            parts.append(part)
        return [lax.concatenate(parts, axis) if len(parts) > 1 else parts[0]]

    return rolled


def dynamic_roll(local: LocalOp) -> Run:
    """Along a split dim shards go round a ring as far as the digits of the distance say; the rest is cut out of two."""
    axis: int = local.op.params["dimension"]
    axes = local.strategy.ins[0].dims[axis]
    size = local.op.ins[0].shape[axis]
    out_axes = local.strategy.outs[0].dims[axis]
    shard = local.out_shape()[axis]
    parts = local.mesh.product(axes)

    def from_whole(operand: Array, begin: Array) -> Sequence[Array]:
        start = _clamped(begin, size) + local.start(out_axes, size)
        twice = lax.concatenate([operand, operand], axis)
        return [lax.dynamic_slice_in_dim(twice, start % size if out_axes else start, shard, axis)]

    def rolled(operand: Array, begin: Array) -> Sequence[Array]:
        far = _clamped(begin, size) // shard
        rest = _clamped(begin, size) % shard
        for distance in ring_digits(parts):
            moved = local.exchanger.permute(operand, axes, Hop(-distance, "ring"))
            operand = jnp.where(far % parts & distance != 0, moved, operand)
        after = local.exchanger.permute(operand, axes, Hop(-1, "ring"))
        return [
            lax.dynamic_slice_in_dim(lax.concatenate([operand, after], axis), rest, shard, axis)
        ]

    return rolled if axes else from_whole


def _clamped(begin: Array, size: int) -> Array:
    """Where a roll begins: in 0..size, counted in 32 bits."""
    limit = min(size, int(np.iinfo(begin.dtype).max))
    return jnp.clip(begin, 0, limit).astype(np.int32)


def _apart(windows: Sequence[Window], before: Placement, after: Placement) -> list[int]:
    """The dims that are split on one side only."""
    dims = zip(windows, before.dims, after.dims, strict=True)
    return [
        d for d, (window, left, right) in enumerate(dims) if left != right and not _passes(window)
    ]


def _passes(window: Window) -> bool:
    """Whether the dim is as it was."""
    return window == Window(window.size, window.size)


def _lengthenings(
    local: LocalOp, windows: Sequence[Window], apart: Sequence[int]
) -> list[Lengthening]:
    """The split dims of the first operand that do not just pass through, without those that are `apart`."""
    return [
        _lengthening(window, d, axes, local.mesh.product(axes))
        for d, (window, axes) in enumerate(zip(windows, local.strategy.ins[0].dims, strict=True))
        if axes and d not in apart and not _passes(window)
    ]


def _lengthening(window: Window, dim: int, axes: tuple[str, ...], parts: int) -> Lengthening:
    halo = window.halo(parts)
    if halo is None:
        raise ValueError(f"dim {dim} cannot be split in {parts}")
    return Lengthening(dim, window.size, axes, halo)
