"""A small job for the tests: tanh regression, whose full-batch steps plain JAX and optax make too."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from time import sleep
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

EXAMPLES = 12
PARAMS = {
    "a": np.linspace(-1, 1, 8 * 16, dtype=np.float32).reshape(8, 16),
    "b": np.full((16, 2), 0.1, np.float32),
    "c": np.zeros((), np.float32),
}


def loss(params: Any, batch: Any) -> Any:
    """Mean squared error over the batch."""
    x, y = batch
    return jnp.mean((jnp.tanh(x @ params["a"]) @ params["b"] + params["c"] - y) ** 2)


def batch_of(step: int, index: int, count: int) -> Any:
    """Unequal parts of a batch that the step alone decides."""
    draw = np.random.default_rng(step)
    x = draw.normal(size=(EXAMPLES, 8)).astype(np.float32)
    bounds = [EXAMPLES * n * (n + 1) // (count * (count + 1)) for n in range(count + 1)]
    part = slice(bounds[index], bounds[index + 1])
    return x[part], np.tanh(x[part, :2])


def gated(folder: Path, at: int, slow: float = 0.0) -> Callable[[int, int, int], Any]:
    """As `batch_of`; every worker leaves its process number in the folder, waits at step `at` until there is a file
    `go`, and member 0 takes its time.
    """

    def batch(step: int, index: int, count: int) -> Any:
        (folder / f"{index}-at-{step}").write_text(str(os.getpid()))
        while step == at and not (folder / "go").exists():
            sleep(0.05)
        if index == 0:
            sleep(slow)
        return batch_of(step, index, count)

    return batch


def plain(
    optimizer: optax.GradientTransformation, batches: Sequence[Any], params: Any = None
) -> tuple[Any, list[float]]:
    """Parameters and losses of full-batch steps, without autopar."""
    params = PARAMS if params is None else params
    state = optimizer.init(params)
    losses: list[float] = []
    step = jax.jit(jax.value_and_grad(loss))
    for batch in batches:
        value, gradients = step(params, batch)
        updates, state = optimizer.update(gradients, state, params)
        params = optax.apply_updates(params, updates)
        losses.append(float(value))
    return params, losses
