"""Moving: what is cut, padded or joined out of something cut, padded or joined is taken from where that came from.

`jnp.roll` cuts a tensor in two and joins the parts; a stencil pads a grid and cuts it again. The parts have sizes that
nothing divides evenly, so they would be whole on every device. Of such chains one operator is made, on their sources.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from autopar._compat import untyped_jax
from autopar.core.graph import TensorInfo
from autopar.trace.draft import Draft, DraftOp
from autopar.trace.moving_ops import (
    MOVING,
    VIEWS,
    Config,
    Ints,
    adding,
    alone,
    begin_of,
    dynamic_roll,
    padding,
    rolling,
    slicing,
    splice,
    window_of,
)
from autopar.trace.parts import Box, JoinedBoxes, changed, joined, one_padding, part_of
from autopar.trace.terms import PlacedPart, as_padding, as_roll, terms_of

_MOST_TERMS = 32
"""A sum of more terms is left as it is."""


def composed(draft: Draft, outputs: Sequence[TensorInfo]) -> tuple[list[DraftOp], list[TensorInfo]]:
    """The operators of `draft` with chains of moving ones taken from their sources; what they skip may be dead then."""
    if sum(op.kind in MOVING for op in draft.ops) < 2:
        return draft.ops, [*outputs]
    readers = Counter(tensor.id for op in draft.ops for tensor in op.ins)
    readers.update(tensor.id for tensor in outputs)
    composer = _Composer(draft, readers)
    for op in draft.ops:
        composer.take(op)
    return composer.ops, [composer.now(tensor) for tensor in outputs]


@dataclass(eq=False)
class _Composer:
    """Takes operators in order; `makers` of tensors that moved, and what stands `instead` of tensors that are others.

    `origins` are what tensors have all elements of, in their order. `readers` counts who reads each tensor of the
    draft; `site` is where the operator stands that is taken.
    """

    draft: Draft
    readers: Counter[int]
    ops: list[DraftOp] = field(default_factory=list[DraftOp])
    makers: dict[int, DraftOp] = field(default_factory=dict[int, DraftOp])
    instead: dict[int, TensorInfo] = field(default_factory=dict[int, TensorInfo])
    origins: dict[int, TensorInfo] = field(default_factory=dict[int, TensorInfo])
    site: tuple[int | None, bool] = (None, False)

    def now(self, tensor: TensorInfo) -> TensorInfo:
        """What stands for `tensor`."""
        return self.instead.get(tensor.id, tensor)

    def maker(self, tensor: TensorInfo) -> DraftOp | None:
        """The moving operator that made `tensor`, if it stands where the one that is taken does."""
        maker = self.makers.get(tensor.id)
        return maker if maker is not None and _site(maker) == self.site else None

    def take(self, read: DraftOp) -> None:
        """Adds what stands for an operator: itself, others on the sources of its operands, or nothing."""
        is_moved = any(tensor.id in self.instead for tensor in read.ins)
        op = replace(read, ins=tuple(map(self.now, read.ins))) if is_moved else read
        found: DraftOp | TensorInfo = op
        if _moves(op):
            self.site = _site(op)
            found = self._composed(op)
        if isinstance(found, TensorInfo):
            self.instead[op.outs[0].id] = found
        else:
            self._put(found)

    def _put(self, op: DraftOp) -> None:
        self.ops.append(op)
        if _moves(op):
            self.makers.update({tensor.id: op for tensor in op.outs})

    def _composed(self, op: DraftOp) -> DraftOp | TensorInfo:
        """What stands for a moving operator."""
        maker = self.maker(op.ins[0])
        if op.kind == "dynamic_slice":
            return dynamic_roll(op, maker) or op
        if op.kind in VIEWS:
            return self._viewed(op)
        if _is_idle(op):
            return op.ins[0]
        if op.kind == "concatenate":
            return self._stated(op, joined(op, self.maker))

        if op.kind == "slice" and (window := window_of(op, op.outs[0])) is not None:
            found = part_of(op.ins[0], *window, self.maker)
            if isinstance(found, JoinedBoxes) or found.source.id != op.ins[0].id or found.is_whole:
                return self._stated(op, found)

        if op.kind in ("add_any", "pad", "slice") and (summed := self._summed(op)) is not None:
            return summed

        return _repadded(op, maker) if maker is not None and op.kind in ("pad", "slice") else op

    def _viewed(self, op: DraftOp) -> DraftOp | TensorInfo:
        """A tensor of which dims of one element are gone again that were added: it is what it was before."""
        if op.kind != "squeeze" and not _is_view(op):
            return op
        origin = self.origins.get(op.ins[0].id, op.ins[0])
        self.origins[op.outs[0].id] = origin
        return origin if origin.shape == op.outs[0].shape else op

    def _stated(self, op: DraftOp, found: Box | JoinedBoxes) -> DraftOp | TensorInfo:
        """The operator that makes what `found` says, in the place of `op`; `op` where that gains nothing."""
        if isinstance(found, Box):
            return found.source if found.is_whole else slicing(op, found.source, found.starts)
        across = self._cut_across(op, found)
        if across is None or not _gains(op, across):
            return op
        runs = [box.run(across.dim) for box in across.boxes]
        begin = begin_of(across.dim, runs)
        return (
            splice(op, across.dim, runs)
            if begin is None
            else rolling(op, runs[0][0], across.dim, begin)
        )

    def _cut_across(self, op: DraftOp, found: JoinedBoxes) -> JoinedBoxes | None:
        """Boxes that are whole in all dims but the joined one: of sources that are cut there too, if those are moved.

        None where a source would be cut only to be joined.
        """
        boxes: list[Box] = []
        cut: dict[object, TensorInfo] = {}
        for box in found.boxes:
            across = box.across(found.dim)
            if across[1] == changed(box.source.shape, found.dim, 0):
                boxes.append(box)
                continue
            key = box.source.id, across
            if key not in cut:
                made = self._cut(op, box, found.dim)
                if made is None:
                    return None
                cut[key] = made
            at = changed((0,) * len(box.sizes), found.dim, box.starts[found.dim])
            boxes.append(Box(cut[key], at, box.sizes))

        return JoinedBoxes(found.dim, tuple(boxes))

    def _cut(self, op: DraftOp, box: Box, dim: int) -> TensorInfo | None:
        """The source of a box, whole along a dim and cut as the box in all others; None where it would just be cut."""
        starts = changed(box.starts, dim, 0)
        sizes = changed(box.sizes, dim, box.source.shape[dim])
        inner = part_of(box.source, starts, sizes, self.maker)
        if not isinstance(inner, JoinedBoxes):
            return None
        found = self._stated(slicing(self._new(op, box.source, sizes), box.source, starts), inner)
        if isinstance(found, TensorInfo) or found.kind == "slice":
            return None
        self._put(found)
        return found.outs[0]

    def _summed(self, op: DraftOp) -> DraftOp | TensorInfo | None:
        """A slice, padding or sum as the sum of tensors that are rolled or shifted; None where none would be."""
        terms = terms_of(op, self.maker, lambda maker: self.readers[maker.outs[0].id] == 1)
        grouped: dict[int, list[PlacedPart]] = {}
        for term in terms[:_MOST_TERMS]:
            grouped.setdefault(term.box.source.id, []).append(term)

        if op.outs[0].id in grouped:
            return None

        made = [found for group in grouped.values() for found in self._made_of(op, group)]
        if len(terms) > _MOST_TERMS or not self._shifts_any(op, made):
            return None

        summands: list[TensorInfo] = []
        for found in made:
            for one in [] if isinstance(found, TensorInfo) else found:
                self._put(one)
            summands.append(found if isinstance(found, TensorInfo) else found[-1].outs[0])

        total, *others = summands
        for other in others:
            self._put(found := adding(self._new(op, total, total.shape), total, other))
            (total,) = found.outs
            self.readers[total.id] = 1

        if others:
            self.readers[total.id] = self.readers[op.outs[0].id]

        return total

    def _made_of(
        self, op: DraftOp, terms: Sequence[PlacedPart]
    ) -> list[list[DraftOp] | TensorInfo]:
        """For one tensor a roll, or for each of its terms the operators that make it; the tensor where it is that."""
        source = terms[0].box.source
        shape = op.outs[0].shape
        if (found := as_roll(terms, shape)) is not None:
            return [[rolling(self._new(op, source, shape), source, *found)]]
        return [
            source if t.box.is_whole and source.shape == shape else self._placed(op, t)
            for t in terms
        ]

    def _placed(self, op: DraftOp, term: PlacedPart) -> list[DraftOp]:
        """The operators that put a term where it stands: one padding, and what stands alone in a dim."""
        shape = op.outs[0].shape
        box = term.box
        now = term.box.source
        config, apart = as_padding(term, shape)
        made: list[DraftOp] = []
        if any(one != (0, 0, 0) for one in config):
            sizes = tuple(now.shape[d] if d in apart else size for d, size in enumerate(shape))
            made.append(self._padding(self._new(op, now, sizes), now, config))

        for d in apart:
            now = made[-1].outs[0] if made else now
            new = self._new(op, now, changed(now.shape, d, shape[d]))
            made.append(alone(new, now, d, term.at[d], box.starts[d], box.sizes[d]))

        return made

    def _padding(self, op: DraftOp, source: TensorInfo, config: Config) -> DraftOp:
        if all(low <= 0 and high <= 0 for low, high, _ in config):
            return slicing(op, source, tuple(-low for low, _, _ in config))
        zero = np.zeros((), source.dtype)
        return padding(op, source, self.draft.constant(zero, zero), config)

    def _shifts_any(self, op: DraftOp, made: Sequence[list[DraftOp] | TensorInfo]) -> bool:
        """Whether something is rolled, shifted or left as it is that was not so yet, or the rest is zero."""
        if op.kind == "add_any" and len(made) == 1:
            return True
        known = [op, *(maker for tensor in op.ins if (maker := self.maker(tensor)) is not None)]
        looks = [_look(one) for one in known]
        several = [found for found in made if not isinstance(found, TensorInfo)]
        shifted = [
            one for found in several for one in found if _look(one) not in looks and _shifts(one)
        ]
        return bool(shifted) or any(
            isinstance(one, TensorInfo) and one not in op.ins for one in made
        )

    def _new(self, op: DraftOp, like: TensorInfo, shape: tuple[int, ...]) -> DraftOp:
        """`op` with a new tensor of this shape, of the type of another one, as its result."""
        made = self.draft.tensor(untyped_jax.ShapeDtypeStruct(shape, like.dtype))
        return replace(op, outs=(replace(made, manual=like.manual),))


def _moves(op: DraftOp) -> bool:
    """Whether `op` may be part of a chain: one that moves elements, of which there are some in every tensor."""
    return op.kind in MOVING and all(0 not in tensor.shape for tensor in (*op.ins, *op.outs))


def _site(op: DraftOp) -> tuple[int | None, bool]:
    """The region and the direction: what is read elsewhere would have to be kept in the place of what is made of it."""
    return op.region, "transpose(" in op.scope or op.kind == "add_any"


def _look(op: DraftOp) -> tuple[object, ...]:
    """What one moving operator has in common with others that do the same."""
    return op.kind, op.ins[0].id, op.params.get("padding_config")


def _shifts(op: DraftOp) -> bool:
    """Whether a tensor is rolled, or padded and cut at once."""
    config: Config = op.params.get("padding_config", ())
    return op.kind in ("roll", "splice") or any(low < 0 or high < 0 for low, high, _ in config)


def _repadded(op: DraftOp, maker: DraftOp) -> DraftOp | TensorInfo:
    """A slice or padding of what was cut or padded, from the source of that; `op` where that cannot be."""
    config = one_padding(maker, op)
    values = [one.ins[1] for one in (maker, op) if one.kind == "pad"]
    if config is None or len({value.id for value in values}) > 1:
        return op
    source = maker.ins[0]
    starts = tuple(-low for low, _, _ in config)
    if all(low <= 0 and high <= 0 and not gap for low, high, gap in config):
        return source if op.outs[0].shape == source.shape else slicing(op, source, starts)
    return padding(op, source, values[0], config)


def _is_idle(op: DraftOp) -> bool:
    """Whether only dims of one element are reversed."""
    dims: Ints = op.params["dimensions"] if op.kind == "rev" else ()
    return op.kind == "rev" and all(op.ins[0].shape[d] == 1 for d in dims)


def _is_view(op: DraftOp) -> bool:
    """Whether the elements of the operand stay as many, and in their order."""
    return prod(op.ins[0].shape) == prod(op.outs[0].shape) and not op.params.get("dimensions")


def _gains(op: DraftOp, found: JoinedBoxes) -> bool:
    """Whether parts are taken from other sources than the operands, and half of each source at least."""
    if tuple(box.source.id for box in found.boxes) == tuple(tensor.id for tensor in op.ins):
        return False
    used: Counter[int] = Counter()
    for box in found.boxes:
        used[box.source.id] += box.sizes[found.dim]
    return all(2 * used[box.source.id] >= box.source.shape[found.dim] for box in found.boxes)
