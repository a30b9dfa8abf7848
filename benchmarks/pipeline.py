"""Do pipeline stages pay? Two hosts of two devices, joined by a slow link; measured, beside what was predicted.

    python -m benchmarks.pipeline [--gbit 1] [--models deep shallow] [--json FILE] [--record]

The hosts are network namespaces, so this needs root. Training steps of equal layers under `autopar.scan_layers`, each
by three plans, searched for these links and for devices as calibrated here: of stages always, where that is best, and
never. A deep one has more bytes of gradients than of activations, a shallow one fewer.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import autopar
from autopar.emit.measure import use_virtual_devices
from benchmarks import collectives, hosts
from benchmarks.record import Screen, parser_of, record, table
from benchmarks.slow_links import AXES, INSIDE_BYTES, in_turns, with_inside
from cost_models import Cluster
from cost_models.compute import Device

LOCAL_DEVICES = 2
RATE = 1e-2
ASKED = ("always", "best", "never")
CALIBRATE_S = 150.0


@dataclass(frozen=True)
class Model:
    """Equal dense layers: how many, how wide, on how many rows."""

    layers: int
    width: int
    rows: int

    def params(self) -> Any:
        """Weights[layer, in, out]."""
        draw = np.random.default_rng(0)
        shape = (self.layers, self.width, self.width)
        return {"w": (draw.normal(size=shape) / self.width**0.5).astype(np.float32)}

    def batch(self) -> Any:
        """Rows[row, feature]."""
        return np.random.default_rng(1).normal(size=(self.rows, self.width)).astype(np.float32)

    @property
    def size(self) -> str:
        """What it is, in words."""
        return f"{self.layers} layers of {self.width} x {self.width}, {self.rows} rows"


MODELS = {"deep": Model(16, 1024, 1024), "shallow": Model(2, 256, 4096)}


def step(params: Any, x: jax.Array) -> tuple[Any, jax.Array]:
    """One step of gradient descent: parameters, rows -> new parameters, loss."""

    def loss(params: Any) -> jax.Array:
        def layer(x: jax.Array, p: Any) -> jax.Array:
            return x + jnp.tanh(x @ p["w"])

        return (autopar.scan_layers(layer, x, params) ** 2).mean()

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - RATE * g, params, grads), value


@dataclass(frozen=True)
class Row:
    """A training step by one plan: its mesh and stages, seconds as predicted and as measured, and its losses."""

    model: str
    gbit: float
    asked: str
    mesh: str
    stages: str
    predicted_s: float
    measured_s: float
    losses: tuple[float, ...]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints the table, and writes JSON if asked to."""
    parser = parser_of(__doc__)
    parser.add_argument("--gbit", type=float, nargs="+", default=[1.0], help="rates of the link")
    parser.add_argument("--models", nargs="*", choices=tuple(MODELS), default=tuple(MODELS))
    parser.add_argument("--steps", type=int, default=7, help="steps that are timed")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker is not None:
        _work(options.worker)
        return
    if reason := hosts.why_not():
        raise SystemExit(f"No linked hosts: {reason}.")

    use_virtual_devices(LOCAL_DEVICES * 2)
    device = autopar.calibrate(quick=True, time_limit_s=CALIBRATE_S).cluster.device
    screen = Screen(width=120)
    rows: list[Row] = []
    for gbit in options.gbit:
        with TemporaryDirectory() as folder:
            rows += measure(gbit, device, options.models, options.steps, Path(folder))
    show(screen, rows)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    record(__file__, options.record, screen.tables)


def measure(
    gbit: float, device: Device, models: Sequence[str], steps: int, folder: Path
) -> list[Row]:
    """Plans `models` for two hosts of such devices and link, with and without stages, and runs them there."""
    with hosts.linked_hosts(1e9 * gbit) as pair:
        cluster = hosts.linked_cluster(1e9 * gbit)
        inside = collectives.measure(pair, cluster, 2, [AXES[1:]], INSIDE_BYTES)
        cluster = replace(with_inside(cluster, inside), device=device)
        planned = [
            (name, stages, _planned(name, stages, cluster, folder))
            for name in models
            for stages in ASKED
        ]
        task = {
            "steps": steps,
            "plans": [(name, str(_path(folder, name, s))) for name, s, _ in planned],
        }
        answer = hosts.run_everywhere(
            pair, "benchmarks.pipeline", task, local_devices=LOCAL_DEVICES, timeout_s=600
        )

    return [
        Row(
            name,
            gbit,
            stages,
            str(plan.mesh),
            _stages(plan),
            plan.step_time_s,
            seconds,
            tuple(losses),
        )
        for (name, stages, plan), (seconds, losses) in zip(planned, answer, strict=True)
    ]


def _path(folder: Path, name: str, stages: str) -> Path:
    return folder / f"{name}-{stages}.json"


def _planned(name: str, stages: Any, cluster: Cluster, folder: Path) -> autopar.Plan:
    model = MODELS[name]
    options = autopar.SearchOptions(stages=stages)
    plan = autopar.plan(step, model.params(), model.batch(), cluster=cluster, options=options)
    plan.save(_path(folder, name, stages))
    return plan


def _stages(plan: autopar.Plan) -> str:
    stages = plan.bound.report().stages
    return "-" if stages is None else f"{stages.count} ({stages.micro_batches} x {stages.rounds})"


def show(screen: Screen, rows: Sequence[Row]) -> None:
    """Prints the table."""
    heads = (
        "model",
        "Gbit/s",
        "stages",
        "mesh",
        "chosen (micro-batches x rounds)",
        "predicted ms",
        "measured ms",
        "error",
    )
    found = table("Two hosts of two devices: training steps", heads)
    for row in rows:
        error = f"{100 * (row.predicted_s / row.measured_s - 1):+.0f} %"
        times = (f"{1e3 * row.predicted_s:.1f}", f"{1e3 * row.measured_s:.1f}", error)
        found.add_row(row.model, f"{row.gbit:g}", row.asked, row.mesh, row.stages, *times)
    screen.print(found)
    for name in dict.fromkeys(row.model for row in rows):
        screen.print(f"{name}: {MODELS[name].size}", highlight=False)


# In a worker ----------------------------------------------------------------------------------------------------------


def _work(told: Path) -> None:
    work = hosts.join(told)
    answer: list[tuple[float, list[float]]] = []
    for name in dict.fromkeys(name for name, _ in work.task["plans"]):
        runs = [_Training(name, path) for model, path in work.task["plans"] if model == name]
        times = in_turns([run.step for run in runs], work.task["steps"])
        answer += [(median(mine), run.losses) for mine, run in zip(times, runs, strict=True)]
    hosts.answer(work, answer)


class _Training:
    """A model that is trained by the plan in a file, on the devices of all processes."""

    def __init__(self, name: str, path: str) -> None:
        self._run: Callable[..., Any] = autopar.Plan.load(path).compile(
            step, devices=hosts.devices_in_order()
        )
        self._params = MODELS[name].params()
        self._batch = MODELS[name].batch()
        self.losses: list[float] = []

    def step(self) -> None:
        """One step, to its end."""
        self._params, loss = self._run(self._params, self._batch)
        jax.block_until_ready((self._params, loss))
        self.losses.append(float(loss))


if __name__ == "__main__":
    main()
