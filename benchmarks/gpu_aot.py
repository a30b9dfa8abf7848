"""What does XLA's compiler for GPUs say of the plans, and of what is predicted for them?

    python -m benchmarks.gpu_aot [--json FILE] [--record] [--models mlp gpt llama cnn experts attention]
                                 [--clusters 8xh100-xla 8x8xh100-xla]

Needs JAX's plugin for CUDA (the extra `gpu-aot`), and neither a GPU nor a driver. Training steps in shape only, in
bfloat16, are compiled ahead of time for H100s under plans: the solver's own on a line and on a grid of devices, data
and tensor parallel ones, pinned and perturbed ones (`benchmarks.accuracy_plans`); a few of them for 64 H100s too.

Beside what is predicted for a plan stands what the compiler made of it:
* computing: its own times of its kernels, without launches. Its times of products of bfloat16 to float32 and of mixed
  types are 60 times too long, and of convolutions and copies it has none: these are priced by operations or bytes
  (`benchmarks.gpu_kernels` has the rules). What is predicted is without launches too.
* kernels: how many it launches, and how many are predicted.
* steps: both and the collectives that it made, by the links of the profile; a launch takes what the profile says.
* peaks: the memory that it sets aside.
Nothing runs.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import mean
from time import perf_counter
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from autopar.core.graph import OpGraph
from autopar.core.program import ShardedProgram
from autopar.inspect.hlo import peak_memory_bytes
from benchmarks.accuracy import predicted
from benchmarks.accuracy_figures import Figures, PeakFigures, figures, peak_figures
from benchmarks.accuracy_plans import Drawn, drawn_plans
from benchmarks.end_to_end import describe_machine
from benchmarks.gpu_kernels import Compiled, compiled_program
from benchmarks.gpu_programs import COMPILER_OPTIONS, MODELS, gpu_devices, sized
from benchmarks.record import Screen, add_record_option, record
from cost_models import Cluster, load_cluster

PLANS = {"8xh100-xla": 8, "8x8xh100-xla": 3}
FEW = ("mlp", "llama")
"""The models that are compiled for 64 H100s too."""
UNDER = 0.02


@dataclass(frozen=True)
class Predicted:
    """What is predicted for a plan; computing without launches."""

    computing_s: float
    kernels: float
    communicating_s: float
    peak_bytes: int

    def serial_s(self, launch_s: float) -> float:
        """Computing, launches and communicating, one behind the other."""
        return self.computing_s + self.kernels * launch_s + self.communicating_s


@dataclass(frozen=True)
class Row:
    """One plan: what is predicted, and what the compiler says."""

    kind: str
    mesh: str
    predicted: Predicted
    compiled: Compiled
    peak_bytes: int
    compile_s: float


@dataclass(frozen=True)
class Agreement:
    """How well predictions order and meet the compiler's figures, over one model's plans."""

    computing: Figures
    kernels_error: float
    steps: Figures
    peaks: PeakFigures


@dataclass(frozen=True)
class Result:
    """A model on a cluster: its plans, and what of their predictions agrees."""

    model: str
    size: str
    cluster: str
    rows: tuple[Row, ...]
    agreement: Agreement


def main(arguments: Sequence[str] | None = None) -> None:
    """Compiles, prints the tables, and writes JSON if asked to, after every model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    add_record_option(parser)
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=tuple(MODELS))
    parser.add_argument("--clusters", nargs="+", choices=tuple(PLANS), default=tuple(PLANS))
    options = parser.parse_args(arguments)
    start, console = perf_counter(), Screen(width=170)
    devices = {name: gpu_devices(name) for name in options.clusters}
    machine = {**describe_machine(), "plugin": plugin_version()}
    machine.pop("virtual devices")
    console.print(", ".join(f"{name}: {value}" for name, value in machine.items()), highlight=False)
    results: list[Result] = []
    for cluster in options.clusters:
        for name in options.models:
            if cluster == "8xh100-xla" or name in FEW:
                results.append(measure(name, cluster, devices[cluster]))
                show(console, results[-1])
            if options.json:
                content = {"machine": machine, "results": [asdict(result) for result in results]}
                options.json.write_text(json.dumps(content, indent=1) + "\n")
    show_agreement(console, results)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    console.print(
        f"{perf_counter() - start:.0f} s, {most:.1f} GiB at most. Compiled only, nothing was run."
    )
    record(__file__, options.record, console.tables)


def plugin_version() -> str:
    """The version of JAX's plugin for CUDA, of whichever is installed."""
    for name in ("jax-cuda12-plugin", "jax-cuda13-plugin"):
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
    return "unknown"


def measure(name: str, cluster_name: str, devices: Sequence[Any]) -> Result:
    """All plans of a model, compiled."""
    cluster = load_cluster(cluster_name)
    model, args = sized(name, cluster.device_count)
    drawn = drawn_plans(model, cluster, PLANS[cluster_name], args)
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # one compilation alone leaves cores idle
        rows = tuple(pool.map(lambda one: compiled_row(one, cluster, devices), drawn))
    return Result(
        model.name, model.size, cluster_name, rows, agreement(rows, cluster.device.launch_s)
    )


