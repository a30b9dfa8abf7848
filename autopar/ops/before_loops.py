"""Before loops: products whose results wait through a loop, and take less there than what they are made of.

A compiler that hides latencies puts off the gradient of a weight that only the update reads until all else is done. So
it goes behind the loop of the backward pass, and what it is made of is held through that: of a language model the
gradients of its logits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from autopar.core.program import Compute, Instruction, Move, ShardedProgram
from autopar.core.regions import BOUNDARY, LOOPS
from autopar.ops.traits import is_fusible, is_rearrangement, traits_of


class Awaited(NamedTuple):
    """A `value` that is to be there before `carry` enters a loop, which begins at instruction `start`.

    Both vary over the same axes. The value is what the product at instruction `product` makes, put in order; it lies
    apart from the operands that it frees, which are there from instruction `since` on.
    """

    value: int
    product: int
    since: int
    carry: int
    start: int


class _Product(NamedTuple):
    """A product of the backward pass: what it makes, put in order, and when that is `needed` first."""

    position: int
    made: int
    needed: int


def made_before(program: ShardedProgram) -> dict[int, tuple[Awaited, ...]]:
    """By loop outside of others (its region): the results of products of the backward pass that are worth it.

    Nobody needs them before the loop has ended, and once it has begun nobody needs some of their operands, which take
    more.
    """
    maker = dict(zip(program.links.made.tolist(), program.links.maker.tolist(), strict=True))
    loops = list(_loops(program, maker))
    if not loops:
        return {}

    end = len(program.instructions)
    needed = dict.fromkeys(program.outputs, end)
    last = {**dict.fromkeys(program.inputs, end), **needed}
    readers: dict[int, list[Instruction]] = {value: [] for value in program.values}
    products: list[_Product] = []
    for position in range(end - 1, -1, -1):
        one = program.instructions[position]
        passes = _passes_on(one)
        first = min([needed.get(v, end) for v in one.outs], default=end) if passes else position
        until = max([last.get(v, position) for v in one.outs], default=0) if passes else position
        for value in one.ins:
            needed[value] = min(needed.get(value, end), first)
            last[value] = max(last.get(value, position), until)
            readers[value].append(one)
        if _is_gradient(one):
            products.append(
                _Product(position, _in_order(one.outs[0], readers), needed.get(one.outs[0], end))
            )

    found: dict[int, tuple[Awaited, ...]] = {}
    for region, start, stop, carried in loops:
        awaited: list[Awaited] = []
        for position, made, first in reversed(products):
            gone = [
                v for v in {*program.instructions[position].ins} if v in maker and last[v] < start
            ]
            carry = carried.get(_axes(program, made))
            freed = sum(map(program.device_bytes, gone))
            is_waiting = position < start and first > stop
            if carry is not None and is_waiting and freed > program.device_bytes(made):
                since = min(maker[value] for value in gone)
                awaited.append(Awaited(made, position, since, carry, start))
        if awaited:
            found[region] = tuple(awaited)

    return found


def _passes_on(one: Instruction) -> bool:
    """Whether it may run with what reads its result, however late that is."""
    return isinstance(one, Move) or (
        isinstance(one, Compute) and one.op.kind not in BOUNDARY and is_fusible(one.op)
    )


def _is_gradient(one: Instruction) -> bool:
    return (
        isinstance(one, Compute)
        and one.region is None
        and one.op.phase == "backward"
        and traits_of(one.op.kind).is_contraction
    )


def _in_order(value: int, readers: Mapping[int, list[Instruction]]) -> int:
    """What `value` is after its elements were put in another order, if nobody else reads it."""
    while len(readers[value]) == 1:
        (one,) = readers[value]
        if not isinstance(one, Compute) or one.region is not None or not is_rearrangement(one.op):
            return value
        (value,) = one.outs
    return value


def _axes(program: ShardedProgram, value: int) -> frozenset[str]:
    return program.values[value].placement.varying_axes


def _loops(
    program: ShardedProgram, maker: Mapping[int, int]
) -> Iterator[tuple[int, int, int, dict[frozenset[str], int]]]:
    """The loops in no other region: region, first and last instruction, and what is carried in.

    Of that, for all that varies over the same axes, what is made last.
    """
    spans = {r.id: (-1, -1) for r in program.regions if r.kind in LOOPS and r.parent is None}
    carried: dict[int, dict[frozenset[str], int]] = {region: {} for region in spans}
    for position, one in enumerate(program.instructions if spans else ()):
        region = program.tree.child_towards(None, one.region)
        if region not in spans:
            continue
        start, _ = spans[region]
        spans[region] = (position if start < 0 else start, position)
        if isinstance(one, Compute) and one.op.kind == "carry_in" and one.region == region:
            (value,) = one.ins
            axes = _axes(program, value)
            if value in maker and maker[value] > maker.get(carried[region].get(axes, -1), -1):
                carried[region][axes] = value

    for region, (start, stop) in spans.items():
        yield region, start, stop, carried[region]
