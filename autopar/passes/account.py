"""account: what a program costs in time and memory, read off its instructions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from autopar.core.graph import OpNode
from autopar.core.strategy import Strategy
from autopar.passes.program import Compute, Move, ShardedProgram

OpCost = Callable[[OpNode, Strategy], float]


@dataclass(frozen=True)
class Account:
    """Seconds of computing and of communicating, one after the other, and the peak of one device's memory.

    `peak_at` is the position of the instruction at which the peak is reached, `peak_values` what is alive there,
    largest first.
    """

    compute_time_s: float
    communication_time_s: float
    peak_memory_bytes: int
    peak_at: int
    peak_values: tuple[int, ...]

    @property
    def step_time_s(self) -> float:
        """The price of the program: nothing overlaps."""
        return self.compute_time_s + self.communication_time_s


def account(
    program: ShardedProgram, op_cost: OpCost, in_memory: Collection[int], donated: Sequence[int] = ()
) -> Account:
    """The account of `program`.

    Args:
      program: routed (no Convert left).
      op_cost: seconds of an operator under a strategy.
      in_memory: ids of the tensors that reach memory (`price.work.materialised`).
      donated: positions of the inputs whose memory may be used again after their last use.
    """
    compute = sum(op_cost(i.op, i.strategy) for i in program.instructions if isinstance(i, Compute))
    moving = sum(i.time_s for i in program.instructions if isinstance(i, Move))
    peak, peak_at, alive = _peak(program, in_memory, donated)
    return Account(compute, moving, peak, peak_at, alive)


def _peak(
    program: ShardedProgram, in_memory: Collection[int], donated: Sequence[int]
) -> tuple[int, int, tuple[int, ...]]:
    """The largest sum of live bytes, where it is reached and by what.

    A value lives from the instruction that makes it to its last use; one that stays in registers takes nothing but
    keeps its operands alive until it is used. Inputs live throughout unless donated and read, outputs from when they
    are made.
    A bucket also holds one flat copy of its operands while it runs.
    """
    end = len(program.instructions)
    registers = _registers(program, in_memory)
    last = _last_uses(program, registers)
    last.update(dict.fromkeys(program.outputs, end))
    last.update({value: end for n, value in enumerate(program.inputs) if n not in donated})
    size = {value: 0 if value in registers else program.local_bytes(value) for value in program.values}
    alive = dict.fromkeys(program.inputs)
    leaving: dict[int, list[int]] = {}
    for value, position in last.items():
        leaving.setdefault(position, []).append(value)
    now = sum(size[value] for value in alive)
    best = (now, -1, tuple(alive))
    for position, instruction in enumerate(program.instructions):
        for value in instruction.outs:
            alive[value] = None
            now += size[value]
        bucket = sum(size[v] for v in instruction.ins) if len(instruction.ins) > 1 and _is_bucket(instruction) else 0
        if now + bucket > best[0]:
            best = (now + bucket, position, tuple(alive))
        for value in (*leaving.get(position, ()), *instruction.outs):
            if value in alive and last.get(value, position) <= position:
                del alive[value]
                now -= size[value]
    peak, peak_at, values = best
    return peak, peak_at, tuple(sorted((v for v in values if size[v]), key=lambda v: (-size[v], v)))


def _is_bucket(instruction: object) -> bool:
    return isinstance(instruction, Move) and instruction.kind == "all_reduce"


def _registers(program: ShardedProgram, in_memory: Collection[int]) -> set[int]:
    """The values that never reach memory: fused into the one operator that reads them."""
    readers: dict[int, list[object]] = {}
    for instruction in program.instructions:
        for value in instruction.ins:
            readers.setdefault(value, []).append(instruction)
    kept = set(program.inputs) | set(program.outputs)
    found: set[int] = set()
    for instruction in program.instructions:
        for value in instruction.outs:
            only = readers.get(value, [])
            if value in kept or program.values[value].tensor.id in in_memory or not isinstance(instruction, Compute):
                continue
            if len(only) == 1 and isinstance(only[0], Compute):
                found.add(value)
    return found


def _last_uses(program: ShardedProgram, registers: set[int]) -> dict[int, int]:
    last: dict[int, int] = {}
    for position in range(len(program.instructions) - 1, -1, -1):
        instruction = program.instructions[position]
        until = max([position, *(last.get(v, position) for v in instruction.outs if v in registers)])
        for value in instruction.ins:
            last[value] = max(last.get(value, -1), until)
    return last
