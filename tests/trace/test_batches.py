"""Reads and writes that count along a dim are of each row by itself: of the same values, and split like rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autopar
from autopar.core.graph import OpNode
from autopar.trace import trace
from tests.trace.evaluate import as_function, assert_same

DRAW = np.random.default_rng(0)
X = jnp.asarray(DRAW.normal(size=(6, 5, 7)), jnp.float32)
ROWS = jnp.asarray(DRAW.integers(-9, 9, 6))
GRID = jnp.asarray(DRAW.integers(-9, 9, (6, 5)))
B = jnp.arange(6)
T = jnp.arange(5)
INDEXED = {"gather", "scatter", "scatter-add", "scatter-max", "scatter-mul"}
Function = Callable[..., Any]


def indexed(function: Function, *args: Any) -> list[OpNode]:
    """The operators with indices that are left; the graph computes what the function does."""
    traced = trace(function, args)
    assert_same(jax.jit(function)(*args), jax.jit(as_function(traced))(*args))
    return [op for op in traced.graph.ops if op.kind in INDEXED]


def batches(op: OpNode) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The dims of the operand and of the indices that are batches."""
    numbers = op.params["dimension_numbers"]
    name = "start" if op.kind == "gather" else "scatter"
    return numbers["operand_batching_dims"], numbers[f"{name}_indices_batching_dims"]


STATED: dict[str, tuple[Function, Any, tuple[tuple[int, ...], tuple[int, ...]]]] = {
    "labels": (lambda x, y: x[B, y], ROWS, ((0,), (0,))),
    "labels of every position": (
        lambda x, y: x[B[:, None], T[None], y],
        GRID,
        ((0, 1), (0, 1)),
    ),
    "in another order": (lambda x, y: x[B[None], T[:, None], y.T], GRID, ((0, 1), (1, 0))),
    "the second": (lambda x, y: x[y[:5], T], ROWS, ((1,), (0,))),
    "written": (lambda x, y: x.at[B, y].set(2.0), ROWS, ((0,), (0,))),
    "added, out of bounds too": (lambda x, y: x.at[B, y + 3].add(1.0), ROWS, ((0,), (0,))),
    "filled": (
        lambda x, y: x.at[B, y].get(mode="fill", fill_value=3.0),
        ROWS,
        ((0,), (0,)),
    ),
    "largest": (lambda x, y: x.at[B[:, None], T[None], y].max(1.0), GRID, ((0, 1), (0, 1))),
    "some are batches already": (
        lambda x, y: jax.vmap(lambda one, at: one[T, at])(x, y),
        GRID,
        ((0, 1), (0, 1)),
    ),
}
KEPT: dict[str, tuple[Function, Any]] = {
    "fewer than there are": (lambda x, y: x[B[:4], y[:4]], ROWS),
    "counted down": (lambda x, y: x[B[::-1], y], ROWS),
    "from one on": (lambda x, y: x[jnp.arange(1, 6), y[:5]], ROWS),
    "rows that are asked for": (lambda x, y: x[y], ROWS),
    "twice as many": (lambda x, y: x[jnp.tile(B, 2), jnp.tile(y, 2)], ROWS),
}


@pytest.mark.parametrize("name", STATED)
def test_what_counts_along_a_dim_is_of_each_row(name: str) -> None:
    function, at, dims = STATED[name]
    (op,) = indexed(function, X, at)
    assert batches(op) == dims


@pytest.mark.parametrize("name", KEPT)
def test_what_does_not_stays_as_it_is(name: str) -> None:
    function, at = KEPT[name]
    (op,) = indexed(function, X, at)
    assert batches(op) == ((), ())


def test_a_derivative_is_of_each_row_too() -> None:
    def loss(x: jax.Array, y: jax.Array) -> jax.Array:
        return (x[B, y] ** 2).sum()

    ops = indexed(jax.grad(loss), X, ROWS)
    assert {op.kind: batches(op) for op in ops} == {
        "gather": ((0,), (0,)),
        "scatter-add": ((0,), (0,)),
    }


def step(w: jax.Array, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A step of a linear classifier whose loss picks labels by a list of all rows."""

    def loss(w: jax.Array) -> jax.Array:
        return -jax.nn.log_softmax(x @ w)[jnp.arange(x.shape[0]), y].mean()

    value, gradient = jax.value_and_grad(loss)(w)
    return w - 0.1 * gradient, value


ARGS = (
    jnp.asarray(DRAW.normal(size=(16, 24)), jnp.float32),
    jnp.asarray(DRAW.normal(size=(32, 16)), jnp.float32),
    jnp.asarray(DRAW.integers(0, 24, 32)),
)


def test_rows_and_labels_are_split_alike() -> None:
    compiled = autopar.compile(step, mesh={"x": 8}, mode="data_parallel")
    plan = compiled.plan(*ARGS)
    assert [str(row.placement) for row in plan.summary.inputs] == ["[-, -]", "[x, -]", "[x]"]
    assert {row.role for row in plan.summary.collectives} == {"mirror"}
    for found, wanted in zip(compiled(*ARGS), jax.jit(step)(*ARGS), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_micro_batches_pick_their_own_labels() -> None:
    accumulated = autopar.accumulate(step, micro_batches=4)
    for found, wanted in zip(jax.jit(accumulated)(*ARGS), jax.jit(step)(*ARGS), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
