"""What the API's tests share: a cluster on which splitting always pays, small functions, and a strict comparison."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cost_models import load_cluster

_CPU = load_cluster("cpu8")
# Eight devices that compute ten thousand operations a second: every plan splits whatever can be split.
SLOW = replace(
    _CPU,
    device=replace(
        _CPU.device, memory_bandwidth_bytes_per_s=1e4, peak_flops_per_s={"float32": 1e4}
    ),
)
W = np.linspace(-1, 1, 16 * 24, dtype=np.float32).reshape(16, 24)
X = np.linspace(-1, 1, 8 * 16, dtype=np.float32).reshape(8, 16)
PARAMS = {"b": W[0], "w": W}


def layer(w: Any, x: Any) -> Any:
    return jnp.tanh(x @ w).sum(-1)


def step(p: Any, x: Any) -> Any:
    """One step of gradient descent: (new parameters, loss)."""
    loss, gradient = jax.value_and_grad(lambda p: (jnp.tanh(x @ p["w"] + p["b"]) ** 2).mean())(p)
    return jax.tree.map(lambda a, b: a - 0.1 * b, p, gradient), loss


def arrays(tree: Any) -> Any:
    """Fresh JAX arrays of the same values, to be donated."""
    return jax.tree.map(lambda leaf: jnp.array(leaf, copy=True), tree)


def assert_same(found: Any, wanted: Any) -> None:
    """Equal structure, shapes, dtypes, weak types and, up to rounding, values."""
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert (a.shape, a.dtype, getattr(a, "weak_type", None)) == (
            b.shape,
            b.dtype,
            getattr(b, "weak_type", None),
        )
        assert not a.is_deleted()
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            np.testing.assert_array_equal(jax.random.key_data(a), jax.random.key_data(b))
        elif jnp.issubdtype(a.dtype, jnp.floating):
            exact = jnp.finfo(a.dtype).bits > 16
            np.testing.assert_allclose(
                np.asarray(a, np.float64),
                np.asarray(b, np.float64),
                rtol=1e-5 if exact else 2e-2,
                atol=1e-6,
            )
        else:
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def check(compiled: Callable[..., Any], fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The results of `compiled`, which must be those of `fn` under jax.jit."""
    found = compiled(*args, **kwargs)
    assert_same(found, jax.jit(fn)(*args, **kwargs))
    return found
