"""Parts: what a tensor that was cut, padded or joined is made of, in terms of the tensors that it came from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autopar.core.graph import TensorInfo
from autopar.trace.draft import DraftOp
from autopar.trace.moving_ops import Config, Ints, Run, config_of, runs_of, window_of

MakerOf = Callable[[TensorInfo], DraftOp | None]
"""The moving operator that made a tensor, if it may be looked through."""


@dataclass(frozen=True)
class Box:
    """A part of a tensor: of each dim as many elements as `sizes` says, from `starts` on."""

    source: TensorInfo
    starts: Ints
    sizes: Ints

    @property
    def is_whole(self) -> bool:
        """Whether it is all of the tensor."""
        return self.sizes == self.source.shape

    def run(self, dim: int) -> Run:
        """The tensor, and where the part begins and ends along `dim`."""
        return self.source, self.starts[dim], self.starts[dim] + self.sizes[dim]

    def across(self, dim: int) -> tuple[Ints, Ints]:
        """Where the part lies in the other dims."""
        return changed(self.starts, dim, 0), changed(self.sizes, dim, 0)


@dataclass(frozen=True)
class JoinedBoxes:
    """Boxes joined along a dim."""

    dim: int
    boxes: tuple[Box, ...]


def part_of(
    tensor: TensorInfo, starts: Ints, sizes: Ints, maker_of: MakerOf, along: int | None = None
) -> Box | JoinedBoxes:
    """A part of a tensor, as a part of what that was cut out of, padded from or joined of: `along` a dim, or any."""
    maker = maker_of(tensor)
    if maker is None:
        return Box(tensor, starts, sizes)
    if (window := window_of(maker, tensor)) is not None:
        return part_of(maker.ins[0], added(starts, window[0]), sizes, maker_of, along)

    if maker.kind == "pad":
        config: Config = maker.params["padding_config"]
        inner = tuple(start - low for start, (low, _, _) in zip(starts, config, strict=True))
        ends = zip(inner, sizes, maker.ins[0].shape, config, strict=True)
        if all(
            begin >= 0 and begin + size <= whole and not gap
            for begin, size, whole, (_, _, gap) in ends
        ):
            return part_of(maker.ins[0], inner, sizes, maker_of, along)

    if (runs := runs_of(maker)) is not None:
        dim: int = maker.params["dimension"]
        cut = _cut_runs(dim, runs, starts, sizes)
        if len(cut) == 1:
            return part_of(cut[0].source, cut[0].starts, cut[0].sizes, maker_of, along)
        if along is None or along == dim:
            return _joined(dim, cut, maker_of)

    return Box(tensor, starts, sizes)


def joined(op: DraftOp, maker_of: MakerOf) -> Box | JoinedBoxes:
    """What a concatenation is made of."""
    runs = runs_of(op)
    out = op.outs[0]
    dim = op.params["dimension"]
    assert runs is not None
    return _joined(dim, _cut_runs(dim, runs, (0,) * out.ndim, out.shape), maker_of)


def _joined(dim: int, cut: Sequence[Box], maker_of: MakerOf) -> Box | JoinedBoxes:
    """Boxes joined along a dim, as parts of what they were cut out of, padded from or joined of."""
    boxes: list[Box] = []
    for box in cut:
        part = part_of(box.source, box.starts, box.sizes, maker_of, dim)
        boxes += [part] if isinstance(part, Box) else part.boxes
    return _plainest(JoinedBoxes(dim, tuple(boxes)))


def _cut_runs(dim: int, runs: Sequence[Run], starts: Ints, sizes: Ints) -> list[Box]:
    """A part of what is joined of runs along a dim, as parts of the operands."""
    found: list[Box] = []
    begin = starts[dim]
    end = starts[dim] + sizes[dim]
    place = 0
    for source, first, last in runs:
        low = max(begin, place)
        high = min(end, place + last - first)
        if low < high:
            found.append(
                Box(
                    source,
                    changed(starts, dim, first + low - place),
                    changed(sizes, dim, high - low),
                )
            )
        place += last - first

    return found


def _plainest(found: JoinedBoxes) -> Box | JoinedBoxes:
    """What is joined, with neighbours that lie side by side in one source as one box."""
    boxes: list[Box] = []
    for box in found.boxes:
        last = boxes[-1] if boxes else None
        if last is not None and last.source.id == box.source.id and _follows(last, box, found.dim):
            size = last.sizes[found.dim] + box.sizes[found.dim]
            boxes[-1] = Box(box.source, last.starts, changed(box.sizes, found.dim, size))
        else:
            boxes.append(box)
    return boxes[0] if len(boxes) == 1 else JoinedBoxes(found.dim, tuple(boxes))


def _follows(one: Box, other: Box, dim: int) -> bool:
    """Whether `other` begins where `one` ends along `dim`, and lies as that in all other dims."""
    return other.starts[dim] == one.starts[dim] + one.sizes[dim] and other.across(
        dim
    ) == one.across(dim)


def one_padding(maker: DraftOp, op: DraftOp) -> Config | None:
    """A slice or padding of what `maker` cut or padded, as one padding of its operand, below 0 where that is cut.

    None where the first cuts off what the second would bring back, or nothing of the operand would be left.
    """
    before = config_of(maker, op.ins[0])
    after = config_of(op, op.outs[0])
    if before is None or after is None:
        return None
    config = tuple(map(_one_after, before, after))
    stated = tuple(one for one in config if one is not None)
    ends = zip(maker.ins[0].shape, stated, strict=False)
    left = all(
        max(0, -low) + max(0, -high) <= (size - 1) * (gap + 1) for size, (low, high, gap) in ends
    )
    return stated if left and len(stated) == len(config) else None


def _one_after(
    before: tuple[int, int, int], after: tuple[int, int, int]
) -> tuple[int, int, int] | None:
    if before == (0, 0, 0):
        return after
    (low, high, gap) = before
    (more_low, more_high, more_gap) = after
    if gap or more_gap or low < 0 < more_low or high < 0 < more_high:
        return None
    return low + more_low, high + more_high, 0


def changed(values: Ints, dim: int, value: int) -> Ints:
    """`values` with another one at `dim`."""
    return (*values[:dim], value, *values[dim + 1 :])


def added(one: Ints, other: Ints) -> Ints:
    """The sums of what stands at the same places."""
    return tuple(a + b for a, b in zip(one, other, strict=True))
