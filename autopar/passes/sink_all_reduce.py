"""sink_all_reduce: an all-reduce moves past the views of its result, so that more of them end up side by side."""

from __future__ import annotations

from dataclasses import dataclass, replace

from autopar.core.graph import OpNode
from autopar.core.strategy import Strategy
from autopar.passes.program import Compute, Instruction, Move, ShardedProgram, Value

_VIEWS = frozenset({"reshape", "transpose", "squeeze", "expand_dims", "copy"})


def is_view(op: OpNode) -> bool:
    """Whether `op` only rearranges the elements of its operand: linear, and it keeps every byte.

    A sum over dims of size 1, the transpose of a broadcast, is one too.
    """
    if op.kind == "reduce_sum":
        return op.ins[0].size_bytes == op.outs[0].size_bytes
    return op.kind in _VIEWS


@dataclass(frozen=True)
class SinkAllReduce:
    """Swaps an all-reduce with the view that is the only reader of its result: same bytes, same price.

    A gradient is often reduced over the batch and then reshaped; behind the reshape the all-reduces of all gradients
    are independent of everything in between, and one bucket can hold them.
    """

    name: str = "sink_all_reduce"

    def apply(self, program: ShardedProgram) -> ShardedProgram:
        """`program` with every all-reduce of a sum behind the views of its result."""
        readers: dict[int, list[Instruction]] = {}
        for instruction in program.instructions:
            for value in instruction.ins:
                readers.setdefault(value, []).append(instruction)
        values = dict(program.values)
        sunk: dict[int, Move] = {}
        done: list[Instruction] = []
        for instruction in program.instructions:
            if _can_sink(program, instruction, readers):
                assert isinstance(instruction, Move)
                sunk[instruction.outs[0]] = instruction
            elif isinstance(instruction, Compute) and instruction.ins[0:1] and instruction.ins[0] in sunk:
                compute, move = _swapped(values, sunk.pop(instruction.ins[0]), instruction)
                done.append(compute)
                if _can_sink(program, move, readers):
                    sunk[move.outs[0]] = move
                else:
                    done.append(move)
            else:
                done.append(instruction)
        return program.with_instructions(tuple(done), values)


def _can_sink(program: ShardedProgram, move: Instruction, readers: dict[int, list[Instruction]]) -> bool:
    if not isinstance(move, Move) or move.kind != "all_reduce" or len(move.outs) != 1:
        return False
    (value,) = move.outs
    only = readers.get(value, [])
    if len(only) != 1 or value in program.outputs or not isinstance(only[0], Compute):
        return False
    return is_view(only[0].op) and only[0].region == move.region


def _swapped(values: dict[int, Value], move: Move, view: Compute) -> tuple[Compute, Move]:
    """The view on the unreduced value, then the all-reduce of its result."""
    before = values[move.ins[0]].placement
    (out,) = view.outs
    after = replace(values[out].placement, unreduced=before.unreduced, kind=before.kind)
    unreduced = Value(len(values), values[out].tensor, after)
    values[unreduced.id] = unreduced
    strategy = Strategy((before,), (after,), (*view.strategy.factors, ("+0", before.unreduced)), view.strategy.split)
    compute = replace(view, strategy=strategy, ins=move.ins, outs=(unreduced.id,))
    return compute, replace(move, ins=(unreduced.id,), outs=view.outs)
