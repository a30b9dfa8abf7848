"""Combine: what XLA's simplifier makes of two operators that meet, as far as memory depends on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import inf

from autopar.backends.xla_cpu.node import NARROW
from autopar.core.program import Compute, Instruction, ShardedProgram

ADDITIONS = frozenset({"add", "add_any"})
_SQUARES = frozenset({"square", "integer_pow", "mul"})


def scattered_onto(program: ShardedProgram) -> frozenset[int]:
    """Values that are added up in zeros by a scatter and read by one addition only.

    They are never made: zeros + x is x, so the scatter adds to what they would be added to. Of two such values in one
    addition only the first is one. Those of 16-bit types are none: what they add up is converted in between.
    """
    makers = {
        value: instruction for instruction in program.instructions for value in instruction.outs
    }
    readers: dict[int, list[Instruction]] = {}
    for instruction in program.instructions:
        for value in instruction.ins:
            readers.setdefault(value, []).append(instruction)

    found: dict[int, Instruction] = {}
    for instruction in program.instructions:
        if isinstance(instruction, Compute) and _adds_to_zeros(program, instruction, makers):
            (out,) = instruction.outs
            mine = readers.get(out, [])
            if (
                len(mine) == 1
                and _is_addition(mine[0], instruction)
                and mine[0] not in found.values()
            ):
                found[out] = mine[0]

    return frozenset(found.keys() - set(program.outputs))


def turned_products(program: ShardedProgram) -> frozenset[int]:
    """Products of matrices that only a transpose reads: they are made turned round at once, (a b)^T as b^T a^T."""
    makers = {
        value: instruction for instruction in program.instructions for value in instruction.outs
    }
    reads = Counter(value for instruction in program.instructions for value in instruction.ins)
    reads.update(program.outputs)
    found: set[int] = set()
    for turn in program.instructions:
        if isinstance(turn, Compute) and turn.op.kind == "transpose" and reads[turn.ins[0]] == 1:
            made = makers.get(turn.ins[0])
            is_product = (
                isinstance(made, Compute)
                and made.op.kind == "dot_general"
                and made.region == turn.region
            )
            if is_product and len(turn.op.ins[0].shape) == 2:
                found.add(turn.ins[0])

    return frozenset(found)


def chosen(program: ShardedProgram) -> frozenset[int]:
    """Products with a truth value as a number: x * number(t) is x where t is true, and no product."""
    truths = {
        i.outs[0]
        for i in program.instructions
        if isinstance(i, Compute)
        and i.op.kind == "convert_element_type"
        and i.op.ins[0].dtype == "bool"
    }
    return frozenset(
        i.outs[0]
        for i in program.instructions
        if isinstance(i, Compute) and i.op.kind == "mul" and not truths.isdisjoint(i.ins)
    )


def reshaped(program: ShardedProgram) -> frozenset[int]:
    """Values that only one reshape reads, to another shape: what reads that, be it several, reads one operand."""
    reads = Counter(value for instruction in program.instructions for value in instruction.ins)
    reads.update(program.outputs)
    return frozenset(
        i.ins[0]
        for i in program.instructions
        if isinstance(i, Compute) and i.op.kind == "reshape" and reads[i.ins[0]] == 1
        if i.op.ins[0].shape != i.op.outs[0].shape
    )


def unbounded(program: ShardedProgram, compute: Compute) -> int | None:
    """Which operand max(x, -inf) is, as JAX's softmax says it; None if an operator is something else."""
    lowest = [
        n for n, value in enumerate(compute.ins) if program.values[value].tensor.literal == -inf
    ]
    if compute.op.kind != "max" or len(lowest) != 1:
        return None
    return 1 - lowest[0]


def _adds_to_zeros(
    program: ShardedProgram, compute: Compute, makers: Mapping[int, Instruction]
) -> bool:
    if any(tensor.dtype in NARROW for tensor in compute.op.outs):
        return False
    if compute.op.kind == "select_and_scatter_add":
        return True
    made = makers.get(compute.ins[0]) if compute.op.kind == "scatter-add" else None
    if not isinstance(made, Compute) or made.op.kind != "broadcast_in_dim":
        return False
    return program.values[made.ins[0]].tensor.literal == 0


def _is_addition(reader: Instruction, scatter: Compute) -> bool:
    if (
        not isinstance(reader, Compute)
        or reader.op.kind not in ADDITIONS
        or reader.region != scatter.region
    ):
        return False
    return len(set(reader.ins)) == 2 and all(
        tensor.shape == scatter.op.outs[0].shape for tensor in reader.op.ins
    )


def is_square(compute: Compute, ins: tuple[int, ...]) -> bool:
    """Whether an operator on the buffers `ins` multiplies one by itself."""
    op = compute.op
    return op.kind in _SQUARES and len(set(ins)) == 1 and op.params.get("y", 2) == 2