def compiled_row(drawn: Drawn, cluster: Cluster, devices: Sequence[Any]) -> Row:
    """The row of a plan.

    Raises:
      UnknownRounds: for a loop whose rounds the compiler does not know.
    """
    plan = drawn.plan
    guess = guessed(plan.bound.planned.graph, plan.program(), cluster)
    lowered: Any = plan.lower(devices)
    start = perf_counter()
    compiled = lowered.compile(compiler_options=COMPILER_OPTIONS)
    took = perf_counter() - start
    made = compiled_program(compiled.as_text(), cluster)
    return Row(drawn.kind, str(plan.mesh), guess, made, peak_memory_bytes(compiled), took)


def guessed(graph: OpGraph, program: ShardedProgram, cluster: Cluster) -> Predicted:
    """What is predicted for a program. Copies beside collectives count as computing: kernels are made of them.

    Launches are what everything takes less on a device that has none, those copies what communicating takes less on one
    whose compiler is not known.
    """
    device = cluster.device
    unlaunched = replace(device, launch_s=0.0)
    spent, without_launches, without_copies = (
        predicted(graph, program, replace(cluster, device=one))
        for one in (device, unlaunched, replace(unlaunched, compiler=""))
    )
    communicating_s = without_copies.communication_time_s
    return Predicted(
        without_launches.serial_time_s - communicating_s,
        (spent.serial_time_s - without_launches.serial_time_s) / device.launch_s,
        communicating_s,
        spent.set_aside_bytes or spent.peak_memory_bytes,
    )


def agreement(rows: Sequence[Row], launch_s: float) -> Agreement:
    """The figures of the rows, at least two; a launch takes `launch_s` in either."""
    guesses = [row.predicted for row in rows]
    made = [row.compiled for row in rows]
    return Agreement(
        figures([g.computing_s for g in guesses], [m.computing_s for m in made]),
        mean(abs(g.kernels / m.kernels - 1) for g, m in zip(guesses, made, strict=True)),
        figures([g.serial_s(launch_s) for g in guesses], [m.serial_s(launch_s) for m in made]),
        peak_figures([g.peak_bytes for g in guesses], [row.peak_bytes for row in rows]),
    )


def show(console: Console, result: Result) -> None:
    """Prints one model's plans, those first that take least."""
    heads = (
        "plan",
        "mesh",
        "computes ms",
        "predicted",
        "kernels",
        "predicted",
        "communicates ms",
        "predicted",
        "collectives",
        "MB moved",
        "peak MB",
        "predicted",
        "compile s",
    )
    launch_s = load_cluster(result.cluster).device.launch_s
    table = _table(f"{result.model} on {result.cluster}: {result.size}", heads)
    for row in sorted(result.rows, key=lambda row: row.compiled.serial_s(launch_s)):
        table.add_row(*_cells(row))
    console.print(table)


def _cells(row: Row) -> tuple[str, ...]:
    made, guess = row.compiled, row.predicted
    return (
        row.kind,
        row.mesh,
        f"{1e3 * made.computing_s:.3f}",
        _percent(guess.computing_s / made.computing_s - 1),
        str(made.kernels),
        f"{guess.kernels:.0f}",
        f"{1e3 * made.communicating_s:.3f}",
        f"{1e3 * guess.communicating_s:.3f}",
        str(made.collectives),
        f"{made.collective_bytes / 1e6:.1f}",
        f"{row.peak_bytes / 1e6:.1f}",
        _percent(guess.peak_bytes / row.peak_bytes - 1),
        f"{row.compile_s:.0f}",
    )


def show_agreement(console: Console, results: Sequence[Result]) -> None:
    """Prints what of the predictions agrees with the compiler, for each model and cluster."""
    heads = (
        "model",
        "plans",
        "computing: predicted",
        "mean error",
        "tau",
        "kernels: mean error",
        "steps: mean error",
        "tau",
        "regret",
        "peaks: mean error",
        "under",
    )
    table = _table("Predictions for plans against XLA's compiler for GPUs", heads)
    for result in results:
        found = result.agreement
        computing = [row.predicted.computing_s / row.compiled.computing_s for row in result.rows]
        table.add_row(
            f"{result.model}, {result.cluster}",
            str(found.steps.plans),
            _percent(mean(computing) - 1),
            f"{100 * found.computing.mean_error:.0f} %",
            f"{found.computing.kendall_tau:.2f}",
            f"{100 * found.kernels_error:.0f} %",
            f"{100 * found.steps.mean_error:.0f} %",
            f"{found.steps.kendall_tau:.2f}",
            f"{100 * found.steps.regret:.1f} %",
            f"{100 * found.peaks.mean_error:.0f} %",
            f"{100 * found.peaks.worst_under:.1f} %",
        )
    console.print(table)
    rows = [row for result in results for row in result.rows]
    under = sum(row.predicted.peak_bytes < (1 - UNDER) * row.peak_bytes for row in rows)
    console.print(
        f"{under} of {len(rows)} predicted peaks are more than {UNDER:.0%} under the compiler's."
    )


def _percent(share: float) -> str:
    return f"{100 * share:+.0f} %"


def _table(title: str, heads: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.MARKDOWN)
    for number, head in enumerate(heads):
        table.add_column(head, justify="right" if number > 1 else "left")
    return table


if __name__ == "__main__":
    main()
