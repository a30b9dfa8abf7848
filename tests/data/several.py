"""What each of several processes does with loaders: which rows it reads, and what the batches are."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import autopar
from autopar.data import Loader, Reading, Rows, loader
from benchmarks import hosts
from cost_models import load_cluster, replace_link
from tests.quick_compile import QUICK, compiled_by

CLUSTER = "2x2xcpu-1gbit"
ROWS = 23
BATCH = 8
SPECS = {
    "split": (P("p"), P("p")),
    "one by one": (P(("p", "q")), P(("p", "q"))),
    "interleaved": (P(("q", "p")), P(("q", "p"))),
    "whole": (P(), P()),
    "columns": (P(None, "p"), P(("p", "q"))),
}


class Seen(Rows):
    """Rows that say which of them were read; each names itself."""

    def __init__(self) -> None:
        images = np.arange(ROWS * 4, dtype=np.float32).reshape(ROWS, 4)
        super().__init__({"images": images, "labels": np.arange(ROWS)})
        self.read: list[int] = []

    def __getitem__(self, index: int) -> Any:
        self.read.append(int(index))
        return super().__getitem__(index)


def step(w: Any, images: Any, labels: Any) -> Any:
    return jnp.sum((images @ w) * labels[:, None])


def plan(name: str, devices: Any, batch: int = BATCH) -> autopar.Plan:
    """The plan in which the batch lies as SPECS say."""
    shape = jax.ShapeDtypeStruct
    images, labels = SPECS[name]
    arguments = (
        shape((4, 2), jnp.float32),
        shape((batch, 4), jnp.float32),
        shape((batch,), jnp.int32),
    )
    pins = (autopar.pin("images", images), autopar.pin("labels", labels))
    options: Any = {"cluster": CLUSTER, "mesh": {"p": 2, "q": 2}, "constraints": pins}
    return autopar.compile(step, devices=devices, **options).plan(*arguments)


def whole(array: Any) -> Any:
    """All values of a global array, as numbers."""
    everywhere = NamedSharding(array.sharding.mesh, P())
    return np.asarray(jax.jit(lambda x: x, out_shardings=everywhere)(array)).tolist()


def read(name: str, devices: Any) -> dict[str, Any]:
    """Of two batches: the labels in order, the images' first column, and the rows that were read here."""
    made, source = plan(name, devices), Seen()
    reading = Reading(threads=0)
    options: Any = {"shuffle": True, "seed": 3, "reading": reading, "depth": 0}
    given = loader(source, made, "images", "labels", **options)
    source.read.clear()  # the one that the loader looks at first
    batches = [next(given) for _ in range(2)]
    assert batches[0][0].sharding == made.in_shardings()[1]
    return {
        "labels": [whole(labels) for _, labels in batches],
        "images": [[row[0] for row in whole(images)] for images, _ in batches],
        "read": source.read,
        "state": given.get_state(),
    }


def summed(devices: Any) -> list[float]:
    """What the step makes of three batches that go round the end of the source."""
    made = plan("interleaved", devices)
    run, w = made.compile(), jnp.ones((4, 2))
    with loader(Seen(), made, "images", "labels", epochs=1) as given:
        return [float(run(w, *batch)) for batch in given]


def uneven(devices: Any) -> dict[str, Any]:
    """Batches of 30 rows on four devices: padded within the program, as all its dims are."""
    rows, width = 30, 15

    def loss(w: Any, x: Any) -> Any:
        return jnp.sum(jnp.tanh(jnp.tanh(x @ w) @ w.T))

    x = np.linspace(-1, 1, 100 * width, dtype=np.float32).reshape(100, width)
    w = np.linspace(-0.1, 0.2, width * 1023, dtype=np.float32).reshape(width, 1023)
    run = autopar.compile(loss, cluster=without_latency(), devices=devices, mesh={"p": 4})
    made = run.plan(w, jax.ShapeDtypeStruct((rows, width), jnp.float32))
    assert dict(made.bound.traced.graph.padding)[rows] == 32
    with loader(x, run, "x", shuffle=True, seed=1) as given:
        batches = [next(given) for _ in range(3)]

    return {
        "sums": [float(run(w, *batch)) for batch in batches],
        "expected": [float(loss(w, np.asarray(whole(batch[0])))) for batch in batches],
        "first": [row[0] for row in whole(batches[2][0])],
    }


def without_latency() -> autopar.Cluster:
    """CLUSTER where splitting always pays."""
    cluster = load_cluster(CLUSTER)
    for level in cluster.topology.levels:
        cluster = replace_link(cluster, level.name, latency_s=0.0, bandwidth_bytes_per_s=1e12)
    return replace(cluster, name="without latencies", device=replace(cluster.device, launch_s=0.0))


def resumed(state: dict[str, Any], devices: Any) -> dict[str, Any]:
    """The labels of a batch of another size, from a position of a loader that others had."""
    made = plan("one by one", devices, 4)
    with loader(Seen(), made, "images", "labels", shuffle=True, seed=3) as given:
        given.set_state(json.loads(json.dumps(state)))
        return {"labels": whole(next(given)[1]), "state": given.get_state()}


def everything(devices: Any) -> dict[str, Any]:
    """What is the same in all processes."""
    found: dict[str, Any] = {name: read(name, devices) for name in SPECS}
    found["sums"] = summed(devices)
    found["uneven"] = uneven(devices)
    found["resumed"] = resumed(found["split"]["state"], devices)
    return found


def main(told: Path) -> None:
    work = hosts.join(told)
    devices = hosts.devices_in_order()
    found = everything(devices)
    refused = ""
    try:
        differing(work.number, devices)
    except autopar.AutoparError as error:
        refused = f"{type(error).__name__}: {error}"
    own = json.dumps({"refused": refused, "read": {name: found[name]["read"] for name in SPECS}})
    found["each"] = [
        json.loads(row) for row in autopar.emit.several.gathered(own.encode(), devices)
    ]
    hosts.answer(work, found)


def differing(number: int, devices: Any) -> Loader:
    return loader(Seen(), plan("split", devices), "images", "labels", seed=number)


if __name__ == "__main__":
    with compiled_by(QUICK):
        main(Path(sys.argv[-1]))
