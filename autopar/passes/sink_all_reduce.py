"""sink_all_reduce: all-reduces move past views and scalings of their results, so that more end up side by side.

Scatters of a product move past its transpose: a compiler computes the product the other way round, and copies nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from autopar.core.graph import OpNode
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.core.program import REDUCTIONS, Compute, Instruction, Move, ShardedProgram, Value
from autopar.core.strategy import Strategy
from autopar.ops.traits import is_rearrangement, passes_sums, traits_of


def scales(op: OpNode, position: int) -> bool:
    """Whether the result of `op` is operand `position` times something else: linear in it, and of its size and type.

    Of a tensor and a multiple of it neither operand is: unreduced halves of a square would become another product.
    What the update does with a gradient comes after the gradient is whole.
    """
    if not traits_of(op.kind).is_scaling or op.phase == "update":
        return False
    held = op.ins[position]
    (made,) = op.outs
    if (held.shape, held.dtype) != (made.shape, made.dtype):
        return False
    by = [tensor.root for n, tensor in enumerate(op.ins) if n != position]
    return held.root not in by and (op.kind != "div" or (position == 0 and "float" in held.dtype))


@dataclass(frozen=True)
class SinkAllReduce:
    """Swaps an all-reduce with the view or scaling that is the only reader of its result: same bytes, same price.

    A gradient is often reduced over the batch and then reshaped, the statistics of a batch are summed and then divided:
    behind that the all-reduces are independent of everything in between, and one bucket can hold them.
    A reduce-scatter between a product of two matrices and the transpose of its result, as of gradients of weights,
    comes behind the transpose, along the dim that its own has become.
    """

    name: str = "sink_all_reduce"

    def apply(self, program: ShardedProgram) -> ShardedProgram:
        """`program` with every all-reduce of a sum behind the views and scalings of its result.

        Once an all-reduce has gone past a transpose, the scatter in front of it can too: so again, until none does.
        """
        while (sunk := _sunk(program)) is not program:
            program = sunk
        return program


def _sunk(program: ShardedProgram) -> ShardedProgram:
    """`program` with reductions behind the views and scalings of their results; the same object if there are none."""
    readers = _readers_of_sums(program)
    if not readers:
        return program

    products = _products(program)
    values = dict(program.values)
    sunk: dict[int, Move] = {}
    done: list[Instruction] = []
    swaps = False
    for instruction in program.instructions:
        waiting = instruction
        if sunk and not sunk.keys().isdisjoint(instruction.ins):
            met = [sunk.pop(v) for v in dict.fromkeys(instruction.ins) if v in sunk]
            done += met[:-1]
            assert isinstance(instruction, Compute)
            swapped, waiting = _swapped(program.mesh, values, met[-1], instruction)
            done.append(swapped)
            swaps = True
        if isinstance(waiting, Move) and _can_sink(values, waiting, readers, products):
            sunk[waiting.outs[0]] = waiting
        else:
            done.append(waiting)

    return program.with_instructions(tuple(done), values) if swaps else program


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
            is_sum = instruction.kind in REDUCTIONS
        else:
            is_sum = reads and isinstance(instruction, Compute) and passes_sums(instruction.op)
        if is_sum:
            readers.update((value, []) for value in instruction.outs if value not in kept)

    return readers


def _products(program: ShardedProgram) -> frozenset[int]:
    """The values that are a product of two matrices, and read once."""
    made = {
        instruction.outs[0]
        for instruction in program.instructions
        if isinstance(instruction, Compute)
        and traits_of(instruction.op.kind).is_contraction
        and instruction.op.outs[0].ndim == 2
    }
    reads = Counter(
        value for instruction in program.instructions for value in instruction.ins if value in made
    )
    return frozenset(value for value in made.difference(program.outputs) if reads[value] == 1)


def _can_sink(
    values: dict[int, Value],
    move: Move,
    readers: dict[int, list[Instruction]],
    products: frozenset[int],
) -> bool:
    """Whether `move` is a reduction whose only reader can come before it."""
    if move.kind not in REDUCTIONS or len(move.outs) != 1:
        return False

    (value,) = move.outs
    only = readers.get(value, [])
    if len(only) != 1 or not isinstance(only[0], Compute):
        return False

    if move.kind == "reduce_scatter":
        is_turned = move.ins[0] in products and only[0].op.kind == "transpose"
        return is_turned and only[0].region == move.region

    reader = only[0]
    if reader.region != move.region or is_rearrangement(reader.op):
        return reader.region == move.region

    others_whole = all(v == value or not values[v].placement.unreduced for v in reader.ins)
    is_sum = values[move.ins[0]].placement.kind == "sum"
    return is_sum and others_whole and scales(reader.op, reader.ins.index(value))


def _swapped(
    mesh: DeviceMesh, values: dict[int, Value], move: Move, reader: Compute
) -> tuple[Compute, Move]:
    """The view or scaling of the unreduced value, then the reduction of its result."""
    before = values[move.ins[0]].placement
    (out,) = reader.outs
    dims = values[out].placement.dims
    strategy = reader.strategy
    dim = move.dim
    if move.kind == "reduce_scatter":
        order: tuple[int, ...] = reader.op.params["permutation"]
        dims = tuple(before.dims[d] for d in order)
        dim = order.index(move.dim or 0)
        factors = tuple(
            (name, tuple(a for a in axes if a not in move.axes)) for name, axes in strategy.factors
        )
        strategy = replace(
            strategy,
            factors=tuple(f for f in factors if f[1]),
            split=strategy.split // mesh.product(move.axes),
        )

    after = Placement(dims, before.unreduced, before.kind)
    unreduced = Value(len(values), values[out].tensor, after)
    values[unreduced.id] = unreduced
    position = reader.ins.index(move.outs[0])

    def put(old: tuple[Any, ...], new: object) -> tuple[Any, ...]:
        return (*old[:position], new, *old[position + 1 :])

    factors = (*strategy.factors, ("+0", before.unreduced))
    strategy = Strategy(put(strategy.ins, before), (after,), factors, strategy.split)
    compute = reader._replace(
        strategy=strategy, ins=put(reader.ins, move.ins[0]), outs=(unreduced.id,)
    )
    return compute, move._replace(ins=(unreduced.id,), outs=reader.outs, dim=dim)
