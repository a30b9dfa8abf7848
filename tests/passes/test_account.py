"""account: seconds summed and the peak of memory, against a simulation that looks at every moment anew."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.core.placement import Placement
from autopar.core.program import Compute, Instruction, Move, ShardedProgram
from autopar.ops.traits import is_fusible
from autopar.passes.fuse_collectives import FuseCollectives
from tests.passes.build import SPLIT, WHOLE, Builder, account, price, programs

PARTIAL = Placement(((),), ("x",))


def is_taken(program: ShardedProgram, move: Instruction) -> bool:
    """Whether `move` is local and only loops read its part, by themselves or through such moves."""
    if not isinstance(move, Move) or move.is_collective or move.outs[0] in program.outputs:
        return False
    readers = [i for i in program.instructions for v in i.ins if v == move.outs[0]]
    in_loops = [
        is_fusible(i.op) if isinstance(i, Compute) else is_taken(program, i) for i in readers
    ]
    return bool(readers) and all(in_loops) and all(i.region == move.region for i in readers)


def in_registers(program: ShardedProgram, value: int, in_memory: set[int]) -> bool:
    """A result that is not said to reach memory, read by operators only, or such a result's part that loops take."""
    maker = [i for i in program.instructions if value in i.outs]
    readers = [i for i in program.instructions for v in i.ins if v == value]
    if not maker or value in program.outputs or program.values[value].tensor.id in in_memory:
        return False
    if is_taken(program, maker[0]):
        return in_registers(program, maker[0].ins[0], in_memory)
    of_operator = isinstance(maker[0], Compute) and bool(readers)
    return of_operator and all(isinstance(i, Compute) or is_taken(program, i) for i in readers)


def anew(program: ShardedProgram, value: int, recomputed: set[int]) -> bool:
    """A result of an operator that may be computed again wherever it is read."""
    made = any(value in i.outs for i in program.instructions if isinstance(i, Compute))
    return made and value not in program.outputs and program.values[value].tensor.id in recomputed


def last_use(program: ShardedProgram, value: int, in_memory: set[int], recomputed: set[int]) -> int:
    """The last instruction that reads `value`, through registers and what is computed again too; its own if none."""
    found = [n for n, i in enumerate(program.instructions) if value in i.outs]
    for position, instruction in enumerate(program.instructions):
        if value in instruction.ins:
            outs = instruction.outs
            through = [
                v
                for v in outs
                if in_registers(program, v, in_memory) or anew(program, v, recomputed)
            ]
            found += [position, *(last_use(program, v, in_memory, recomputed) for v in through)]
    return max(found, default=-1)


def arguments_and_results(program: ShardedProgram, donated: tuple[int, ...]) -> int:
    """Memory that is there from beginning to end: a result lies in a donated argument that is just like it."""

    def like(value: int) -> tuple[object, ...]:
        v = program.values[value]
        return v.tensor.shape, v.tensor.dtype, v.placement

    total = sum(program.local_bytes(v) for v in program.inputs)
    free = [like(program.inputs[n]) for n in donated]
    for value in program.outputs:
        if like(value) in free:
            free.remove(like(value))
        else:
            total += program.local_bytes(value)
    return total


def needs_a_copy(move: Move) -> bool:
    """Whether a collective works on a copy: of an inner dim, or of several shards side by side."""
    several_shards = len(move.ins) > 1 and move.kind in ("reduce_scatter", "all_gather")
    return move.is_collective and bool(move.dim or move.to_dim or several_shards)


def slow_peak(
    program: ShardedProgram, in_memory: set[int], donated: tuple[int, ...], recomputed: set[int]
) -> int:
    """At every instruction, the bytes of all that was made and is still needed then, one by one."""
    fixed = {*program.inputs, *program.outputs}
    made = {v: n for n, i in enumerate(program.instructions) for v in i.outs if v not in fixed}
    needed = {v: last_use(program, v, in_memory, recomputed) for v in made}
    sizes = {v: 0 if in_registers(program, v, in_memory) else program.local_bytes(v) for v in made}
    base = most = arguments_and_results(program, donated)
    for now, instruction in enumerate(program.instructions):
        alive = [v for v in made if made[v] <= now <= needed[v]]
        extra = (
            instruction.size_bytes
            if isinstance(instruction, Move) and needs_a_copy(instruction)
            else 0
        )
        most = max(most, base + extra + sum(sizes[v] for v in alive))
    return most


@settings(max_examples=200, deadline=None)
@given(program=programs(), data=st.data())
def test_random_programs_peak_as_simulated(program: ShardedProgram, data: st.DataObject) -> None:
    if data.draw(st.booleans()):
        program = FuseCollectives(price).apply(program)
    tensors = sorted({v.tensor.id for v in program.values.values()})
    in_memory = set(data.draw(st.lists(st.sampled_from(tensors))))
    donated = tuple(data.draw(st.sets(st.sampled_from(range(len(program.inputs))))))
    again = set(data.draw(st.lists(st.sampled_from(tensors))))
    spent = account(program, lambda op, strategy: 1.0 + op.id, in_memory, donated, recomputed=again)
    assert spent.peak_memory_bytes == slow_peak(program, in_memory, donated, again)
    assert spent.compute_time_s == sum(
        1.0 + i.op.id for i in program.instructions if isinstance(i, Compute)
    )
    # Python 3.12 compensates what it adds up
    communicating_s = sum(move.time_s for move in program.collectives)
    assert spent.communication_time_s == pytest.approx(communicating_s, rel=1e-12)
    assert spent.serial_time_s == spent.compute_time_s + spent.communication_time_s
    assert max(spent.held_bytes) == spent.peak_memory_bytes


