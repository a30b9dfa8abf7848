"""sink_all_reduce: all-reduces move past views and scalings of their results, so that more end up side by side."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from autopar.core.graph import OpNode
from autopar.core.strategy import Strategy
from autopar.passes.program import Compute, Instruction, Move, ShardedProgram, Value
from autopar.price.work import SCALINGS, is_view, passes_sums


def scales(op: OpNode, position: int) -> bool:
    """Whether the result of `op` is operand `position` times something else: linear in it, and of its size and type.

    Of a tensor and a multiple of it neither operand is: unreduced halves of a square would become another product.
    What the update does with a gradient comes after the gradient is whole.
    """
    if op.kind not in SCALINGS or op.phase == "update":
        return False
    held, (made,) = op.ins[position], op.outs
    if (held.shape, held.dtype) != (made.shape, made.dtype):
        return False
    by = [tensor.root for n, tensor in enumerate(op.ins) if n != position]
    return held.root not in by and (op.kind != "div" or (position == 0 and "float" in held.dtype))


@dataclass(frozen=True)
class SinkAllReduce:
    """Swaps an all-reduce with the view or scaling that is the only reader of its result: same bytes, same price.

    A gradient is often reduced over the batch and then reshaped, the statistics of a batch are summed and then divided:
    behind that the all-reduces are independent of everything in between, and one bucket can hold them.
    """

    name: str = "sink_all_reduce"

    def apply(self, program: ShardedProgram) -> ShardedProgram:
        """`program` with every all-reduce of a sum behind the views and scalings of its result."""
        readers = _readers_of_sums(program)
        if not readers:
            return program
        values = dict(program.values)
        sunk: dict[int, Move] = {}
        done: list[Instruction] = []
        for instruction in program.instructions:
            waiting = instruction
            if sunk and not sunk.keys().isdisjoint(instruction.ins):
                met = [sunk.pop(v) for v in dict.fromkeys(instruction.ins) if v in sunk]
                done += met[:-1]
                assert isinstance(instruction, Compute)
                swapped, waiting = _swapped(values, met[-1], instruction)
                done.append(swapped)
            if isinstance(waiting, Move) and _can_sink(program, values, waiting, readers):
                sunk[waiting.outs[0]] = waiting
            else:
                done.append(waiting)
        return program.with_instructions(tuple(done), values)


def _readers_of_sums(program: ShardedProgram) -> dict[int, list[Instruction]]:
    """Who reads the result of each all-reduce, and what views and scalings make of it, but of the program's outputs."""
    kept = frozenset(program.outputs)
    readers: dict[int, list[Instruction]] = {}
    for instruction in program.instructions:
        reads = not readers.keys().isdisjoint(instruction.ins)
        if reads:
            for value in instruction.ins:
                if value in readers:
                    readers[value].append(instruction)
        if isinstance(instruction, Move):
            is_sum = instruction.kind == "all_reduce"
        else:
            is_sum = reads and isinstance(instruction, Compute) and passes_sums(instruction.op)
        if is_sum:
            readers.update((value, []) for value in instruction.outs if value not in kept)
    return readers


def _can_sink(
    program: ShardedProgram, values: dict[int, Value], move: Move, readers: dict[int, list[Instruction]]
) -> bool:
    """Whether `move` is an all-reduce whose only reader can come before it."""
    if move.kind != "all_reduce" or len(move.outs) != 1:
        return False
    (value,) = move.outs
    only = readers.get(value, [])
    if len(only) != 1 or not isinstance(only[0], Compute):
        return False
    reader = only[0]
    if reader.region != move.region or is_view(reader.op):
        return reader.region == move.region
    others_whole = all(v == value or not values[v].placement.unreduced for v in reader.ins)
    is_sum = values[move.ins[0]].placement.kind == "sum"
    return is_sum and others_whole and scales(reader.op, reader.ins.index(value))


def _swapped(values: dict[int, Value], move: Move, reader: Compute) -> tuple[Compute, Move]:
    """The view or scaling of the unreduced value, then the all-reduce of its result."""
    before = values[move.ins[0]].placement
    (out,) = reader.outs
    after = replace(values[out].placement, unreduced=before.unreduced, kind=before.kind)
    unreduced = Value(len(values), values[out].tensor, after)
    values[unreduced.id] = unreduced
    position = reader.ins.index(move.outs[0])

    def put(old: tuple[Any, ...], new: object) -> tuple[Any, ...]:
        return (*old[:position], new, *old[position + 1 :])

    factors = (*reader.strategy.factors, ("+0", before.unreduced))
    strategy = Strategy(put(reader.strategy.ins, before), (after,), factors, reader.strategy.split)
    compute = reader._replace(strategy=strategy, ins=put(reader.ins, move.ins[0]), outs=(unreduced.id,))
    return compute, move._replace(ins=(unreduced.id,), outs=reader.outs)
