"""A state with every kind of leaf, a step of it, and how two states are compared."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import autopar

WIDTH = 60  # uneven for 8 devices: plans pad it inside
X = np.linspace(-1, 1, 16 * WIDTH, dtype=np.float32).reshape(16, WIDTH)
CLUSTER = "cpu8"


def make_state(seed: int = 0) -> Any:
    key, first, second = jax.random.split(jax.random.key(seed), 3)
    params = {
        "up": jax.random.normal(first, (WIDTH, 64)),
        "down": [jax.random.normal(second, (64, WIDTH)), (jnp.zeros(WIDTH, jnp.bfloat16), None)],
        "none": jnp.zeros((0, 3)),
    }
    return {"params": params, "count": jnp.int32(0), "key": key}


def step(state: Any, x: Any) -> Any:
    """Noise and gradient descent: the losses of two steps differ if anything of the state does."""
    key, now = jax.random.split(state["key"])

    def loss(params: Any) -> Any:
        hidden = jnp.tanh((x + 0.1 * jax.random.normal(now, x.shape)) @ params["up"])
        down, (shift, _) = params["down"]
        return jnp.mean((hidden @ down + shift) ** 2)

    value, gradients = jax.value_and_grad(loss)(state["params"])
    params = jax.tree.map(lambda p, g: p - (0.1 * g).astype(p.dtype), state["params"], gradients)
    return {"params": params, "count": state["count"] + 1, "key": key}, value


def planned(mesh: dict[str, int], **options: Any) -> autopar.Plan:
    return autopar.plan(step, jax.eval_shape(make_state), X, mesh=mesh, donate_argnums=0, **options)


def run(compiled: Any, state: Any, steps: int) -> tuple[Any, list[float]]:
    """The state behind some steps, and their losses."""
    losses: list[float] = []
    for _ in range(steps):
        state, loss = compiled(state, X)
        losses.append(float(loss))
    return state, losses


def numbers(leaf: Any) -> np.ndarray[Any, Any]:
    """The elements of a leaf, of keys their data."""
    is_key = jnp.issubdtype(getattr(leaf, "dtype", np.float32), jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


def assert_equal(found: Any, expected: Any) -> None:
    """Bit for bit, types and structure too."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert getattr(one, "dtype", type(one)) == getattr(other, "dtype", type(other))
        np.testing.assert_array_equal(numbers(one), numbers(other))
