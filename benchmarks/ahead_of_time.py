"""The frame of benchmarks that ask compilers whose devices need not be there: programs in, what was made of them out.

`gpu_aot` and `tpu_aot` compile plans beside what is predicted for them, `experts` beside layouts by hand. Nothing runs.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from time import perf_counter
from typing import Any, TypeVar

from pydantic import TypeAdapter
from rich.console import Console
from rich.table import Table

from autopar.core.graph import OpGraph
from autopar.core.program import ShardedProgram
from autopar.emit.measure import use_virtual_devices
from autopar.inspect.hlo import peak_memory_bytes
from benchmarks.accuracy_figures import Figures, PeakFigures, figures, peak_figures
from benchmarks.accuracy_plans import Drawn
from benchmarks.compiled_collectives import Made, UnknownRounds
from benchmarks.end_to_end import describe_machine
from benchmarks.models import Model
from benchmarks.record import Screen, parser_of, record, table
from cost_models import Cluster

UNDER = 0.02
Kept = TypeVar("Kept")


@dataclass(frozen=True)
class Predicted:
    """What is predicted for a plan; computing without launches. `kernels` only where launches are counted."""

    computing_s: float
    communicating_s: float
    peak_bytes: int
    kernels: float = 0.0
    launching_s: float = 0.0

    @property
    def serial_s(self) -> float:
        """Computing, launches and communicating, one behind the other."""
        return self.computing_s + self.launching_s + self.communicating_s


@dataclass(frozen=True)
class Compiler:
    """A compiler: the devices of a cluster by its name, options, what it says of a program as HLO text, what is
    predicted for a plan's, of what kind `Made.work` is, and its version.
    """

    devices: Callable[[str], Sequence[Any]]
    options: Mapping[str, Any]
    read: Callable[[str, Cluster], Made]
    predict: Callable[[OpGraph, ShardedProgram, Cluster], Predicted]
    work: str
    version: Callable[[], str]


# Programs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Program:
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
    made: Made
    peak_bytes: int


def planned(
    drawn: Sequence[Drawn], compiler: Compiler, cluster: Cluster, devices: Sequence[Any]
) -> list[Program]:
    """The programs of plans."""
    found: list[Program] = []
    for one in drawn:
        plan = one.plan
        guess = compiler.predict(plan.bound.planned.graph, plan.program(), cluster)
        found.append(Program(one.kind, str(plan.mesh), guess, plan.lower(devices)))
    return found


def compiled_row(program: Program, compiler: Compiler, cluster: Cluster) -> Row | str:
    """The row of a program; why it has none, if it is by hand and its times are not known.

    Raises:
      UnknownRounds: if those of a plan are not known.
    """
    compiled = program.lowered.compile(compiler_options=dict(compiler.options))
    try:
        made = compiler.read(compiled.as_text(), cluster)
    except UnknownRounds as reason:
        if program.predicted is not None:
            raise
        return f"{program.kind}: {reason}"
    return Row(program.kind, program.mesh, program.predicted, made, peak_memory_bytes(compiled))


# What agrees ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Agreement:
    """How well predictions order and meet the compiler's figures, over one model's plans."""

    computing: Figures
    kernels_error: float
    steps: Figures
    peaks: PeakFigures


@dataclass(frozen=True)
class Result:
    """A model on a cluster: its programs, which were left out and why, and what of the plans' predictions agrees."""

    model: str
    size: str
    cluster: str
    work: str
    rows: tuple[Row, ...]
    left_out: tuple[str, ...]
    agreement: Agreement

    @classmethod
    def of(
        cls, model: Model, programs: Iterable[Program], compiler: Compiler, cluster: Cluster
    ) -> Result:
        """What `compiler` makes of the programs of a model."""
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # one compilation alone leaves cores idle
            found = list(pool.map(lambda one: compiled_row(one, compiler, cluster), programs))
        rows = tuple(row for row in found if isinstance(row, Row))
        left_out = tuple(reason for reason in found if isinstance(reason, str))
        return cls(
            model.name, model.size, cluster.name, compiler.work, rows, left_out, agreement(rows)
        )


def agreement(rows: Sequence[Row]) -> Agreement:
    """The figures of the rows that are plans; at least two."""
    pairs = [(row.predicted, row) for row in rows if row.predicted is not None]
    counted = [(guess.kernels, row.made.work) for guess, row in pairs if guess.kernels]
    return Agreement(
        figures([g.computing_s for g, _ in pairs], [row.made.computing_s for _, row in pairs]),
        mean(abs(guess / made - 1) for guess, made in counted) if counted else 0.0,
        figures([g.serial_s for g, _ in pairs], [row.made.serial_s for _, row in pairs]),
        peak_figures([g.peak_bytes for g, _ in pairs], [row.peak_bytes for _, row in pairs]),
    )


# What is shown --------------------------------------------------------------------------------------------------------


