"""compare: the collectives of a program beside those of the compiled program it became."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np

from autopar.core.mesh import DeviceMesh
from autopar.core.parcels import LARGE_BYTES, parcels
from autopar.core.program import Instruction, Move, ShardedProgram
from autopar.emit.moves import permutation
from autopar.inspect.hlo import HloCollective
from autopar.inspect.hlo_text import Groups, dtype_bits

Test = Callable[[Move, HloCollective], bool]
Key = tuple[str, Groups]
Reason = Literal["one device", "empty", "constant", "unused", "repeated", "unknown"]
_LEAST_REASON: tuple[Reason, ...] = (
    "unknown",
    "repeated",
    "unused",
    "constant",
    "empty",
    "one device",
)


@dataclass(frozen=True)
class CollectivePair:
    """A planned collective and the one it became. `found` is one operand of it where XLA combined several."""

    planned: Move
    found: HloCollective


@dataclass(frozen=True)
class Vanished:
    """A planned collective that XLA left out, and why it may.

    "one device": its groups have one member. "empty": it moves no bytes. "constant": what it moves depends on no input.
    "unused": no output depends on it. "repeated": another moves the same value likewise. "unknown": none of these.
    """

    planned: Move
    reason: Reason


@dataclass(frozen=True)
class ProgramComparison:
    """Every planned collective and every found one, each in exactly one of the lists.

    `matched`: the same kind, groups and bytes. `widened`: the same, with the bytes of a wider element type.
    `merged`: found as one operand of a combined all-reduce, widened or not. `vanished`: planned only. `unplanned`:
    found only.
    """

    matched: tuple[CollectivePair, ...]
    widened: tuple[CollectivePair, ...]
    merged: tuple[CollectivePair, ...]
    vanished: tuple[Vanished, ...]
    unplanned: tuple[HloCollective, ...]

    @property
    def exact(self) -> bool:
        """Whether planned and found are the same multiset of kind, groups and bytes."""
        return not (self.widened or self.merged or self.vanished or self.unplanned)

    @property
    def explained(self) -> bool:
        """Whether nothing is found that was not planned, and nothing vanished without a reason."""
        return not self.unplanned and all(
            vanished.reason != "unknown" for vanished in self.vanished
        )

    @property
    def summary(self) -> str:
        """How many there are of each, in a line."""
        counts = {
            "as planned": self.matched,
            "widened": self.widened,
            "merged into others": self.merged,
            "vanished": self.vanished,
            "not planned": self.unplanned,
        }
        return (
            ", ".join(f"{len(those)} {what}" for what, those in counts.items() if those)
            or "no collectives"
        )

    def __str__(self) -> str:
        lines = [
            f"widened from {pair.planned.size_bytes} bytes: {_found(pair.found)}"
            for pair in self.widened
        ]
        lines += [f"merged into others: {_planned(pair.planned)}" for pair in self.merged]
        lines += [f"vanished ({v.reason}): {_planned(v.planned)}" for v in self.vanished]
        lines += [f"not planned: {_found(found)}" for found in self.unplanned]
        return "\n".join(
            [self.summary, *(f"{count} x {line}" for line, count in Counter(lines).items())]
        )


def compare(program: ShardedProgram, found: Sequence[HloCollective]) -> ProgramComparison:
    """`program`'s collectives beside those `found` in the program compiled from it, for the same mesh.

    A collective in a loop counts once on both sides, however often the loop goes round; in an unrolled scan, once for
    each copy of its body. Exact matches are made first,
    then widened ones, then those with the operands of combined all-reduces. Of equal planned ones those with the least
    reason to vanish are matched first. A bucket that is not found is looked for in its parcels (`core.parcels`).
    """
    reasons = _reasons(program, program.collectives)
    planned = sorted(program.collectives, key=lambda move: _LEAST_REASON.index(reasons[move]))
    state = _Matching(program, [move for move in planned for _ in range(_copies(program, move))])
    rest = [
        collective
        for collective in found
        if not state.take(collective, state.matched, state.exactly)
    ]
    parts = [part for move in state.planned for part in _parcels(program, move)]
    reasons |= _reasons(program, parts)
    state = _Matching(
        program, sorted(parts, key=lambda part: _LEAST_REASON.index(reasons[part])), state.matched
    )
    rest = [
        collective
        for collective in rest
        if not state.take(collective, state.matched, state.exactly)
    ]
    rest = [
        collective for collective in rest if not state.take(collective, state.widened, state.widely)
    ]
    unplanned: list[HloCollective] = []
    for collective in rest:
        operands = collective.parts if collective.operand_count > 1 else ()
        tests = (state.exactly, state.widely)
        left = [
            part
            for part in operands
            if not any(state.take(part, state.merged, test) for test in tests)
        ]
        unplanned += left if operands else [collective]

    vanished = tuple(Vanished(move, reasons[move]) for move in state.planned)
    return ProgramComparison(
        tuple(state.matched), tuple(state.widened), tuple(state.merged), vanished, tuple(unplanned)
    )


def _parcels(program: ShardedProgram, move: Move) -> list[Move]:
    """A bucket of all-reduces as its parcels, each a move; other moves as they are."""
    if move.kind != "all_reduce":
        return [move]

    sizes = [program.local_bytes(value) for value in move.ins]
    found = parcels(sizes, LARGE_BYTES)
    if len(found) == 1:
        return [move]

    return [
        move._replace(
            ins=tuple(move.ins[n] for n in parcel),
            outs=tuple(move.outs[n] for n in parcel),
            size_bytes=sum(sizes[n] for n in parcel),
        )
        for parcel in found
    ]


def _copies(program: ShardedProgram, move: Move) -> int:
    """How often the compiled program states `move`: an unrolled scan has its body several times.

    `unroll` times in a loop of length // unroll trips, and once for each trip that is left over. What an operator sends
    in rounds stands beside their loop too, where there is one.
    """
    count = 2 if move.rounds > 1 else 1
    for region in map(program.tree.__getitem__, program.tree.path(move.region)):
        if region.kind == "scan":
            payload = cast(Mapping[str, Any], region.payload)
            length = int(payload["length"])
            unroll = int(payload["unroll"])
            count *= (unroll if length >= unroll else 0) + length % unroll
    return count


def move_groups(program: ShardedProgram, move: Move) -> Groups:
    """The device numbers of each group of `move`; of a permute the pairs (from, to). Devices count row-major."""
    groups = axis_groups(program.mesh, move.axes)
    if move.kind != "permute":
        return groups
    axes = program.mesh.sort(move.axes)
    if move.hop is not None:
        pairs = move.hop.pairs(program.mesh.product(axes))
    else:
        before, after = (program.values[ids[0]].placement for ids in (move.ins, move.outs))
        pairs = permutation(before, after, axes, program.mesh)
    return tuple(
        (group[a], group[b]) for group in axis_groups(program.mesh, axes) for a, b in pairs
    )


def axis_groups(mesh: DeviceMesh, axes: tuple[str, ...]) -> Groups:
    """The devices that differ along `axes` only, each group in the order of `axes`, major to minor."""
    rest = [axis for axis in mesh.names if axis not in axes]
    numbers = np.arange(mesh.size).reshape(mesh.sizes)
    order = [mesh.names.index(axis) for axis in (*rest, *axes)]
    return tuple(
        tuple(row) for row in numbers.transpose(order).reshape(-1, mesh.product(axes)).tolist()
    )


@dataclass(eq=False)
class _Matching:
    """What is planned and not yet found, and what was."""

    program: ShardedProgram
    planned: list[Move]
    matched: list[CollectivePair] = field(default_factory=list[CollectivePair])
    widened: list[CollectivePair] = field(default_factory=list[CollectivePair])
    merged: list[CollectivePair] = field(default_factory=list[CollectivePair])

    def __post_init__(self) -> None:
        self.keys = [_key(move.kind, move_groups(self.program, move)) for move in self.planned]

    def take(self, found: HloCollective, into: list[CollectivePair], test: Test) -> bool:
        """Whether a planned collective passes `test`; then the two are put `into` a list."""
        key = _key(found.kind, found.groups)
        for position, move in enumerate(self.planned):
            if self.keys[position] == key and test(move, found):
                del self.planned[position], self.keys[position]
                into.append(CollectivePair(move, found))
                return True
        return False

    def exactly(self, move: Move, found: HloCollective) -> bool:
        return move.size_bytes == found.size_bytes

    def widely(self, move: Move, found: HloCollective) -> bool:
        planned_bits = 8 * self.program.values[move.ins[0]].tensor.itemsize
        found_bits = max(map(dtype_bits, found.dtypes))
        return (
            found_bits > planned_bits
            and found.size_bytes * planned_bits == move.size_bytes * found_bits
        )


def _key(kind: str, groups: Groups) -> Key:
    """What planned and found must agree on: within a group the order of the devices does not count."""
    return kind, tuple(
        sorted(groups if kind == "permute" else (tuple(sorted(group)) for group in groups))
    )


def _reasons(program: ShardedProgram, moves: Sequence[Move]) -> dict[Move, Reason]:
    """Why each of `moves` may vanish; "unknown" where it must not."""
    variable = _variable(program)
    used = _used(program)
    repeats = Counter(map(_effect, program.collectives))

    def reason(move: Move) -> Reason:
        if program.mesh.product(move.axes) == 1:
            return "one device"
        if not move.size_bytes:
            return "empty"
        if not variable.intersection(move.ins):
            return "constant"
        if not used.intersection(move.outs):
            return "unused"
        return "repeated" if repeats[_effect(move)] > 1 else "unknown"

    return {move: reason(move) for move in moves}


def _effect(move: Move) -> tuple[object, ...]:
    return move.kind, move.axes, move.ins, move.dim, move.to_dim, move.hop, move.size_bytes


def _variable(program: ShardedProgram) -> set[int]:
    """The values that depend on an input."""
    found = set(program.inputs)
    for instruction in program.instructions:
        for ins, outs in _flows(instruction):
            if found.intersection(ins):
                found.update(outs)
    return found


def _used(program: ShardedProgram) -> set[int]:
    """The values that an output, or what runs without a result (a loop's test, a choice), depends on."""
    found = set(program.outputs).union(*(i.ins for i in program.instructions if not i.outs))
    for instruction in reversed(program.instructions):
        for ins, outs in _flows(instruction):
            if found.intersection(outs):
                found.update(ins)
    return found


def _flows(instruction: Instruction) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """What is read for what is made: in a bucket each result depends on its own operand only."""
    if isinstance(instruction, Move):
        return [
            ((before,), (after,))
            for before, after in zip(instruction.ins, instruction.outs, strict=True)
        ]
    return [(instruction.ins, instruction.outs)]


def _planned(move: Move) -> str:
    return f"{move.kind} over {','.join(move.axes)}, {move.size_bytes} bytes ({move.source})"


def _found(collective: HloCollective) -> str:
    size = collective.size_bytes
    count = len(collective.groups)
    return f"{collective.kind} of {size} bytes as {'+'.join(collective.dtypes)}, {count} groups or pairs"
