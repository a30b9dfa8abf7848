"""The slow reference against plain JAX: primitive by primitive, jaxpr by jaxpr, and whole sharded programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from autopar.core.program import ShardedProgram
from benchmarks.flat_call import unflatten
from tests.equivalence.cases import (
    MESHES,
    Case,
    assert_equal,
    inputs_of,
    key_data,
    space_of,
    step_case,
)
from tests.equivalence.draw import local_plan, uniform_plan
from tests.ops.build import Case as PrimitiveCase
from tests.ops.build import build
from tests.ops.cases import CASES
from tests.ops.property import assert_close
from tests.passes.build import without
from tests.reference.devices import ReplicasDiffer
from tests.reference.jaxprs import CONTROL, evaluate
from tests.reference.primitives import TABLE, run
from tests.reference.run import run_reference

ON_NUMPY = [case for case in CASES if case.kind in TABLE]


@pytest.mark.quick_share(3)
@pytest.mark.parametrize("case", ON_NUMPY, ids=[case.name for case in ON_NUMPY])
def test_a_primitive_on_numpy_is_what_jax_makes_of_it(case: PrimitiveCase) -> None:
    built = build(case)
    payload: Any = built.op.payload
    found = run(payload.primitive, payload.params, [np.asarray(value) for value in built.values])
    assert [(f.shape, f.dtype) for f in found] == [(r.shape, r.dtype) for r in built.results]
    for mine, theirs in zip(found, built.results, strict=True):
        assert_close(mine, theirs, case.name)


def integer_division(x: Any, y: Any) -> Any:
    return lax.div(x, y), lax.rem(x, y), x // y, x % y


def loops(x: Any) -> Any:
    """A scan in a while loop in a branch, each with something from around it."""

    def trip(carry: Any, row: Any) -> Any:
        return jnp.tanh(carry + row * x[0]), carry.sum()

    def repeat(state: Any) -> Any:
        n, y = state
        return n + 1, lax.scan(trip, y, x, reverse=True)[0]

    many = lax.while_loop(lambda state: state[0] < 3, repeat, (0, x[1]))[1]
    return lax.cond(x[0, 0] > 0, lambda y: y + many, lambda y: y - many, x[1]), lax.scan(
        trip, x[1], x
    )


def batched_while(x: Any) -> Any:
    """Several loops in one, of different lengths."""
    return jax.vmap(
        lambda row: lax.while_loop(lambda y: y.sum() < 8.0, lambda y: y * 1.5 + 1.0, row)
    )(x)


ARGS = np.random.default_rng(0).uniform(-1, 1, (4, 3))
NUMBERS = np.arange(-8, 8, dtype=np.int32)


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (
            integer_division,
            (NUMBERS, np.where(NUMBERS % 5 == 0, 3, NUMBERS % 7 - 3).astype(np.int32)),
        ),
        (loops, (ARGS,)),
        (loops, (-ARGS,)),
        (batched_while, (np.abs(ARGS),)),
        (jax.grad(lambda x: jax.checkpoint(lambda y: jnp.sin(y).sum())(x)), (ARGS,)),
    ],
)
def test_a_jaxpr_on_numpy_is_what_jax_makes_of_it(
    function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    with jax.enable_x64(True):
        expected = jax.tree.leaves(jax.jit(function)(*args))
        found = evaluate(jax.make_jaxpr(function)(*args), args)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-12, strict=True)


def test_loops_are_part_of_the_table() -> None:
    assert {"scan", "while", "cond"} <= set(TABLE) & set(CONTROL)


def results(case: Case, program: ShardedProgram) -> Any:
    with case.precision():
        found = unflatten(case.traced, run_reference(program, inputs_of(case)))
        return jax.tree.map(key_data, found)


@pytest.mark.quick_share(2)
@pytest.mark.parametrize(
    ("model", "mesh"), [("mlp", "8"), ("mlp", "2x4"), ("mlp", "2x2x2"), ("cnn", "2x4")]
)
def test_a_random_plan_of_a_model_computes_the_same(model: str, mesh: str) -> None:
    case = step_case(model, "sgd")
    for stage in (uniform_plan(space_of(case, mesh), 1), local_plan(case, space_of(case, mesh), 1)):
        assert_equal(case.expected, results(case, case.program(stage)), case.dtype)


def nested_blocks(x: Any) -> Any:
    def outer(y: Any) -> Any:
        return jax.checkpoint(lambda z: jnp.tanh(z @ z.T).sum(axis=0))(y) * y.sum(axis=1)

    return jax.grad(lambda y: jax.checkpoint(outer)(y).sum())(x)


def test_rematerialised_blocks_are_run_in_place() -> None:
    case = Case(nested_blocks, (np.random.default_rng(0).uniform(-1, 1, (8, 8)),), "float64")
    program = case.program(local_plan(case, case.space(MESHES["2x4"]), 0))
    assert {region.parent for region in program.regions} != {None}
    assert any(instruction.region is not None for instruction in program.instructions)
    assert_equal(case.expected, results(case, program), case.dtype)


def test_a_dropped_reduction_is_found_where_it_first_shows() -> None:
    case = step_case("mlp", "sgd")
    program = case.states(uniform_plan(space_of(case, "2x4"), 1))["mark_mirror"]
    for move in [move for move in program.collectives if move.kind == "all_reduce"][:4]:
        with pytest.raises(ReplicasDiffer):
            results(case, without(program, move))


def test_a_shard_of_another_shape_is_found() -> None:
    case = step_case("mlp", "sgd")
    program = case.states(uniform_plan(space_of(case, "2x4"), 1))["mark_mirror"]
    gather = next(move for move in program.collectives if move.kind == "all_gather")
    with pytest.raises((AssertionError, TypeError, ValueError)):
        results(case, without(program, gather))
