"""Rounds: a step whose operators were cut, as what runs before the loop over micro-batches, in it, and behind it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from autopar.core.dataflow import Dataflow
from autopar.core.graph import OpGraph
from autopar.core.placement import Placement
from autopar.core.plan import Stage
from autopar.core.program import Compute, Convert, Instruction, Move, ShardedProgram
from autopar.core.regions import CONTROL
from autopar.microbatch.cut import Slices
from autopar.passes.lower import lower

Part = Literal["before", "loop", "behind"]
Numbered = tuple[tuple[int, Instruction], ...]


@dataclass(frozen=True, eq=False)
class Rounds:
    """The three parts of a step, each as instructions of `program` with their positions, and what passes between.

    `sliced` are pairs (whole value made before, its slice); `combined` (part made in each round, whole value behind):
    sums, maxima or minima as the part's placement says; `stacked` (slice, whole value behind). `kept` are values of the
    loop that are the same in every round and are read behind it. `slices` says which elements are in a slice.
    """

    program: ShardedProgram
    before: Numbered
    loop: Numbered
    behind: Numbered
    sliced: tuple[tuple[int, int], ...]
    combined: tuple[tuple[int, int], ...]
    stacked: tuple[tuple[int, int], ...]
    kept: tuple[int, ...]
    slices: Slices

    def placement(self, value: int) -> Placement:
        """How a value lies."""
        return self.program.values[value].placement


def rounds_of(graph: OpGraph, stage: Stage, slices: Slices) -> Rounds:
    """The parts of `graph`, whose operators run as `stage` says on such slices."""
    program = lower(graph, Dataflow((), {}, {}), stage)
    return _Division(program, slices).rounds()


@dataclass(eq=False)
class _Division:
    """The division of a program: the part that each value is made in, while instructions are gone through in order."""

    program: ShardedProgram
    slices: Slices
    made_in: dict[int, Part] = field(default_factory=dict[int, Part])
    regions: dict[int, Part] = field(default_factory=dict[int, Part])
    parts: dict[Part, list[tuple[int, Instruction]]] = field(
        default_factory=lambda: {"before": [], "loop": [], "behind": []}
    )
    sliced: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    combined: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    stacked: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    def rounds(self) -> Rounds:
        program = self.program
        self.made_in.update(dict.fromkeys(program.inputs, "before"))
        for position, instruction in enumerate(program.instructions):
            if isinstance(instruction, Convert):
                self._convert(position, instruction)
            else:
                self._add(position, instruction, self._part(instruction))

        return Rounds(
            program,
            tuple(self.parts["before"]),
            tuple(self.parts["loop"]),
            tuple(self.parts["behind"]),
            tuple(self.sliced),
            tuple(self.combined),
            tuple(self.stacked),
            self._kept(),
            self.slices,
        )

    def _kept(self) -> tuple[int, ...]:
        """The whole values of the loop that are read behind it."""
        read = [value for _, i in self.parts["behind"] for value in i.ins]
        return tuple(
            value
            for value in dict.fromkeys([*read, *self.program.outputs])
            if self.made_in.get(value) == "loop"
        )

    def _convert(self, position: int, convert: Convert) -> None:
        """A change of placement: within the loop, at its beginning or at its end."""
        before, after = (self._placement(value) for value in (convert.before, convert.after))
        pair = (convert.before, convert.after)
        if before.varying_axes:
            self.made_in[convert.after] = "behind"
            (self.combined if before.unreduced else self.stacked).append(pair)
        elif after.split_axes and self.made_in.get(convert.before) == "before":
            self.made_in[convert.after] = "loop"
            self.sliced.append(pair)
        else:
            self._add(position, _move(self.program, convert), "loop")

    def _placement(self, value: int) -> Placement:
        return self.program.values[value].placement

    def _add(self, position: int, instruction: Instruction, part: Part) -> None:
        self.parts[part].append((position, instruction))
        self.made_in.update(dict.fromkeys(instruction.outs, part))

    def _part(self, instruction: Instruction) -> Part:
        """Where an instruction runs: where all of the outermost control region around it does."""
        region = _outermost(self.program, instruction.region)
        if region is None:
            return self._part_of((instruction,))
        if region not in self.regions:
            tree = self.program.tree
            members = [i for i in self.program.instructions if region in tree.path(i.region)]
            self.regions[region] = self._part_of(members)
        return self.regions[region]

    def _part_of(self, instructions: Iterable[Instruction]) -> Part:
        members = list(instructions)
        values = [
            self._placement(v) for i in members for v in (*i.ins, *i.outs) if isinstance(i, Compute)
        ]
        if any(placement.varying_axes for placement in values):
            return "loop"

        parts = {self.made_in.get(value) for member in members for value in member.ins}
        reduced = any(
            isinstance(member, Convert) and self._placement(member.before).varying_axes
            for member in members
        )
        if "behind" in parts or reduced:
            return "behind"
        return "loop" if "loop" in parts else "before"


def _outermost(program: ShardedProgram, region: int | None) -> int | None:
    tree = program.tree
    return next((r for r in reversed(tree.path(region)) if tree.kind(r) in CONTROL), None)


def _move(program: ShardedProgram, convert: Convert) -> Move:
    """The slice or the mask that a change of a whole value in the loop is."""
    after = program.values[convert.after].placement
    dim = next((d for d, axes in enumerate(after.dims) if axes), None)
    kind = "mask" if dim is None else "slice"

    return Move(
        kind,
        program.mesh.names,
        convert.ins,
        convert.outs,
        program.local_bytes(convert.after),
        0.0,
        "redistribution",
        dim,
        region=convert.region,
    )
