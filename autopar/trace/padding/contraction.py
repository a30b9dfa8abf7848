"""Operators that join elements of a dim: behind the true elements stands what changes nothing."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from autopar._compat import untyped_jax
from autopar.trace.draft import DraftOp
from autopar.trace.padding.padder import Padder, Shape, Value


def _neutral(kind: str, dtype: Any) -> Value:
    """What changes nothing in a reduction."""
    if kind in ("sum", "or", "xor"):
        return 0
    if kind == "prod":
        return 1
    if dtype.kind == "b":
        return kind in ("min", "and")

    if jnp.issubdtype(dtype, jnp.floating):
        # numpy makes NaN of an infinity where there is none
        has_infinity = np.isinf(np.array(np.inf, dtype))
        most = np.inf if has_infinity else float(untyped_jax.numpy.finfo(dtype).max)
        return -most if kind == "max" else most

    info = jnp.iinfo(dtype)
    return -1 if kind == "and" and info.min < 0 else int(info.min if kind == "max" else info.max)


def _reduction(padder: Padder, op: DraftOp) -> bool:
    """out[d...] = sum, max, ... over k of x[d..., k]; of equal extrema the first one is found, which is a true one."""
    (tensor,) = op.ins
    axes: Shape = op.params["axes"]
    shape = padder.grown(tensor)
    dtype = jnp.dtype(tensor.dtype)
    if shape == tensor.shape or (
        jnp.issubdtype(dtype, jnp.complexfloating) and op.kind not in ("reduce_sum", "reduce_prod")
    ):
        return False

    form = padder.need(tensor, shape, op)
    form = padder.masked(tensor, form, axes, _neutral(_REDUCTIONS[op.kind], dtype), op)
    left = [d for d in range(tensor.ndim) if d not in axes]
    zero = {n for n, d in enumerate(left) if d in form.zero and op.kind == "reduce_sum"}
    padder.put(op, [form], [tuple(shape[d] for d in left)], [zero])
    return True


def _cumulative(padder: Padder, op: DraftOp) -> bool:
    """out[d..., k] = x[d..., 0] + ... + x[d..., k]: what is behind comes last, or first where k runs backwards."""
    (tensor,) = op.ins
    axis: int = op.params["axis"]
    shape = padder.grown(tensor)
    if op.params["reverse"]:
        shape = tuple(tensor.shape[d] if d == axis else size for d, size in enumerate(shape))
    if shape == tensor.shape:
        return False
    padder.put(op, [padder.need(tensor, shape, op)], [shape])
    return True


def _product(padder: Padder, op: DraftOp) -> bool:
    """out[b..., i..., j...] = sum over k of x[b..., i..., k...] y[b..., j..., k...]: zeros in both are added."""
    numbers: tuple[tuple[Shape, Shape], tuple[Shape, Shape]] = op.params["dimension_numbers"]
    (contracted, batched) = numbers
    (x, y) = op.ins
    shapes = [list(padder.wanted(t) if t.id in padder.resting else padder.grown(t)) for t in op.ins]
    for one, other in (*zip(*contracted, strict=True), *zip(*batched, strict=True)):
        shapes[0][one] = shapes[1][other] = max(shapes[0][one], shapes[1][other])

    if [tuple(shape) for shape in shapes] == [x.shape, y.shape]:
        return False

    forms = [
        padder.need(tensor, tuple(shape), op) for tensor, shape in zip(op.ins, shapes, strict=True)
    ]
    forms = [
        padder.masked(t, form, contracted[n], 0, op)
        for n, (t, form) in enumerate(zip(op.ins, forms, strict=True))
    ]
    out = [shapes[0][d] for d in batched[0]]
    for n, shape in enumerate(shapes):
        out += [
            size for d, size in enumerate(shape) if d not in contracted[n] and d not in batched[n]
        ]

    padder.put(op, forms, [tuple(out)])
    return True


_REDUCTIONS = {
    **{f"reduce_{kind}": kind for kind in ("sum", "max", "min", "prod", "and", "or", "xor")},
    "argmax": "max",
    "argmin": "min",
}
HANDLERS = {
    **dict.fromkeys(_REDUCTIONS, _reduction),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"), _cumulative),
    "dot_general": _product,
}
