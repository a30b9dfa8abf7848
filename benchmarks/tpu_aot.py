"""What does the compiler for TPUs say of the plans, and of what is predicted for them?

    python -m benchmarks.tpu_aot [--json FILE] [--record] [--models mlp gpt cnn experts]
                                 [--topologies v5e:4x4 v5e:16x16]

Needs libtpu (the extra `tpu-aot`) and no TPU. Training steps in shape only, bfloat16, are compiled ahead of time for
slices of TPU v5e: under plans (the solver's own on a line and on a grid of chips, data and tensor parallel ones, random
ones: `benchmarks.accuracy_plans`), and with shardings by hand that XLA completes (data parallelism, FSDP, Megatron).
Beside what is predicted for a plan stand the compiler's own estimates: the cycles of what it computes, and the memory
that it sets aside. It has no estimate for collectives: those that it made are priced by the links of the profile.
Nothing runs.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from autopar.inspect.hlo import peak_memory_bytes
from benchmarks.accuracy import predicted
from benchmarks.accuracy_figures import Figures, PeakFigures, figures, peak_figures
from benchmarks.accuracy_plans import Drawn, drawn_plans
from benchmarks.compiled_collectives import UnknownRounds
from benchmarks.end_to_end import describe_machine
from benchmarks.record import Screen, add_record_option, record
from benchmarks.tpu_cycles import Compiled, compiled_program
from benchmarks.tpu_programs import NAMES, arguments, by_hand, sized, tpu_devices
from cost_models import Cluster, load_cluster

PLANS = {"v5e:4x4": 6, "v5e:16x16": 4}
UNDER = 0.02


@dataclass(frozen=True)
class Predicted:
    """What is predicted for a plan."""

    computing_s: float
    communicating_s: float
    peak_bytes: int

    @property
    def serial_s(self) -> float:
        """Computing, then communicating."""
        return self.computing_s + self.communicating_s


@dataclass(frozen=True)
class Lowered:
    """A program as JAX hands it to the compiler, and what is predicted for it if it is a plan's."""

    kind: str
    mesh: str
    predicted: Predicted | None
    lowered: Any


@dataclass(frozen=True)
class Row:
    """One program: what is predicted, for a plan, and what the compiler says."""

    kind: str
    mesh: str
    predicted: Predicted | None
    compiled: Compiled
    peak_bytes: int
    compile_s: float


@dataclass(frozen=True)
class Agreement:
    """How well predictions order and meet the compiler's figures, over one model's plans."""

    computing: Figures
    serial: Figures
    peaks: PeakFigures


@dataclass(frozen=True)
class Result:
    """A model on a topology: its programs, and what of the plans' predictions agrees. Of models by hand those whose
    cycles the compiler does not know are left out, with the reason.
    """

    model: str
    size: str
    topology: str
    rows: tuple[Row, ...]
    left_out: tuple[str, ...]
    agreement: Agreement


