"""Operators that lay elements out anew: dims are renamed, made, dropped, joined and taken apart."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from autopar._compat import untyped_jax
from autopar.trace.draft import DraftOp
from autopar.trace.padding.padder import Padder, Shape
from autopar.trace.padding.sizes import can_pad

lax: Any = untyped_jax.lax


def _broadcast(padder: Padder, op: DraftOp) -> bool:
    """out[n...] = x[d...]: new dims are made as long as they are wanted."""
    operand = op.ins[0]
    out = op.outs[0]
    if len(op.ins) > 1 or not can_pad(out):
        return False

    dims: Shape = op.params["broadcast_dimensions"]
    shape = list(padder.wanted(out))
    given = list(padder.grown(operand))
    for d, e in enumerate(dims):
        if operand.shape[d] == out.shape[e]:
            given[d] = shape[e] = max(given[d], padder.wanted(operand)[d])

    if tuple(shape) == out.shape:
        return False

    form = padder.need(operand, tuple(given), op)
    made = [e for e in range(out.ndim) if e not in dims and operand.literal == 0]
    zero = {e for d, e in enumerate(dims) if d in form.zero and given[d] == shape[e]}.union(made)

    def broadcast(x: Any) -> Any:
        return lax.broadcast_in_dim(x, shape, dims)

    padder.made(op, broadcast, [form], zero, known_as=("broadcast", *shape, dims))
    return True


def _iota(padder: Padder, op: DraftOp) -> bool:
    """out[d..., k] = k."""
    out = op.outs[0]
    shape = padder.wanted(out)
    if shape == out.shape or op.ins:
        return False
    padder.bound(op, [], shape=shape)
    return True


def _counts(padder: Padder, op: DraftOp) -> bool:
    """Outs = the places of elements in row-major order, in two halves: those along the first dim are longer behind."""
    first, *_ = op.outs
    shape = (*padder.wanted(first)[:1], *first.shape[1:])
    if shape == first.shape:
        return False
    assert op.payload is not None
    primitive = op.payload.primitive
    params = {**op.payload.params, "shape": shape}
    added = 1.0 - first.shape[0] / shape[0]
    padder.record(
        op, padder.call(lambda: primitive.bind(**primitive.get_bind_params(params)), [], op, added)
    )
    return True


def _transpose(padder: Padder, op: DraftOp) -> bool:
    """Out = x with its dims in another order."""
    (tensor,) = op.ins
    if tensor.id in padder.resting:
        padder.resting.add(op.outs[0].id)
        return False
    return _renamed(padder, op)


def _renamed(padder: Padder, op: DraftOp) -> bool:
    """Out = x with its dims in another order, or without some of one element."""
    (tensor,) = op.ins
    shape = padder.grown(tensor)
    order = dims_taken(op)
    if shape == tensor.shape:
        return False

    form = padder.need(tensor, shape, op)
    padder.put(
        op,
        [form],
        [tuple(shape[d] for d in order)],
        [{n for n, d in enumerate(order) if d in form.zero}],
    )
    return True


def dims_taken(op: DraftOp) -> list[int]:
    """The operand's dim that each dim of the result of a transpose or squeeze is."""
    if op.kind == "transpose":
        return list(op.params["permutation"])
    gone = {d % op.ins[0].ndim for d in op.params["dimensions"]}
    return [d for d in range(op.ins[0].ndim) if d not in gone]


def _reshape(padder: Padder, op: DraftOp) -> bool:
    """Out = x with neighbouring dims joined or taken apart: the first of these may be padded, as it is the slowest."""
    tensor = op.ins[0]
    out = op.outs[0]
    if len(op.ins) > 1 or op.params.get("dimensions") is not None or not can_pad(tensor):
        return False

    given = list(padder.grown(tensor))
    shape = list(out.shape)
    firsts: dict[int, int] = {}
    for before, after in groups(tensor.shape, out.shape):
        for d in before[1:]:
            given[d] = tensor.shape[d]
        (d, *inner) = before
        (e, *others) = after
        elements = prod(given[one] for one in (d, *inner))
        rest = prod(out.shape[one] for one in others)
        if elements % rest:
            given[d] = tensor.shape[d]
            continue
        shape[e] = elements // rest
        firsts[d] = e

    if tuple(given) == tensor.shape:
        return False

    form = padder.need(tensor, tuple(given), op)

    def reshape(x: Any) -> Any:
        return lax.reshape(x, tuple(shape))

    zero = {firsts[d] for d in form.zero if d in firsts}
    padder.made(op, reshape, [form], zero, known_as=("reshape", *shape))
    return True


def groups(before: Shape, after: Shape) -> list[tuple[list[int], list[int]]]:
    """The runs of dims that hold the same elements; dims of one element are in none of them."""
    sides: Sequence[list[int]] = (
        [d for d, n in enumerate(before) if n != 1],
        [e for e, n in enumerate(after) if n != 1],
    )
    found: list[tuple[list[int], list[int]]] = []
    while sides[0] and sides[1]:
        group = [sides[0].pop(0)], [sides[1].pop(0)]
        while (one := prod(before[d] for d in group[0])) != (
            other := prod(after[e] for e in group[1])
        ):
            if one < other:
                group[0].append(sides[0].pop(0))
            else:
                group[1].append(sides[1].pop(0))
        found.append(group)

    return found


HANDLERS = {
    "broadcast_in_dim": _broadcast,
    "iota": _iota,
    "iota_2x32_shape": _counts,
    "reshape": _reshape,
    "squeeze": _renamed,
    "transpose": _transpose,
}
