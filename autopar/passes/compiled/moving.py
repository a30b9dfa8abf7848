"""Moves as nodes: what is copied before and behind a collective."""

from __future__ import annotations

from autopar.passes.compiled.draft import Draft
from autopar.passes.compiled.node import Node
from autopar.passes.program import Move


def unfold_move(work: Draft, position: int, move: Move, ins: tuple[int, ...]) -> None:
    """Adds the nodes of `move` on the buffers `ins`."""
    if len(move.ins) != 1:
        _bucket(work, position, move, ins)
        return
    value, out = ins[0], move.outs[0]
    if move.kind in ("slice", "mask"):
        work.put(Node("loop", (value,), (out,), position, elementwise=move.kind == "mask"))
    elif move.kind == "all_to_all":
        _all_to_all(work, position, work.program.mesh.product(move.axes), value, out)
    elif move.kind in ("all_gather", "reduce_scatter"):
        is_view = all(size == 1 for size in work.local_shape(move.ins[0])[: move.dim or 0])
        operand = work.copied(value, position, is_view=is_view)
        made = out if is_view else work.made(work.sizes[out])
        work.kernel(position, (operand,), (made,))
        if not is_view:
            work.put_copy(made, out, position)
    elif move.kind == "all_reduce":
        dtype = work.program.values[out].tensor.dtype
        made = work.narrowed(out, position, dtype)
        work.kernel(position, (work.widened(value, position, dtype),), (made,), joins=_joined(work, move))
        work.put_narrow(made, out, position)
    else:
        work.kernel(position, (value,), (out,))


def _bucket(work: Draft, position: int, move: Move, ins: tuple[int, ...]) -> None:
    """All operands side by side, moved at once, and cut apart again."""
    flat = work.made(sum(work.sizes[v] for v in ins))
    made = work.made(sum(work.sizes[v] for v in move.outs))
    work.put(Node("loop", ins, (flat,), position, unary=False))
    work.kernel(position, (flat,), (made,), joins=_joined(work, move) if move.kind == "all_reduce" else ())
    for out in move.outs:
        work.put(Node("loop", (made,), (out,), position))


def _all_to_all(work: Draft, position: int, count: int, value: int, out: int) -> None:
    """A piece for each device, each a buffer of its own; what arrives side by side, along the dim that was split, and
    then in its place. Pieces are cut and put together when everything is fused already.
    """
    pieces, arrived = (tuple(work.made(work.sizes[value] // count) for _ in range(count)) for _ in range(2))
    for piece in pieces:
        work.kernel(position, (value,), (piece,))
    work.kernel(position, pieces, arrived)
    together = work.made(work.sizes[value])
    work.kernel(position, arrived, (together,))
    work.put_copy(together, out, position)


def _joined(work: Draft, move: Move) -> tuple[object, ...]:
    """What all-reduces must agree in to be made one: axes, kind of sum and type."""
    value = work.program.values[move.ins[0]]
    return move.axes, value.placement.kind, value.tensor.dtype
