"""Verify: a plan passes, and each fault that is planted fails it, by the value or the collective that it spoils."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autopar
from autopar.api import verify as verifying
from autopar.emit import run as emitted
from autopar.errors import InvalidMesh
from autopar.report.verification import ResultRow, Verification
from tests import small_models

MESH = {"x": 2, "y": 4}


def struct(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def step(w: Any, x: Any) -> Any:
    """A step whose gradient is summed over devices that have parts of the batch."""
    loss, grads = jax.value_and_grad(lambda w: (jnp.tanh(x @ w) ** 2).mean())(w)
    return w - 0.1 * grads, loss


def verified(**options: Any) -> Verification:
    return autopar.verify(
        step, struct(32, 16), struct(64, 32), mesh={"x": 8}, mode="data_parallel", **options
    )


def test_a_plan_passes() -> None:
    model, args = small_models.mlp()
    found = autopar.verify(model, *args, mesh=MESH, cluster="cpu8", donate_argnums=0)
    assert found.passed
    assert found.unexplained == ()
    assert len(found.results) == len(jax.tree.leaves(jax.eval_shape(model, *args)))
    assert all(row.difference <= row.allowed for row in found.results)
    assert "pass" in str(found)
    assert str(found).count("FAIL") == 0
    assert found.total_s > 0
    assert json.loads(found.to_json())["function"] == "step"


def test_a_sum_that_is_left_out_fails_by_its_values(monkeypatch: pytest.MonkeyPatch) -> None:
    move = emitted.run_move

    def unsummed(program: Any, one: Any, values: Any, *rest: Any) -> Any:
        if one.kind != "all_reduce":
            return move(program, one, values, *rest)
        return [2 * value for value in move(program, one, values, *rest)]

    monkeypatch.setattr(emitted, "run_move", unsummed)
    found = verified(cluster="cpu8")
    assert not found.passed
    assert found.unexplained == ()
    assert any(not row.passed for row in found.results)
    assert "FAIL" in str(found)


def test_a_collective_that_nobody_planned_fails_by_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    move = emitted.run_move

    def twice(program: Any, one: Any, values: Any, *rest: Any) -> Any:
        found = move(program, one, values, *rest)
        if one.kind != "all_reduce":
            return found
        further = [jax.lax.psum(jax.lax.pcast(v, "x", to="varying"), "x") / 8 for v in found]
        return [(v + w) / 2 for v, w in zip(found, further, strict=True)]

    monkeypatch.setattr(emitted, "run_move", twice)
    found = verified(cluster="cpu8")
    assert not found.passed
    assert all(row.passed for row in found.results)
    assert any(line.startswith("not planned: all_reduce") for line in found.unexplained)


def test_random_inputs_have_the_types_of_their_shapes() -> None:
    def all_kinds(f: Any, i: Any, b: Any, key: Any, half: Any, *, scale: Any) -> Any:
        noise = jax.random.normal(key, f.shape)
        return (f + noise) * scale, i + 1, ~b, jnp.sqrt(half)

    args = (
        struct(8, 8),
        struct(16, dtype=jnp.int32),
        struct(8, dtype=jnp.bool_),
        jax.eval_shape(jax.random.key, 0),
        struct(8, 8, dtype=jnp.bfloat16),
    )
    found = autopar.verify(all_kinds, *args, scale=struct(), mesh={"x": 8}, cluster="cpu8")
    assert found.passed
    assert [row.dtype for row in found.results] == ["float32", "int32", "bool", "bfloat16"]
    assert [row.allowed for row in found.results[1:3]] == [0.0, 0.0]
    assert all(row.largest > 0 for row in found.results)


def test_other_seeds_draw_other_numbers() -> None:
    one, other, again = (verified(cluster="cpu8", seed=seed).results for seed in (0, 1, 0))
    assert [row.largest for row in one] == [row.largest for row in again]
    assert [row.largest for row in one] != [row.largest for row in other]


def test_static_arguments_and_given_arrays_stay_as_they_are() -> None:
    def scaled(x: Any, factor: int) -> Any:
        return x * factor

    x = np.full((8, 8), 3.0, np.float32)
    found = autopar.verify(scaled, x, 5, static_argnums=1, mesh={"x": 8}, cluster="cpu8")
    assert found.passed
    assert [row.largest for row in found.results] == [15.0]


def test_what_is_not_finite_must_be_so_on_both_sides() -> None:
    def risky(x: Any) -> Any:
        return jnp.log(x - 1)

    x = np.linspace(0, 2, 64, dtype=np.float32).reshape(8, 8)
    assert autopar.verify(risky, x, mesh={"x": 8}, cluster="cpu8").passed


@pytest.mark.parametrize("wrong", [np.inf, np.nan, 0.0, None])
def test_one_that_is_another_kind_of_unbounded_fails(wrong: float | None) -> None:
    """Where plain JAX has -inf: inf, no number, a number, or -inf and inf in the place of a number."""
    wanted = np.array([1.0, -np.inf, np.nan], np.float32)
    given = wanted.copy()
    given[0 if wrong is None else 1] = np.inf if wrong is None else wrong
    row = verifying.result_row("x", wanted, wanted, given, 1e-3, is_same=True)
    assert not row.passed
    assert verifying.result_row("x", wanted, wanted, wanted, 1e-3, is_same=True).passed


def test_more_devices_than_there_are_are_asked_for() -> None:
    with pytest.raises(InvalidMesh, match=r"jax_num_cpu_devices', 64\)"):
        autopar.verify(step, struct(64, 64), struct(64, 64), cluster="8x8xh100")


def test_rows_say_what_differs() -> None:
    row = ResultRow("output['w']", "float32", 1e-3, 2.0, 0.0, 4e-4)
    assert not row.passed
    assert str(row) == "output['w'] off by 0.001 of 2, 0.0004 allowed"
    other = ResultRow("output['w']", "float32", 0.0, 0.0, 0.0, 0.0, is_same_shape=False)
    assert not other.passed
    assert "another type" in str(other)
