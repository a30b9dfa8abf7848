"""verify: every invariant of a ShardedProgram has a violation that it must catch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from autopar.core.placement import Placement
from autopar.core.program import Convert, Move, ShardedProgram
from autopar.core.regions import Region
from autopar.errors import ProgramError
from autopar.passes.verify import verify
from tests.passes.build import MESH, SPLIT, WHOLE, Builder, programs

PARTIAL = Placement(((),), ("x",))
BOTH = Placement((("y",),), ("x",))


def valid() -> Builder:
    """input -> operator, unreduced -> all-reduce -> operator: values 0 to 3."""
    build = Builder()
    unreduced = build.compute([build.input(SPLIT)], PARTIAL)
    build.compute([build.all_reduce(unreduced)])
    return build


@given(program=programs())
def test_valid_programs_pass(program: ShardedProgram) -> None:
    verify(program)


def dropped(build: Builder) -> ShardedProgram:
    del build.instructions[1]
    return build.program([3])


def reordered(build: Builder) -> ShardedProgram:
    build.instructions.reverse()
    return build.program([3])


def repeated(build: Builder) -> ShardedProgram:
    build.instructions.append(build.instructions[0])
    return build.program([3])


def overwrites_an_input(build: Builder) -> ShardedProgram:
    build.instructions[0] = build.instructions[0]._replace(outs=(0,))
    return build.program([3])


def uneven(build: Builder) -> ShardedProgram:
    build.input(SPLIT, size=7)
    return build.program([3])


def swapped_dims(build: Builder) -> ShardedProgram:
    """The operator's operand placed otherwise than its strategy says."""
    build.values[0] = build.values[0]._replace(placement=Placement((("y",),)))
    return build.program([3])


def another_result(build: Builder) -> ShardedProgram:
    build.values[3] = build.values[3]._replace(placement=SPLIT)
    return build.program([3])


def reads_anothers_operand(_: Builder) -> ShardedProgram:
    """Two operators read what both should, but one too few and the other too many."""
    build = Builder()
    a, b, c = (build.input() for _ in range(3))
    made = [build.compute([a, b]), build.compute([c])]
    build.instructions = [
        i._replace(ins=ins) for i, ins in zip(build.instructions, ((a,), (b, c)), strict=True)
    ]
    return build.program(made)


def left_unreduced(build: Builder) -> ShardedProgram:
    return build.program([1])


def never_made(build: Builder) -> ShardedProgram:
    return build.program([build.value(WHOLE)])


def reduces_what_is_reduced(build: Builder) -> ShardedProgram:
    build.move("all_reduce", ("x",), 3, WHOLE)
    return build.program([3])


def reduces_another_axis(build: Builder) -> ShardedProgram:
    build.instructions[1] = build.instructions[1]._replace(axes=("y",))
    return build.program([3])


def reduces_too_little(build: Builder) -> ShardedProgram:
    both = build.compute([3], Placement(((),), ("x", "y")))
    build.move("all_reduce", ("x",), both, WHOLE)
    return build.program([3])


def gathers_the_wrong_axis(build: Builder) -> ShardedProgram:
    build.move("all_gather", ("y",), 0, WHOLE, dim=0)
    return build.program([3])


def gathers_nowhere(build: Builder) -> ShardedProgram:
    build.move("all_gather", ("x",), 0, WHOLE)
    return build.program([3])


def gathers_a_dim_that_is_not_there(build: Builder) -> ShardedProgram:
    build.move("all_gather", ("x",), 0, WHOLE, dim=3)
    return build.program([3])


def gathers_a_major_axis(build: Builder) -> ShardedProgram:
    build.move(
        "all_gather", ("x",), build.input(Placement((("x", "y"),))), Placement((("y",),)), dim=0
    )
    return build.program([3])


def scatters_a_maximum(build: Builder) -> ShardedProgram:
    largest = build.compute([3], Placement(((),), ("x",), "max"))
    build.move("reduce_scatter", ("x",), largest, SPLIT, dim=0)
    return build.program([3])


