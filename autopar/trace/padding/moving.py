"""Operators that cut, pad, turn and join: each part is put where it belongs, and a choice is made between parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from autopar._compat import untyped_jax
from autopar.core.graph import TensorInfo
from autopar.trace.draft import DraftOp
from autopar.trace.padding.padder import Form, Padder, Shape

lax: Any = untyped_jax.lax
Run = tuple[int, int, int]
"""The elements of an operand from one place to another; of operand -1: zeros."""


def _slice(padder: Padder, op: DraftOp) -> bool:
    """out[d..., k] = x[d..., start + k * stride]; what a cut leaves behind is anything."""
    (tensor,) = op.ins
    out = op.outs[0]
    starts: Shape = op.params["start_indices"]
    strides: Shape = op.params["strides"] or (1,) * tensor.ndim
    given = list(padder.grown(tensor))
    shape = list(out.shape)
    for d, stride in enumerate(strides):
        if tensor.shape[d] == out.shape[d]:
            shape[d] = given[d]
        elif stride == 1:
            shape[d] = padder.wanted(out)[d]
        else:
            given[d] = tensor.shape[d]

    if tuple(given) == tensor.shape and tuple(shape) == out.shape:
        return False

    form = padder.need(tensor, tuple(given), op)
    return _cut(padder, op, form, starts, tuple(shape), strides)


def _cut(
    padder: Padder, op: DraftOp, form: Form, starts: Shape, shape: Shape, strides: Shape
) -> bool:
    """A slice as a padding, below 0 where it cuts: its result is as long as it is wanted."""
    given = [
        size if stride == 1 else op.outs[0].shape[d]
        for d, (size, stride) in enumerate(zip(form.shape, strides, strict=True))
    ]
    begins = [start if stride == 1 else 0 for start, stride in zip(starts, strides, strict=True)]
    config = [
        (-start, size + start - have, 0)
        for start, size, have in zip(begins, shape, given, strict=True)
    ]
    limits = [
        have if stride == 1 else op.params["limit_indices"][d]
        for d, (have, stride) in enumerate(zip(form.shape, strides, strict=True))
    ]
    ahead = [0 if stride == 1 else start for start, stride in zip(starts, strides, strict=True)]
    kept = {d for d in form.zero if op.ins[0].shape[d] == op.outs[0].shape[d]}

    def cut(x: Any) -> Any:
        taken = x if max(strides) == 1 else lax.slice(x, ahead, limits, strides)
        return lax.pad(taken, np.zeros((), x.dtype), config)

    known_as = "cut", *ahead, *limits, *strides, *config
    padder.made(op, cut, [form], kept, known_as=known_as)
    return True


def _pad(padder: Padder, op: DraftOp) -> bool:
    """out[d..., k'] = x[d..., k] or the padding value, which stands behind the true elements too."""
    (tensor, value) = op.ins
    out = op.outs[0]
    config: list[tuple[int, int, int]] = list(op.params["padding_config"])
    given = list(padder.grown(tensor))
    shape = list(out.shape)
    for d, (low, high, gap) in enumerate(config):
        if (low, high, gap) == (0, 0, 0):
            shape[d] = given[d]
        elif not gap:
            shape[d] = padder.wanted(out)[d]
        else:
            given[d] = tensor.shape[d]

    if tuple(given) == tensor.shape and tuple(shape) == out.shape:
        return False

    form = padder.need(tensor, tuple(given), op)
    scalar = padder.need(value, (), op)
    moved = [
        d for d, one in enumerate(config) if one != (0, 0, 0) and form.shape[d] != tensor.shape[d]
    ]
    if value.literal == 0:
        form = padder.masked(tensor, form, moved, 0, op)
    elif moved:
        form = _filled(padder, op, form, scalar, moved)

    sides = zip(config, given, shape, strict=True)
    stated = [one if one[2] else (one[0], size - have - one[0], 0) for one, have, size in sides]
    through = {d for d in form.zero if config[d] == (0, 0, 0) and value.literal == 0}

    def pad(x: Any, value: Any) -> Any:
        return lax.pad(x, value, stated)

    padder.made(op, pad, [form, scalar], through)
    return True


def _filled(padder: Padder, op: DraftOp, form: Form, scalar: Form, dims: Sequence[int]) -> Form:
    """A form with a value that is computed behind the true elements in `dims`."""
    tensor = op.ins[0]

    def fill(x: Any, value: Any) -> Any:
        for d in dims:
            inside = lax.lt(lax.iota(np.int32, x.shape[d]), np.int32(tensor.shape[d]))
            x = lax.select(
                lax.broadcast_in_dim(inside, x.shape, (d,)),
                x,
                lax.broadcast_in_dim(value, x.shape, ()),
            )
        return x

    (made,) = padder.call(fill, [form.tensor, scalar.tensor], op)
    return Form(made, frozenset(), op.region)


def _rev(padder: Padder, op: DraftOp) -> bool:
    """out[d..., k] = x[d..., -k]: reversed, the true elements come last, and are moved to the front."""
    (tensor,) = op.ins
    dims: Shape = op.params["dimensions"]
    shape = padder.grown(tensor)
    if shape == tensor.shape:
        return False

    form = padder.need(tensor, shape, op)
    behind = [
        size - true if d in dims else 0
        for d, (size, true) in enumerate(zip(shape, tensor.shape, strict=True))
    ]
    config = [(-more, more, 0) for more in behind]

    def reverse(x: Any) -> Any:
        turned = lax.rev(x, dims)
        return lax.pad(turned, np.zeros((), x.dtype), config) if any(behind) else turned

    padder.made(
        op,
        reverse,
        [form],
        form.zero if not any(behind) else {d for d in form.zero if d not in dims},
    )
    return True


def _join(padder: Padder, op: DraftOp) -> bool:
    """out[d..., (k0 k1 ...)] = runs of the operands: each is moved to where it stands, and a place picks its run."""
    dim: int = op.params["dimension"]
    out = op.outs[0]
    runs = _runs(op)
    shapes = [list(padder.grown(tensor)) for tensor in op.ins]
    shape = [max(sizes) for sizes in zip(*(s for s in shapes), strict=True)]
    shape[dim] = padder.wanted(out)[dim]
    for given in shapes:
        given[:] = [given[d] if d == dim else size for d, size in enumerate(shape)]

    if tuple(shape) == out.shape and [*map(tuple, shapes)] == [t.shape for t in op.ins]:
        return False

    forms = [
        padder.need(tensor, tuple(given), op) for tensor, given in zip(op.ins, shapes, strict=True)
    ]
    is_plain = shape[dim] == out.shape[dim] and all(
        f.shape[dim] == t.shape[dim] for f, t in zip(forms, op.ins, strict=True)
    )
    if is_plain and op.kind == "concatenate":
        padder.bound(op, forms)
    else:

        def join(*xs: Any) -> Any:
            return _joined(xs, runs, dim, shape[dim])

        padder.made(op, join, forms, known_as=("join", *runs, dim, shape[dim]))

    return True


def _runs(op: DraftOp) -> list[Run]:
    if op.kind == "concatenate":
        return [(n, 0, tensor.shape[op.params["dimension"]]) for n, tensor in enumerate(op.ins)]
    if op.kind == "roll":
        begin: int = op.params["begin"]
        dim: int = op.params["dimension"]
        return [(0, begin, op.ins[0].shape[dim]), (0, 0, begin)]
    return list(op.params["runs"])


def _joined(operands: Sequence[Any], runs: Sequence[Run], dim: int, size: int) -> Any:
    """The runs side by side along `dim`, of `size` elements; what is behind is anything."""
    found: Any = None
    end = sum(last - first for _, first, last in runs)
    shape = [size if d == dim else other for d, other in enumerate(operands[0].shape)]
    places = lax.broadcast_in_dim(lax.iota(np.int32, size), shape, (dim,))
    for operand, first, last in reversed(runs):
        end -= last - first
        if operand < 0:
            part = lax.full(shape, 0, jnp.dtype(operands[0].dtype))
        else:
            x = operands[operand]
            move = end - first
            config = [
                (move, size - x.shape[dim] - move, 0) if d == dim else (0, 0, 0)
                for d in range(x.ndim)
            ]
            part = lax.pad(x, np.zeros((), x.dtype), config)
        stop = np.int32(end + last - first)
        found = part if found is None else lax.select(lax.lt(places, stop), part, found)

    return found


def _split(padder: Padder, op: DraftOp) -> bool:
    """outs[n] = a run of x along a dim."""
    (tensor,) = op.ins
    axis: int = op.params["axis"]
    given = padder.grown(tensor)
    shapes = [
        tuple(padder.wanted(out)[d] if d == axis else size for d, size in enumerate(given))
        for out in op.outs
    ]
    if given == tensor.shape and shapes == [out.shape for out in op.outs]:
        return False

    form = padder.need(tensor, given, op)
    made: list[TensorInfo] = []
    begin = 0
    for out, shape in zip(op.outs, shapes, strict=True):
        made += padder.call(
            _taken(axis, begin, shape[axis] + begin - given[axis]), [form.tensor], op
        )
        begin += out.shape[axis]

    padder.record(op, made)
    return True


def _taken(dim: int, begin: int, behind: int) -> Callable[[Any], Any]:
    """The function that cuts off the first elements of a dim, and cuts or adds some behind."""

    def take(x: Any) -> Any:
        config = [(-begin, behind, 0) if d == dim else (0, 0, 0) for d in range(x.ndim)]
        return lax.pad(x, np.zeros((), x.dtype), config)

    return take


HANDLERS = {
    "concatenate": _join,
    "pad": _pad,
    "rev": _rev,
    "roll": _join,
    "slice": _slice,
    "splice": _join,
    "split": _split,
}
