"""Does a planned program run as fast as one that a person sharded, at what price, and is it what was predicted?

    python -m benchmarks.end_to_end [--json FILE] [--record] [--models mlp gpt cnn] [--cluster FILE] [--keep-memory]

An MLP, a GPT and a CNN on 8 virtual devices, each as: the planned program; data parallelism (XLA splits the batch, the
state is replicated); shardings by hand (Megatron's columns and rows on a mesh data=2, model=4, constrained throughout);
and plain jax.jit on one device. All variants of a model take turns in one process: compare within one run. What is
planned and predicted is for the profile that ships for this machine's processor, or cpu8 where none does, or for one
calibrated on this machine (`--cluster`). With `--keep-memory` the process keeps what it frees
(`benchmarks.kept_memory`): else glibc maps temporary memory of more than 32 MiB of a device anew in each step.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from rich import box
from rich.console import Console
from rich.table import Table

import autopar
from autopar.emit.measure import use_virtual_devices
from autopar.inspect.hlo import collectives_of, peak_memory_bytes
from benchmarks.kept_memory import keep_memory
from benchmarks.models import MODELS, Model, Step
from benchmarks.record import Screen, add_record_option, record
from cost_models import Cluster, UnknownClusterError, cluster_of_devices, load_cluster

DEVICES = 8
HAND_MESH = {"data": 2, "model": 4}
FIRST_STEPS = 4  # compile, warm up, and give the losses that are compared
BLOCK_STEPS = 2
BLOCKS = 9


@dataclass(frozen=True)
class Variant:
    """A training step that is ready to run: JAX's Compiled of it, and how long making that took."""

    name: str
    step: Step
    compiled: Any
    lower_s: float
    compile_s: float


@dataclass(frozen=True)
class Row:
    """What one variant gave. Bytes are one device's; collectives are those of the program that XLA compiled."""

    variant: str
    step_time_s: float
    lower_s: float
    compile_s: float
    collectives: int
    collective_bytes: int
    peak_memory_bytes: int
    loss_difference: float


@dataclass(frozen=True)
class Result:
    """One model: what was planned, what planning took, and a row for each variant."""

    model: str
    size: str
    mesh: str
    trace_s: float
    planning_s: float
    predicted_step_time_s: float
    predicted_communication_s: float
    predicted_peak_bytes: int
    predicted_data_parallel_s: float
    planned_collective_bytes: int
    gap: float
    rows: tuple[Row, ...]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints the tables, and writes JSON if asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    add_record_option(parser)
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=tuple(MODELS))
    parser.add_argument("--cluster", help="a profile that was calibrated on this machine")
    parser.add_argument(
        "--keep-memory", action="store_true", help="the process keeps the memory that it frees"
    )
    options = parser.parse_args(arguments)
    if options.keep_memory:
        keep_memory("benchmarks.end_to_end")
    use_virtual_devices(DEVICES)
    cluster = load_cluster(options.cluster) if options.cluster else shipped_cluster()
    machine = {
        **describe_machine(),
        "cluster": cluster.name,
        "freed memory": "kept" if options.keep_memory else "given back",
    }
    console = Screen(width=120)
    console.print(", ".join(f"{name}: {value}" for name, value in machine.items()), highlight=False)
    results = []
    for name in options.models:
        results.append(measure(MODELS[name](), cluster))
        show(console, results[-1])
    if options.json:
        content = {"machine": machine, "results": [asdict(result) for result in results]}
        options.json.write_text(json.dumps(content, indent=1) + "\n")
    record(__file__, options.record, console.tables)


