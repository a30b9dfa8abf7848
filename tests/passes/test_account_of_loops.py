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
from autopar.core.program import Compute, Move, ShardedProgram
from autopar.core.regions import BOUNDARY
from autopar.ops.exchanged import lengthening, message_bytes
from autopar.ops.fusion import materialised
from autopar.passes.pipeline import build_program
from autopar.redistribute.route import Router
from tests.equivalence.cases import Case
from tests.equivalence.draw import local_plan, uniform_plan
from tests.equivalence.loops import LOOPS, loop_case
from tests.passes.build import account, price
from tests.passes.test_account import in_registers, needs_a_copy
from tests.rounds import Event, events, made_by, positions_held

MESH = DeviceMesh.of({"x": 2, "y": 4})


def kinds(program: ShardedProgram) -> list[tuple[str, int | None]]:
    return [(i.op.kind if isinstance(i, Compute) else "", i.region) for i in program.instructions]


def fused(program: ShardedProgram, in_memory: set[int]) -> set[int]:
    """The values that stay in registers."""
    every = {value for instruction in program.instructions for value in instruction.outs}
    return {value for value in every if in_registers(program, value, in_memory)}


def reading(program: ShardedProgram, registers: set[int], value: int) -> set[int]:
    """The positions at which `value` is read, through values in registers too."""
    found: set[int] = set()
    for position, instruction in enumerate(program.instructions):
        if value in instruction.ins:
            found.add(position)
            found |= {
                p
                for out in instruction.outs
                if out in registers
                for p in reading(program, registers, out)
            }
    return found


def positions_of(
    program: ShardedProgram, run: Sequence[Event], position: int, value: int, registers: set[int]
) -> set[int]:
    """Where the `value` made at `position` is in memory.

    A boundary operator takes over the memory of what it reads for the last time, and so does what is written over that;
    a loop's last value takes that of the carry.
    """
    placed = kinds(program)
    kind, region = placed[position]
    read_at = reading(program, registers, value)
    reads = {event for event in run if event.position in read_at}
    held = positions_held(program.tree, run, made_by(program.tree, position, kind, region, reads))
    if kind == "carry_in":
        end = carried_out(program, position)
        if value not in lying_in(program, registers, program.instructions[end].ins[0]):
            return {p for p in held if p < end}
        held = {*range(position, max(read_at) + 1)}  # from then on its next value, in every round
    last = max(held)
    after = program.instructions[last].outs
    is_written_over = len(after) == 1 and taken_over(program, registers, after[0]) == value
    return (
        held - {last}
        if last != position and (placed[last][0] in BOUNDARY or is_written_over)
        else held
    )


def lying_in(program: ShardedProgram, registers: set[int], value: int) -> list[int]:
    """`value`, the value whose memory it took over, the one whose memory that took over, and so forth."""
    found = [value]
    while (before := taken_over(program, registers, found[-1])) is not None:
        found.append(before)
    return found


def taken_over(program: ShardedProgram, registers: set[int], value: int) -> int | None:
    """The value over which `value` is written, if any: nobody reads that later."""
    position, maker = next(
        ((n, i) for n, i in enumerate(program.instructions) if value in i.outs), (-1, None)
    )
    if not isinstance(maker, Compute):
        return None
    first, kind = maker.ins[0] if maker.ins else -1, maker.op.kind
    if kind == "carry_out":
        entering = [
            n for n, placed in enumerate(kinds(program)) if placed == ("carry_in", maker.region)
        ]
        (carry,) = program.instructions[
            next(n for n in entering if carried_out(program, n) == position)
        ].outs
        return first if carry in lying_in(program, registers, first) else carry
    if kind not in ("carry_in", "dynamic_update_slice") and not kind.startswith("scatter"):
        return None
    if first in {*program.inputs, *program.outputs, *registers} or not is_made_in_round(
        program, first, maker
    ):
        return None
    readers = [i for i in program.instructions if first in i.ins]
    waiting = {
        p
        for i in readers
        for out in i.outs
        if out in registers
        for p in reading(program, registers, out)
    }
    is_last = max(reading(program, registers, first)) == position and position not in waiting
    is_as_large = program.local_bytes(first) == program.local_bytes(value)
    return first if is_last and is_as_large and maker.ins.count(first) == 1 else None


