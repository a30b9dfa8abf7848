"""What the builders of models share: random weights without running an initialiser, batches, losses, gradients."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Tree = Any
Step = Callable[..., Any]
Built = tuple[Step, tuple[Any, ...]]
"""A function and the arguments that it is compared on."""


def draws(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def normal(shape: tuple[int, ...], seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return (scale * draws(seed).normal(size=shape)).astype(np.float32)


def integers(high: int, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return draws(seed).integers(high, size=shape).astype(np.int32)


def random_weights(init: Step, *args: Any, seed: int = 0) -> Tree:
    """Values for the variables that `init(*args)` would make, which is not run: only its shapes are asked for.

    Scales and variances are near 1, other vectors near 0, kernels are normal with variance 1 / fan-in.
    """
    return random_values(jax.eval_shape(init, *args), seed)


def random_values(specs: Tree, seed: int = 0) -> Tree:
    """As `random_weights`, for every ShapeDtypeStruct in a tree; other leaves stay."""
    draw = draws(seed)

    def value(path: tuple[Any, ...], spec: Any) -> Any:
        if not isinstance(spec, jax.ShapeDtypeStruct):
            return spec
        name = jax.tree_util.keystr(path[-1:]).lower()
        if not jnp.issubdtype(spec.dtype, jnp.floating):
            return np.zeros(spec.shape, spec.dtype)
        noise = draw.normal(size=spec.shape)
        if any(word in name for word in ("scale", "var", "gamma")) or (
            spec.ndim < 2 and "weight" in name
        ):
            return (1.0 + 0.05 * np.abs(noise)).astype(spec.dtype)
        return (noise * (prod(spec.shape[:-1]) ** -0.5 if spec.ndim > 1 else 0.05)).astype(
            spec.dtype
        )

    return jax.tree_util.tree_map_with_path(value, specs)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """-mean log softmax(logits)[labels], picked by index."""
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1).mean()


def with_gradients(loss: Step) -> Step:
    """fn(params, *rest) -> (loss, gradients)."""

    def step(params: Tree, *rest: Any) -> tuple[jax.Array, Tree]:
        return jax.value_and_grad(loss)(params, *rest)

    return step


def with_sgd(loss: Step, rate: float = 0.1) -> Step:
    """fn(params, *rest) -> (new params, loss)."""

    def step(params: Tree, *rest: Any) -> tuple[Tree, jax.Array]:
        value, grads = jax.value_and_grad(loss)(params, *rest)
        return jax.tree.map(lambda p, g: p - rate * g, params, grads), value

    return step
