"""Convolutions and poolings on dims that are split: on shards lengthened by what windows share with neighbours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from autopar._compat import untyped_jax
from autopar.core.halo import Halo, Window
from autopar.core.windows import convolution_windows, pooling_windows
from autopar.emit.local.halo import Lengthening, lengthened, lowest
from autopar.emit.local.shard import Array, LocalOp, Run

lax = untyped_jax.lax
jnp = untyped_jax.numpy
Padding = tuple[tuple[int, int], ...]
_COMPARED = {"ge": "max", "le": "min"}


def conv_general_dilated(local: LocalOp) -> Run:
    """Each device has its share of the feature groups or of the batch groups, and of each spatial dim.

    A spatial dim is split in operand and result, or in operand and kernel: then the kernel's places are divided.
    """
    numbers: dict[str, tuple[int, ...]] = local.op.params["dimension_numbers"]
    lhs_batch, lhs_channel, *spatial = numbers["lhs_spec"]
    padding = [tuple(pair) for pair in local.op.params["padding"]]
    dims: list[Lengthening] = []
    for i, (window, dim) in enumerate(zip(convolution_windows(local.op), spatial, strict=True)):
        axes = local.strategy.ins[0].dims[dim]
        if axes:
            summed = not local.strategy.outs[0].dims[numbers["out_spec"][2 + i]]
            moving = window.swapped() if summed else window
            dims.append(_lengthening(local, dim, window.size, axes, moving.halo))
            padding[i] = moving.padding(local.mesh.product(axes))

    run = local.bind(
        feature_group_count=local.op.params["feature_group_count"]
        // _parts_of_groups(local, lhs_channel),
        batch_group_count=local.op.params["batch_group_count"]
        // _parts_of_groups(local, lhs_batch),
        padding=tuple(padding),
    )

    def convolved(operand: Array, kernel: Array) -> Sequence[Array]:
        return run(lengthened(local, operand, dims), kernel)

    return convolved


def _parts_of_groups(local: LocalOp, lhs_dim: int) -> int:
    """In how many parts the groups are that `lhs_dim` is made of: the axes that the kernel's outputs have too."""
    kernel_outputs: int = local.op.params["dimension_numbers"]["rhs_spec"][0]
    lhs = local.strategy.ins[0].dims[lhs_dim]
    rhs = local.strategy.ins[1].dims[kernel_outputs]
    return local.mesh.product(tuple(axis for axis in lhs if axis in rhs))


def reduce_window(local: LocalOp) -> Run:
    """Beyond the ends stands the initial value."""
    count = len(local.op.outs)
    windows = pooling_windows(local.op, local.op.ins[0], local.op.outs[0])
    dims, padding = _pooled(local, windows, 0)
    run = local.bind(padding=padding)

    def reduced(*operands: Array) -> Sequence[Array]:
        tensors = operands[:count]
        scalars = operands[count:]
        fills = scalars or [_initial(local.op.kind, tensor.dtype) for tensor in tensors]
        return run(
            *(lengthened(local, x, dims, fill) for x, fill in zip(tensors, fills, strict=True)),
            *scalars,
        )

    return reduced


def select_and_gather_add(local: LocalOp) -> Run:
    """Beyond the ends stands what is never selected."""
    windows = pooling_windows(local.op, local.op.ins[1], local.op.outs[0])
    dims, padding = _pooled(local, windows, 0)
    run = local.bind(padding=padding)

    def gathered(tangents: Array, operand: Array) -> Sequence[Array]:
        fill = lowest(_compared(local), operand.dtype)
        return run(lengthened(local, tangents, dims), lengthened(local, operand, dims, fill))

    return gathered


def select_and_scatter_add(local: LocalOp) -> Run:
    """The sources of all windows that hold an element of this shard are scattered; what falls beside it is cut off.

    Beyond the ends stands what is never selected where anything else can be, as JAX has it on CPU and GPU. On TPU a
    window of nothing but such values selects one of its own elements instead.
    """
    op = local.op
    windows = pooling_windows(op, op.ins[1], op.ins[0])
    padding = [tuple(pair) for pair in op.params["padding"]]
    cuts = [(0, 0, 0)] * len(windows)
    sources: list[Lengthening] = []
    operands: list[Lengthening] = []
    for d, (window, axes) in enumerate(zip(windows, local.strategy.ins[1].dims, strict=True)):
        if axes and not _passes(window):
            sources.append(_lengthening(local, d, window.count, axes, window.sources))
            operands.append(_lengthening(local, d, window.size, axes, window.under_sources))
            halo = operands[-1].halo
            cuts[d] = (halo.first, local.in_shape(1)[d] - halo.first - halo.length, 0)
            padding[d] = (0, 0)

    run = local.bind(padding=tuple(padding))

    def scattered(source: Array, operand: Array) -> Sequence[Array]:
        operand = lengthened(local, operand, operands, lowest(_compared(local), operand.dtype))
        (result,) = run(lengthened(local, source, sources), operand)
        return [lax.pad(result, jnp.zeros((), result.dtype), cuts)]

    return scattered


def _pooled(
    local: LocalOp, windows: Sequence[Window], operand: int
) -> tuple[list[Lengthening], Padding]:
    """The split dims of a pooling's operand, and the padding of its windows on a lengthened shard."""
    padding = [tuple(pair) for pair in local.op.params["padding"]]
    dims: list[Lengthening] = []
    for d, (window, axes) in enumerate(zip(windows, local.strategy.ins[operand].dims, strict=True)):
        if axes and not _passes(window):
            dims.append(_lengthening(local, d, window.size, axes, window.halo))
            padding[d] = window.padding(local.mesh.product(axes))
    return dims, tuple(padding)


def _lengthening(
    local: LocalOp,
    dim: int,
    size: int,
    axes: tuple[str, ...],
    halo_of: Callable[[int], Halo | None],
) -> Lengthening:
    halo = halo_of(local.mesh.product(axes))
    if halo is None:
        raise ValueError(f"dim {dim} of {local.op.kind!r} cannot be split over {axes}")
    return Lengthening(dim, size, axes, halo)


def _passes(window: Window) -> bool:
    return window == Window(window.size, window.size)


def _compared(local: LocalOp) -> str:
    """Whether the largest or the smallest element of a window is selected."""
    return _COMPARED[local.payload.params["select_prim"].name]


def _initial(kind: str, dtype: Any) -> Any:
    """What a window's reduction begins with."""
    return 0 if kind == "reduce_window_sum" else lowest(kind.removeprefix("reduce_window_"), dtype)
