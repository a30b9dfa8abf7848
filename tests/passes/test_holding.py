"""What a compiler holds otherwise than its program says, habit by habit: peaks by hand, of 32 bytes a whole value."""

from __future__ import annotations

from autopar.core.graph import TensorInfo
from autopar.core.placement import Placement
from autopar.core.program import ShardedProgram
from autopar.memory.account import lives_of
from autopar.memory.lent import bytes_if_lent
from autopar.memory.scheduled import until_late
from autopar.ops.holding import AS_WRITTEN, Holding
from tests.passes.build import SPLIT, WHOLE, Builder, account

PARTIAL = Placement(((),), ("x",))


def peak(program: ShardedProgram, holding: Holding = AS_WRITTEN) -> int:
    """All that is made is written, but for numbers."""
    tensors = {v.tensor.id for v in program.values.values() if v.tensor.literal is None}
    return account(program, lambda *_: 0.0, tensors, holding=holding).peak_memory_bytes


def test_a_sum_takes_the_memory_of_what_is_added_up() -> None:
    """Unless that is read later: of the input, the result, what is unreduced and its sum."""
    for reads_both, expected in ((False, 32 + 32 + 32), (True, 32 + 32 + 32 + 32)):
        build = Builder()
        build.input()
        partial = build.compute([0], PARTIAL)
        total = build.all_reduce(partial)
        program = build.program([build.compute([total, partial] if reads_both else [total])])
        assert peak(program) == 4 * 32
        assert peak(program, Holding(reduces_in_place=True)) == expected


def test_of_equal_gathers_the_first_is_kept() -> None:
    """It is there, with both values between, until the second is read, which takes nothing."""
    build = Builder()
    rows = build.input(SPLIT)
    first = build.compute([build.all_gather(rows)])
    second = build.compute([first])
    program = build.program([build.compute([second, build.all_gather(rows)])])
    assert peak(program) == 16 + 32 + 2 * 32
    assert peak(program, Holding(joins_equal=True)) == 16 + 32 + 3 * 32


def test_a_gather_that_is_a_result_is_made_all_the_same() -> None:
    build = Builder()
    rows = build.input(SPLIT)
    both = [build.compute([build.all_gather(rows)]), build.all_gather(rows)]
    program = build.program(both)
    assert peak(program, Holding(joins_equal=True)) == peak(program) == 16 + 2 * 32 + 32


def test_a_narrower_operand_is_there_in_the_wider_type_from_its_first_product_to_its_last() -> None:
    """The argument of 16 bytes takes 32 more in float32; not where every operand is as narrow."""
    for itemsize, more in ((2, 32), (4, 0)):
        build = Builder()
        wide = build.input()
        narrow = build.value(WHOLE, TensorInfo(1, (8,), "bfloat16", itemsize))
        build.inputs.append(narrow)
        first = build.compute([wide, narrow])
        between = build.compute([first, first], kind="add")
        program = build.program([build.compute([between, narrow])])
        assert peak(program) == 32 + 8 * itemsize + 32 + 2 * 32
        assert peak(program, Holding(widens_operands=True)) == peak(program) + more


def test_what_is_scattered_into_is_made_first() -> None:
    """It is there beside both values before it; what is made of more than numbers is not."""
    for of_number, more in ((True, 32), (False, 0)):
        build = Builder()
        given = build.input()
        if of_number:
            given = build.value(Placement(()), TensorInfo(1, (), "float32", 4, literal=0.0))
        before = build.compute([build.compute([0])])
        zeros = build.compute([given], kind="broadcast_in_dim")
        program = build.program([build.compute([zeros, before], kind="scatter-add")])
        assert peak(program, Holding(zeros_first=True)) == peak(program) + more


def late(program: ShardedProgram) -> list[int]:
    return until_late(program, len(program.values)).tolist()


def test_a_product_that_the_next_does_not_need_waits_for_it() -> None:
    """Of attention the gradient of the values: what it reads is there until the gradient of the queries begins."""
    build = Builder()
    weights, out = build.input(), build.input()
    scores = build.compute([out], phase="backward")
    values = build.compute([weights, out], phase="backward")
    turned = build.compute([scores], kind="mul", phase="backward")
    queries = build.compute([turned], phase="backward")
    last = build.compute([queries, values], phase="update", kind="sort")
    program = build.program([last])
    found = late(program)
    assert found[weights] == found[out] == 3
    assert found[scores] == -1


def test_a_product_that_the_next_needs_does_not_wait() -> None:
    build = Builder()
    given = build.input()
    first = build.compute([given], phase="backward")
    second = build.compute([build.compute([first], kind="mul", phase="backward")], phase="backward")
    program = build.program([build.compute([second], phase="update", kind="sort")])
    assert late(program)[given] == -1


def lent(program: ShardedProgram, donated: tuple[int, ...] = ()) -> int:
    """How much less is expected than what is counted."""
    lives = lives_of(program, {v.tensor.id for v in program.values.values()}, donated)
    counted = lives.fixed_bytes + int((lives.held() + lives.beside).max())
    return counted - bytes_if_lent(program, lives, donated)


def test_a_value_as_large_as_a_result_lies_there_until_it_is_written() -> None:
    """Also the one that it is written over; not where the result lies in an argument, nor a smaller value."""
    for kind, donated, size, less in (
        ("sub", (), 8, 32),
        ("dot_general", (), 8, 0),
        ("sub", (0,), 8, 0),
        ("sub", (), 4, 0),
    ):
        build = Builder()
        build.input()
        made = build.compute([0], size=size)
        program = build.program([build.compute([0, made], kind=kind)])
        assert lent(program, donated) == less


def test_a_result_holds_one_value_at_a_time() -> None:
    build = Builder()
    build.input()
    both = [build.compute([0]), build.compute([0])]
    between = build.compute(both)
    program = build.program([build.compute([between])])
    assert lent(program) == 32
