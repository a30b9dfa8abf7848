"""Planned collectives beside found ones: exact where nothing was changed, and every change told apart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from autopar._payload import Payload
from autopar.core.graph import OpNode
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.core.program import Compute, ShardedProgram, Value
from autopar.core.strategy import Strategy
from autopar.emit.wrap import device_mesh, wrap
from autopar.inspect.compare import ProgramComparison, axis_groups, compare
from autopar.inspect.hlo import HloCollective, collectives_of, compile_unmerged
from autopar.redistribute.step import Step
from tests.emit.chains import ONE, THREE, TWO, bucket, chain, chains, tensor

SHAPE = (16, 32)


def p(*dims: str, unreduced: str = "") -> Placement:
    return Placement(tuple(tuple(dim) for dim in dims), tuple(unreduced))


WHOLE, ROWS, COLUMNS = p("", ""), p("y", ""), p("", "y")
ALL_KINDS = [
    Step("mask", ("x",), ROWS, p("y", "", unreduced="x")),
    Step("reduce_scatter", ("x",), p("y", "", unreduced="x"), p("yx", ""), 0),
    Step("all_gather", ("x",), p("yx", ""), ROWS, 0),
    Step("all_to_all", ("y",), ROWS, COLUMNS, 0, 1),
    Step("mask", ("x",), COLUMNS, p("", "y", unreduced="x")),
    Step("all_reduce", ("x",), p("", "y", unreduced="x"), COLUMNS),
    Step("slice", ("x",), COLUMNS, p("x", "y"), 0),
]
SUMS = [
    Step("mask", ("x",), ROWS, p("y", "", unreduced="x")),
    Step("all_reduce", ("x",), p("y", "", unreduced="x"), ROWS),
]
SWAP = [Step("permute", ("x", "y"), p("xy", ""), p("yx", ""))]
GATHER = [Step("all_gather", ("y",), ROWS, WHOLE, 0)]


def lowered(program: ShardedProgram) -> Any:
    tensors = [program.values[v].tensor for v in program.inputs]
    specs = [jax.ShapeDtypeStruct(t.shape, t.dtype) for t in tensors]
    jitted: Any = wrap(program, device_mesh(program.mesh, jax.devices()))
    return jitted.lower(*specs)


def found_in(program: ShardedProgram) -> tuple[HloCollective, ...]:
    return collectives_of(compile_unmerged(lowered(program)))


def numbers(comparison: ProgramComparison) -> dict[str, int]:
    names = ("matched", "widened", "merged", "vanished", "unplanned")
    return {name: len(getattr(comparison, name)) for name in names if getattr(comparison, name)}


@pytest.mark.parametrize("steps", [ALL_KINDS, SUMS, SWAP, GATHER])
def test_a_program_is_found_as_planned(steps: list[Step]) -> None:
    program = chain(TWO, SHAPE, "float32", steps)
    comparison = compare(program, found_in(program))
    assert comparison.exact
    assert comparison.explained
    assert numbers(comparison) == {"matched": len(program.collectives)}


@pytest.mark.parametrize("dropped", range(4))
def test_a_collective_that_was_not_planned_is_found(dropped: int) -> None:
    program = chain(TWO, SHAPE, "float32", ALL_KINDS)
    gone = program.collectives[dropped]
    without = program.with_instructions(tuple(i for i in program.instructions if i is not gone))
    comparison = compare(without, found_in(program))
    assert numbers(comparison) == {"matched": 3, "unplanned": 1}
    assert comparison.unplanned[0].kind == gone.kind
    assert not comparison.explained
    assert comparison.summary == "3 as planned, 1 not planned"
    assert (
        str(comparison)
        .splitlines()[1]
        .startswith(f"1 x not planned: {gone.kind} of {gone.size_bytes} bytes as f32")
    )


@pytest.mark.parametrize("change", [{"axes": ("x",)}, {"size_bytes": 1}, {"kind": "all_reduce"}])
def test_a_collective_that_is_not_as_planned_is_told(change: dict[str, Any]) -> None:
    program = chain(TWO, SHAPE, "float32", GATHER)
    (move,) = program.collectives
    comparison = compare(program.with_instructions((move._replace(**change),)), found_in(program))
    assert numbers(comparison) == {"vanished": 1, "unplanned": 1}
    assert comparison.vanished[0].reason == "unknown"
    assert not comparison.explained


def test_a_permute_of_other_pairs_is_told() -> None:
    program = chain(TWO, SHAPE, "float32", SWAP)
    (permute,) = found_in(program)
    other = replace(permute, groups=tuple((b, a) for a, b in permute.groups))
    assert numbers(compare(program, [permute])) == {"matched": 1}
    assert numbers(compare(program, [other])) == {"vanished": 1, "unplanned": 1}


def test_a_wider_element_type_is_told() -> None:
    program = chain(TWO, SHAPE, "bfloat16", ALL_KINDS)
    comparison = compare(program, found_in(program))
    assert numbers(comparison) == {"widened": 4}
    assert comparison.explained
    assert not comparison.exact
    assert all(pair.found.size_bytes == 2 * pair.planned.size_bytes for pair in comparison.widened)


def test_twice_the_bytes_of_the_same_type_is_not_widening() -> None:
    program = chain(TWO, SHAPE, "float32", GATHER)
    (found,) = found_in(program)
    doubled = replace(found, operand_bytes=(2 * found.size_bytes,))
    assert numbers(compare(program, [doubled])) == {"vanished": 1, "unplanned": 1}


@pytest.mark.parametrize(("dtype", "unmerged"), [("float32", "matched"), ("bfloat16", "widened")])
def test_what_xla_combines_is_told(dtype: str, unmerged: str) -> None:
    program = chains(TWO, dtype, [(SHAPE, SUMS), ((8, 3), SUMS), ((4,), one_dim(SUMS))])
    assert numbers(compare(program, found_in(program))) == {unmerged: 3}
    comparison = compare(program, collectives_of(lowered(program).compile()))
    assert numbers(comparison) == {"merged": 3}
    assert comparison.explained
    assert not comparison.exact


def test_a_bucket_is_found_in_its_parcels() -> None:
    """Large values as they are, small ones end to end; XLA joins them to the one that was planned."""
    large = (512, 1024)
    program = chains(TWO, "float32", [(SHAPE, SUMS), (large, SUMS), ((8, 3), SUMS), (large, SUMS)])
    others = tuple(i for i in program.instructions if i not in program.collectives)
    program = program.with_instructions((*others, bucket(program.collectives)))
    assert len(program.collectives) == 1
    comparison = compare(program, found_in(program))
    assert comparison.exact
    assert [len(pair.planned.ins) for pair in comparison.matched] == [2, 1, 1]
    assert numbers(compare(program, collectives_of(lowered(program).compile()))) == {"matched": 1}
    without = [pair.found for pair in comparison.matched[1:]]
    assert numbers(compare(program, without)) == {"matched": 2, "vanished": 1}


def test_a_constant_in_a_bucket_may_vanish_and_what_varies_there_may_not() -> None:
    large = (512, 1024)
    program = chains(TWO, "float32", [(large, SUMS), (large, SUMS)])
    others = tuple(i for i in program.instructions if i not in program.collectives)
    program = program.with_instructions((*others, bucket(program.collectives)))
    found = found_in(program)[1:]
    assert not compare(program, found).explained
    comparison = compare(replace(program, inputs=program.inputs[1:]), found)
    assert [vanished.reason for vanished in comparison.vanished] == ["constant"]
    assert comparison.explained


def one_dim(steps: list[Step]) -> list[Step]:
    def cut(placement: Placement) -> Placement:
        return Placement(placement.dims[:1], placement.unreduced)

    return [replace(step, before=cut(step.before), after=cut(step.after)) for step in steps]


def test_a_bucket_is_one_all_reduce() -> None:
    program = chains(TWO, "float32", [(SHAPE, SUMS), ((8, 3), SUMS)])
    masks = tuple(move for move in program.instructions if move not in program.collectives)
    program = program.with_instructions((*masks, bucket(program.collectives)))
    comparison = compare(program, found_in(program))
    assert comparison.exact
    assert numbers(comparison) == {"matched": 1}


def test_a_group_of_one_device_is_no_collective() -> None:
    mesh = DeviceMesh.of({"x": 8, "y": 1})
    steps = [
        Step("all_to_all", ("y",), ROWS, COLUMNS, 0, 1),
        Step("all_gather", ("y",), COLUMNS, WHOLE, 1),
    ]
    program = chain(mesh, SHAPE, "float32", steps)
    comparison = compare(program, found_in(program))
    assert numbers(comparison) == {"matched": 1, "vanished": 1}  # the gather stays: a copy
    assert comparison.vanished[0].reason == "one device"
    assert comparison.explained


def broadcast(mesh: DeviceMesh) -> ShardedProgram:
    """An input, and an all-reduce of a constant that is broadcast from a literal."""
    literal = replace(tensor(1, (), "float32"), literal=2.0)
    ones, after = p("", "", unreduced="x"), p("", "")
    made = tensor(2, SHAPE, "float32")
    jaxpr = jax.make_jaxpr(lambda a: jnp.broadcast_to(a, SHAPE))(1.0)
    (eqn,) = jaxpr.eqns
    op = OpNode(
        0, "broadcast_in_dim", (literal,), (made,), payload=Payload(eqn.primitive, dict(eqn.params))
    )
    strategy = Strategy((Placement((), ("x",)),), (ones,))
    values = {
        0: Value(0, tensor(0, SHAPE, "float32"), after),
        1: Value(1, literal, Placement((), ("x",))),
        2: Value(2, made, ones),
        3: Value(3, made, after),
    }
    step = Step("all_reduce", ("x",), ones, after)
    reduce = chain(mesh, SHAPE, "float32", [step]).collectives[0]._replace(ins=(2,), outs=(3,))
    return ShardedProgram(mesh, values, (0,), (0, 3), (Compute(op, strategy, (1,), (2,)), reduce))


def test_the_all_reduce_of_a_constant_may_vanish() -> None:
    program = broadcast(TWO)
    comparison = compare(program, found_in(program))
    assert numbers(comparison) == {"vanished": 1}
    assert comparison.vanished[0].reason == "constant"


def test_what_no_output_needs_may_vanish() -> None:
    program = chains(TWO, "float32", [(SHAPE, GATHER), (SHAPE, ALL_KINDS)])
    program = replace(program, outputs=(program.inputs[0], program.outputs[1]))
    comparison = compare(program, found_in(program))
    assert [v.reason for v in comparison.vanished] == ["unused"]
    assert numbers(comparison) == {"matched": 4, "vanished": 1}


def test_equal_collectives_are_shared_in_a_default_build() -> None:
    one = chain(TWO, SHAPE, "float32", GATHER)
    (gather,) = one.collectives
    again = one.values[1]._replace(id=2)
    program = replace(one, outputs=(1, 2)).with_instructions(
        (gather, gather._replace(outs=(2,))), {2: again}
    )
    assert compare(program, found_in(program)).exact
    comparison = compare(program, collectives_of(lowered(program).compile()))
    assert numbers(comparison) == {"matched": 1, "vanished": 1}
    assert comparison.vanished[0].reason == "repeated"


def test_a_collective_in_a_loop_counts_once() -> None:
    program = chain(TWO, SHAPE, "float32", GATHER)
    (found,) = found_in(program)
    assert numbers(compare(program, [replace(found, times=3)])) == {"matched": 1}
    assert numbers(compare(program, [replace(found, times=None)])) == {"matched": 1}


@pytest.mark.parametrize(
    ("mesh", "axes", "groups"),
    [
        (ONE, ("x",), ((0, 1, 2, 3, 4, 5, 6, 7),)),
        (TWO, ("x",), ((0, 4), (1, 5), (2, 6), (3, 7))),
        (TWO, ("y", "x"), ((0, 4, 1, 5, 2, 6, 3, 7),)),
        (THREE, ("x", "z"), ((0, 1, 4, 5), (2, 3, 6, 7))),
    ],
    ids=str,
)
def test_the_groups_of_axes(
    mesh: DeviceMesh, axes: tuple[str, ...], groups: tuple[tuple[int, ...], ...]
) -> None:
    assert axis_groups(mesh, axes) == groups