def test_the_peak_by_hand() -> None:
    """32 bytes a whole value, 16 a split one: input, result, the unreduced product and its sum are there at once."""
    build = Builder()
    rows = build.input(SPLIT)
    partial = build.compute([rows], PARTIAL)
    total = build.all_reduce(partial)
    out = build.compute([total], WHOLE)
    program = build.program([out])
    spent = account(program, lambda *_: 0.0, {v.tensor.id for v in build.values.values()})
    assert (spent.peak_memory_bytes, spent.peak_at) == (16 + 32 + 32 + 32, 1)
    assert set(spent.peak_values) == {rows, partial, total, out}


def test_what_loops_take_a_part_of_is_not_written() -> None:
    """The whole value and the part that an addition takes of it stay in registers; a product reads a part in memory."""
    for kind, expected in (("add", 32 + 16), ("dot_general", 32 + 32 + 16 + 16)):
        build = Builder()
        part = build.slice(build.compute([build.input()], WHOLE, kind="add"), "x")
        program = build.program([build.compute([part], SPLIT, kind=kind)])
        assert account(program, lambda *_: 0.0, set()).peak_memory_bytes == expected


def test_a_result_takes_the_memory_of_a_donated_argument_of_its_type() -> None:
    build = Builder()
    rows, whole = build.input(SPLIT), build.input(WHOLE)
    program = build.program([build.compute([rows, whole], WHOLE)])
    peaks = [
        account(program, lambda *_: 0.0, set(), donated).peak_memory_bytes
        for donated in ((), (0,), (1,))
    ]
    assert peaks == [16 + 32 + 32, 16 + 32 + 32, 16 + 32]


def test_the_results_of_a_bucket_are_its_flat_buffer() -> None:
    build = Builder()
    build.input()
    reduced = [build.all_reduce(build.compute([0], PARTIAL)) for _ in range(2)]
    outs = [build.compute([value], SPLIT) for value in reduced]
    program = FuseCollectives(price).apply(build.program(outs))
    spent = account(program, lambda *_: 0.0, {v.tensor.id for v in build.values.values()})
    assert spent.peak_memory_bytes == 32 + 2 * 16 + 2 * 32 + 2 * 32


def test_what_is_computed_again_keeps_its_operand_alive() -> None:
    build = Builder()
    build.input()
    wide = build.compute([0], WHOLE, size=16)
    mask = build.compute([wide], WHOLE)
    first = build.compute([mask], WHOLE)
    program = build.program([build.compute([first, mask], WHOLE)])
    tensors = {v.tensor.id for v in build.values.values()}
    assert account(program, lambda *_: 0.0, tensors).peak_memory_bytes == 32 + 32 + 64 + 32
    assert (
        account(program, lambda *_: 0.0, tensors, recomputed={mask}).peak_memory_bytes
        == 32 + 32 + 64 + 32 + 32
    )


def test_what_a_move_reads_others_compute_again_and_what_it_makes_is_kept() -> None:
    """The wide operand lives as long as an operator reads the mask itself: not where the last reads its sum."""
    peaks: list[int] = []
    for late in ("mask", "sum"):
        build = Builder()
        build.input()
        wide = build.compute([0], WHOLE, size=16)
        mask = build.compute([wide], PARTIAL)
        total = build.all_reduce(mask)
        first = build.compute([total], WHOLE)
        program = build.program([build.compute([first, mask if late == "mask" else total], WHOLE)])
        tensors = {v.tensor.id for v in build.values.values()}
        peaks.append(account(program, lambda *_: 0.0, tensors, recomputed={mask}).peak_memory_bytes)
    assert peaks == [32 + 32 + (64 + 32 + 32 + 32), 32 + 32 + (64 + 32 + 32)]


def test_operators_have_workspace() -> None:
    build = Builder()
    build.input()
    program = build.program([build.compute([0], WHOLE)])
    spent = account(
        program, lambda *_: 0.0, set(), workspace=lambda op, in_bytes, in_shapes: 10 * sum(in_bytes)
    )
    assert spent.peak_memory_bytes == 32 + 32 + 320


def test_a_value_in_registers_keeps_its_operand_alive() -> None:
    build = Builder()
    build.input()
    big = build.compute([0], WHOLE, size=16)
    fused = build.compute([big], WHOLE, size=16)
    out = build.compute([fused], WHOLE)
    program = build.program([out])
    tensors = {v.tensor.id for v in build.values.values()} - {fused}
    spent = account(program, lambda *_: 0.0, tensors)
    assert spent.peak_memory_bytes == 32 + 64 + 32
    assert fused not in spent.peak_values