def is_made_in_round(program: ShardedProgram, value: int, reader: Compute) -> bool:
    """Whether `value` is made in the round in which `reader` reads it; literals are not made."""
    tree = program.tree
    for instruction, (kind, region) in zip(program.instructions, kinds(program), strict=True):
        if value in instruction.outs:
            read_in = tree.reads_in(reader.op.kind, reader.region, 0)
            return tree.loop_around(tree.made_in(kind, region), read_in) is None
    return False


def carried_out(program: ShardedProgram, entering: int) -> int:
    """The position of the carry_out that belongs to the carry_in at `entering`."""

    def carry(position: int) -> tuple[object, ...]:
        instruction = program.instructions[position]
        return (
            (instruction.region, instruction.op.params["position"])
            if isinstance(instruction, Compute)
            else ()
        )

    leaving = (position for position, (kind, _) in enumerate(kinds(program)) if kind == "carry_out")
    return next(position for position in leaving if carry(position) == carry(entering))


def exchanging(program: ShardedProgram, compute: Compute) -> int:
    """The bytes of the messages of an operator, and of the operands that it holds lengthened."""
    longer = {(e.tensor, e.axes) for e in lengthening(compute.op, compute.strategy, program.mesh)}
    copies = [
        program.local_bytes(compute.ins[tensor])
        for tensor, _ in longer
        if tensor < len(compute.ins)
    ]
    return message_bytes(compute.exchanges) + sum(copies)


def slow_peak(program: ShardedProgram, in_memory: set[int]) -> int:
    """The most bytes at any position: arguments, results, and what is held there."""
    registers = fused(program, in_memory)
    fixed = {*program.inputs, *program.outputs} | registers
    made = [
        (position, v)
        for position, i in enumerate(program.instructions)
        for v in i.outs
        if v not in fixed
    ]
    run = events(program.tree, kinds(program))
    held = {
        value: positions_of(program, run, position, value, registers) for position, value in made
    }
    base = most = sum(program.local_bytes(v) for v in (*program.inputs, *program.outputs))
    for position, instruction in enumerate(program.instructions):
        alive = [v for v, positions in held.items() if position in positions]
        beside = (
            instruction.size_bytes
            if isinstance(instruction, Move) and needs_a_copy(instruction)
            else 0
        )
        beside += exchanging(program, instruction) if isinstance(instruction, Compute) else 0
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


def updates(x: Any, w: Any) -> Any:
    """A cache into which every round writes, and another that is read after it was written to."""

    def body(n: Any, carry: Any) -> Any:
        h, cache, other = carry
        cache = jax.lax.dynamic_update_slice(cache, h[None], (n, 0, 0))
        h = jnp.sort(cache[n] @ w, axis=-1)
        return h, cache, other.at[n].add(h) + other

    zeros = jnp.sort(jnp.zeros((4, *x.shape)), axis=0)
    return jax.lax.fori_loop(0, 4, body, (x, zeros, zeros))[0]


@lru_cache
def case(name: str) -> Case:
    if name in LOOPS:
        return loop_case(name, "float32")
    if name == "updates":
        return Case(updates, (np.ones((8, 8), "float32"), np.ones((8, 8), "float32")), "float32")
    return Case(long_parts, (np.ones((4, 8, 8), "float32"), np.ones((8, 8), "float32")), "float32")


@pytest.mark.quick_share(8)
@pytest.mark.parametrize("everything", [True, False], ids=["all in memory", "fused"])
@pytest.mark.parametrize("name", [*LOOPS, "long_parts", "updates"])
def test_random_plans_of_loops_peak_as_walked(name: str, everything: bool) -> None:
    found = case(name)
    space = found.space(MESH)
    for seed in range(4):
        stage = uniform_plan(space, seed) if seed % 2 else local_plan(found, space, seed)
        program = build_program(found.graph, found.flow, stage, Router(MESH, price), price)
        tensors = {v.tensor.id for v in program.values.values()}
        in_memory = tensors if everything else set(materialised(found.graph))
        assert account(program, no_cost, in_memory).peak_memory_bytes == slow_peak(
            program, in_memory
        )


def no_cost(*_: object) -> float:
    return 0.0
