"""Rounds: a scan of a program as a loop whose rounds may communicate for one another (`passes.double_buffer`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from autopar.core.program import Compute, Instruction, Move, ShardedProgram
from autopar.core.regions import Region
from autopar.ops.traits import is_cast_or_rearrangement


def scans(program: ShardedProgram) -> list[Region]:
    """The scans of two rounds and more that hold anything."""
    tree = program.tree
    held = {region for one in program.instructions for region in tree.path(one.region)}
    return [
        region
        for region in program.regions
        if region.kind == "scan" and region.id in held and tree.children(region.id)[0].trips >= 2
    ]


@dataclass(frozen=True, eq=False)
class Rounds:
    """One scan of a program, by positions of instructions.

    What may run ahead depends on nothing but slices and what is outside: casts, views and collectives of parameters.
    Of what may run behind nothing is read but by others that may, and put on stacks in the end.
    """

    all: ShardedProgram
    scan: Region

    @cached_property
    def body(self) -> int:
        """The region of what runs each round."""
        return self.all.tree.children(self.scan.id)[0].id

    @cached_property
    def span(self) -> range:
        """All that is of the scan."""
        tree = self.all.tree
        held = [
            n
            for n, one in enumerate(self.all.instructions)
            if self.scan.id in tree.path(one.region)
        ]
        return range(held[0], held[-1] + 1)

    def of(self, positions: Sequence[int]) -> Iterator[tuple[int, Instruction]]:
        """These positions and what stands there."""
        return ((n, self.all.instructions[n]) for n in positions)

    @cached_property
    def near(self) -> list[int]:
        """What runs in every round, but for what is in loops and branches there."""
        tree = self.all.tree
        return [
            n
            for n, one in self.of(self.span)
            if self.body in tree.path(one.region)
            and tree.control_towards(self.body, one.region) is None
        ]

    @cached_property
    def makers(self) -> dict[int, int]:
        """Who makes each value that the scan makes."""
        return {v: n for n, one in self.of(self.span) for v in one.outs}

    @cached_property
    def readers(self) -> dict[int, list[int]]:
        """Who in the scan reads each value."""
        found: dict[int, list[int]] = {}
        for n, one in self.of(self.span):
            for v in one.ins:
                found.setdefault(v, []).append(n)
        return found

    def reading(self, position: int) -> set[int]:
        """Who in the scan reads what is made at `position`."""
        made = self.all.instructions[position].outs
        return {n for value in made for n in self.readers.get(value, ())}

    @cached_property
    def slices(self) -> dict[int, int]:
        """What enters as a slice, and who makes it."""
        return {
            one.outs[0]: n
            for n, one in self.of(self.span)
            if _is(one, "scan_slice") and one.region == self.scan.id
        }

    @cached_property
    def early(self) -> frozenset[int]:
        """What may run ahead."""
        known = set(self.slices)
        found: set[int] = set()
        for n, one in self.of(self.near):
            inside = [v for v in one.ins if v in self.makers]
            if _is_light_or_move(one) and inside and known.issuperset(inside):
                found.add(n)
                known.update(one.outs)
        return frozenset(found)

    @cached_property
    def late(self) -> frozenset[int]:
        """What may run behind."""
        found: set[int] = set()

        for n, one in self.of(self.near[::-1]):
            reading = self.reading(n)
            if (
                _is_light_or_move(one)
                and n not in self.early
                and reading
                and not any(self.makers.get(v) in self.early for v in one.ins)
                and all(m in found or self._stacks(m) for m in reading)
            ):
                found.add(n)
        return frozenset(found)

    def _stacks(self, position: int) -> bool:
        one = self.all.instructions[position]
        return _is(one, "scan_stack") and one.region == self.scan.id

    @cached_property
    def ahead(self) -> list[int]:
        """The collectives that may run ahead, those that are needed first first: each behind what it depends on."""
        needed: dict[int, int] = {}
        for n in sorted(self.early, reverse=True):
            needed[n] = min((needed.get(m, m) for m in self.reading(n)), default=self.span.stop)
        mine = [n for n in sorted(self.early) if is_collective(self.all.instructions[n])]
        return sorted(mine, key=lambda n: (needed[n], n))

    @cached_property
    def behind(self) -> list[int]:
        """The collectives that may run behind, those that are made last first: each behind what depends on it."""
        mine = [n for n in sorted(self.late) if is_collective(self.all.instructions[n])]
        return mine[::-1]

    def before(self, chosen: Sequence[int]) -> list[int]:
        """`chosen` of `early` and what they depend on there, in order."""
        found = set(chosen)
        for n in sorted(self.early, reverse=True):
            if not self.reading(n).isdisjoint(found):
                found.add(n)
        return sorted(found)

    def after(self, chosen: Sequence[int]) -> list[int]:
        """`chosen` of `late` and what depends on them there, in order."""
        found = set(chosen)
        for n in sorted(self.late):
            if any(self.makers.get(v) in found for v in self.all.instructions[n].ins):
                found.add(n)
        return sorted(found)


def _is(one: Instruction, kind: str) -> bool:
    return isinstance(one, Compute) and one.op.kind == kind


def is_collective(one: Instruction | None) -> bool:
    """Whether it is a move that sends something."""
    return isinstance(one, Move) and one.is_collective


def _is_light_or_move(one: Instruction) -> bool:
    return isinstance(one, Move) or (isinstance(one, Compute) and is_cast_or_rearrangement(one.op))
