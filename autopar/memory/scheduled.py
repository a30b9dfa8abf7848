"""Scheduled: what a compiler that keeps to no order of its program holds longer, or besides (`ops.holding`)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from autopar.core.graph import TensorInfo
from autopar.core.program import Compute, Ints, Move, ShardedProgram
from autopar.core.regions import BOUNDARY
from autopar.ops.before_loops import Awaited
from autopar.ops.traits import is_fusible, traits_of


def until_late(program: ShardedProgram, count: int, awaited: Iterable[Awaited] = ()) -> Ints:
    """For each of so many values until when backward products that may wait read it; -1 if none does.

    Those that only the update waits for until the product after the next one in their region begins; what holds
    products, as loops do, is one there, and goes on to the last of them, but what is `awaited` by a loop is there
    before. Others until the next one begins, if that is not made of what they make.
    """
    before = {one.product: one.start - 1 for one in awaited}
    found = np.full(count, -1, dtype=np.intp)
    needed = np.zeros(count, dtype=np.bool_)
    following: dict[int | None, tuple[int, int]] = {}
    ended: set[int | None] = {None}
    for position in range(len(program.instructions) - 1, -1, -1):
        one = program.instructions[position]
        ins = [*one.ins]
        is_needed = bool(needed[[*one.outs]].any())
        if not isinstance(one, Compute) or one.op.kind in BOUNDARY or is_fusible(one.op):
            needed[ins] |= is_needed
            continue

        needed[ins] |= one.op.phase != "update"
        if traits_of(one.op.kind).is_contraction:
            first, second = following.get(one.region, (position, position))
            if one.op.phase == "backward" and not is_needed:
                found[ins] = np.maximum(found[ins], min(second, before.get(position, second)))
            elif one.op.phase == "backward" and not _leads_to(program, position, first):
                found[ins] = np.maximum(found[ins], first)
            following[one.region] = (position, first)
            for inner in takewhile(
                lambda region: region not in ended, program.tree.path(one.region)
            ):
                outer = program.tree.parent(inner)
                first, _ = following.get(outer, (position, position))
                following[outer] = (position, first)
            ended.update(program.tree.path(one.region))

    return found


def _leads_to(program: ShardedProgram, before: int, after: int) -> bool:
    """Whether the instruction at `after` needs what the one at `before` makes, or is the same."""
    made = {*program.instructions[before].outs}
    for one in program.instructions[before + 1 : after + 1]:
        if not made.isdisjoint(one.ins):
            made.update(one.outs)
    return not made.isdisjoint(program.instructions[after].outs)


def widened_bytes(program: ShardedProgram) -> NDArray[np.int64]:
    """What operands of products take in the type of the other operand, where that is wider, at each instruction."""
    found: dict[tuple[int, int, int | None], tuple[int, int]] = {}
    for position, one in enumerate(program.instructions):
        if not isinstance(one, Compute) or one.op.kind != "dot_general":
            continue
        widest = max(tensor.itemsize for tensor in one.op.ins)
        for value, tensor in zip(one.ins, one.op.ins, strict=True):
            if tensor.itemsize < widest:
                key = (value, widest, one.region)
                found[key] = (found.get(key, (position, position))[0], position)

    change = np.zeros(len(program.instructions) + 1, dtype=np.int64)
    for (value, widest, _), (first, last) in found.items():
        size = program.device_bytes(value) // program.values[value].tensor.itemsize * widest
        change[first] += size
        change[last + 1] -= size
    return np.cumsum(change[:-1])


def joined(program: ShardedProgram) -> dict[int, int]:
    """What collectives make that were run before, in the same region on the same values: the values made first."""
    known: dict[tuple[object, ...], Move] = {}
    found: dict[int, int] = {}
    results = {*program.outputs}
    for one in program.instructions:
        if not isinstance(one, Move) or not one.is_collective:
            continue
        given = tuple(found.get(value, value) for value in one.ins)
        made = tuple(program.values[value].placement for value in one.outs)
        key = (one.kind, one.axes, given, one.dim, one.to_dim, one.region, made)
        first = known.setdefault(key, one)
        if first is not one and results.isdisjoint(one.outs):
            found |= dict(zip(one.outs, first.outs, strict=True))

    return found


def made_first(program: ShardedProgram) -> list[int]:
    """The values outside regions that scatters write into and that are made of nothing but numbers; of the gradient of
    max pooling, which is a scatter too, the result.
    """
    written = {
        one.ins[0]
        for one in program.instructions
        if isinstance(one, Compute) and one.op.kind.startswith("scatter")
    }

    return [
        value
        for one in program.instructions
        if isinstance(one, Compute) and one.region is None
        for value in one.outs
        if one.op.kind == "select_and_scatter_add"
        or (value in written and all(map(_is_number, one.op.ins)))
    ]


def _is_number(tensor: TensorInfo) -> bool:
    return tensor.literal is not None and not tensor.shape
