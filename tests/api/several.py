"""What each of two processes does: plans, agrees, and runs a training step on the devices of both."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import autopar
from benchmarks import hosts

X = np.linspace(-1, 1, 8 * 16, dtype=np.float32).reshape(8, 16)
W = {"a": np.linspace(-1, 1, 16 * 32, dtype=np.float32).reshape(16, 32), "b": np.full((32, 4), 0.1, np.float32)}
OFFSET = np.arange(32, dtype=np.float32) / 32


def step(w: Any, x: Any) -> tuple[Any, Any]:
    """A step of gradient descent; OFFSET is a constant of the function."""

    def loss(w: Any) -> Any:
        return jnp.mean((jnp.tanh(x @ w["a"] + OFFSET) @ w["b"]) ** 2)

    value, gradients = jax.value_and_grad(loss)(w)
    return jax.tree.map(lambda p, g: p - 0.1 * g, w, gradients), value


def main(told: Path) -> None:
    """Runs the step by plans that are the same in all processes, that differ, and of functions that differ."""
    work = hosts.join(told)
    devices = hosts.devices_in_order()
    meshes = {"same": {"p": 2, "q": 2}, "differing": {"p": 4} if work.number else {"p": 2, "q": 2}}
    found = {name: trained(autopar.plan(step, W, X, cluster="2x2xcpu-1gbit", mesh=m)) for name, m in meshes.items()}
    mesh = autopar.plan(step, W, X, cluster="2x2xcpu-1gbit").jax_mesh()
    assert list(mesh.devices.flat) == devices
    other = autopar.plan(lambda w, x: step(w, 2 * x) if work.number else step(w, x), W, X, cluster="2x2xcpu-1gbit")
    found["refused"] = refused(lambda: other.compile()(W, X))
    order = devices[:: -1 if work.number else 1]
    found["orders"] = refused(lambda: autopar.plan(step, W, X, cluster="2x2xcpu-1gbit").compile(devices=order)(W, X))
    hosts.answer(work, found)


def trained(plan: autopar.Plan) -> list[float]:
    """The losses of three steps: of whole values, then of the arrays that came out."""
    run, state, losses = plan.compile(), W, []
    rows = plan.in_shardings(plan.jax_mesh())[1]
    split = jax.make_array_from_callback(X.shape, rows, X.__getitem__)
    for x in (X, split, split):
        state, loss = run(state, x)
        losses.append(float(loss))
    return losses


def refused(work: Any) -> str:
    """The message of the error that `work` raises."""
    try:
        work()
    except autopar.AutoparError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main(Path(sys.argv[-1]))
