"""Moving operators as drafts: slices, paddings, and those that no primitive of JAX is: rolls and splices.

| kind | what it is |
|---|---|
| roll | out[i] = x[(begin + i) mod n] along a dim, `begin` a number |
| dynamic_roll | the same, `begin` a scalar operand, clamped to 0..n |
| splice | runs of several tensors, or of one, joined along a dim; runs of operand -1 are zeros |

Their payload is a call of the plain JAX function, for whoever runs them whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from autopar import _compat
from autopar._compat import untyped_jax
from autopar._payload import Payload
from autopar.core.graph import TensorInfo
from autopar.trace.draft import DraftOp

VIEWS = frozenset({"broadcast_in_dim", "reduce_max", "reduce_sum", "reshape", "squeeze"})
"""Kinds that may only add dims of one element and take them away."""
MOVING = VIEWS | {
    *("add_any", "concatenate", "dynamic_slice", "pad", "rev", "roll", "slice", "splice", "split"),
}
"""Kinds that chains of moving operators are made of: sums too, of what was padded to stand side by side."""

Ints = tuple[int, ...]
Config = tuple[tuple[int, int, int], ...]
"""For each dim the elements that are padded before and after it, below 0 cut off, and those in every gap."""
Run = tuple[TensorInfo, int, int]
"""The elements of a tensor from one place to another."""

_lax: Any = untyped_jax.lax


def window_of(op: DraftOp, tensor: TensorInfo) -> tuple[Ints, Ints] | None:
    """Where a result of a slice or split begins in each dim and how much of it is taken.

    None for other operators, and where elements are left out in between.
    """
    if op.kind == "split":
        axis: int = op.params["axis"]
        before: Ints = op.params["sizes"][: op.outs.index(tensor)]
        return tuple(sum(before) if d == axis else 0 for d in range(tensor.ndim)), tensor.shape
    strides: Ints | None = op.params.get("strides")
    if op.kind != "slice" or (strides is not None and any(stride != 1 for stride in strides)):
        return None
    return op.params["start_indices"], tensor.shape


def config_of(op: DraftOp, tensor: TensorInfo) -> Config | None:
    """A result as padding of the operand, below 0 where that is cut; None where it is neither cut nor padded."""
    if op.kind == "pad":
        return op.params["padding_config"]
    window = window_of(op, tensor)
    if window is None:
        return None
    ends = zip(op.ins[0].shape, *window, strict=True)
    return tuple((-start, start + size - whole, 0) for whole, start, size in ends)


def runs_of(op: DraftOp) -> list[Run] | None:
    """What is joined along the dim `dimension`; None where nothing is."""
    if op.kind == "concatenate":
        return [(tensor, 0, tensor.shape[op.params["dimension"]]) for tensor in op.ins]
    if op.kind == "splice" and all(n >= 0 for n, _, _ in op.params["runs"]):
        return [(op.ins[n], begin, end) for n, begin, end in op.params["runs"]]
    if op.kind == "roll":
        (source,) = op.ins
        begin = op.params["begin"]
        return [(source, begin, source.shape[op.params["dimension"]]), (source, 0, begin)]
    return None


def slicing(op: DraftOp, source: TensorInfo, starts: Ints) -> DraftOp:
    """The slice of `source` that begins at `starts`, in the place of `op`."""
    limits = tuple(start + size for start, size in zip(starts, op.outs[0].shape, strict=True))
    params = {"limit_indices": limits, "start_indices": starts, "strides": None}
    return replace(
        op, kind="slice", ins=(source,), params=params, payload=Payload(_compat.SLICE, dict(params))
    )


def padding(op: DraftOp, source: TensorInfo, value: TensorInfo, config: Config) -> DraftOp:
    """The padding of `source` with `value`, in the place of `op`."""
    params = {"padding_config": config}
    return replace(
        op,
        kind="pad",
        ins=(source, value),
        params=params,
        payload=Payload(_compat.PAD, dict(params)),
    )


def adding(op: DraftOp, one: TensorInfo, other: TensorInfo) -> DraftOp:
    """The sum of two tensors, in the place of `op`."""
    return replace(
        op, kind="add_any", ins=(one, other), params={}, payload=Payload(_compat.ADD_ANY, {})
    )


def begin_of(dim: int, runs: Sequence[Run]) -> int | None:
    """The first element of a roll that is joined of a tensor's end and its beginning; None where runs are no roll."""
    (source, begin, end), *others = runs
    is_roll = len(others) == 1 and others[0][0].id == source.id and others[0][1:] == (0, begin)
    return begin if is_roll and end == source.shape[dim] else None


