"""Moves as nodes: what is copied before and behind a collective."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from autopar.backends.xla_cpu.draft import MOST_TOGETHER, NodeDraft
from autopar.backends.xla_cpu.node import Node
from autopar.core.parcels import LARGE_BYTES, parcels
from autopar.core.program import Move, changed_dim

WIDENED = frozenset({"bfloat16"})
_INDEX_BYTES = 4


def unfold_move(work: NodeDraft, position: int, move: Move, ins: tuple[int, ...]) -> None:
    """Adds the nodes of `move` on the buffers `ins`. On CPU collectives of bfloat16, of all kinds, run in float32."""
    (out, *_) = move.outs
    dtype = work.program.values[move.outs[0]].tensor.dtype
    if move.kind in ("slice", "mask"):
        where = work.shared(("device",), _INDEX_BYTES, position)
        work.put(Node("loop", (*ins, where), (out,), position, elementwise=move.kind == "mask"))
        return

    if move.kind == "all_reduce":
        for parcel in parcels([work.program.local_bytes(value) for value in move.ins], LARGE_BYTES):
            _all_reduce(work, position, move, ins, parcel)
        return

    if len(move.ins) != 1:
        _bucket(work, position, move, ins, 1 + (dtype in WIDENED))
        return

    value, made = _ends(work, position, ins[0], out, dtype)
    if move.kind == "all_to_all":
        _all_to_all(work, position, move, value, made)
    elif move.kind == "all_gather":
        _all_gather(work, position, move, value, made)
    else:
        sent = _in_shards(work, position, move, value) if move.kind == "reduce_scatter" else value
        work.kernel(position, (sent,), (made,))

    work.put_narrow(made, out, position)


def _ends(work: NodeDraft, position: int, value: int, out: int, dtype: str) -> tuple[int, int]:
    """What a collective reads and writes instead of `value` and `out`, where their type is widened."""
    if dtype not in WIDENED:
        return value, out
    return work.widened(value, position, dtype), work.narrowed(out, dtype)


def _all_gather(work: NodeDraft, position: int, move: Move, value: int, out: int) -> None:
    """The shards one behind the other, and then in their places."""
    shape = work.local_shape(move.ins[0])
    if prod(shape[: move.dim or 0]) == 1:
        work.kernel(position, (value,), (out,))
        return
    together = work.made(work.sizes[out])
    work.kernel(position, (value,), (together,))
    work.lies[together] = work.program.mesh.product(move.axes), *shape
    work.put_turned(together, out, position)


def _in_shards(work: NodeDraft, position: int, move: Move, value: int) -> int:
    """A copy with the shards of the dim that is split one behind the other, made once; itself, if they lie so."""
    shape = work.local_shape(move.ins[0])
    dim = move.dim or 0
    count = work.program.mesh.product(move.axes)
    if prod(shape[:dim]) == 1:
        return value
    known = work.scopes[-1].known
    key = ("shards", value, dim, count)
    if key not in known:
        known[key] = (work.copied(value, position),)
    return known[key][0]


def _bucket(work: NodeDraft, position: int, move: Move, ins: tuple[int, ...], width: int) -> None:
    """All operands side by side, `width` times as wide, moved at once, and cut apart again."""
    flat = work.made(width * sum(work.sizes[v] for v in ins))
    made = work.made(width * sum(work.sizes[v] for v in move.outs))
    if move.kind == "reduce_scatter":
        _rows(work, position, move, ins, flat)
    else:
        _end_to_end(work, position, ins, [work.counts(value) for value in move.ins], flat)
    work.kernel(position, (flat,), (made,))
    for out in move.outs:
        work.put(Node("loop", (made,), (out,), position))


def _all_reduce(
    work: NodeDraft, position: int, move: Move, ins: tuple[int, ...], parcel: Sequence[int]
) -> None:
    """The values at `parcel`, end to end if there are several; the compiler joins all-reduces."""
    dtype = work.program.values[move.ins[0]].tensor.dtype
    joins = _joined(work, move)
    outs = [move.outs[n] for n in parcel]
    given = tuple(ins[n] for n in parcel)
    if len(parcel) == 1:
        value, made = _ends(work, position, given[0], outs[0], dtype)
        work.kernel(position, (value,), (made,), joins=joins)
        work.put_narrow(made, outs[0], position)
        return

    flat, made = (
        work.made((1 + (dtype in WIDENED)) * sum(work.sizes[v] for v in outs)) for _ in range(2)
    )
    _end_to_end(work, position, given, [work.counts(move.ins[n]) for n in parcel], flat)
    work.kernel(position, (flat,), (made,), joins=joins)
    for out in outs:
        work.put(Node("loop", (made,), (out,), position))


def _end_to_end(
    work: NodeDraft, position: int, ins: tuple[int, ...], counts: Sequence[int], flat: int
) -> None:
    """All elements of the operands in one dim; by a kernel of its own where there are many."""
    if len(ins) > MOST_TOGETHER:
        work.kernel(
            position,
            [work.seen(v, (n,), position) for v, n in zip(ins, counts, strict=True)],
            (flat,),
        )
    else:
        work.put(Node("loop", ins, (flat,), position, unary=False))


def _rows(work: NodeDraft, position: int, move: Move, ins: tuple[int, ...], flat: int) -> None:
    """A row for each device, which has its shards end to end; the dim that is split comes first in each value."""
    count = work.program.mesh.product(move.axes)
    rows = list[int]()
    for n, value in enumerate(ins):
        placed = [work.program.values[v].placement for v in (move.ins[n], move.outs[n])]
        shape = work.local_shape(move.ins[n])
        dim = changed_dim(*placed) or 0
        lying = work.ordered(
            value, (dim, *(d for d in range(len(shape)) if d != dim)), shape, position
        )
        rows.append(work.seen(lying, (count, prod(shape) // count), position))
    elements = sum(prod(work.local_shape(v)) for v in move.outs)
    work.put_together(rows, flat, position, (count, elements), 1)


def _all_to_all(work: NodeDraft, position: int, move: Move, value: int, out: int) -> None:
    """A piece for each device, each a buffer of its own; what arrives side by side, along the dim that was split, and
    then in its place; written before it is read, where it is read again and again (`reread`).
    """
    count = work.program.mesh.product(move.axes)
    split = move.to_dim or 0
    pieces, arrived = (
        tuple(work.made(work.sizes[value] // count) for _ in range(count)) for _ in range(2)
    )
    for piece in pieces:
        work.put(Node("loop", (value,), (piece,), position))

    work.kernel(position, pieces, arrived)
    together = work.made(work.sizes[value])
    work.put_together(arrived, together, position, work.local_shape(move.ins[0]), split)
    work.lies[together] = work.local_shape(move.ins[0])
    if out not in work.held:
        work.put_turned(together, out, position)
        return

    written = work.made(work.sizes[out])
    work.put_turned(together, written, position)
    work.kernel(position, (written,), (out,), (written,), inplace=True)


def _joined(work: NodeDraft, move: Move) -> tuple[object, ...]:
    """What all-reduces must agree in to be made one: axes, kind of sum and type, that in which they run."""
    value = work.program.values[move.ins[0]]
    dtype = value.tensor.dtype
    return move.axes, value.placement.kind, "float32" if dtype in WIDENED else dtype
