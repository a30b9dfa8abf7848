"""Windows: how the windows of an operator lie on its dims, read off its parameters."""

from __future__ import annotations

from dataclasses import dataclass

from autopar.core.graph import OpNode, TensorInfo
from autopar.core.halo import Window


def convolution_windows(op: OpNode) -> tuple[Window, ...]:
    """For each spatial dim of a convolution, how its kernel (the places) lies on its operand for every result."""
    params = op.params
    numbers: dict[str, tuple[int, ...]] = params["dimension_numbers"]
    lhs_dims, rhs_dims, out_dims = (
        numbers[spec][2:] for spec in ("lhs_spec", "rhs_spec", "out_spec")
    )

    return tuple(
        Window(
            op.ins[0].shape[lhs],
            op.outs[0].shape[out],
            params["window_strides"][i],
            op.ins[1].shape[rhs],
            params["rhs_dilation"][i],
            params["padding"][i][0],
            params["lhs_dilation"][i],
        )
        for i, (lhs, rhs, out) in enumerate(zip(lhs_dims, rhs_dims, out_dims, strict=True))
    )


def pooling_windows(op: OpNode, large: TensorInfo, small: TensorInfo) -> tuple[Window, ...]:
    """For each dim of `large`, how the windows of a pooling lie on it: one for each element of `small`."""
    params = op.params
    ones = (1,) * large.ndim

    return tuple(
        Window(
            size,
            count,
            params["window_strides"][d],
            params["window_dimensions"][d],
            params.get("window_dilation", ones)[d],
            params["padding"][d][0],
            params.get("base_dilation", ones)[d],
        )
        for d, (size, count) in enumerate(zip(large.shape, small.shape, strict=True))
    )


def slice_windows(op: OpNode) -> tuple[Window, ...]:
    """For each dim of a slice, which element of the operand each element of the result is."""
    strides = op.params.get("strides") or (1,) * op.ins[0].ndim
    dims = zip(op.ins[0].shape, op.outs[0].shape, strides, op.params["start_indices"], strict=True)
    return tuple(Window(size, count, stride, low=-start) for size, count, stride, start in dims)


def pad_windows(op: OpNode) -> tuple[Window, ...]:
    """For each dim of a padded tensor, which element of the operand each element of the result is, if any."""
    dims = zip(op.ins[0].shape, op.outs[0].shape, op.params["padding_config"], strict=True)
    return tuple(Window(size, count, low=low, base=gap + 1) for size, count, (low, _, gap) in dims)


@dataclass(frozen=True)
class WindowRun:
    """Elements of an operand that stand side by side in what is joined: up to place `end`, from the run before on.

    `window` says which element of the operand each element of the result would be, if all were of this run. Operand -1
    are zeros, without a window.
    """

    operand: int
    window: Window | None
    end: int


def joined_runs(op: OpNode) -> tuple[WindowRun, ...]:
    """What a concatenation, or a splice of parts of its operands, is joined of, in order."""
    axis: int = op.params["dimension"]
    every = tuple((n, 0, tensor.shape[axis]) for n, tensor in enumerate(op.ins))
    runs: tuple[tuple[int, int, int], ...] = op.params.get("runs", every)
    found: list[WindowRun] = []
    place = 0
    for n, begin, end in runs:
        window = (
            None
            if n < 0
            else Window(op.ins[n].shape[axis], op.outs[0].shape[axis], low=place - begin)
        )
        place += end - begin
        found.append(WindowRun(n, window, place))

    return tuple(found)
