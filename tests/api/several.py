"""What each of two processes does: plans, agrees, and runs a training step on the devices of both."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import autopar
from autopar.api import processes
from autopar.emit import several
from benchmarks import hosts
from tests.quick_compile import QUICK, compiled_by

CLUSTER = "2x2xcpu-1gbit"
X = np.linspace(-1, 1, 8 * 16, dtype=np.float32).reshape(8, 16)
W = {
    "a": np.linspace(-1, 1, 16 * 32, dtype=np.float32).reshape(16, 32),
    "b": np.full((32, 4), 0.1, np.float32),
}
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
    found = {
        name: trained(autopar.plan(step, W, X, cluster=CLUSTER, mesh=m))
        for name, m in meshes.items()
    }
    mesh = autopar.plan(step, W, X, cluster=CLUSTER).jax_mesh()
    assert list(mesh.devices.flat) == devices
    found["functions"] = refused(
        lambda: differing(lambda w, x: step(w, 2 * x) if work.number else step(w, x))(W, X)
    )
    order = devices[:: -1 if work.number else 1]
    found["orders"] = refused(
        lambda: autopar.plan(step, W, X, cluster=CLUSTER).compile(devices=order)(W, X)
    )
    found |= rows_of_their_own(work.number) | values_that_differ(work.number, devices)
    hosts.answer(work, found)


def differing(fn: Any) -> autopar.Compiled:
    return autopar.plan(fn, W, X, cluster=CLUSTER).compile()


def trained(plan: autopar.Plan) -> list[float]:
    """The losses of three steps: of whole values, then of the arrays that came out."""
    run, state, losses = plan.compile(), W, []
    rows = plan.in_shardings(plan.jax_mesh())[1]
    split = jax.make_array_from_callback(X.shape, rows, X.__getitem__)
    for x in (X, split, split):
        state, loss = run(state, x)
        losses.append(float(loss))
    return losses


def rows_of_their_own(number: int) -> dict[str, Any]:
    """What comes of each process's own rows, made one array, where the plan splits them and where it does not."""
    found: dict[str, Any] = {}
    for name, spec in (("split", P("p")), ("whole", P())):
        constraints = (autopar.pin("x", spec), autopar.replicate("w"))
        plan = autopar.plan(
            step, W, X, cluster=CLUSTER, mesh={"p": 2, "q": 2}, constraints=constraints
        )
        part = plan.in_slices()[1]
        batch = jax.make_array_from_process_local_data(plan.in_shardings()[1], X[part])
        found[f"{name} rows"] = [[part[0].start, part[0].stop], list(batch.shape)]
        found[f"{name} loss"] = float(plan.compile()(W, batch)[1])
        half = jax.make_array_from_process_local_data(plan.in_shardings()[1], X[4 * number :][:2])
        found[f"{name} half"] = refused(lambda plan=plan, half=half: plan.compile()(W, half))
    compiled = autopar.compile(step, cluster=CLUSTER)
    whole = jax.sharding.NamedSharding(compiled.plan(W, X).jax_mesh(), P())
    found["asked"] = refused(
        lambda: compiled(W, jax.make_array_from_process_local_data(whole, X[4 * number :][:4]))
    )
    return found


def values_that_differ(number: int, devices: Any) -> dict[str, Any]:
    """What processes are told that pass different values, and that nothing is exchanged for arrays over all."""
    run = autopar.plan(scaled, W, X, 0.5, cluster=CLUSTER).compile()
    drawn, key = autopar.plan(noise, jax.random.key(0), X, cluster=CLUSTER), jax.random.key(number)
    messages = [
        refused(lambda: run(W, X + number, 0.5)),
        refused(lambda: run(W, X, 0.5 + number)),
        refused(lambda: run({**W, "a": jax.numpy.asarray(W["a"]) * (1 + number)}, X, 0.5)),
        refused(lambda: differing(lambda w, x: step(w, x + X * (1 + number)))(W, X)),
        refused(lambda: drawn.compile()(key, X)),
        refused(lambda: drawn.place(X * (1 + number), "x")),
    ]
    noisy = float(drawn.compile()(jax.random.key(3), drawn.place(X, "x")))
    state, loss = run(W, X, 0.5)
    told = [
        row.decode().split("|") for row in several.gathered("|".join(messages).encode(), devices)
    ]

    counted: list[int] = []
    gathered_rows, processes.gathered_rows = (
        processes.gathered_rows,
        lambda own, _: counted.append(len(own)) or {},
    )
    rows = jax.make_array_from_process_local_data(run.plan(W, X, 0.5).in_shardings()[1], X)
    rate = jax.device_put(0.5, loss.sharding)
    run(state, rows, rate)
    counts = [len(counted)]
    run(state, rows, 0.5)
    processes.gathered_rows = gathered_rows
    return {"told": told, "counted": [*counts, *counted], "noisy": noisy}


def noise(key: Any, x: Any) -> Any:
    return (x * jax.random.normal(key, x.shape)).sum()


def scaled(w: Any, x: Any, rate: Any) -> tuple[Any, Any]:
    """A step at a rate."""
    new, loss = step(w, x)
    return jax.tree.map(lambda before, after: before + rate * (after - before), w, new), loss


def refused(work: Any) -> str:
    """The message of the error that `work` raises."""
    try:
        work()
    except autopar.AutoparError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    with compiled_by(QUICK):
        main(Path(sys.argv[-1]))
