"""Chains of operators that cut, pad and join become one on their sources: same values, and no part of an odd size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autopar.core.graph import OpGraph
from autopar.trace import trace
from tests.trace.evaluate import as_function, assert_same

X = jnp.asarray(np.random.default_rng(0).integers(-9, 9, (16, 24)), jnp.float32)
Function = Callable[..., Any]


def kinds(graph: OpGraph) -> list[str]:
    """The kinds of all operators on matrices that move something, in order."""
    moving = {
        "concatenate",
        "dynamic_roll",
        "dynamic_slice",
        "pad",
        "roll",
        "slice",
        "splice",
        "split",
    }
    return [op.kind for op in graph.ops if op.kind in moving and op.outs[0].ndim == 2]


def corners(u: Any) -> Any:
    return u[2:, 2:] - u[:-2, :-2] + u[2:, :-2] * u[:-2, 2:]


def cross(u: Any) -> Any:
    return u[2:, 1:-1] + 2 * u[:-2, 1:-1] - u[1:-1, 2:] * u[1:-1, :-2]


def padded(shape: Function, mode: str) -> Function:
    return lambda x: shape(jnp.pad(x, 1, mode=mode))


def loss(function: Function) -> Function:
    return jax.grad(lambda x: (function(x) ** 3).sum())


def looped(x: Any) -> Any:
    return jax.lax.fori_loop(0, 3, lambda _, u: u + jnp.roll(u, 1, 0), x)


FUNCTIONS: dict[str, tuple[Function, list[str]]] = {
    "roll": (lambda x: jnp.roll(x, 3, 0), ["roll"]),
    "roll of two dims": (lambda x: jnp.roll(x, (1, -5), (0, 1)), ["roll", "roll"]),
    "roll and back": (lambda x: jnp.roll(jnp.roll(x, 3, 0), -3, 0) + x, []),
    "roll twice": (lambda x: jnp.roll(jnp.roll(x, 3, 1), 4, 1), ["roll"]),
    "roll in a loop": (looped, ["roll"]),
    "roll in a rematerialised block": (
        jax.grad(lambda x: jax.checkpoint(lambda y: jnp.sin(jnp.roll(y, 1, 0)))(x).sum()),
        ["roll", "roll"],
    ),
    "gradient of a roll": (loss(lambda x: jnp.roll(x, 3, 0)), ["roll", "roll"]),
    "zeros around": (padded(cross, "constant"), ["pad"] * 4),
    "zeros around, gradient": (loss(padded(cross, "constant")), ["pad"] * 8),
    "zeros around, corners": (padded(corners, "constant"), ["pad"] * 4),
    "wrapped": (padded(cross, "wrap"), ["roll"] * 4),
    "wrapped, gradient": (loss(padded(cross, "wrap")), [*["roll"] * 6, "pad", "roll", "pad"]),
    "wrapped, corners": (padded(corners, "wrap"), ["roll"] * 8),
    "edges": (padded(cross, "edge"), ["splice"] * 4),
    "edges, corners": (padded(corners, "edge"), ["splice"] * 8),
    "edges, gradient": (
        loss(padded(cross, "edge")),
        [*["splice"] * 4, *["pad"] * 4, *["splice"] * 4],
    ),
    "mirrored": (padded(cross, "reflect"), ["splice"] * 4),
    "cut, then padded": (lambda x: jnp.pad(x[1:], ((0, 1), (0, 0))), ["pad"]),
    "moved on": (lambda x: jnp.concatenate([x[2:], x[:2] * 2]), ["slice", "splice"]),
    "joined and cut again": (lambda x: jnp.concatenate([x, 2 * x])[16:] - x, []),
    "cut of a cut": (lambda x: x[1:][2:5], ["slice"]),
    "what was cut comes back as zeros": (lambda x: jnp.pad(x[2:-2], ((1, 1), (0, 0))), ["splice"]),
    "another value around": (lambda x: jnp.pad(x, 1, constant_values=7.0)[2:, 1:-1], ["pad"]),
    "two values around": (
        lambda x: jax.lax.pad(
            jax.lax.pad(x, 1.0, ((1, 0, 0), (0, 0, 0))), 2.0, ((1, -2, 0), (0, 0, 0))
        ),
        ["pad", "pad"],
    ),
    "a quarter of a large tensor": (
        lambda x: jnp.concatenate([x[:2], x[10:12]]),
        ["slice", "slice", "concatenate"],
    ),
}


@pytest.mark.quick_share(3)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_chains_are_taken_from_their_sources(name: str) -> None:
    function, expected = FUNCTIONS[name]
    traced = trace(function, (X,))
    assert sorted(kinds(traced.graph)) == sorted(expected)
    assert_same(jax.jit(function)(X), jax.jit(as_function(traced))(X), 1e-5)


@pytest.mark.parametrize("dim", [0, 1])
def test_a_roll_by_a_traced_shift_is_one_operator(dim: int) -> None:
    traced = trace(lambda x, by: jnp.roll(x, by, dim), (X, 0))
    assert kinds(traced.graph) == ["dynamic_roll"]
    for by in (-30, -16, -1, 0, 3, 15, 24, 99):
        assert_same(jnp.roll(X, by, dim), as_function(traced)(X, by))


def test_partial_sums_that_others_read_are_kept() -> None:
    def function(x: Any) -> Any:
        def inside(x: Any) -> Any:
            u = jnp.pad(x, 1)
            return (u[2:, 1:-1] ** 2).sum() + (u[:-2, 1:-1] ** 2).sum() + (jnp.sin(u) ** 2).sum()

        return jax.grad(inside)(x)

    assert_same(jax.jit(function)(X), jax.jit(as_function(trace(function, (X,))))(X), 1e-5)


def test_a_long_sum_is_taken_apart_or_left_but_right() -> None:
    def function(x: Any) -> Any:
        u = jnp.pad(x, 4)
        return sum((i + 1) * u[i : 16 + i, j : 24 + j] for i in range(7) for j in range(7))

    gradient = loss(function)
    assert_same(jax.jit(gradient)(X), jax.jit(as_function(trace(gradient, (X,))))(X), 1e-5)


# --- drawn ---------------------------------------------------------------------------------------------------------


def chain(rng: np.random.Generator) -> Function:
    """Some steps of cutting, padding, rolling, joining and adding, along any of two dims."""
    steps = rng.integers((0, 0, 0, 0), (6, 2, 7, 7), (rng.integers(1, 7), 4)).tolist()

    def function(x: Any) -> Any:
        for kind, dim, one, other in steps:
            size = x.shape[dim]
            low, high = min(one, size // 3), min(other, size // 3)
            if kind == 0:
                x = jax.lax.slice_in_dim(x, low, size - high, axis=dim)
            elif kind == 1:
                x = jnp.pad(x, [(one, other) if d == dim else (0, 0) for d in range(2)])
            elif kind == 2:
                x = jnp.roll(x, one - other, dim)
            elif kind == 3:
                x = jnp.concatenate([x, jax.lax.slice_in_dim(x, low, size - high, axis=dim)], dim)
            elif kind == 4:
                x = x + jnp.roll(x, one, dim)
            else:
                x = jax.lax.pad(
                    x,
                    0.0,
                    [(low - high, high - low, 0) if d == dim else (0, 0, 0) for d in range(2)],
                )
        return x

    return function


def weighted(function: Function) -> Function:
    """The gradient of a sum in which every element counts otherwise."""

    def total(x: Any) -> Any:
        y = function(x)
        return (y * jnp.arange(y.size).reshape(y.shape)).sum()

    return jax.grad(total)


@pytest.mark.quick_share(6)
@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 40))]
)
def test_any_chain_computes_what_it_did(seed: int) -> None:
    rng, x = np.random.default_rng(seed), X[:6, :8]
    functions = [chain(rng) for _ in range(12)]
    functions += [weighted(function) for function in functions]

    def every(x: Any) -> Any:
        return [function(x) for function in functions]

    found = [as_function(trace(function, (x,))) for function in functions]
    assert_same(jax.jit(every)(x), jax.jit(lambda x: [function(x) for function in found])(x), 1e-5)
