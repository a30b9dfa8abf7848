"""Where gradients share no collective after all, the program is compared with one that sends each by itself."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import autopar
from autopar.api import make
from autopar.search import apart

MESH = {"x": 8}


def interrupted(*_: Any) -> Any:
    raise KeyboardInterrupt


def experts(p: Any, x: Any) -> Any:
    """Of whose three gradients one alone is reduced where rows are split."""

    def loss(p: Any) -> Any:
        weights, chosen = lax.top_k(jax.nn.softmax(x @ p["gate"]), 2)
        order = jnp.argsort(chosen.reshape(-1), stable=True)
        rows = order // 2
        sizes = jnp.bincount(chosen.reshape(-1), length=4)
        h = jax.nn.gelu(lax.ragged_dot(x[rows], p["up"], sizes))
        out = lax.ragged_dot(h, p["down"], sizes) * weights.reshape(-1)[order][:, None]
        return (jnp.zeros_like(x).at[rows].add(out) ** 2).mean()

    return jax.value_and_grad(loss)(p)


def shape(*dims: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, jnp.float32)


ARGS = {"gate": shape(16, 4), "up": shape(4, 16, 32), "down": shape(4, 32, 16)}, shape(40, 16)


def planned() -> autopar.Plan:
    return autopar.plan(experts, *ARGS, cluster="cpu8", mesh=MESH)


def test_a_program_that_shares_nothing_is_not_taken_for_one_that_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = planned()
    assert plan.serial_time_s <= plan.objective_s * 1.02
    assert plan.lower_bound_s <= plan.objective_s
    plan.verify()
    monkeypatch.setattr(make, "or_apart", lambda planned, _: planned)
    before = planned()
    assert before.objective_s < plan.objective_s  # what the search minimises is less
    assert before.serial_time_s > 1.3 * plan.serial_time_s
    assert before.lower_bound_s == pytest.approx(plan.lower_bound_s)


def test_ctrl_c_leaves_the_plan_that_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "find_plan", interrupted)
    assert planned().serial_time_s > planned().objective_s * 1.1
