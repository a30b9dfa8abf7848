"""Operators with indices: these stay within the true elements, and rows that are behind change nothing."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from autopar._compat import untyped_jax
from autopar.core.graph import TensorInfo
from autopar.trace.draft import DraftOp
from autopar.trace.padding.padder import Form, Padder, Shape

lax: Any = untyped_jax.lax
_UNORDERED: dict[str, Any] = {"indices_are_sorted": False, "unique_indices": False}
"""What is not known of indices any more: those that are behind may be any."""


def _gather(padder: Padder, op: DraftOp) -> bool:
    """out[b..., w...] = x[indices[b...] + w...]; an index is clamped, or out of range, as it is of the true dim."""
    assert op.payload is not None
    (tensor, indices) = op.ins
    numbers: Any = op.payload.params["dimension_numbers"]
    sizes: Shape = op.payload.params["slice_sizes"]
    given = list(padder.grown(tensor))
    where = list(padder.grown(indices))
    where[-1] = indices.shape[-1]
    batched: list[tuple[int, int]] = [
        *zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
    ]
    for d, e in batched:
        given[d] = where[e] = max(given[d], where[e])

    bounds = _Bounds.of(op, numbers.start_index_map)
    for d in range(tensor.ndim):
        is_index = d in numbers.start_index_map and sizes[d] == 1 and bounds.fits(given[d])
        if sizes[d] != tensor.shape[d] and d not in numbers.operand_batching_dims and not is_index:
            given[d] = tensor.shape[d]

    if tuple(given) == tensor.shape and tuple(where) == indices.shape:
        return False

    taken = tuple(
        given[d] if size == tensor.shape[d] and d not in numbers.operand_batching_dims else size
        for d, size in enumerate(sizes)
    )
    form = padder.need(tensor, tuple(given), op)
    places = bounds.within(padder, padder.need(indices, tuple(where), op), tensor, form)
    padder.bound(op, [form, places], slice_sizes=taken, **_UNORDERED)
    return True


def _scatter(padder: Padder, op: DraftOp) -> bool:
    """Out = x with updates at indices; updates that are behind are zeros to be added, or there are none."""
    assert op.payload is not None
    (tensor, indices, updates) = op.ins
    numbers: Any = op.payload.params["dimension_numbers"]
    given, where, added = (list(padder.grown(t)) for t in op.ins)
    rows = [e for e in range(updates.ndim) if e not in numbers.update_window_dims]
    dropped = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    bounds = _Bounds.of(op, numbers.scatter_dims_to_operand_dims)
    windows: dict[int, int] = dict(
        zip(
            [d for d in range(tensor.ndim) if d not in dropped],
            numbers.update_window_dims,
            strict=True,
        )
    )
    for d in range(tensor.ndim):
        if d in windows and tensor.shape[d] == updates.shape[windows[d]]:
            given[d] = added[windows[d]] = max(given[d], added[windows[d]])
        elif d in windows:
            given[d] = tensor.shape[d]
            added[windows[d]] = updates.shape[windows[d]]
        elif d not in numbers.operand_batching_dims and not bounds.fits(given[d]):
            given[d] = tensor.shape[d]

    where[-1] = indices.shape[-1]
    batches: dict[int, int] = dict(
        zip(numbers.scatter_indices_batching_dims, numbers.operand_batching_dims, strict=True)
    )
    for n, e in enumerate(rows):
        batch = batches.get(n)
        if batch is not None:
            where[n] = added[e] = given[batch] = max(where[n], added[e], given[batch])
        elif op.kind in ("scatter-add", "scatter-sub"):
            where[n] = added[e] = max(where[n], added[e])
        else:
            where[n] = indices.shape[n]
            added[e] = updates.shape[e]

    wanted = [tuple(given), tuple(where), tuple(added)]
    if wanted == [t.shape for t in op.ins]:
        return False

    form, places, new = (padder.need(t, shape, op) for t, shape in zip(op.ins, wanted, strict=True))
    new = (
        padder.masked(updates, new, rows, 0, op)
        if op.kind in ("scatter-add", "scatter-sub")
        else new
    )
    padder.bound(op, [form, bounds.within(padder, places, tensor, form), new], **_UNORDERED)
    return True


class _Bounds:
    """What becomes of an index beyond a true dim that lies in the padded one."""

    def __init__(self, op: DraftOp, dims: Shape, mode: str, dtype: Any) -> None:
        self.op = op
        self.dims = dims
        self.mode = mode
        self.dtype = dtype

    @classmethod
    def of(cls, op: DraftOp, dims: Shape) -> _Bounds:
        """Those of a gather or scatter whose indices are places in these dims."""
        return cls(op, dims, str(op.params["mode"]), jnp.dtype(op.ins[1].dtype))

    def fits(self, size: int) -> bool:
        """Whether an index can say that it is beyond a dim of this size."""
        return size <= int(jnp.iinfo(self.dtype).max)

    def within(self, padder: Padder, places: Form, tensor: TensorInfo, form: Form) -> Form:
        """The indices, clamped to the true dims, or beyond the padded ones where they are beyond the true ones.

        XLA clamps what a gather promises to be within, and drops it where it is scattered.
        """
        grown = [n for n, d in enumerate(self.dims) if form.shape[d] != tensor.shape[d]]
        if not grown:
            return places

        is_clamped = "CLIP" in self.mode or ("PROMISE" in self.mode and self.op.kind == "gather")
        last = [tensor.shape[d] - 1 if n in grown else None for n, d in enumerate(self.dims)]

        def bound(x: Any) -> Any:
            parts: list[Any] = []
            for n, limit in enumerate(last):
                part = lax.slice_in_dim(x, n, n + 1, axis=x.ndim - 1)
                if limit is not None:
                    beyond = limit if is_clamped else form.shape[self.dims[n]]
                    is_beyond = lax.gt(part, lax.full(part.shape, limit, self.dtype))
                    part = lax.select(is_beyond, lax.full(part.shape, beyond, self.dtype), part)
                parts.append(part)
            return lax.concatenate(parts, x.ndim - 1) if len(parts) > 1 else parts[0]

        (made,) = padder.call(bound, [places.tensor], self.op)
        return Form(made, frozenset(), self.op.region)


def _batched(padder: Padder, op: DraftOp, dims: set[int]) -> bool:
    """`op` with all dims of all operands padded but `dims`, which are looked at as a whole."""
    shapes = [
        tuple(t.shape[d] if d in dims else size for d, size in enumerate(padder.grown(t)))
        for t in op.ins
    ]
    first = tuple(map(max, *shapes, op.ins[0].shape))
    if first == op.ins[0].shape or any(t.shape != op.ins[0].shape for t in op.ins):
        return False

    ins = [padder.need(t, first, op) for t in op.ins]
    outs = [
        tuple(out.shape[d] if d in dims else size for d, size in enumerate(first))
        for out in op.outs
    ]
    padder.put(op, ins, outs)
    return True


def _sort(padder: Padder, op: DraftOp) -> bool:
    """Outs = the operands, sorted along a dim."""
    return _batched(padder, op, {op.params["dimension"]})


def _dynamic_slice(padder: Padder, op: DraftOp) -> bool:
    """out[d..., w] = x[d..., start + w]: the dims that are taken in full may be padded."""
    tensor, *starts = op.ins
    sizes: Shape = op.params["slice_sizes"]
    given = tuple(
        size if sizes[d] == tensor.shape[d] else tensor.shape[d]
        for d, size in enumerate(padder.grown(tensor))
    )
    if given == tensor.shape:
        return False
    taken = tuple(given[d] if size == tensor.shape[d] else size for d, size in enumerate(sizes))
    forms = [padder.need(tensor, given, op), *(padder.need(t, (), op) for t in starts)]
    padder.bound(op, forms, forms[0].zero, slice_sizes=taken)
    return True


def _dynamic_update_slice(padder: Padder, op: DraftOp) -> bool:
    """Out = x with the update at start: the dims that are written in full may be padded."""
    tensor, update, *starts = op.ins
    full = [one == other for one, other in zip(tensor.shape, update.shape, strict=True)]
    sides = zip(tensor.shape, padder.grown(tensor), padder.grown(update), full, strict=True)
    given = tuple(max(one, other) if is_full else true for true, one, other, is_full in sides)
    if given == tensor.shape:
        return False

    part = tuple(given[d] if is_full else update.shape[d] for d, is_full in enumerate(full))
    forms = [padder.need(tensor, given, op), padder.need(update, part, op)]
    padder.put(
        op,
        [*forms, *(padder.need(t, (), op) for t in starts)],
        [given],
        [forms[0].zero & forms[1].zero],
    )
    return True


HANDLERS = {
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "gather": _gather,
    "sort": _sort,
    **dict.fromkeys(
        ("scatter", "scatter-add", "scatter-sub", "scatter-mul", "scatter-max", "scatter-min"),
        _scatter,
    ),
}