def describe_machine() -> dict[str, str]:
    """What this runs on."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "CPU": _first_field("/proc/cpuinfo", "model name")
        or platform.processor()
        or platform.machine(),
        "cores": str(os.cpu_count()),
        "memory": _first_field("/proc/meminfo", "MemTotal"),
        "load before": f"{os.getloadavg()[0]:.2f}",
        "Python": platform.python_version(),
        "JAX": jax.__version__,
        "virtual devices": str(jax.device_count()),
    }


def processor_kind() -> str:
    """The processor as `ClusterProfile.device_kinds` name it: "cpu", vendor and family, as far as Linux tells them."""
    fields = ("cpu", *(_first_field("/proc/cpuinfo", name) for name in ("vendor_id", "cpu family")))
    return " ".join(filter(None, fields))


def shipped_cluster() -> Cluster:
    """What ships for the processor of this machine, as Linux names it; cpu8 if nothing does."""
    try:
        return cluster_of_devices(processor_kind(), DEVICES)
    except UnknownClusterError:
        return load_cluster(f"cpu{DEVICES}")


def _first_field(file: str, name: str) -> str:
    """The value of the first line `name : value` of a file, or "" where there is no such file or line."""
    path = Path(file)
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def measure(model: Model, cluster: Cluster) -> Result:
    """All figures of one model, planned for `cluster`."""
    args = (model.state, *model.batch)
    _, trace_s = _timed(lambda: jax.jit(model.step()).trace(*args))
    planned = autopar.compile(model.step(), cluster=cluster)
    plan, planning_s = _timed(lambda: planned.plan(*args))
    replicated = autopar.plan(
        model.step(), *args, cluster=cluster, mode="data_parallel", mesh={"data": DEVICES}
    )
    variants = [
        _variant("planned", planned, args),
        _variant("data parallel", _data_parallel(model), args),
        _variant("by hand", _by_hand(model), args),
        _variant("one device", jax.jit(model.step()), args),
    ]
    losses, times = _run(variants, args)
    rows = tuple(_row(v, losses[v.name], losses["one device"], times[v.name]) for v in variants)
    return Result(
        model.name,
        model.size,
        str(plan.mesh),
        trace_s,
        planning_s,
        plan.step_time_s,
        plan.communication_time_s,
        plan.peak_memory_bytes,
        replicated.step_time_s,
        sum(row.size_bytes for row in plan.collectives),
        plan.gap,
        rows,
    )


def _data_parallel(model: Model) -> Any:
    """The step with the batch split over all devices and the state on each of them."""
    mesh = _mesh({"data": DEVICES})
    whole, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    ins = (whole, *[split] * len(model.batch))
    return jax.jit(model.step(), in_shardings=ins, out_shardings=(whole, whole))


def _by_hand(model: Model) -> Any:
    """The step with its hand-written shardings, of the state and inside."""
    mesh = _mesh(HAND_MESH)

    def split(x: jax.Array, *axes: str | None) -> jax.Array:
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(*axes)))

    state = jax.tree.map(
        lambda spec: NamedSharding(mesh, spec),
        model.state_specs(),
        is_leaf=lambda leaf: isinstance(leaf, P),
    )
    batch = [NamedSharding(mesh, P("data"))] * len(model.batch)
    return jax.jit(
        model.step(split),
        in_shardings=(state, *batch),
        out_shardings=(state, NamedSharding(mesh, P())),
    )


def _mesh(sizes: dict[str, int]) -> Mesh:
    kinds = (jax.sharding.AxisType.Auto,) * len(sizes)
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=kinds)


def _variant(name: str, step: Any, args: tuple[Any, ...]) -> Variant:
    lowered, lower_s = _timed(lambda: step.lower(*args))
    compiled, compile_s = _timed(lowered.compile)
    return Variant(name, step, compiled, lower_s, compile_s)


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    start = perf_counter()
    result = work()
    return result, perf_counter() - start


def _run(
    variants: Sequence[Variant], args: tuple[Any, ...]
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """The losses of the first steps, then the times of a step by block, the variants taking turns."""
    state, *batch = args
    states = {variant.name: state for variant in variants}
    losses: dict[str, list[float]] = {variant.name: [] for variant in variants}
    times: dict[str, list[float]] = {variant.name: [] for variant in variants}
    for variant in variants:
        for _ in range(FIRST_STEPS):
            states[variant.name], loss = variant.step(states[variant.name], *batch)
            losses[variant.name].append(float(loss))
    for _ in range(BLOCKS):
        for variant in variants:
            start = perf_counter()
            for _ in range(BLOCK_STEPS):
                states[variant.name], loss = variant.step(states[variant.name], *batch)
            jax.block_until_ready((states[variant.name], loss))
            times[variant.name].append((perf_counter() - start) / BLOCK_STEPS)
    return losses, times


def _row(
    variant: Variant, losses: Sequence[float], plain: Sequence[float], times: Sequence[float]
) -> Row:
    found = collectives_of(variant.compiled)
    return Row(
        variant.name,
        median(times),
        variant.lower_s,
        variant.compile_s,
        sum(c.times or 1 for c in found),
        sum(c.size_bytes * (c.times or 1) for c in found),
        peak_memory_bytes(variant.compiled),
        max(abs(a - b) for a, b in zip(losses, plain, strict=True)),
    )


def show(console: Console, result: Result) -> None:
    """Prints one model's table."""
    table = Table(
        title=f"{result.model}: {result.size}",
        title_justify="left",
        title_style="bold",
        box=box.MARKDOWN,
    )
    heads = (
        "",
        "step ms",
        "of planned",
        "lower s",
        "compile s",
        "collectives",
        "MB moved",
        "peak MB",
        "loss differs",
    )
    for number, head in enumerate(heads):
        table.add_column(head, justify="right" if number else "left")
    for row in result.rows:
        table.add_row(
            row.variant,
            f"{1e3 * row.step_time_s:.1f}",
            f"{row.step_time_s / result.rows[0].step_time_s:.2f}",
            f"{row.lower_s:.2f}",
            f"{row.compile_s:.2f}",
            str(row.collectives),
            f"{row.collective_bytes / 1e6:.2f}",
            f"{row.peak_memory_bytes / 1e6:.2f}",
            f"{row.loss_difference:.1e}",
        )
    console.print(table)
    console.print(_predictions(result), highlight=False)


def _predictions(result: Result) -> str:
    planned, replicated = result.rows[:2]
    times = (
        planned.step_time_s / result.predicted_step_time_s,
        replicated.step_time_s / result.predicted_data_parallel_s,
    )
    peak = 100 * (result.predicted_peak_bytes / planned.peak_memory_bytes - 1)
    return (
        f"Planned for mesh {result.mesh} in {result.planning_s:.2f} s; JAX traces the step in {result.trace_s:.2f} s. "
        f"Gap of the plan: {100 * result.gap:.2g} %.\n"
        f"Predicted step {1e3 * result.predicted_step_time_s:.1f} ms, of which "
        f"{1e3 * result.predicted_communication_s:.1f} ms communicate: measured {times[0]:.2f} times as much.\n"
        f"Predicted for data parallelism {1e3 * result.predicted_data_parallel_s:.1f} ms: measured {times[1]:.2f} "
        f"times as much.\n"
        f"Predicted peak {result.predicted_peak_bytes / 1e6:.2f} MB, {peak:+.1f} % from what XLA reports; "
        f"collectives planned to move {result.planned_collective_bytes / 1e6:.2f} MB.\n"
    )


if __name__ == "__main__":
    main()
