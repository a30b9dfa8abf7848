"""update_order: the update of a step in the order in which its gradients come.

A function updates parameters in the order in which it has them, first layers first; a backward pass leaves the
gradients of first layers last. In that order the first update waits for the last reduction, and nothing is computed
beside any. A compiler that hides latencies takes up what is ready: the update of each parameter once its own gradient
is reduced.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from autopar.core.program import Compute, Instruction, Move, ShardedProgram
from autopar.ops.traits import is_cast_or_rearrangement

Bytes = NDArray[np.int64]


def in_update_order(program: ShardedProgram, held: Bytes) -> tuple[ShardedProgram, Bytes]:
    """`program` with its update in that order, and what a device holds at each instruction.

    In another order that is taken to be the most that is held anywhere in the update, and what the order needs beyond
    that; where it needs more than the peak, the order stays.

    Args:
      program: routed (no Convert left).
      held: what one device holds at each instruction.
    """
    update = _update(program)
    order = _by_gradient(program, update)
    if order == list(update):
        return program, held

    more = max(0, _peak(program, order) - _peak(program, update))
    needed = held[update.start :].max() + more
    if needed > held.max():
        return program, held

    instructions = program.instructions
    ordered = (*instructions[: update.start], *(instructions[n] for n in order))
    most = held.copy()
    most[update.start :] = needed
    return program.with_instructions(ordered), most


def _peak(program: ShardedProgram, order: Sequence[int]) -> int:
    """The most bytes alive in an update in this order, of what is no argument and no result of the program."""
    last = {v: at for at, n in enumerate(order) for v in program.instructions[n].ins}
    made = {v for n in order for v in program.instructions[n].outs}
    fixed = {*program.inputs, *program.outputs}
    size = {v: 0 if v in fixed else program.local_bytes(v) for v in {*last, *made}}
    alive = sum(size[v] for v in last if v not in made)
    peak = alive

    for at, n in enumerate(order):
        one = program.instructions[n]
        alive += sum(size[v] for v in one.outs)
        peak = max(peak, alive)
        ended = {v for v in one.ins if last[v] == at}.union(v for v in one.outs if v not in last)
        alive -= sum(size[v] for v in ended)
    return peak


def _update(program: ShardedProgram) -> range:
    """What stands behind the backward pass and all regions, if it updates anything; what has effects bounds it too."""
    instructions = program.instructions
    behind = takewhile(_may_be_in_update, reversed(instructions))
    count = sum(1 for _ in behind)
    tail = range(len(instructions) - count, len(instructions))
    return tail if any(_updates(instructions[n]) for n in tail) else tail[:0]


def _by_gradient(program: ShardedProgram, update: range) -> list[int]:
    """The positions of `update` in the order in which what they need is there, each behind what it depends on.

    What reduces what is computed before comes first, as it stands: all of that is there. Of the rest that comes first
    whose last reduction ends first, as they run one after the other. What nothing in the update reads pulls what it
    depends on along.
    """
    instructions = program.instructions
    made_at = {v: n for n, one in enumerate(instructions) for v in one.outs}
    come_s, reductions = _arrivals(instructions, made_at, update)
    read = {v for n in update for v in instructions[n].ins}
    last = [n for n in update if read.isdisjoint(instructions[n].outs)]
    order: dict[int, None] = {}
    for n in (*reductions, *sorted(last, key=lambda n: (come_s[n], n))):
        order.update(dict.fromkeys(_with_ancestors(instructions, made_at, update, n, order)))
    return list(order)


def _arrivals(
    instructions: Sequence[Instruction], made_at: dict[int, int], update: range
) -> tuple[dict[int, float], list[int]]:
    """For each position the seconds of communicating after which all that it needs is there; the first of `update`.

    These are the collectives that need nothing new of what is computed there: a gradient may be turned before it is
    reduced.
    """
    come_s: dict[int, float] = {}
    passed_s = 0.0
    computed: set[int] = set()
    first: list[int] = []

    for n, one in enumerate(instructions):
        makers = [made_at.get(v, -1) for v in one.ins]
        come_s[n] = max((come_s[m] for m in makers if m in come_s), default=0.0)
        is_new = isinstance(one, Compute) and one.op.phase != "backward"
        if n in update and (is_new or not computed.isdisjoint(makers)):
            computed.add(n)
        elif isinstance(one, Move) and one.is_collective and one.region is None:
            passed_s += one.time_s
            come_s[n] = passed_s
            if n in update:
                first.append(n)
    return come_s, first


def _with_ancestors(
    instructions: Sequence[Instruction],
    made_at: dict[int, int],
    update: range,
    position: int,
    known: dict[int, None],
) -> list[int]:
    """`position` and what it depends on in `update`, of what is not `known`, in the order of the program."""
    found = {position}.difference(known)
    left = list(found)
    while left:
        for v in instructions[left.pop()].ins:
            maker = made_at.get(v, -1)
            if maker in update and maker not in known and maker not in found:
                found.add(maker)
                left.append(maker)
    return sorted(found)


def _may_be_in_update(one: Instruction) -> bool:
    if one.region is not None:
        return False
    if not isinstance(one, Compute):
        return True
    is_free = one.op.phase != "backward" or is_cast_or_rearrangement(one.op)
    return is_free and one.op.effect is None


def _updates(one: Instruction) -> bool:
    return isinstance(one, Compute) and one.op.phase == "update"