class Session:
    """One run of a benchmark: what it shows, and keeps as JSON behind every result, and as a record in the end."""

    def __init__(self, benchmark: str, options: argparse.Namespace, version: str) -> None:
        self.benchmark = benchmark
        self.options = options
        self.start = perf_counter()
        self.console = Screen(width=160)
        self.results: list[Any] = []
        use_virtual_devices(1)
        self.machine = {**describe_machine(), "compiler": version}
        self.machine.pop("virtual devices")
        said = ", ".join(f"{name}: {value}" for name, value in self.machine.items())
        self.console.print(said, highlight=False)

    def known(self, kind: type[Kept]) -> list[Kept]:
        """The results, of this kind, in the file that is not to be made again."""
        if self.options.resume is None:
            return []
        found = json.loads(self.options.resume.read_text(encoding="utf-8"))["results"]
        return TypeAdapter(list[kind]).validate_python(found)

    def add(self, result: Any) -> None:
        """Keeps a result, a record."""
        self.results.append(result)
        path: Path | None = self.options.json
        if path is not None:
            content = {
                "machine": self.machine,
                "results": [asdict(result) for result in self.results],
            }
            path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    def end(self) -> None:
        """Says how long all took, and records the tables if asked to."""
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        took = perf_counter() - self.start
        self.console.print(f"{took:.0f} s, {most:.1f} GiB at most. Compiled only, nothing was run.")
        record(self.benchmark, self.options.record, self.console.tables)


def resuming_parser_of(description: str | None) -> argparse.ArgumentParser:
    """The options that every such benchmark has."""
    parser = parser_of(description)
    parser.add_argument(
        "--resume", type=Path, help="file of --json whose results are not made again"
    )
    return parser


def show(session: Session, model: Model, cluster: Cluster, make: Callable[[], Result]) -> None:
    """Adds and prints what is made of a model on a cluster, or what is known of that."""
    known = {(found.model, found.cluster): found for found in session.known(Result)}
    session.add(known.get((model.name, cluster.name)) or make())
    show_result(session.console, session.results[-1])


def show_result(console: Console, result: Result) -> None:
    """Prints one model's programs, those first that take least."""
    heads = (
        "program",
        "mesh",
        "computes ms",
        "predicted",
        result.work,
        "predicted",
        "communicates ms",
        "predicted",
        "collectives",
        "MB moved",
        "peak MB",
        "predicted",
    )
    shown = table(f"{result.model} on {result.cluster}: {result.size}", heads, words=2)
    for row in sorted(result.rows, key=lambda row: row.made.serial_s):
        shown.add_row(*_cells(row))
    show_rows(console, shown, result.left_out)


def show_rows(console: Console, shown: Table, left_out: Iterable[str]) -> None:
    """Prints a table of programs, and why others are not in it."""
    console.print(shown)
    for line in left_out:
        console.print(f"Left out: {line}", highlight=False)


def _cells(row: Row) -> tuple[str, ...]:
    made, guess = row.made, row.predicted
    said = ("", "", "", "")
    if guess is not None:
        said = (
            percent(guess.computing_s / made.computing_s - 1),
            f"{guess.kernels:.0f}" if guess.kernels else "",
            f"{1e3 * guess.communicating_s:.3f}",
            percent(guess.peak_bytes / row.peak_bytes - 1),
        )
    return (
        row.kind,
        row.mesh,
        f"{1e3 * made.computing_s:.3f}",
        said[0],
        f"{made.work:,}",
        said[1],
        f"{1e3 * made.communicating_s:.3f}",
        said[2],
        str(made.collectives),
        f"{made.collective_bytes / 1e6:.1f}",
        f"{row.peak_bytes / 1e6:.1f}",
        said[3],
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
    shown = table("Predictions for plans against the compiler", heads)
    for result in results:
        found = result.agreement
        pairs = [(row.predicted, row.made) for row in result.rows if row.predicted is not None]
        shown.add_row(
            f"{result.model}, {result.cluster}",
            str(found.steps.plans),
            percent(mean(guess.computing_s / made.computing_s for guess, made in pairs) - 1),
            f"{100 * found.computing.mean_error:.0f} %",
            f"{found.computing.kendall_tau:.2f}",
            f"{100 * found.kernels_error:.0f} %" if found.kernels_error else "",
            f"{100 * found.steps.mean_error:.0f} %",
            f"{found.steps.kendall_tau:.2f}",
            f"{100 * found.steps.regret:.1f} %",
            f"{100 * found.peaks.mean_error:.0f} %",
            f"{100 * found.peaks.worst_under:.1f} %",
        )
    console.print(shown)

    rows = [row for result in results for row in result.rows if row.predicted is not None]
    shares = [row.predicted.peak_bytes / row.peak_bytes for row in rows if row.predicted]
    under = sum(share < 1 - UNDER for share in shares)
    console.print(
        f"{under} of {len(rows)} predicted peaks are more than {UNDER:.0%} under the compiler's."
    )


def percent(share: float) -> str:
    """A share with its sign."""
    return f"{100 * share:+.0f} %"
