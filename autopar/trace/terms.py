"""Terms: what a tensor that was padded with zeros, added up and cut is the sum of; so are the gradients of stencils."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autopar.core.graph import TensorInfo
from autopar.trace.draft import DraftOp
from autopar.trace.moving_ops import Config, Ints, window_of
from autopar.trace.parts import Box, MakerOf, added, changed

Opens = Callable[[DraftOp], bool]
"""Whether a sum may be taken apart: nobody else reads it."""


@dataclass(frozen=True)
class PlacedPart:
    """A part of a tensor that stands at a place of another one, with zeros around it."""

    box: Box
    at: Ints


def terms_of(op: DraftOp, maker_of: MakerOf, opens: Opens) -> list[PlacedPart]:
    """What the result of a slice, a padding or a sum is the sum of.

    A sum that is an operand of a sum is one term: it was taken apart before.
    """
    out = op.outs[0]
    whole = (0,) * out.ndim, out.shape
    if op.kind != "add_any":
        return _through(op, out, *whole, maker_of, opens)
    found: list[PlacedPart] = []
    for operand in op.ins:
        maker = maker_of(operand)
        if maker is None or maker.kind == "add_any":
            found.append(PlacedPart(Box(operand, *whole), whole[0]))
        else:
            found += _through(maker, operand, *whole, maker_of, opens)
    return found


def _of(
    tensor: TensorInfo, starts: Ints, sizes: Ints, maker_of: MakerOf, opens: Opens
) -> list[PlacedPart]:
    """What a window of a tensor is the sum of."""
    maker = maker_of(tensor)
    if maker is None or (maker.kind == "add_any" and not opens(maker)):
        return [PlacedPart(Box(tensor, starts, sizes), (0,) * len(starts))]
    return _through(maker, tensor, starts, sizes, maker_of, opens)


def _through(
    op: DraftOp, out: TensorInfo, starts: Ints, sizes: Ints, maker_of: MakerOf, opens: Opens
) -> list[PlacedPart]:
    """What a window of a result of `op` is the sum of."""
    if op.kind == "add_any":
        return [term for operand in op.ins for term in _of(operand, starts, sizes, maker_of, opens)]
    if (window := window_of(op, out)) is not None:
        return _of(op.ins[0], added(starts, window[0]), sizes, maker_of, opens)

    places = _places(op)
    if places is None:
        return [PlacedPart(Box(out, starts, sizes), (0,) * len(starts))]

    ends = zip(starts, sizes, places, strict=True)
    spans = [
        (max(start, first), min(start + size, last), low)
        for start, size, (first, last, low) in ends
    ]
    if any(first >= last for first, last, _ in spans):
        return []

    inner = tuple(first - low for first, _, low in spans)
    found = _of(op.ins[0], inner, tuple(last - first for first, last, _ in spans), maker_of, opens)
    shift = tuple(first - start for (first, _, _), start in zip(spans, starts, strict=True))
    return [PlacedPart(term.box, added(term.at, shift)) for term in found]


def _places(op: DraftOp) -> list[tuple[int, int, int]] | None:
    """For each dim of the result where elements of the operand stand, from and to, and where its first one would.

    All else are zeros; None for operators of which that is not so.
    """
    shape = op.ins[0].shape
    if (
        op.kind == "pad"
        and op.ins[1].literal == 0
        and all(not gap for _, _, gap in op.params["padding_config"])
    ):
        config: Config = op.params["padding_config"]
        return [(low, low + size, low) for size, (low, _, _) in zip(shape, config, strict=True)]

    runs = op.params.get("runs", ()) if op.kind == "splice" else ()
    if [n for n, _, _ in runs if n >= 0] != [0]:
        return None

    found = [(0, size, 0) for size in shape]
    place = 0
    for n, begin, end in runs:
        if n == 0:
            found[op.params["dimension"]] = place, place + end - begin, place - begin
        place += end - begin

    return found


def as_padding(term: PlacedPart, shape: Ints) -> tuple[Config, list[int]]:
    """A term as its tensor padded, and cut where that is below 0; and the dims in which it has to stand alone.

    In those a padding would bring back what the term lacks: they are left as they are.
    """
    box = term.box
    config = list[tuple[int, int, int]]()
    apart = list[int]()
    ends = zip(box.starts, box.sizes, box.source.shape, term.at, shape, strict=True)
    for d, (start, size, whole, at, room) in enumerate(ends):
        low = at - start
        end = room - (at + size)
        if (start and at) or (start + size < whole and end):
            apart.append(d)
            config.append((0, 0, 0))
        else:
            config.append((low, room - low - whole, 0))

    return tuple(config), apart


def as_roll(terms: Sequence[PlacedPart], shape: Ints) -> tuple[int, int] | None:
    """The dim and the first element of a roll that two terms of one tensor are; None where they are none."""
    if len(terms) != 2 or terms[0].box.source.shape != shape:
        return None

    first, second = sorted(terms, key=lambda term: term.at)
    dims = [
        d for d, (size, part) in enumerate(zip(shape, first.box.sizes, strict=True)) if size != part
    ]
    if len(dims) != 1:
        return None

    (dim,) = dims
    begin = first.box.starts[dim]
    none = (0,) * len(shape)
    expected = PlacedPart(
        Box(first.box.source, none, changed(shape, dim, begin)),
        changed(none, dim, shape[dim] - begin),
    )
    whole = first == PlacedPart(
        Box(first.box.source, changed(none, dim, begin), changed(shape, dim, shape[dim] - begin)),
        none,
    )
    return (dim, begin) if whole and second == expected else None
