"""In place: the values of a program that are written over another, whose memory becomes theirs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from autopar.core.in_place import chain_of, writes_over_first
from autopar.core.program import Compute, Move, ShardedProgram


def written_over(
    program: ShardedProgram,
    last: Sequence[int],
    lent: Collection[int],
    donated: Sequence[int],
    reduces_in_place: bool,
) -> dict[int, int]:
    """What is written over what: an update over its first operand and a carry over what enters, where nobody reads that
    later (`last`, by value); what leaves a loop over the last round's, where that stays in the carry, else the carry.
    Where a compiler `reduces_in_place`, sums of all-reduces over what is added up.

    Not over arguments that are not `donated`, over results, over what is `lent` to readers of others, nor over what
    takes another number of bytes.
    """
    fixed = {*program.outputs, *program.inputs}.difference(program.inputs[n] for n in donated)
    carries: dict[tuple[object, object], int] = {}
    found: dict[int, int] = {}
    for position, i in enumerate(program.instructions):
        if isinstance(i, Move) and i.kind == "all_reduce" and reduces_in_place:
            found |= {
                after: before
                for before, after in zip(i.ins, i.outs, strict=True)
                if last[before] == position and before not in lent and before not in fixed
            }
        if not isinstance(i, Compute):
            continue
        key = i.region, i.op.params.get("position")
        if i.op.kind == "carry_in":
            carries[key] = i.outs[0]
        if i.op.kind == "carry_out":
            found[i.outs[0]] = (
                i.ins[0] if carries[key] in chain_of(found, i.ins[0]) else carries[key]
            )
        elif i.op.kind == "carry_in" or writes_over_first(i.op):
            before = i.ins[0]
            after = i.outs[0]
            is_last = last[before] == position and i.ins.count(before) == 1 and before not in fixed
            if (
                is_last
                and before not in lent
                and program.local_bytes(before) == program.local_bytes(after)
            ):
                found[after] = before

    return found


def in_arguments(
    program: ShardedProgram, over: Mapping[int, int], donated: Sequence[int]
) -> list[int]:
    """The values that lie in the memory of a donated argument, up to a result of its kind, which takes that."""
    offered = {program.inputs[n] for n in donated}
    found: list[int] = []
    for result in program.outputs:
        chain = chain_of(over, result)
        if chain[-1] in offered and kind_of(program, chain[-1]) == kind_of(program, result):
            found.extend(chain[1:-1])
    return found


def own_results(program: ShardedProgram, donated: Sequence[int]) -> list[int]:
    """The results that lie in no donated argument of their shape, type and placement."""
    offered = Counter(kind_of(program, program.inputs[position]) for position in donated)
    found: list[int] = []
    for value in program.outputs:
        if offered[kind_of(program, value)]:
            offered[kind_of(program, value)] -= 1
        else:
            found.append(value)
    return found


def kind_of(program: ShardedProgram, value: int) -> tuple[object, ...]:
    """What a result must have in common with a donated argument to take its memory."""
    v = program.values[value]
    return v.tensor.shape, v.tensor.dtype, v.tensor.on_host, v.placement
