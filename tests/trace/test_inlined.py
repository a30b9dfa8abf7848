"""Calls of every kind are walked in place: no operator stands for one, and values are the function's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import xla_metadata

from autopar.ops.rules import registered
from autopar.trace import trace
from tests.trace.evaluate import as_function, assert_same

_MATRIX = np.eye(4, dtype="float32") * 3 + np.arange(16, dtype="float32").reshape(4, 4) / 16
_VECTOR = np.arange(1, 5, dtype="float32")


def composite(x: Any, y: Any) -> Any:
    return lax.composite(lambda x, *, scale: jnp.tanh(x) * scale, name="example.scaled_tanh")(
        x @ y, scale=2.0
    )


def linear_call(x: Any, y: Any) -> Any:
    def apply(matrix: Any, vector: Any) -> Any:
        return matrix @ vector

    def transposed(matrix: Any, vector: Any) -> Any:
        return matrix.T @ vector

    return jax.custom_derivatives.linear_call(apply, transposed, x, y)


@jax.custom_vjp
def _squared(x: Any) -> Any:
    return x * x


_squared.defvjp(lambda x: (x * x, x), lambda x, t: (2 * x * t,), optimize_remat=True)


def gradient_of_solve(x: Any, y: Any) -> Any:
    return jax.grad(lambda x: (jnp.linalg.solve(x, y) ** 2).sum())(x)


def with_metadata(x: Any, y: Any) -> Any:
    """Of one value, and of a call where JAX has that."""
    call: Any = getattr(xla_metadata, "xla_metadata_call", None)
    part = jnp.tanh if call is None else call(jnp.tanh, part="inner")
    return xla_metadata.set_xla_metadata(part(x @ y), kept="here") * 2


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "metadata": with_metadata,
    "solve": jnp.linalg.solve,
    "gradient of solve": gradient_of_solve,
    "inverse": lambda x, y: jnp.linalg.inv(x) @ y,
    "solve, positive": lambda x, y: jax.scipy.linalg.solve(x @ x.T, y, assume_a="pos"),
    "composite": composite,
    "linear_call": linear_call,
    "optimize_remat": lambda x, y: jax.value_and_grad(lambda v: _squared(v).sum())(x @ y),
    "named axis": lambda x, y: jax.vmap(lambda v: v / lax.psum(v, "rows"), axis_name="rows")(x + y),
    "by platform": lambda x, y: lax.platform_dependent(x @ y, cpu=jnp.sin, default=jnp.cos),
    "fft": lambda x, y: jnp.fft.irfft(jnp.fft.rfft(x) * y[:3]),
}


@pytest.mark.quick_share(2)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_graph_computes_the_function(name: str) -> None:
    traced = trace(FUNCTIONS[name], (_MATRIX, _VECTOR))
    expected, found = (jax.jit(f)(_MATRIX, _VECTOR) for f in (FUNCTIONS[name], as_function(traced)))
    assert_same(expected, found, 1e-5)


@pytest.mark.parametrize("name", sorted(FUNCTIONS.keys() - {"by platform"}))
def test_every_operator_has_a_rule(name: str) -> None:
    graph = trace(FUNCTIONS[name], (_MATRIX, _VECTOR)).graph
    assert {op.kind for op in graph.ops} - set(registered()) == set()


@pytest.mark.quick_share(3)
@pytest.mark.parametrize(
    "implementation",
    [
        *("threefry2x32", "rbg", "unsafe_rbg"),
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("philox2x32", "philox4x32", "threefry4x32")
        ),
    ],
)
def test_keys_of_every_implementation(implementation: str) -> None:
    """Seeds, splits, folds and draws; every operator that they come down to has a rule."""

    def draw(seed: Any) -> Any:
        first, second = jax.random.split(
            jax.random.fold_in(jax.random.key(seed, impl=implementation), 3)
        )
        return (
            jax.random.normal(first, (4, 3)),
            jax.random.randint(second, (5,), 0, 9),
            jax.random.key_data(second),
        )

    traced = trace(draw, (7,))
    assert {op.kind for op in traced.graph.ops} - set(registered()) == set()
    # run by operators: a compiler takes a minute for threefry4x32
    assert_same(draw(7), as_function(traced)(7), 1e-6)
