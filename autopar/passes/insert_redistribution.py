"""insert_redistribution: every change of placement becomes the moves of its cheapest route."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from autopar.core.graph import TensorInfo
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.core.program import (
    REDUCTIONS,
    Compute,
    Convert,
    Instruction,
    Move,
    Role,
    ShardedProgram,
    Value,
)
from autopar.ops.traits import is_fusible
from autopar.redistribute.collective import size_bytes
from autopar.redistribute.route import Router
from autopar.redistribute.step import Step


@dataclass(frozen=True)
class _PricedStep:
    """A step, its bytes, its price, and what it does in words: the same for all tensors of one kind."""

    step: Step
    size_bytes: int
    time_s: float
    reason: str


@dataclass(frozen=True)
class InsertRedistribution:
    """Routes every Convert with `router`, whose prices moves have; outside of loops those of
    `waiting` as shared, those of `ready` as joined.

    What all readers of a Convert do in their loops (`cost.local_steps`) is routed and priced as fused.
    """

    router: Router
    waiting: frozenset[int] = frozenset()
    ready: frozenset[int] = frozenset()
    name: str = "insert_redistribution"

    def apply(self, program: ShardedProgram) -> ShardedProgram:
        """`program` with moves in place of Converts."""
        values = dict(program.values)
        known: dict[tuple[object, ...], tuple[_PricedStep, ...]] = {}
        fused = _fused(program) if self.router.fused is not self.router else frozenset[int]()
        instructions: list[Instruction] = []
        for instruction in program.instructions:
            if isinstance(instruction, Convert):
                router = self._router(program, instruction, fused)
                instructions += self._moves(program, instruction, values, known, router)
            else:
                instructions.append(instruction)
        return program.with_instructions(tuple(instructions), values)

    def _moves(
        self,
        program: ShardedProgram,
        convert: Convert,
        values: dict[int, Value],
        known: dict[tuple[object, ...], tuple[_PricedStep, ...]],
        router: Router,
    ) -> list[Move]:
        source = program.values[convert.before]
        target = program.values[convert.after]
        tensor = source.tensor
        key = (
            tensor.shape,
            tensor.itemsize,
            id(source.placement),
            id(target.placement),
            id(router),
        )
        if key not in known:
            known[key] = self._route(
                router, tensor, source.placement, target.placement, program.mesh
            )

        route = known[key]
        moves: list[Move] = []
        before = convert.before
        for position, priced in enumerate(route):
            after = (
                convert.after
                if position == len(route) - 1
                else _new_value(values, before, priced.step)
            )
            moves.append(_move(convert, priced, before, after))
            before = after

        return moves

    def _router(self, program: ShardedProgram, convert: Convert, fused: frozenset[int]) -> Router:
        tensor = program.values[convert.before].tensor
        router = self.router.of(tensor)
        if tensor.id in self.waiting and program.runs(convert) == 1:
            return router.shared
        is_joined = router.joined is not router and tensor.id in self.ready
        if is_joined and program.runs(convert) == 1:
            return router.joined
        return router.fused if convert.after in fused else router

    def _route(
        self,
        router: Router,
        tensor: TensorInfo,
        source: Placement,
        target: Placement,
        mesh: DeviceMesh,
    ) -> tuple[_PricedStep, ...]:
        shape = tensor.shape
        itemsize = tensor.itemsize
        price = self.router if router is self.router.of(tensor).shared else router
        return tuple(
            _PricedStep(
                step,
                size_bytes(step, shape, itemsize, mesh),
                price.step_cost(step, shape, itemsize),
                f"{step.before} -> {step.after}",
            )
            for step in router.route(shape, itemsize, source, target)
        )


def _move(convert: Convert, priced: _PricedStep, before: int, after: int) -> Move:
    step = priced.step

    return Move(
        step.kind,
        step.axes,
        (before,),
        (after,),
        priced.size_bytes,
        priced.time_s,
        _role(step, convert),
        step.dim,
        step.to_dim,
        convert.region,
        convert.op.source if convert.op else "",
        priced.reason,
    )


def _fused(program: ShardedProgram) -> frozenset[int]:
    """The values that Converts make of which all readers do what is local in their loops."""
    users = users_of(program)
    found = set[int]()
    for convert in reversed([i for i in program.instructions if isinstance(i, Convert)]):
        readers = [program.instructions[position] for position in users.get(convert.after, ())]
        in_loops = all(_in_loop(convert, reader, found) for reader in readers)
        if readers and in_loops and convert.after not in program.outputs:
            found.add(convert.after)
    return frozenset(found)


def _in_loop(convert: Convert, reader: Instruction, fused: Collection[int]) -> bool:
    """Whether `reader` takes what is local of `convert` into its loop, or into that of its own readers."""
    if reader.region != convert.region:
        return False
    return (
        reader.after in fused
        if isinstance(reader, Convert)
        else isinstance(reader, Compute) and is_fusible(reader.op)
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