def rolling(op: DraftOp, source: TensorInfo, dim: int, begin: int) -> DraftOp:
    """The roll of `source` along a dim, in the place of `op`."""

    def function(x: Any) -> Any:
        end = source.shape[dim]
        parts = [
            _lax.slice_in_dim(x, begin, end, axis=dim),
            _lax.slice_in_dim(x, 0, begin, axis=dim),
        ]
        return _lax.concatenate(parts, dim)

    return _called(op, "roll", (source,), {"dimension": dim, "begin": begin}, function)


def splice(op: DraftOp, dim: int, runs: Sequence[Run]) -> DraftOp:
    """Runs of tensors joined along a dim, in the place of `op`; each tensor is one operand, however often it is cut."""
    sources = tuple({source.id: source for source, _, _ in runs}.values())
    numbers = {source.id: n for n, source in enumerate(sources)}
    stated = tuple((numbers[source.id], begin, end) for source, begin, end in runs)

    def function(*xs: Any) -> Any:
        return _lax.concatenate(
            [_lax.slice_in_dim(xs[n], begin, end, axis=dim) for n, begin, end in stated], dim
        )

    return _called(op, "splice", sources, {"dimension": dim, "runs": stated}, function)


def alone(op: DraftOp, source: TensorInfo, dim: int, place: int, begin: int, count: int) -> DraftOp:
    """`count` elements of a tensor from `begin` on, at a place along a dim of the result; zeros around them."""
    room = op.outs[0].shape[dim]
    ends = (-1, 0, place), (0, begin, begin + count), (-1, 0, room - place - count)
    stated = tuple(run for run in ends if run[1] < run[2])

    def function(x: Any) -> Any:
        widths = [
            (place, room - place - count, 0) if d == dim else (0, 0, 0) for d in range(x.ndim)
        ]
        return _lax.pad(
            _lax.slice_in_dim(x, begin, begin + count, axis=dim), np.zeros((), x.dtype), widths
        )

    return _called(op, "splice", (source,), {"dimension": dim, "runs": stated}, function)


def dynamic_roll(op: DraftOp, maker: DraftOp | None) -> DraftOp | None:
    """The roll of a tensor that is cut out of two of it side by side, in the place of `op`; None where it is not."""
    if (
        maker is None
        or maker.kind != "concatenate"
        or len(maker.ins) != 2
        or maker.ins[0].id != maker.ins[1].id
    ):
        return None

    source = maker.ins[0]
    dim: int = maker.params["dimension"]
    if op.outs[0].shape != source.shape:
        return None

    size = source.shape[dim]

    def function(x: Any, begin: Any) -> Any:
        begin = untyped_jax.numpy.clip(begin, 0, size)
        return _lax.dynamic_slice_in_dim(_lax.concatenate([x, x], dim), begin, size, dim)

    return _called(op, "dynamic_roll", (source, op.ins[1 + dim]), {"dimension": dim}, function)


def _called(
    op: DraftOp,
    kind: str,
    ins: tuple[TensorInfo, ...],
    params: dict[str, Any],
    function: Callable[..., Any],
) -> DraftOp:
    """An operator whose payload is a call of `function`, in the place of `op`."""
    specs = [untyped_jax.ShapeDtypeStruct(tensor.shape, tensor.dtype) for tensor in ins]
    with _compat.without_mesh():
        jaxpr = untyped_jax.make_jaxpr(function)(*specs)
    payload = Payload(_compat.call_primitive(), {"call_jaxpr": jaxpr})
    return replace(op, kind=kind, ins=ins, params=params, payload=payload)
