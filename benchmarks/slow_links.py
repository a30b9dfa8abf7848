"""Does it pay to know the links? Two hosts of two devices, joined by a slow link; measured, beside what was predicted.

    python -m benchmarks.slow_links [--gbit 1 0.2] [--models mlp gpt embedding] [--json FILE] [--record]

The hosts are network namespaces, so this needs root. First what collectives take inside a host, of which both searches
learn: four devices share this machine's cores, and wait for these more than for the bytes. Then an all-reduce over all
devices, at once (flat) and by levels: reduce-scatter inside a host, all-reduce across, all-gather inside. Then training
steps, each by two plans: one searched for these links, one as if all links were as fast as those inside a host. Both
are priced for the links as they are.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from rich.console import Console

import autopar
from autopar.api.bound import task_of
from autopar.emit.measure import use_virtual_devices
from autopar.search.search import restore
from benchmarks import collectives, hosts
from benchmarks.models import Model, Split, Tree, cross_entropy, dense, dense_init, gpt, mlp, normal
from benchmarks.record import Screen, add_record_option, record, table
from cost_models import Cluster, Topology, collective_time_s, group, load_cluster
from cost_models.curves import Curve
from cost_models.terms import Terms

SIZES_MIB = (1, 2, 4, 8)
INSIDE_BYTES = tuple(2**power for power in (12, 16, 18, 20, 22, 24))
AXES = ("host", "device")


@dataclass(frozen=True)
class Reduction:
    """An all-reduce of `mib` a device: seconds at once and by levels, measured and as the model says."""

    mib: float
    flat_s: float
    levels_s: float
    flat_model_s: float
    levels_model_s: float


@dataclass(frozen=True)
class Step:
    """A training step by one plan: its mesh, seconds as predicted for the true links and as measured, and losses."""

    model: str
    searched_for: str
    mesh: str
    predicted_s: float
    measured_s: float
    losses: tuple[float, ...]


@dataclass(frozen=True)
class Found:
    """All that was measured over one link."""

    bits_per_s: float
    reductions: tuple[Reduction, ...]
    steps: tuple[Step, ...]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints the tables, and writes JSON if asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--gbit", type=float, nargs="+", default=[1.0, 0.2], help="rates of the link"
    )
    parser.add_argument("--models", nargs="*", choices=tuple(MODELS), default=tuple(MODELS))
    parser.add_argument("--steps", type=int, default=7, help="steps that are timed")
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    add_record_option(parser)
    parser.add_argument(
        "--plans", type=Path, help="folder in which plans are kept, and taken from the next time"
    )
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker is not None:
        _work(options.worker)
        return
    if reason := hosts.why_not():
        raise SystemExit(f"No linked hosts: {reason}.")
    use_virtual_devices(4)
    console, found = Screen(width=120), []
    for gbit in options.gbit:
        with TemporaryDirectory() as folder:
            found.append(
                measure(1e9 * gbit, options.models, options.steps, options.plans or Path(folder))
            )
        show(console, found[-1])
    if options.json:
        options.json.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n")
    record(__file__, options.record, console.tables)


def measure(
    bits_per_s: float,
    models: Sequence[str],
    steps: int,
    folder: Path,
    sizes_mib: Sequence[float] = SIZES_MIB,
) -> Found:
    """Plans `models` for two hosts joined by such a link, runs them there, and all-reduces of `sizes_mib`.

    Args:
      bits_per_s: what the link carries in each direction.
      models: names of `MODELS`.
      steps: training steps that are timed.
      folder: for the plans; those that are there already are taken.
      sizes_mib: MiB a device.
    """
    with hosts.linked_hosts(bits_per_s) as pair:
        cluster, equal = hosts.linked_cluster(bits_per_s), load_cluster(hosts.SHARED)
        inside = collectives.measure(pair, cluster, 2, [("device",)], INSIDE_BYTES)
        cluster, equal = (with_inside(one, inside) for one in (cluster, equal))
        plans = [
            (name, goal, *_planned(name, goal, wanted, cluster, folder))
            for name in models
            for goal, wanted in (("these", cluster), ("equal", equal))
        ]
        task = {
            "sizes_mib": sizes_mib,
            "steps": steps,
            "plans": [(name, str(path)) for name, _, path, _, _ in plans],
        }
        answer = hosts.run_everywhere(
            pair, "benchmarks.slow_links", task, local_devices=2, timeout_s=600
        )
    return Found(
        bits_per_s,
        tuple(
            Reduction(mib, *measured, *_modelled(mib, cluster))
            for mib, *measured in answer["reductions"]
        ),
        tuple(
            Step(name, f"{goal} links", mesh, predicted_s, seconds, tuple(losses))
            for (name, goal, _, mesh, predicted_s), (seconds, losses) in zip(
                plans, answer["steps"], strict=True
            )
        ),
    )


def with_inside(cluster: Cluster, rows: Sequence[collectives.Row]) -> Cluster:
    """`cluster` with what was measured inside a host as the terms of its innermost level.

    Of each kind the least seconds are alpha; above it goes a curve through the means, which does not descend.
    """
    *outer, inner = cluster.topology.levels
    terms: list[Terms] = []
    for kind in dict.fromkeys(row.kind for row in rows):
        points = sorted((row.size_bytes, row.mean_s) for row in rows if row.kind == kind)
        sizes, times = (np.array(part, dtype=float) for part in zip(*points, strict=True))
        above = np.maximum.accumulate(times) - times.min()
        slope = (above[-1] - above[-2]) / (sizes[-1] - sizes[-2])
        curve = Curve(tuple(sizes.tolist()), tuple(above.tolist()), float(slope))
        terms.append(Terms(kind, 2, float(times.min()), curve, 0.0))
    levels = (*outer, replace(inner, terms=tuple(terms)))
    return replace(cluster, topology=Topology(levels))


def _planned(
    name: str, goal: str, wanted: Cluster, cluster: Cluster, folder: Path
) -> tuple[Path, str, float]:
    """The file of the plan of a model, searched for `wanted`, its mesh, and its price on `cluster`."""
    rate = cluster.topology.levels[0].link.bandwidth_bytes_per_s
    path = folder / f"{name}-{goal}-{rate:.3g}.json"
    model = MODELS[name]()
    if not path.exists():
        autopar.plan(model.step(), model.state, *model.batch, cluster=wanted).save(path)
    plan = (
        autopar.Plan.load(path)
        .compile(model.step(), devices=_stand_ins())
        .plan(model.state, *model.batch)
    )
    bound = plan.bound
    priced = restore(
        task_of(bound.traced, replace(bound.settings, cluster=cluster), cluster), plan.record
    )
    return path, str(plan.mesh), priced.account.compute_time_s + priced.account.communication_time_s


def _stand_ins() -> list[Any]:
    """As many devices as both hosts have; nothing runs on them."""
    return jax.devices("cpu")[:4]


def _modelled(mib: float, cluster: Cluster) -> tuple[float, float]:
    """Seconds that the model says of an all-reduce of `mib` a device, at once and by levels."""
    size = mib * 2**20
    everyone, across, inside = (
        group(cluster.topology, (2, 2), axes) for axes in ((0, 1), (0,), (1,))
    )
    levels = (
        collective_time_s("reduce_scatter", size, inside),
        collective_time_s("all_reduce", size / 2, across),
        collective_time_s("all_gather", size, inside),
    )
    return collective_time_s("all_reduce", size, everyone), sum(levels)


def show(console: Console, found: Found) -> None:
    """Prints the tables of one link."""
    rate = f"{found.bits_per_s / 1e6:g} Mbit/s"
    heads = (
        "all-reduce over 2 x 2",
        "flat ms",
        "levels ms",
        "model: flat",
        "levels",
        "faster",
        "model says",
    )
    shown = table(f"{rate}: all-reduces", heads)
    for row in found.reductions:
        figures = (row.flat_s, row.levels_s, row.flat_model_s, row.levels_model_s)
        winners = (
            "flat" if flat < levels else "levels" for flat, levels in (figures[:2], figures[2:])
        )
        shown.add_row(f"{row.mib:g} MiB", *(f"{1e3 * figure:.1f}" for figure in figures), *winners)
    console.print(shown)
    shown = table(
        f"{rate}: training steps",
        ("model", "searched for", "mesh", "predicted ms", "measured ms", "error"),
    )
    for step in found.steps:
        error = f"{100 * (step.predicted_s / step.measured_s - 1):+.0f} %"
        figures = (f"{1e3 * step.predicted_s:.1f}", f"{1e3 * step.measured_s:.1f}", error)
        shown.add_row(step.model, step.searched_for, step.mesh, *figures)
    console.print(shown)


# Models ---------------------------------------------------------------------------------------------------------------


def embedding(
    vocab: int = 8192, width: int = 512, words: int = 8, classes: int = 64, batch: int = 1024
) -> Model:
    """A wide table of words, whose mean goes through two dense layers; most parameters are the table's. SGD."""
    draw = np.random.default_rng(0)
    params = {
        "table": normal(draw, (vocab, width), 0.02),
        "hidden": dense_init(draw, width, width),
        "head": dense_init(draw, width, classes),
    }
    text = draw.integers(vocab, size=(batch, words)).astype(np.int32)
    labels = draw.integers(classes, size=batch).astype(np.int32)

    def loss(
        params: Tree, _key: jax.Array, split: Split, text: jax.Array, labels: jax.Array
    ) -> jax.Array:
        mean = split(jnp.mean(params["table"][text], axis=1), "data")
        return cross_entropy(
            dense(params["head"], jax.nn.relu(dense(params["hidden"], mean))), labels
        )

    size = f"table {vocab} x {width}, {words} words, batch {batch}, SGD"
    return Model("embedding", size, loss, params, (text, labels), lambda _path, _array: P(), "sgd")