def main(arguments: Sequence[str] | None = None) -> None:
    """Compiles, prints the tables, and writes JSON if asked to, after every model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    add_record_option(parser)
    parser.add_argument("--models", nargs="+", choices=NAMES, default=NAMES[:3])
    parser.add_argument("--topologies", nargs="+", choices=tuple(PLANS), default=tuple(PLANS))
    options = parser.parse_args(arguments)
    start, console = perf_counter(), Screen(width=150)
    devices = {name: tpu_devices(name) for name in options.topologies}
    machine = {**describe_machine(), "libtpu": version("libtpu")}
    machine.pop("virtual devices")
    console.print(", ".join(f"{name}: {value}" for name, value in machine.items()), highlight=False)
    results: list[Result] = []
    for topology in options.topologies:
        for name in options.models:
            results.append(measure(name, topology, devices[topology]))
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


def measure(name: str, topology: str, devices: Sequence[Any]) -> Result:
    """All programs of a model, compiled."""
    model = sized(name, len(devices))
    args, cluster = arguments(model), load_cluster("tpu-" + topology.replace(":", "-"))
    drawn = drawn_plans(model, cluster, PLANS[topology], args)
    programs = [
        _planned(d, cluster, devices)
        for d in {(d.kind, d.plan.objective_s): d for d in drawn}.values()
    ]
    programs += [
        Lowered(kind, "", None, lower()) for kind, lower in by_hand(model, args, devices).items()
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # one compilation alone leaves cores idle
        found = list(pool.map(lambda program: compiled_row(program, cluster), programs))
    rows = tuple(row for row in found if isinstance(row, Row))
    left_out = tuple(reason for reason in found if isinstance(reason, str))
    return Result(model.name, model.size, topology, rows, left_out, agreement(rows))


def _planned(drawn: Drawn, cluster: Cluster, devices: Sequence[Any]) -> Lowered:
    plan = drawn.plan
    spent = predicted(plan.bound.planned.graph, plan.program(), cluster)
    communicating = spent.communication_time_s
    guess = Predicted(spent.serial_time_s - communicating, communicating, spent.peak_memory_bytes)
    return Lowered(drawn.kind, str(plan.mesh), guess, plan.lower(devices))


def compiled_row(program: Lowered, cluster: Cluster) -> Row | str:
    """The row of a program; why it has none, if it is by hand and its cycles are not known.

    Raises:
      UnknownRounds: if the cycles of a plan are not known.
    """
    start = perf_counter()
    compiled = program.lowered.compile()
    took = perf_counter() - start
    try:
        made = compiled_program(compiled.as_text(), cluster)
    except UnknownRounds as reason:
        if program.predicted is not None:
            raise
        return f"{program.kind}: {reason}"
    return Row(
        program.kind, program.mesh, program.predicted, made, peak_memory_bytes(compiled), took
    )


def agreement(rows: Sequence[Row]) -> Agreement:
    """The figures of the rows that are plans; at least two."""
    pairs = [(row.predicted, row) for row in rows if row.predicted is not None]
    return Agreement(
        figures(
            [guess.computing_s for guess, _ in pairs],
            [row.compiled.computing_s for _, row in pairs],
        ),
        figures(
            [guess.serial_s for guess, _ in pairs], [row.compiled.serial_s for _, row in pairs]
        ),
        peak_figures(
            [guess.peak_bytes for guess, _ in pairs], [row.peak_bytes for _, row in pairs]
        ),
    )


def show(console: Console, result: Result) -> None:
    """Prints one model's programs, those first that take least."""
    heads = (
        "program",
        "mesh",
        "computes ms",
        "predicted",
        "communicates ms",
        "predicted",
        "collectives",
        "MB moved",
    )
    table = _table(
        f"{result.model} on {result.topology}: {result.size}",
        (*heads, "peak MB", "predicted", "compile s"),
    )
    for row in sorted(result.rows, key=lambda row: row.compiled.serial_s):
        table.add_row(*_cells(row))
    console.print(table)
    for line in result.left_out:
        console.print(f"Left out: {line}")


def _cells(row: Row) -> tuple[str, ...]:
    made, guess = row.compiled, row.predicted
    shown = ("", "", "")
    if guess is not None:
        peak = f"{100 * (guess.peak_bytes / row.peak_bytes - 1):+.0f} %"
        shown = (f"{1e3 * guess.computing_s:.3f}", f"{1e3 * guess.communicating_s:.3f}", peak)
    return (
        row.kind,
        row.mesh,
        f"{1e3 * made.computing_s:.3f}",
        shown[0],
        f"{1e3 * made.communicating_s:.3f}",
        shown[1],
        str(made.collectives),
        f"{made.collective_bytes / 1e6:.1f}",
        f"{row.peak_bytes / 1e6:.1f}",
        shown[2],
        f"{row.compile_s:.0f}",
    )


def show_agreement(console: Console, results: Sequence[Result]) -> None:
    """Prints what of the predictions agrees with the compiler, for each model and topology."""
    heads = (
        "model",
        "plans",
        "tau of computing",
        "tau of both",
        "regret",
        "mean error",
        "peaks: mean error",
        "under",
    )
    table = _table("Predictions for plans against the compiler", heads)
    for result in results:
        found = result.agreement
        table.add_row(
            f"{result.model}, {result.topology}",
            str(found.serial.plans),
            f"{found.computing.kendall_tau:.2f}",
            f"{found.serial.kendall_tau:.2f}",
            f"{100 * found.serial.regret:.1f} %",
            f"{100 * found.serial.mean_error:.0f} %",
            f"{100 * found.peaks.mean_error:.0f} %",
            f"{100 * found.peaks.worst_under:.1f} %",
        )
    console.print(table)
    plans = [row for result in results for row in result.rows if row.predicted is not None]
    under = sum(
        row.predicted.peak_bytes < (1 - UNDER) * row.peak_bytes
        for row in plans
        if row.predicted is not None
    )
    console.print(
        f"{under} of {len(plans)} predicted peaks are more than {UNDER:.0%} under the compiler's."
    )


def _table(title: str, heads: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.MARKDOWN)
    for number, head in enumerate(heads):
        table.add_column(head, justify="right" if number > 1 else "left")
    return table


if __name__ == "__main__":
    main()