def permutes_to_another_size(build: Builder) -> ShardedProgram:
    build.move("permute", ("x", "y"), 0, Placement((("y",),)))
    return build.program([3])


def permutes_an_unreduced_axis_away(build: Builder) -> ShardedProgram:
    build.move("permute", ("x",), 1, WHOLE)
    return build.program([3])


def changes_the_tensor(build: Builder) -> ShardedProgram:
    build.values[2] = build.values[2]._replace(tensor=build.values[0].tensor)
    return build.program([3])


def reads_another_tensor(build: Builder) -> ShardedProgram:
    build.instructions[2] = build.instructions[2]._replace(ins=(build.input(),))
    return build.program([3])


def converts_another_tensor(build: Builder) -> ShardedProgram:
    build.instructions.append(Convert(0, build.value(WHOLE), None))
    return build.program([3])


def fuses_slices(build: Builder) -> ShardedProgram:
    first, second = build.input(), build.input()
    outs = tuple(build.value(SPLIT, build.values[v].tensor) for v in (first, second))
    build.instructions.append(Move("slice", ("x",), (first, second), outs, 64, 0.0, "forward"))
    return build.program([3])


def fuses_a_gather_of_nothing(build: Builder) -> ShardedProgram:
    first, second = build.input(SPLIT), build.input()
    outs = tuple(build.value(WHOLE, build.values[v].tensor) for v in (first, second))
    build.instructions.append(Move("all_gather", ("x",), (first, second), outs, 64, 0.0, "forward"))
    return build.program([3])


def fuses_dependent_all_reduces(build: Builder) -> ShardedProgram:
    """The second operand of the bucket is computed from the bucket's first result."""
    second = build.compute([2], PARTIAL)
    out = build.value(WHOLE, build.values[second].tensor)
    build.instructions[1] = Move("all_reduce", ("x",), (1, second), (2, out), 64, 0.0, "forward")
    return build.program([3])


def reopens_a_region(build: Builder) -> ShardedProgram:
    inside = build.compute([3], region=0)
    outside = build.compute([inside])
    build.compute([outside], region=0)
    return build.program([3], regions=(Region(0, "remat"),))


def loop(build: Builder, inside: Placement, left: Placement) -> ShardedProgram:
    """A loop that is entered whole, whose carry_out reads `inside` and leaves `left`."""
    carry: dict[str, Any] = {"params": {"position": 0}, "region": 0}
    entered = build.compute([3], WHOLE, kind="carry_in", **carry)
    last = build.compute([entered], inside, region=1)
    build.compute([last], left, kind="carry_out", **carry)
    return build.program([3], regions=(Region(0, "scan"), Region(1, "body", 0)))


def carries_another_placement(build: Builder) -> ShardedProgram:
    return loop(build, SPLIT, SPLIT)


def carries_from_another_placement(build: Builder) -> ShardedProgram:
    return loop(build, SPLIT, WHOLE)


def carries_to_another_placement(build: Builder) -> ShardedProgram:
    return loop(build, WHOLE, SPLIT)


