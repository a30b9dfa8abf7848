"""Sink: elements are put in another order only where they are wanted so, as XLA's `ReshapeMover` does.

An operator that works element by element on values which are all put in order in one way runs before that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

from autopar.backends.xla_cpu.node import NARROW
from autopar.core.program import Compute, Instruction, Move, ShardedProgram


class Turn(NamedTuple):
    """How elements are put in another order: by what, in which region, from which local shape, which dims change
    places, and the dim that is put together of two, if there is one.
    """

    kind: str
    region: int | None
    shape: tuple[int, ...]
    dims: tuple[int | None, ...]
    joined: int | None


@dataclass(frozen=True)
class Sunk:
    """`turns`: the values whose elements are put in another order, where they are made or behind their operator.
    `behind`: those of them that are made by such an operator. `moved`: those of them that nobody wants in that order.
    """

    turns: Mapping[int, Turn] = field(default_factory=dict[int, Turn])
    behind: frozenset[int] = frozenset()
    moved: frozenset[int] = frozenset()


def sunk(
    program: ShardedProgram,
    is_elementwise: Callable[[Compute], bool],
    is_view: Callable[[Compute], bool],
) -> Sunk:
    """What sinks in `program`: as much as can, so operators are taken out of all that might run before, one by one."""
    readers: dict[int, list[Instruction]] = {}
    for instruction in program.instructions:
        for value in instruction.ins:
            readers.setdefault(value, []).append(instruction)

    turns: dict[int, Turn] = {}
    operators: dict[int, Compute] = {}
    for instruction in program.instructions:
        turn = _turn(program, instruction, is_view)
        if turn is None and isinstance(instruction, Compute) and is_elementwise(instruction):
            turn = _common(program, instruction, turns)
            if turn is not None:
                operators[instruction.outs[0]] = instruction
        if turn is not None:
            turns[instruction.outs[0]] = turn

    while True:
        moved = {
            v for v in turns if v in readers and all(_first(r) in operators for r in readers[v])
        }
        moved -= set(program.outputs)
        lost = [
            v
            for v, op in operators.items()
            if not all(i in moved or _is_alike(program, i) for i in op.ins)
        ]
        if not lost:
            return Sunk(turns, frozenset(operators), frozenset(moved))
        for value in lost:
            del operators[value], turns[value]


def _first(instruction: Instruction) -> int | None:
    return instruction.outs[0] if instruction.outs else None


def _turn(
    program: ShardedProgram, instruction: Instruction, is_view: Callable[[Compute], bool]
) -> Turn | None:
    """How an instruction puts elements in another order; None if it does not."""
    if len(instruction.ins) != 1 or len(instruction.outs) != 1:
        return None

    value = program.values[instruction.ins[0]]
    shape = value.placement.local_shape(value.tensor.shape, program.mesh)
    if value.tensor.dtype in NARROW:
        return None

    if isinstance(instruction, Move) and instruction.kind == "all_to_all":
        dims = instruction.dim, instruction.to_dim, program.mesh.product(instruction.axes)
        return Turn("all_to_all", instruction.region, shape, dims, instruction.dim or 0)

    if (
        isinstance(instruction, Move)
        and instruction.kind == "all_gather"
        and prod(shape[: instruction.dim or 0]) > 1
    ):
        dims = instruction.dim, program.mesh.product(instruction.axes)
        return Turn("all_gather", instruction.region, shape, dims, instruction.dim or 0)

    if (
        isinstance(instruction, Compute)
        and instruction.op.kind == "transpose"
        and not is_view(instruction)
    ):
        return Turn(
            "transpose",
            instruction.region,
            shape,
            tuple(instruction.op.params["permutation"]),
            None,
        )

    return None


def _common(program: ShardedProgram, compute: Compute, turns: Mapping[int, Turn]) -> Turn | None:
    """How all operands of an operator are put in order; None if not all in one way and in its region."""
    found = {turns.get(value) for value in compute.ins if not _is_alike(program, value)}
    (turn,) = found if len(found) == 1 else (None,)
    return turn if turn is not None and turn.region == compute.region else None


def _is_alike(program: ShardedProgram, value: int) -> bool:
    """Whether all elements of a value are the same one."""
    tensor = program.values[value].tensor
    return tensor.literal is not None or prod(tensor.shape) == 1
