"""Who wins by a compiler's own word: the plan of a training step, or the layouts that experts write by hand?

    python -m benchmarks.experts [--compiler gpu] [--only PATTERN] [--json FILE] [--record] [--timeout SECONDS]

Training steps in shape only (`experts_models`, `experts_others`) for 8 devices that need not be there: H100s, with the
plugin of JAX for CUDA (the extra `gpu-aot`), or TPUs v5p, with libtpu (`--compiler tpu`, the extra `tpu-aot`). Each is
compiled with the layouts by hand that suit it, sharding constraints that XLA completes (`experts_layouts`), and under
the plan that autopar finds when it is left alone. If that takes more memory than the fastest of the others by the
compiler's count, so it is under the plan found within that much, which autopar counts in proportion: less or more.
State is donated. Every model has a process of its own.

A step is what the compiler computes, by its own estimates (`gpu_kernels`, `tpu_cycles`), launches of kernels on GPUs,
and the collectives that it made, by the links of the profile, one behind the other. Memory is arguments, results and
temporaries of a device; compiling is seconds of computing, of all threads. "predicted" is the plan's own step time,
in which communicating runs beside computing. Nothing runs.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import jax
from rich import box
from rich.console import Console
from rich.table import Table

import autopar
from autopar.errors import NoFeasiblePlan
from autopar.inspect.hlo import peak_memory_bytes
from benchmarks import gpu_kernels, gpu_programs, tpu_cycles
from benchmarks.end_to_end import describe_machine
from benchmarks.experts_layouts import (
    Layout,
    context,
    data_parallelism,
    fsdp,
    fsdp_experts,
    lowered,
    megatron,
    nodes_split,
    tables_apart,
)
from benchmarks.experts_models import bert, dense_experts, gpt2, llama, mixtral, mlp, sorted_experts
from benchmarks.experts_others import dlrm, gan, graph, mamba, resnet, unet, vit
from benchmarks.gpu_aot import plugin_version
from benchmarks.models import Model
from benchmarks.record import Screen, add_record_option, record
from benchmarks.tpu_programs import tpu_devices
from cost_models import Cluster, load_cluster

DEVICES = 8
WORSE = 0.02
"""By how much more a plan is worse than a layout by hand."""


@dataclass(frozen=True)
class Made:
    """What a compiler made of a step for one device. `work` is kernels on GPUs, cycles on TPUs."""

    step_s: float
    computing_s: float
    work: int
    communicating_s: float
    collective_bytes: int


@dataclass(frozen=True)
class Row:
    """A step under one layout. Of plans: how long planning took, and what they predict of step and memory."""

    layout: str
    mesh: str
    made: Made
    memory_bytes: int
    compile_s: float
    planning_s: float = 0.0
    predicted_s: float = 0.0
    predicted_bytes: int = 0

    @property
    def is_planned(self) -> bool:
        """Whether autopar planned it."""
        return self.predicted_s > 0


@dataclass(frozen=True)
class Compiler:
    """A compiler: the cluster it compiles for, its devices, its options, what it says of a program, and of what kind
    `Made.work` is.
    """

    cluster: str
    devices: Callable[[], Sequence[Any]]
    options: Mapping[str, Any]
    read: Callable[[str, Cluster], Made]
    work: str
    plugin: Callable[[], str]


@dataclass(frozen=True)
class Case:
    """A model and the layouts that suit it."""

    model: Callable[[], Model]
    layouts: tuple[Layout, ...]
    in_bfloat16: bool = False


def _on_gpu(text: str, cluster: Cluster) -> Made:
    found = gpu_kernels.compiled_program(text, cluster)
    return Made(
        found.serial_s(cluster.device.launch_s),
        found.computing_s,
        found.kernels,
        found.communicating_s,
        found.collective_bytes,
    )


def _on_tpu(text: str, cluster: Cluster) -> Made:
    found = tpu_cycles.compiled_program(text, cluster)
    return Made(
        found.serial_s,
        found.computing_s,
        found.cycles,
        found.communicating_s,
        found.collective_bytes,
    )


COMPILERS = {
    "gpu": Compiler(
        "8xh100-xla",
        lambda: gpu_programs.gpu_devices("8xh100-xla"),
        gpu_programs.COMPILER_OPTIONS,
        _on_gpu,
        "kernels",
        plugin_version,
    ),
    "tpu": Compiler(
        "tpu-v5p-2x2x2",
        lambda: tpu_devices("v5p:2x2x2"),
        {},
        _on_tpu,
        "cycles",
        lambda: f"libtpu {version('libtpu')}",
    ),
}
ALWAYS = (data_parallelism(DEVICES), fsdp(DEVICES))
DECODERS = (*ALWAYS, megatron(DEVICES))
SPARSE = (*DECODERS, fsdp_experts(DEVICES))
CASES = {
    "mlp": Case(mlp, DECODERS, in_bfloat16=True),
    "gpt2": Case(gpt2, DECODERS),
    "llama": Case(llama, DECODERS),
    "llama-long": Case(
        lambda: llama(batch=1, tokens=16384, name="Llama, long"),
        (context(DEVICES), megatron(DEVICES, DEVICES)),
    ),
    "mixtral-dense": Case(lambda: mixtral(dense_experts, "Mixtral, dense"), SPARSE),
    "mixtral-sorted": Case(lambda: mixtral(sorted_experts, "Mixtral, dropless"), SPARSE),
    "bert": Case(bert, DECODERS),
    "vit": Case(vit, DECODERS),
    "resnet": Case(resnet, ALWAYS),
    "unet": Case(unet, ALWAYS),
    "gan": Case(gan, ALWAYS),
    "dlrm": Case(dlrm, (ALWAYS[0], tables_apart(DEVICES))),
    "graph": Case(graph, (ALWAYS[0], nodes_split(DEVICES))),
    "mamba": Case(mamba, DECODERS),
}


# One model ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bench:
    """A model and its arguments, what compiles it for which devices, and where its programs are kept, if anywhere."""

    model: Model
    args: tuple[Any, ...]
    compiler: Compiler
    cluster: Cluster
    devices: Sequence[Any]
    folder: Path | None

    @classmethod
    def of(cls, case: Case, compiler: Compiler, folder: Path | None) -> Bench:
        """The bench of a case."""
        model = case.model()
        exact = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (model.state, *model.batch)
        )
        args = gpu_programs.arguments(model) if case.in_bfloat16 else exact
        cluster = load_cluster(compiler.cluster)
        return cls(model, args, compiler, cluster, compiler.devices(), folder)

    def by_hand(self, layout: Layout) -> Row:
        """The row of a layout by hand."""
        mesh = ", ".join(f"{name}={size}" for name, size in layout.mesh.items())
        step = lowered(layout, self.model, self.args, self.devices)
        return self.compiled(layout.name, mesh, step)

    def planned(self, limit_bytes: int | None = None) -> Row:
        """The row of the plan that is found within `limit_bytes`; None: within all that a device has."""
        start = perf_counter()
        plan = autopar.plan(
            self.model.step(),
            *self.args,
            cluster=self.cluster,
            donate_argnums=0,
            memory_limit_bytes=limit_bytes,
        )
        took = perf_counter() - start

        name = "autopar" if limit_bytes is None else "autopar, limited"
        row = self.compiled(name, str(plan.mesh).strip("()"), plan.lower(self.devices))
        return replace(
            row,
            planning_s=took,
            predicted_s=plan.step_time_s,
            predicted_bytes=plan.peak_memory_bytes,
        )

    def compiled(self, name: str, mesh: str, step: Any) -> Row:
        """The row of a step that JAX has lowered."""
        start = process_time()
        made = step.compile(compiler_options=self.compiler.options)
        took = process_time() - start

        text = made.as_text()
        if self.folder is not None:
            file = re.sub(r"[^a-z0-9.]+", "-", f"{self.model.name}-{name}".lower())
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / f"{file}.hlo").write_text(text, encoding="utf-8")
        found = self.compiler.read(text, self.cluster)
        return Row(name, mesh, found, peak_memory_bytes(made), took)


def measure(case: Case, bench: Bench) -> Iterator[Row]:
    """The rows of a case, one by one. Where no plan counts as little memory as it may take, there is none."""
    rivals: list[Row] = []
    for layout in case.layouts:
        rivals.append(bench.by_hand(layout))
        yield rivals[-1]

    found = bench.planned()
    yield found
    fastest = min(rivals, key=lambda row: row.made.step_s)
    share = fastest.memory_bytes / found.memory_bytes
    if share < 1:
        with suppress(NoFeasiblePlan):
            yield bench.planned(int(share * found.predicted_bytes))


# All models -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """The rows of a model, and why there are not more, if something went wrong."""

    model: str
    size: str
    rows: tuple[Row, ...]
    reason: str = ""

    @property
    def rival(self) -> Row:
        """The fastest by hand."""
        return min((r for r in self.rows if not r.is_planned), key=lambda row: row.made.step_s)

    @property
    def own(self) -> Row | None:
        """The fastest plan that takes no more memory than the rival; where none does, the one that takes least."""
        plans = [row for row in self.rows if row.is_planned]
        able = [row for row in plans if row.memory_bytes <= self.rival.memory_bytes]
        if able:
            return min(able, key=lambda row: row.made.step_s)
        return min(plans, key=lambda row: row.memory_bytes, default=None)


def run_apart(name: str, options: argparse.Namespace) -> Result:
    """The result of a case, from a process of its own, as far as it came."""
    command = [sys.executable, "-m", "benchmarks.experts", "--case", name]
    command += ["--compiler", options.compiler]
    if options.programs:
        command += ["--programs", str(options.programs)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=options.timeout, check=False
        )
        lines = done.stdout.splitlines()
        errors = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        reason = errors[-1] if done.returncode else ""
    except subprocess.TimeoutExpired as error:
        lines = (error.stdout or b"").decode().splitlines()
        reason = f"cut off after {options.timeout:.0f} s"

    model = CASES[name].model()
    return Result(model.name, model.size, tuple(map(read_row, lines)), reason)


def read_row(line: str) -> Row:
    """The row that a process printed as a line of JSON."""
    read = json.loads(line)
    return Row(**{**read, "made": Made(**read["made"])})


def main(arguments: Sequence[str] | None = None) -> int:
    """Compiles and prints; the exit status is 1 if a model has not all its rows."""
    options = _parser().parse_args(arguments)
    compiler = COMPILERS[options.compiler]
    if options.case:
        bench = Bench.of(CASES[options.case], compiler, options.programs)
        for row in measure(CASES[options.case], bench):
            print(json.dumps(asdict(row)), flush=True)
        return 0

    start, console = perf_counter(), Screen(width=150)
    machine = {**describe_machine(), "compiler": compiler.plugin()}
    machine.pop("virtual devices")
    console.print(", ".join(f"{name}: {value}" for name, value in machine.items()), highlight=False)
    results: list[Result] = []
    for name in CASES:
        if not re.search(options.only, name):
            continue
        results.append(run_apart(name, options))
        show(console, results[-1], compiler)
        if options.json:
            content = {"machine": machine, "results": [asdict(result) for result in results]}
            options.json.write_text(json.dumps(content, indent=1) + "\n")
    show_winners(console, results)
    console.print(f"{perf_counter() - start:.0f} s. Compiled only, nothing was run.")
    record(__file__, options.record, console.tables)
    return int(any(result.reason for result in results))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--compiler", choices=tuple(COMPILERS), default="gpu")
    parser.add_argument("--only", default="", help="models whose name holds this pattern")
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    add_record_option(parser)
    parser.add_argument(
        "--programs", type=Path, help="folder to keep what the compiler made in, as HLO text"
    )
    parser.add_argument(
        "--timeout", type=float, default=300.0, help="seconds that a model may take"
    )
    parser.add_argument("--case", choices=tuple(CASES), help=argparse.SUPPRESS)
    return parser


def show(console: Console, result: Result, compiler: Compiler) -> None:
    """Prints one model's rows, those first that take least."""
    heads = (
        "layout",
        "mesh",
        "step ms",
        "computes ms",
        compiler.work,
        "communicates ms",
        "MB moved",
        "memory MB",
        "compile s",
        "plan s",
        "predicted ms",
        "predicted MB",
    )
    table = _table(f"{result.model} on {compiler.cluster}: {result.size}", heads)
    for row in sorted(result.rows, key=lambda row: row.made.step_s):
        table.add_row(*_cells(row))
    console.print(table)
    if result.reason:
        console.print(f"{result.model}: {result.reason}", highlight=False)


