"""The job that `benchmarks.faults` kills: a small step with noise, shuffled rows, a checkpoint every few steps."""

from __future__ import annotations

import sys
from pathlib import Path
from time import sleep
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import autopar

EVERY = 10
WIDTH = 512  # a state of 3 MB: to write it takes as long as some steps
STEP_S = 0.02
ROWS = 1000
RESUMED = "resumed"
"""The file that says which step the job went on from."""


class Rows:
    """Rows of numbers, each of its own."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, n: int) -> np.ndarray:
        return np.random.default_rng(n).normal(size=WIDTH).astype(np.float32)


def make_state() -> Any:
    """Parameters, their momentum, and the key of the noise."""
    w = jax.random.normal(jax.random.key(0), (WIDTH, WIDTH)) * WIDTH**-0.5
    return {"w": w, "m": jnp.zeros_like(w), "best": jnp.zeros_like(w), "key": jax.random.key(1)}


def step(state: Any, x: Any) -> tuple[Any, Any]:
    """A noisy autoencoder of one layer: a row that is seen twice or left out changes every loss behind it."""
    key, now = jax.random.split(state["key"])

    def loss(w: Any) -> Any:
        noisy = x + 0.1 * jax.random.normal(now, x.shape)
        return jnp.mean((jnp.tanh(noisy @ w) @ w.T - x) ** 2)

    value, gradient = jax.value_and_grad(loss)(state["w"])
    m = 0.9 * state["m"] + gradient
    w = state["w"] - 0.1 * m
    return {"w": w, "m": m, "best": jnp.maximum(state["best"], w), "key": key}, value


def main(directory: Path, steps: int) -> None:
    """Goes on from the last checkpoint, up to this many steps in all."""
    autopar.distributed.init()
    x = jax.ShapeDtypeStruct((8, WIDTH), jnp.float32)
    plan = autopar.plan(
        step,
        jax.eval_shape(make_state),
        x,
        cluster="cpu-gloo2",
        mesh={"x": 2},
        constraints=(autopar.pin("state['w']", jax.P("x")), autopar.pin("x", jax.P("x"))),
        donate_argnums=0,
    )
    first: list[int] = []

    def hook(done: int, *_: Any) -> None:
        """Tells which step it went on from, once, and takes its time."""
        if not first and autopar.distributed.rank() == 0:
            (directory / RESUMED).write_text(str(done - 1))
        first.append(done)
        sleep(STEP_S)

    trainer = autopar.Trainer(directory, log_every=1, show=False)
    with (
        autopar.data.loader(Rows(), plan, "x", shuffle=True) as loader,
        autopar.checkpoint.Checkpoints(directory / "checkpoints", every=EVERY) as checkpoints,
    ):
        trainer.fit(plan, make_state, loader, steps, checkpoint=checkpoints, hooks=[hook])


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
