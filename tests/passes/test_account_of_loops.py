"""account: the peak of programs with loops, against a walk of every round that asks what is still to be read."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autopar.core.mesh import DeviceMesh
from autopar.core.regions import BOUNDARY
from autopar.passes.account import account
from autopar.passes.pipeline import build_program
from autopar.passes.program import Compute, Move, ShardedProgram
from autopar.price.work import materialised
from autopar.redistribute.route import Router
from tests.equivalence.cases import Case
from tests.equivalence.draw import local_plan, uniform_plan
from tests.equivalence.loops import LOOPS, loop_case
from tests.passes.build import price
from tests.passes.test_account import needs_a_copy
from tests.rounds import Event, events, made_by, positions_held

MESH = DeviceMesh.of({"x": 2, "y": 4})


def kinds(program: ShardedProgram) -> list[tuple[str, int | None]]:
    return [(i.op.kind if isinstance(i, Compute) else "", i.region) for i in program.instructions]


def fused(program: ShardedProgram, in_memory: set[int]) -> set[int]:
    """The values that stay in registers: not said to reach memory, made by an operator and read once, by another."""
    found: set[int] = set()
    for maker in program.instructions:
        for value in maker.outs:
            readers = [i for i in program.instructions for v in i.ins if v == value]
            by_operators = all(isinstance(i, Compute) for i in (maker, *readers))
            kept = value in program.outputs or program.values[value].tensor.id in in_memory
            if len(readers) == 1 and by_operators and not kept:
                found.add(value)
    return found


def reading(program: ShardedProgram, registers: set[int], value: int) -> set[int]:
    """The positions at which `value` is read, through values in registers too."""
    found: set[int] = set()
    for position, instruction in enumerate(program.instructions):
        if value in instruction.ins:
            found.add(position)
            found |= {p for out in instruction.outs if out in registers for p in reading(program, registers, out)}
    return found


def positions_of(
    program: ShardedProgram, run: Sequence[Event], position: int, value: int, registers: set[int]
) -> set[int]:
    """Where the `value` made at `position` is in memory.

    A boundary operator takes over the memory of what it reads for the last time, and a loop's last value that of the
    carry.
    """
    placed = kinds(program)
    kind, region = placed[position]
    read_at = reading(program, registers, value)
    reads = {event for event in run if event.position in read_at}
    held = positions_held(program.tree, run, made_by(program.tree, position, kind, region, reads))
    if kind == "carry_in":
        return {p for p in held if p < carried_out(program, position)}
    last = max(held)
    return held - {last} if last != position and placed[last][0] in BOUNDARY else held


def carried_out(program: ShardedProgram, entering: int) -> int:
    """The position of the carry_out that belongs to the carry_in at `entering`."""

    def carry(position: int) -> tuple[object, ...]:
        instruction = program.instructions[position]
        return (instruction.region, instruction.op.params["position"]) if isinstance(instruction, Compute) else ()

    leaving = (position for position, (kind, _) in enumerate(kinds(program)) if kind == "carry_out")
    return next(position for position in leaving if carry(position) == carry(entering))


def slow_peak(program: ShardedProgram, in_memory: set[int]) -> int:
    """The most bytes at any position: arguments, results, and what is held there."""
    registers = fused(program, in_memory)
    fixed = {*program.inputs, *program.outputs} | registers
    made = [(position, v) for position, i in enumerate(program.instructions) for v in i.outs if v not in fixed]
    run = events(program.tree, kinds(program))
    held = {value: positions_of(program, run, position, value, registers) for position, value in made}
    base = most = sum(program.local_bytes(v) for v in (*program.inputs, *program.outputs))
    for position, instruction in enumerate(program.instructions):
        alive = [v for v, positions in held.items() if position in positions]
        beside = instruction.size_bytes if isinstance(instruction, Move) and needs_a_copy(instruction) else 0
        most = max(most, base + beside + sum(program.local_bytes(v) for v in alive))
    return most


def long_parts(x: Any, w: Any) -> Any:
    """Parts made before the loop, large things made in it: both are there in every round."""
    parts = jnp.sort(x @ w, axis=-1)

    def body(h: Any, part: Any) -> Any:
        wide = jnp.sort(h[:, :, None] * part, axis=0)
        return wide.sum(0) @ w, wide.max(0)

    h, rows = jax.lax.scan(body, x[0], parts)
    return h, jnp.sort(rows, axis=0)


@lru_cache
def case(name: str) -> Case:
    if name in LOOPS:
        return loop_case(name, "float32")
    return Case(long_parts, (np.ones((4, 8, 8), "float32"), np.ones((8, 8), "float32")), "float32")


@pytest.mark.parametrize("everything", [True, False], ids=["all in memory", "fused"])
@pytest.mark.parametrize("name", [*LOOPS, "long_parts"])
def test_random_plans_of_loops_peak_as_walked(name: str, everything: bool) -> None:
    found = case(name)
    space = found.space(MESH)
    for seed in range(4):
        stage = uniform_plan(space, seed) if seed % 2 else local_plan(found, space, seed)
        program = build_program(found.graph, found.flow, stage, Router(MESH, price), price)
        tensors = {v.tensor.id for v in program.values.values()}
        in_memory = tensors if everything else set(materialised(found.graph))
        assert account(program, no_cost, in_memory).peak_memory_bytes == slow_peak(program, in_memory)


def no_cost(*_: object) -> float:
    return 0.0