def _cells(row: Row) -> tuple[str, ...]:
    made = row.made
    return (
        row.layout,
        row.mesh,
        f"{1e3 * made.step_s:.3f}",
        f"{1e3 * made.computing_s:.3f}",
        f"{made.work:,}",
        f"{1e3 * made.communicating_s:.3f}",
        f"{made.collective_bytes / 1e6:,.1f}",
        f"{row.memory_bytes / 1e6:,.1f}",
        f"{row.compile_s:.1f}",
        f"{row.planning_s:.1f}" if row.is_planned else "",
        f"{1e3 * row.predicted_s:.3f}" if row.is_planned else "",
        f"{row.predicted_bytes / 1e6:,.1f}" if row.is_planned else "",
    )


def show_winners(console: Console, results: Sequence[Result]) -> None:
    """Prints by how much each model's plan is above or below the fastest layout by hand."""
    heads = (
        "model",
        "fastest by hand",
        "plan",
        "step",
        "computes",
        "communicates",
        "moved",
        "memory",
        "compile",
        "verdict",
    )
    table = _table("Plans against the fastest layout by hand", heads)
    for result in results:
        if result.own is not None:
            table.add_row(*_against(result.model, result.own, result.rival))
    console.print(table)


def _against(model: str, own: Row, rival: Row) -> tuple[str, ...]:
    pairs = (
        (own.made.step_s, rival.made.step_s),
        (own.made.computing_s, rival.made.computing_s),
        (own.made.communicating_s, rival.made.communicating_s),
        (own.made.collective_bytes, rival.made.collective_bytes),
        (own.memory_bytes, rival.memory_bytes),
        (own.compile_s, rival.compile_s),
    )
    step = own.made.step_s / rival.made.step_s - 1
    verdict = "worse" if step > WORSE else "better" if step < -WORSE else "equal"
    return (model, rival.layout, own.layout, *(_more(*pair) for pair in pairs), verdict)


def _more(own: float, rival: float) -> str:
    return f"{100 * (own / rival - 1):+.1f} %" if rival else f"{own:.3g} for 0"


def _table(title: str, heads: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.MARKDOWN)
    for number, head in enumerate(heads):
        table.add_column(head, justify="right" if number > 1 else "left")
    return table


if __name__ == "__main__":
    raise SystemExit(main())
