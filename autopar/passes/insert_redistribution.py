"""insert_redistribution: every change of placement becomes the moves of its cheapest route."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autopar.passes.program import REDUCTIONS, Convert, Instruction, Move, Role, ShardedProgram, Value
from autopar.redistribute.collective import size_bytes
from autopar.redistribute.route import Router
from autopar.redistribute.step import Step


@dataclass(frozen=True)
class InsertRedistribution:
    """Routes every Convert with `router`, at whose prices moves are."""

    router: Router
    name: str = "insert_redistribution"

    def apply(self, program: ShardedProgram) -> ShardedProgram:
        """`program` with moves in place of Converts."""
        values = dict(program.values)
        instructions: list[Instruction] = []
        for instruction in program.instructions:
            if isinstance(instruction, Convert):
                instructions += self._moves(program, instruction, values)
            else:
                instructions.append(instruction)
        return program.with_instructions(tuple(instructions), values)

    def _moves(self, program: ShardedProgram, convert: Convert, values: dict[int, Value]) -> list[Move]:
        source, target = program.values[convert.before], program.values[convert.after]
        tensor = source.tensor
        route = self.router.route(tensor.shape, tensor.itemsize, source.placement, target.placement)
        moves: list[Move] = []
        before = convert.before
        for position, step in enumerate(route):
            after = convert.after if position == len(route) - 1 else _new_value(values, before, step)
            moves.append(self._move(program, convert, step, before, after))
            before = after
        return moves

    def _move(self, program: ShardedProgram, convert: Convert, step: Step, before: int, after: int) -> Move:
        tensor = program.values[convert.before].tensor
        size = size_bytes(step, tensor.shape, tensor.itemsize, program.mesh)
        return Move(
            step.kind,
            step.axes,
            (before,),
            (after,),
            size,
            self.router.step_cost(step, tensor.shape, tensor.itemsize),
            _role(step, convert),
            step.dim,
            step.to_dim,
            convert.region,
            convert.op.source if convert.op else "",
            f"{step.before} -> {step.after}",
        )


def _new_value(values: dict[int, Value], before: int, step: Step) -> int:
    value = Value(len(values), values[before].tensor, step.after)
    values[value.id] = value
    return value.id


def _role(step: Step, convert: Convert) -> Role:
    if step.kind not in REDUCTIONS:
        return "redistribution"
    return "forward" if convert.op is None or convert.op.phase == "forward" else "backward"


def users_of(program: ShardedProgram) -> Mapping[int, tuple[int, ...]]:
    """For each value the positions of the instructions that read it."""
    found: dict[int, list[int]] = {}
    for position, instruction in enumerate(program.instructions):
        for value in instruction.ins:
            found.setdefault(value, []).append(position)
    return {value: tuple(positions) for value, positions in found.items()}
