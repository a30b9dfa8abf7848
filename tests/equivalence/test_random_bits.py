"""Bits of the generators `rbg` and `unsafe_rbg`: each device makes its own, and they are those of plain JAX."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autopar
from autopar.errors import WholeBitsWarning
from tests.equivalence.cases import MESHES, Case
from tests.equivalence.check import check
from tests.equivalence.test_solver_plans import plan_of, slow_devices
from tests.quick_some import diagonal


def dropout(key: Any, x: Any) -> Any:
    """Two draws, of words and of bytes, and the key after them."""
    first, second = jax.random.split(key)
    kept = jnp.where(jax.random.bernoulli(first, 0.5, x.shape), x, 0)
    return (
        kept + jax.random.normal(second, x.shape),
        jax.random.bits(second, x.shape, "uint8"),
        second,
    )


def stream(state: Any) -> Any:
    """The state goes on to the next draw."""
    state, first = jax.lax.rng_bit_generator(state, (64, 4))
    state, second = jax.lax.rng_bit_generator(state, (3, 64), jnp.uint16)
    return first, second, state


def case_of(implementation: str) -> Case:
    x = jnp.asarray(np.random.default_rng(0).normal(size=(64, 8)), jnp.float32)
    return Case(dropout, (jax.random.key(3, impl=implementation), x), "float32")


@pytest.mark.parametrize(("implementation", "mesh"), diagonal(["rbg", "unsafe_rbg"], MESHES))
def test_every_device_makes_its_own_bits(implementation: str, mesh: str) -> None:
    case = case_of(implementation)
    plan = plan_of(case, mesh)
    split = [op.split for op in plan.summary.operators if op.kind == "rng_bit_generator"]
    assert split.count(8) >= 3
    check(case, plan.program())


def test_the_state_after_a_draw_is_that_after_all_of_it() -> None:
    state = np.array([5, 7, 2**32 - 3, 9], np.uint32)
    case = Case(stream, (state,), "float32")
    plan = autopar.plan(stream, state, cluster=slow_devices(), mesh={"x": 8})
    assert [op.split for op in plan.summary.operators if op.kind == "rng_bit_generator"] == [8, 1]
    check(case, plan.program())


def test_where_all_make_all_bits_that_is_said() -> None:
    """On TPU the generator is the device's own; threefry, which the message names, is split there."""
    x = jax.ShapeDtypeStruct((4096, 4096), jnp.float32)
    keys = {name: jax.random.key(0, impl=name) for name in ("rbg", "threefry2x32")}
    with pytest.warns(
        WholeBitsWarning, match=re.escape("(4096, 4096)") + r".*test_random_bits.py.*threefry2x32"
    ):
        plan = autopar.plan(dropout, keys["rbg"], x, cluster="tpu-v5e-4x4")
    assert {op.split for op in plan.summary.operators if op.kind == "rng_bit_generator"} == {1}
    autopar.plan(dropout, keys["threefry2x32"], x, cluster="tpu-v5e-4x4")  # warnings are errors
    autopar.plan(dropout, keys["rbg"], x, cluster="8xh100")
