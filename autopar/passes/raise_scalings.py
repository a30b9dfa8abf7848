"""raise_scalings: what only scales an unreduced result comes behind its all-reduce again, once that is in its bucket.

A mean is a sum that is divided. `sink_all_reduce` puts the division first, so that sums end up side by side. There it
is a kernel of its own between the reduction and the collective; behind, it is part of whatever reads the mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from autopar.core.program import Compute, Instruction, Move, ShardedProgram, Value
from autopar.ops.traits import is_fusible
from autopar.passes.sink_all_reduce import scales


@dataclass(frozen=True)
class RaiseScalings:
    """Swaps an all-reduce, alone or in a bucket, with a scaling that a kernel ends before: same bytes, same price.

    Not where what reads the result computes in no loop, which would have to wait for the scaling instead.
    """

    name: str = "raise_scalings"

    def apply(self, program: ShardedProgram) -> ShardedProgram:
        """`program` with scalings behind all-reduces; of several in a row, each."""
        while (raised := _raised(program)) is not program:
            program = raised
        return program


def _raised(program: ShardedProgram) -> ShardedProgram:
    """`program` after all that can be swapped once was; the same object if there is none."""
    sums = [i for i in program.instructions if isinstance(i, Move) and i.kind == "all_reduce"]
    if not sums:
        return program

    uses = _Uses.of(program)
    values = dict(program.values)
    instead: dict[int, Move] = {}
    gone: set[int] = set()
    due: dict[int, list[Compute]] = {}
    for move in sums:
        found = {n: uses.scaled(move, n) for n in range(len(move.ins))}
        scaled = {n: one for n, one in found.items() if one is not None}
        if scaled:
            instead[id(move)], scalings = _swapped(values, move, scaled)
            gone.update(id(scaling) for scaling, _ in scaled.values())
            for scaling in scalings:
                due.setdefault(uses.due(scaling, move), []).append(scaling)

    if not instead:
        return program
    done: list[Instruction] = []
    for one in program.instructions:
        if id(one) in instead:
            done += [instead[id(one)], *due.get(id(one), ())]
        else:
            done += [*due.get(id(one), ()), *(() if id(one) in gone else (one,))]
    return program.with_instructions(tuple(done), values)


def _swapped(
    values: dict[int, Value], move: Move, scaled: Mapping[int, tuple[Compute, int]]
) -> tuple[Move, list[Compute]]:
    """`move` of what is scaled, by the places of these in it, and the scalings of what it makes."""
    ins = [*move.ins]
    outs = [*move.outs]
    scalings: list[Compute] = []
    for n, (scaling, operand) in scaled.items():
        ins[n] = scaling.ins[operand]
        outs[n] = len(values)
        made = move.outs[n]
        values[outs[n]] = Value(outs[n], values[ins[n]].tensor, values[made].placement)
        scalings.append(_behind(values, scaling, operand, outs[n], made))
    return move._replace(ins=tuple(ins), outs=tuple(outs)), scalings


@dataclass(frozen=True, eq=False)
class _Uses:
    """Who makes and who reads each value of a program, whose outputs are kept."""

    program: ShardedProgram
    maker: dict[int, Instruction]
    readers: dict[int, list[Instruction]]

    @classmethod
    def of(cls, program: ShardedProgram) -> _Uses:
        readers: dict[int, list[Instruction]] = {value: [] for value in program.values}
        for instruction in program.instructions:
            for value in instruction.ins:
                readers[value].append(instruction)
        return cls(program, {v: i for i in program.instructions for v in i.outs}, readers)

    def scaled(self, move: Move, place: int) -> tuple[Compute, int] | None:
        """What makes an operand of `move`, and which of its own it scales, if it may come behind."""
        made = move.outs[place]
        found = self._scaling(move.ins[place], move.region)
        if found is None or made in self.program.outputs:
            return None
        scaling, operand = found
        is_worth = self._ends(scaling.ins[operand], move.region)
        return found if is_worth and all(map(_is_in_loop, self.readers[made])) else None

    def due(self, scaling: Compute, move: Move) -> int:
        """The id of the instruction at which `scaling` is to stand: the first that reads it, if in its region."""
        (made,) = scaling.outs
        first = self.readers[made][0] if self.readers[made] else move
        return id(first if first.region == scaling.region else move)

    def _scaling(self, value: int, region: int | None) -> tuple[Compute, int] | None:
        """What makes an unreduced `value` in `region` by scaling, for one reader, and which operand it scales."""
        values = self.program.values
        one = self.maker.get(value)
        placed = values[value].placement
        if not isinstance(one, Compute) or one.region != region or placed.kind != "sum":
            return None
        if len(self.readers[value]) > 1 or value in self.program.outputs:
            return None
        unreduced = [n for n, given in enumerate(one.ins) if values[given].placement.unreduced]
        if len(unreduced) != 1 or values[one.ins[unreduced[0]]].placement != placed:
            return None
        return (one, unreduced[0]) if scales(one.op, unreduced[0]) else None

    def _ends(self, value: int, region: int | None) -> bool:
        """Whether a kernel ends with `value`, or with what it is made of by scaling."""
        while _is_in_loop(self.maker.get(value)):
            found = self._scaling(value, region)
            if found is None:
                return False
            scaling, operand = found
            value = scaling.ins[operand]
        return True


def _is_in_loop(instruction: Instruction | None) -> bool:
    """Whether it computes in a loop with what reads it, or is read by it."""
    return isinstance(instruction, Compute) and is_fusible(instruction.op)


def _behind(
    values: dict[int, Value], scaling: Compute, operand: int, reduced: int, made: int
) -> Compute:
    """`scaling` of the value `reduced`, which makes `made`."""
    ins = (*scaling.ins[:operand], reduced, *scaling.ins[operand + 1 :])
    before, after = (values[v].placement for v in (scaling.ins[operand], made))
    summed = {*before.unreduced}.difference(after.unreduced)

    def left(name: str, axes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(a for a in axes if not name.startswith("+") or a not in summed)

    factors = [(name, left(name, axes)) for name, axes in scaling.strategy.factors]
    strategy = replace(
        scaling.strategy,
        ins=tuple(values[value].placement for value in ins),
        outs=(after,),
        factors=tuple(factor for factor in factors if factor[1]),
    )
    return scaling._replace(strategy=strategy, ins=ins, outs=(made,))