MODELS: dict[str, Callable[[], Model]] = {
    "mlp": lambda: mlp((512, 1024, 1024, 512), batch=512),
    "gpt": lambda: gpt(layers=2, vocab=512, sequence=64),
    "embedding": embedding,
    "small mlp": lambda: mlp((256, 512, 512, 256), batch=256),
}


# In a worker ----------------------------------------------------------------------------------------------------------


def _work(told: Path) -> None:
    work = hosts.join(told)
    reductions = [(mib, *_reductions(int(mib * 2**20))) for mib in work.task["sizes_mib"]]
    steps = _steps(work.task["plans"], work.task["steps"])
    hosts.answer(work, {"reductions": reductions, "steps": steps})


def _reductions(size_bytes: int) -> tuple[float, float]:
    """Seconds of an all-reduce over all devices, at once and by levels."""
    grid = np.array(hosts.devices_in_order()).reshape(2, 2)
    mesh, held = Mesh(grid, AXES, axis_types=(AxisType.Auto,) * 2), size_bytes // 4
    x = jax.make_array_from_callback(
        (4 * held,), NamedSharding(mesh, P(AXES)), lambda _: np.ones(held, np.float32)
    )
    runs = [
        jax.jit(
            jax.shard_map(body, mesh=mesh, in_specs=P(AXES), out_specs=P(AXES), check_vma=False)
        )
        for body in (lambda x: lax.psum(x, AXES), _by_levels)
    ]
    times = in_turns([lambda run=run: jax.block_until_ready(run(x)) for run in runs], 5)
    return median(times[0]), median(times[1])


