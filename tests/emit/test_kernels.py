"""What XLA's CPU compiler makes of programs: which kernels read what, and what is put in another order."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import autopar
from autopar.backends.known import UNKNOWN, XLA_CPU

pytestmark = pytest.mark.usefixtures("fused_as_ever")


def picked(table: jax.Array, rows: jax.Array) -> jax.Array:
    return table[rows]


def weights_gradient(x: jax.Array, y: jax.Array) -> jax.Array:
    """As reverse mode makes it: the product over batch and place, turned round; `y` comes out of a kernel."""
    return jax.vjp(lambda w: jnp.einsum("btd,df->btf", x, w), jnp.ones((x.shape[2], y.shape[2])))[
        1
    ](jnp.sin(y))[0]


def compiled(plan: autopar.Plan, *args: Any) -> str:
    lowered: Any = plan.compile(devices=jax.devices()).lower(*args)
    return lowered.compile().as_text()


def test_a_table_that_arrives_in_pieces_is_written_before_rows_of_it_are_gathered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A kernel that gathers reads the table and the indices, not the eight pieces of the table."""
    rng = np.random.default_rng(0)
    args = (
        rng.normal(size=(256, 64)).astype(np.float32),
        rng.integers(-256, 256, 4096).astype(np.int32),
    )
    pins = [autopar.pin("table", P("x")), autopar.pin("rows", P())]
    plan = autopar.plan(picked, *args, cluster="cpu8", mesh={"x": 8}, constraints=pins)
    assert [move.kind for move in plan.program().collectives] == ["all_to_all"]
    np.testing.assert_array_equal(plan.compile(devices=jax.devices())(*args), args[0][args[1]])
    calls = {}
    for backend in (UNKNOWN, XLA_CPU):
        monkeypatch.setattr("autopar.emit.wrap.backend_on", {"cpu": backend}.get)
        text = compiled(plan, *args)
        calls[(backend is XLA_CPU)] = len(re.findall(r" call\(", text))
        gathers = re.findall(r"%\S*gather\S* = \S+ fusion\((.*?)\)", text)
        assert len(gathers) == 1
        assert backend is not XLA_CPU or gathers[0].count("%") == 2
    assert calls[True] == calls[False] + 1


def test_gradients_of_weights_turn_no_operand(monkeypatch: pytest.MonkeyPatch) -> None:
    """What makes the larger operand leaves it as it is; the product contracts the first dims of both."""
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=shape).astype(np.float32) for shape in ((16, 8, 32), (16, 8, 64)))
    plan = autopar.plan(weights_gradient, x, y, cluster="cpu8", mesh={"x": 8}, mode="data_parallel")
    found = plan.compile(devices=jax.devices())(x, y)
    np.testing.assert_allclose(found, np.einsum("btd,btf->df", x, np.sin(y)), rtol=1e-4, atol=1e-4)
    turned = {}
    for backend in (UNKNOWN, XLA_CPU):
        monkeypatch.setattr("autopar.emit.wrap.backend_on", {"cpu": backend}.get)
        text = compiled(plan, x, y)
        turned[(backend is XLA_CPU)] = len(re.findall(r" transpose\(", text))
        assert (
            backend is not XLA_CPU or "lhs_contracting_dims={0}, rhs_contracting_dims={0}" in text
        )
    assert turned[True] == 0 < turned[False]