VIOLATIONS: list[tuple[Callable[[Builder], ShardedProgram], str]] = [
    (dropped, "instruction 1 reads value 2 before it is made"),
    (reordered, "instruction 0 reads value 2 before it is made"),
    (repeated, "instruction 3 makes value 1 a second time"),
    (overwrites_an_input, "instruction 0 makes value 0 a second time"),
    (uneven, r"value 4 of shape \(7,\) does not divide as \[x\]"),
    (swapped_dims, r"instruction 0 \(dot_general\) is not placed as its strategy says"),
    (another_result, r"instruction 2 \(dot_general\) is not placed as its strategy says"),
    (reads_anothers_operand, r"instruction 0 \(dot_general\) is not placed as its strategy says"),
    (left_unreduced, "output value 1 is left unreduced"),
    (never_made, "output value 4 is never made"),
    (reduces_what_is_reduced, r"all_reduce over \('x',\) is impossible from \[-\]"),
    (
        reduces_another_axis,
        r"instruction 1: all_reduce over \('y',\) is impossible from \[-\] sum\(x\)",
    ),
    (reduces_too_little, r"takes \[-\] sum\(x,y\) to \[-\] sum\(y\), and the program has \[-\]"),
    (gathers_the_wrong_axis, r"all_gather over \('y',\) is impossible from \[x\]"),
    (gathers_nowhere, r"all_gather over \('x',\) is impossible"),
    (gathers_a_dim_that_is_not_there, r"all_gather over \('x',\) is impossible"),
    (gathers_a_major_axis, r"all_gather over \('x',\) is impossible from \[x\*y\]"),
    (scatters_a_maximum, r"reduce_scatter over \('x',\) is impossible from \[-\] max\(x\)"),
    (permutes_to_another_size, r"a permute cannot take \[x\] to \[y\]"),
    (permutes_an_unreduced_axis_away, r"a permute cannot take \[-\] sum\(x\) to \[-\]"),
    (changes_the_tensor, "changes more than the placement of its tensors"),
    (
        reads_another_tensor,
        r"instruction 2 \(dot_general\) reads or makes other tensors than its operator",
    ),
    (converts_another_tensor, "instruction 3 changes more than the placement"),
    (
        fuses_slices,
        r"slice of several tensors at once: only \('all_reduce', .* are fused",
    ),
    (fuses_a_gather_of_nothing, r"all_gather over \('x',\) is impossible from"),
    (fuses_dependent_all_reduces, "instruction 1 reads value 4 before it is made"),
    (reopens_a_region, "the instructions of region 0 are not contiguous"),
    (carries_another_placement, "carry 0 of region 0 changes its placement from round to round"),
    (
        carries_from_another_placement,
        "carry 0 of region 0 changes its placement from round to round",
    ),
    (carries_to_another_placement, "carry 0 of region 0 changes its placement from round to round"),
]


@pytest.mark.parametrize(("violate", "message"), VIOLATIONS)
def test_a_violation_is_caught(violate: Callable[[Builder], ShardedProgram], message: str) -> None:
    verify(valid().program([3]))
    with pytest.raises(ProgramError, match=message):
        verify(violate(valid()))


@pytest.mark.parametrize(("violate", "message"), VIOLATIONS)
def test_a_violation_is_caught_that_a_pass_made(
    violate: Callable[[Builder], ShardedProgram], message: str
) -> None:
    """What was in the valid program before is not looked at again; what is new, in whatever place, is."""
    build = valid()
    before = replace(build.program([3]), values=dict(build.values))
    verify(before)
    with pytest.raises(ProgramError, match=message):
        verify(violate(build), before)


def test_values_that_were_replaced_are_looked_at() -> None:
    before = valid().program([3])
    other = before.values[3]._replace(placement=Placement((("y",),)))
    verify(before)
    with pytest.raises(ProgramError, match="is not placed as its strategy says"):
        verify(replace(before, values={**before.values, 3: other}), before)


def test_a_carry_that_keeps_its_placement_passes() -> None:
    verify(loop(valid(), WHOLE, WHOLE))


def test_every_kind_of_move_is_allowed_where_it_belongs() -> None:
    build = Builder()
    rows = build.input(SPLIT)
    build.move("all_gather", ("x",), rows, WHOLE, dim=0)
    build.move("slice", ("y",), rows, Placement((("x", "y"),)), dim=0)
    masked = build.move("mask", ("y",), rows, Placement((("x",),), ("y",)))
    build.move("all_reduce", ("y",), masked, SPLIT)
    build.move("reduce_scatter", ("y",), masked, Placement((("x", "y"),)), dim=0)
    build.move(
        "permute", ("x", "y"), build.input(Placement((("x", "y"),))), Placement((("y", "x"),))
    )
    verify(build.program([rows]))
    assert MESH.size == 8