def _by_levels(x: jax.Array) -> jax.Array:
    part = lax.psum(lax.psum_scatter(x, "device", scatter_dimension=0, tiled=True), "host")
    return lax.all_gather(part, "device", axis=0, tiled=True)


def _steps(plans: Sequence[tuple[str, str]], count: int) -> list[tuple[float, list[float]]]:
    """For each plan the median seconds of a step, and the losses; plans of one model take turns."""
    found: list[tuple[float, list[float]]] = []
    for name in dict.fromkeys(name for name, _ in plans):
        runs = [_Training(MODELS[name](), path) for model, path in plans if model == name]
        times = in_turns([run.step for run in runs], count)
        found += [(median(mine), run.losses) for mine, run in zip(times, runs, strict=True)]
    return found


class _Training:
    """A model that is trained by the plan in a file, on the devices of all processes."""

    def __init__(self, model: Model, path: str) -> None:
        self._run = autopar.Plan.load(path).compile(model.step(), devices=hosts.devices_in_order())
        self._state, self._batch = model.state, model.batch
        self.losses: list[float] = []

    def step(self) -> None:
        """One step, to its end."""
        self._state, loss = self._run(self._state, *self._batch)
        jax.block_until_ready((self._state, loss))
        self.losses.append(float(loss))


def in_turns(works: Sequence[Callable[[], Any]], count: int) -> list[list[float]]:
    """The seconds of each of `works`, `count` times by turns, after one time that is not counted."""
    for work in works:
        work()
    times: list[list[float]] = [[] for _ in works]
    for _ in range(count):
        for mine, work in zip(times, works, strict=True):
            start = perf_counter()
            work()
            mine.append(perf_counter() - start)
    return times


if __name__ == "__main__":
    main()
