"""issue_order: a program in the order in which a compiler that hides latencies issues it.

A collective is issued as soon as its operands are there, and waited for where its results are read. Both are held up
by what stands right beside it and computes next to nothing: the cast or the view of a parameter's shard that it sends,
the cast of a gradient's that it leaves, the division of a sum. So what does nothing but feed collectives is done as
soon as its operands are there, and what does nothing but take their results up, when these are read: as far as memory
allows. Parameters are updated in the order in which their gradients come (`passes.update_order`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from autopar.core.program import Compute, Instruction, Move, ShardedProgram
from autopar.ops.traits import is_cast_or_rearrangement, traits_of
from autopar.passes.rounds import is_collective
from autopar.passes.update_order import in_update_order

Bytes = NDArray[np.int64]


def in_issue_order(
    program: ShardedProgram, held_bytes: Sequence[int] | Bytes
) -> tuple[ShardedProgram, Bytes]:
    """`program` in that order, and what a device holds at each of its instructions, never more than the peak before.

    Args:
      program: routed (no Convert left).
      held_bytes: what one device holds at each instruction.
    """
    program, held = in_update_order(program, np.asarray(held_bytes, dtype=np.int64))
    ordering = _Ordering(program, held.max(initial=0) - held)
    order = ordering.of(range(len(program.instructions)), None)
    if order == sorted(order):
        return program, held
    instructions = tuple(program.instructions[n] for n in order)
    return program.with_instructions(instructions), held.max(initial=0) - ordering.free[order]


@dataclass(frozen=True)
class _Unit:
    """An instruction of a block, or an inner region with all that is in it; `positions` in the order to be run."""

    positions: list[int]
    reads: Collection[int]
    makes: Collection[int]
    one: Instruction | None


@dataclass(frozen=True)
class _Ordering:
    """Puts blocks of `program` in order; `free` are the bytes left at each position, and are taken up."""

    program: ShardedProgram
    free: Bytes

    def of(self, positions: range, region: int | None) -> list[int]:
        """These positions, which are all of `region`, in the order to be run."""
        units = list(self._units(positions, region))
        places = self._places(units)
        return [
            n
            for at in sorted(range(len(units)), key=places.__getitem__)
            for n in units[at].positions
        ]

    def _units(self, positions: range, region: int | None) -> Iterator[_Unit]:
        tree = self.program.tree
        instructions = self.program.instructions
        if not self.program.regions:
            yield from (_alone(n, instructions[n]) for n in positions)
            return

        for inner, group in groupby(
            positions, key=lambda n: tree.control_towards(region, instructions[n].region)
        ):
            members = list(group)
            if inner is None:
                yield from (_alone(n, instructions[n]) for n in members)
                continue

            span = range(members[0], members[-1] + 1)
            yield _Unit(
                self.of(span, inner),
                frozenset(v for n in span for v in instructions[n].ins),
                frozenset(v for n in span for v in instructions[n].outs),
                None,
            )

    def _places(self, units: Sequence[_Unit]) -> list[tuple[int, int, int]]:
        """Where each unit is run: beside which other one, behind it (1) or before it (-1), in what order."""
        makers = {v: n for n, unit in enumerate(units) for v in unit.makes}
        readers: dict[int, list[int]] = {}
        for n, unit in enumerate(units):
            for v in unit.reads:
                readers.setdefault(v, []).append(n)

        bounds = [min(unit.positions) for unit in units]
        bounds += [max(unit.positions) + 1 for unit in units[-1:]]
        places = [(n, 0, n) for n in range(len(units))]
        feeds = self._feeding(units, readers)
        for n in feeds:
            ready = 1 + max(
                (places[makers[v]][0] for v in units[n].reads if v in makers), default=-1
            )
            size = self._size({*units[n].makes})
            first = self._roomy_from(bounds, ready, n, size)
            if first < n:
                self.free[bounds[first] : bounds[n]] -= size
                places[n] = (first - 1, 1, n)

        takes_up = set(self._taking_up(units, makers)).difference(feeds)
        for n in sorted(takes_up, reverse=True):
            reading = [places[m][0] for v in units[n].makes for m in readers.get(v, ())]
            before = min(reading, default=len(units))
            # when it runs, it holds both
            size = self._size({*units[n].reads, *units[n].makes})
            last = self._roomy_to(bounds, n, before, size)
            if last > n:
                self.free[bounds[n + 1] : bounds[last + 1]] -= size
                places[n] = (last + 1, -1, n)

        return places

    def _roomy_from(self, bounds: Sequence[int], ready: int, number: int, size: int) -> int:
        """The first unit, `ready` at the earliest, from which on to `number` there are so many bytes left."""
        short = np.flatnonzero(self.free[bounds[ready] : bounds[number]] < size).tolist()
        return bisect_left(bounds, bounds[ready] + short[-1] + 1) if short else min(ready, number)

    def _roomy_to(self, bounds: Sequence[int], number: int, before: int, size: int) -> int:
        """The last unit, in front of `before`, up to whose end from `number` on there are so many bytes left."""
        behind = bounds[number + 1]
        short = np.flatnonzero(self.free[behind : bounds[before]] < size).tolist()
        return bisect_right(bounds, behind + short[0]) - 2 if short else max(before - 1, number)

    def _feeding(self, units: Sequence[_Unit], readers: dict[int, list[int]]) -> list[int]:
        """The units that do nothing but feed collectives, in order."""
        outputs = set(self.program.outputs)
        found = set[int]()
        for n in reversed(range(len(units))):
            if not _is_light(units[n].one) or not outputs.isdisjoint(units[n].makes):
                continue
            reading = [m for v in units[n].makes for m in readers.get(v, ())]
            if reading and all(m in found or is_collective(units[m].one) for m in reading):
                found.add(n)
        return sorted(found)

    def _taking_up(self, units: Sequence[_Unit], makers: dict[int, int]) -> list[int]:
        """The units that do nothing but take up what collectives make, in order."""
        found = list[int]()
        known = set[int]()
        for n, unit in enumerate(units):
            made = [makers.get(v, -1) for v in unit.reads]
            sent = [m in known or (m >= 0 and is_collective(units[m].one)) for m in made]
            if any(sent) and (_is_scaling(unit.one) or (_is_light(unit.one) and all(sent))):
                found.append(n)
                known.add(n)
        return found

    def _size(self, values: set[int]) -> int:
        return sum(self.program.local_bytes(value) for value in values)


def _alone(position: int, one: Instruction) -> _Unit:
    return _Unit([position], one.ins, one.outs, one)


def _is_scaling(one: Instruction | None) -> bool:
    """Whether it scales what it reads, which what reads the result does in one loop."""
    return isinstance(one, Compute) and traits_of(one.op.kind).is_scaling


def _is_light(one: Instruction | None) -> bool:
    """Whether it casts, views, or takes a part."""
    if isinstance(one, Compute):
        return is_cast_or_rearrangement(one.op)
    return isinstance(one, Move) and not one.is_collective
