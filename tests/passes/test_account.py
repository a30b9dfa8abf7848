"""account: seconds summed and the peak of memory, against a simulation that looks at every moment anew."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.core.placement import Placement
from autopar.passes.account import account
from autopar.passes.fuse_all_reduce import FuseAllReduce
from autopar.passes.program import Compute, Move, ShardedProgram
from tests.passes.build import SPLIT, WHOLE, Builder, price, programs

PARTIAL = Placement(((),), ("x",))


def in_registers(program: ShardedProgram, value: int, in_memory: set[int]) -> bool:
    """A result that is not said to reach memory, read once, by an operator."""
    maker = [i for i in program.instructions if value in i.outs]
    readers = [i for i in program.instructions for v in i.ins if v == value]
    if not maker or value in program.outputs or program.values[value].tensor.id in in_memory:
        return False
    return isinstance(maker[0], Compute) and len(readers) == 1 and isinstance(readers[0], Compute)


def last_use(program: ShardedProgram, value: int, in_memory: set[int]) -> int:
    """The last instruction that reads `value`, through registers too; its own where nothing does."""
    found = [n for n, i in enumerate(program.instructions) if value in i.outs]
    for position, instruction in enumerate(program.instructions):
        if value in instruction.ins:
            through = [v for v in instruction.outs if in_registers(program, v, in_memory)]
            found += [position, *(last_use(program, v, in_memory) for v in through)]
    return max(found, default=-1)


def slow_peak(program: ShardedProgram, in_memory: set[int], donated: tuple[int, ...]) -> int:
    """At every instruction, the bytes of all that was made and is still needed then, one by one.

    A donated input that nothing reads is never given back.
    """
    read = {v for i in program.instructions for v in i.ins}
    kept = {v for n, v in enumerate(program.inputs) if n not in donated or v not in read} | set(program.outputs)
    made = {v: n for n, i in enumerate(program.instructions) for v in i.outs} | dict.fromkeys(program.inputs, -1)
    needed = {v: last_use(program, v, in_memory) for v in made}
    sizes = {v: 0 if in_registers(program, v, in_memory) else program.local_bytes(v) for v in made}
    most = sum(sizes[v] for v in program.inputs)
    for now, instruction in enumerate(program.instructions):
        alive = [v for v in made if made[v] <= now and (v in kept or needed[v] >= now)]
        extra = 0
        if isinstance(instruction, Move) and instruction.kind == "all_reduce" and len(instruction.ins) > 1:
            extra = sum(sizes[v] for v in instruction.ins)
        most = max(most, extra + sum(sizes[v] for v in alive))
    return most


@settings(max_examples=200, deadline=None)
@given(program=programs(), data=st.data())
def test_random_programs_peak_as_simulated(program: ShardedProgram, data: st.DataObject) -> None:
    if data.draw(st.booleans()):
        program = FuseAllReduce(price).apply(program)
    tensors = sorted({v.tensor.id for v in program.values.values()})
    in_memory = set(data.draw(st.lists(st.sampled_from(tensors))))
    donated = tuple(data.draw(st.sets(st.sampled_from(range(len(program.inputs))))))
    spent = account(program, lambda op, strategy: 1.0 + op.id, in_memory, donated)
    assert spent.peak_memory_bytes == slow_peak(program, in_memory, donated)
    assert spent.compute_time_s == sum(1.0 + i.op.id for i in program.instructions if isinstance(i, Compute))
    assert spent.communication_time_s == sum(move.time_s for move in program.collectives)
    assert spent.step_time_s == spent.compute_time_s + spent.communication_time_s


def test_the_peak_by_hand() -> None:
    """32 bytes a whole value, 16 a split one: the input, the unreduced product and its sum are there at once."""
    build = Builder()
    rows = build.input(SPLIT)
    partial = build.compute([rows], PARTIAL)
    total = build.all_reduce(partial)
    out = build.compute([total], WHOLE)
    program = build.program([out])
    spent = account(program, lambda *_: 0.0, {v.tensor.id for v in build.values.values()})
    assert (spent.peak_memory_bytes, spent.peak_at) == (16 + 32 + 32, 1)
    assert set(spent.peak_values) == {rows, partial, total}
    donated = account(program, lambda *_: 0.0, {v.tensor.id for v in build.values.values()}, (0,))
    assert donated.peak_memory_bytes == 32 + 32


def test_a_bucket_holds_a_copy_of_its_operands() -> None:
    build = Builder()
    build.input()
    reduced = [build.all_reduce(build.compute([0], PARTIAL)) for _ in range(2)]
    program = FuseAllReduce(price).apply(build.program(reduced))
    spent = account(program, lambda *_: 0.0, {v.tensor.id for v in build.values.values()})
    assert spent.peak_memory_bytes == 32 + 2 * 32 + 2 * 32 + 2 * 32


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
