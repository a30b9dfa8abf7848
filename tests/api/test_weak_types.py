"""Python's numbers, whose types are weak, and arrays in their places: a plan made for one runs with the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autopar
from autopar.errors import SignatureMismatch

W = jnp.ones((16, 4))
X = jnp.ones((32, 16))
SCALAR = jax.ShapeDtypeStruct((), jnp.float32)


def step(w: Any, x: Any, lr: Any) -> Any:
    gradient = jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)
    return w - lr * gradient, lr * 0.9


@pytest.mark.parametrize(
    ("planned_for", "given"),
    [(SCALAR, 0.1), (0.1, jnp.float32(0.1)), (0.1, 0.1), (SCALAR, np.float32(0.1))],
)
def test_a_plan_runs_with_either(planned_for: Any, given: Any, tmp_path: Path) -> None:
    plan = autopar.plan(step, W, X, planned_for, cluster="cpu8", mesh={"x": 8})
    plan.save(tmp_path / "plan.json")
    loaded = autopar.Plan.load(tmp_path / "plan.json")
    expected = step(W, X, given)
    for run in (plan.compile(), loaded.compile(step)):
        for _ in range(2):
            for mine, plain in zip(run(W, X, given), expected, strict=True):
                np.testing.assert_allclose(mine, plain, rtol=1e-5)


def test_other_types_are_refused_still() -> None:
    plan = autopar.plan(step, W, X, SCALAR, cluster="cpu8", mesh={"x": 8})
    with pytest.raises(SignatureMismatch):
        plan.compile()(W, X, jnp.int32(1))


def test_without_a_plan_results_are_of_the_types_that_jax_gives() -> None:
    run = autopar.compile(step, cluster="cpu8", mesh={"x": 8})
    for given in (0.1, jnp.float32(0.1)):
        assert run(W, X, given)[1].weak_type == jax.jit(step)(W, X, given)[1].weak_type
