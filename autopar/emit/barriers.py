"""Anew: what a program computes once more must not be merged with the first time, nor run before it is due.

A compiler that sees two equal computations keeps the result of one. So what a recomputation reads goes through an
optimization barrier, together with what the backward pass made last: as jax.checkpoint does. In the body of another
loop than the first time there is nothing to merge with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax

from autopar._compat import pcast_varying, untyped_jax, varying_axes
from autopar.backends.backend import Backend
from autopar.core.program import Compute, Instruction, ShardedProgram
from autopar.core.repeated import repeated

Array = jax.Array
lax = untyped_jax.lax


@dataclass(frozen=True)
class BarrierReads:
    """What instruction `position` of a recomputation reads through a barrier: `values`, beside the value `after`."""

    values: frozenset[int]
    after: int | None


def anew(program: ShardedProgram, backend: Backend) -> dict[int, BarrierReads]:
    """The instructions outside of regions that recompute, or move something for those only, by position.

    And wherever they stand the derivatives that repeat what a function of the forward pass computes.
    """
    functions = repeated([one.op for one in program.instructions if isinstance(one, Compute)])
    chosen = _recomputing(program)
    made = {value for n in chosen for value in program.instructions[n].outs}
    found: dict[int, BarrierReads] = {}
    after: int | None = None
    for position, instruction in enumerate(program.instructions):
        if isinstance(instruction, Compute) and instruction.op.id in functions:
            function = functions[instruction.op.id]
            if function.phase != instruction.op.phase:
                own = frozenset(instruction.ins[: len(function.ins)])
                behind = after if instruction.region is None else None
                found[position] = BarrierReads(own, behind)
        if position in chosen:
            found[position] = BarrierReads(frozenset(instruction.ins) - made, after)
        elif (
            isinstance(instruction, Compute)
            and instruction.op.phase == "backward"
            and instruction.region is None
            and not backend.may_fuse(instruction.op)  # behind a barrier it would be in memory
        ):
            after = instruction.outs[0] if instruction.outs else after

    return found


def _recomputing(program: ShardedProgram) -> frozenset[int]:
    readers: dict[int, list[int]] = {}
    for position, instruction in enumerate(program.instructions):
        for value in instruction.ins:
            readers.setdefault(value, []).append(position)
    found: set[int] = set()
    kept = set(program.outputs)
    for position in range(len(program.instructions) - 1, -1, -1):
        instruction = program.instructions[position]
        if instruction.region is None and _serves(instruction, readers, kept, found):
            found.add(position)
    return frozenset(found)


def _serves(
    instruction: Instruction, readers: dict[int, list[int]], kept: set[int], found: set[int]
) -> bool:
    if isinstance(instruction, Compute):
        return instruction.op.recomputes is not None
    reading = {n for value in instruction.outs for n in readers.get(value, ())}
    return bool(reading) and reading <= found and kept.isdisjoint(instruction.outs)


def behind_barrier(
    due: BarrierReads, ins: Sequence[int], values: Sequence[Array], env: dict[int, Array]
) -> Sequence[Array]:
    """`values`, which are those numbered `ins`, with what must wait behind a barrier."""
    waiting: dict[frozenset[str], list[int]] = {}
    for n, value in enumerate(ins):
        if value in due.values and value in env:
            waiting.setdefault(varying_axes(values[n]), []).append(n)

    found = list(values)
    for axes, members in waiting.items():  # behind a barrier all would vary over the axes of all
        last = [pcast_varying(env[n], axes) for n in (due.after,) if n is not None and n in env]
        beside = [value for value in last if varying_axes(value) == axes]
        held = lax.optimization_barrier([*(values[n] for n in members), *beside])
        for n, value in zip(members, held, strict=False):
            found[n] = value

    return found
