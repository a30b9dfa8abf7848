"""Who wins by a compiler's own word: the plan of a training step, or the layouts that experts write by hand?

    python -m benchmarks.experts [--compiler gpu] [--only PATTERN] [--json FILE] [--resume FILE] [--record]

Training steps in shape only (`experts_models`, `experts_others`) for 8 or 64 devices that need not be there: H100s,
with the plugin of JAX for CUDA (the extra `gpu-aot`), or TPUs v5p, with libtpu (`--compiler tpu`, the extra `tpu-aot`).
Each is compiled with the layouts by hand that suit it, sharding constraints that XLA completes (`experts_layouts`), and
under the plan that autopar finds when it is left alone. If that takes more memory than the fastest of the others by the
compiler's count, so it is under the plan found within that much, which autopar counts in proportion: less or more; or
else within the least that was found to do.
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import jax
from rich.console import Console

import autopar
from autopar.errors import NoFeasiblePlan, Unsolved
from autopar.inspect.hlo import peak_memory_bytes
from autopar.search.task import SearchOptions
from autopar.solve import SolveOptions
from benchmarks import gpu_aot, tpu_aot
from benchmarks.ahead_of_time import Compiler, Session, resuming_parser_of, show_rows
from benchmarks.compiled_collectives import Made, UnknownRounds
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
from benchmarks.gpu_programs import arguments
from benchmarks.models import Model
from benchmarks.record import table
from cost_models import Cluster, load_cluster

Maker = Callable[[int], Layout]
"""What makes a layout for so many devices."""
LIMITED = SearchOptions(solve=SolveOptions(time_limit_s=30.0))
"""A second search is not to take longer than all compilations of a model."""
PLANNED = "autopar"
LIMITED_PLAN = "autopar, limited"
WORSE = 0.02
"""By how much more a plan is worse than a layout by hand, and takes more memory."""


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
class Case:
    """A model, the layouts that suit it, and how many devices it is for."""

    model: Callable[[], Model]
    makers: tuple[Maker, ...]
    devices: int = 8
    in_bfloat16: bool = False

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """The layouts by hand."""
        return tuple(make(self.devices) for make in self.makers)


COMPILERS = {"gpu": gpu_aot.COMPILER, "tpu": tpu_aot.COMPILER}
CLUSTERS = {
    ("gpu", 8): "8xh100-xla",
    ("gpu", 64): "8x8xh100-xla",
    ("tpu", 8): "tpu-v5p-2x2x2",
    ("tpu", 64): "tpu-v5p-4x4x4",
}
ALWAYS = (data_parallelism, fsdp)
DECODERS = (*ALWAYS, megatron)
SPARSE = (*DECODERS, fsdp_experts)
CASES = {
    "mlp": Case(mlp, DECODERS, in_bfloat16=True),
    "gpt2": Case(gpt2, DECODERS),
    "llama": Case(llama, DECODERS),
    "llama-long": Case(
        lambda: llama(batch=1, tokens=16384, name="Llama, long"),
        (context, lambda devices: megatron(devices, devices)),
    ),
    "mixtral-dense": Case(lambda: mixtral(dense_experts, "Mixtral, dense"), SPARSE),
    "mixtral-sorted": Case(lambda: mixtral(sorted_experts, "Mixtral, dropless"), SPARSE),
    "bert": Case(bert, DECODERS),
    "vit": Case(vit, DECODERS),
    "resnet": Case(resnet, ALWAYS),
    "unet": Case(unet, ALWAYS),
    "gan": Case(gan, ALWAYS),
    "dlrm": Case(dlrm, (data_parallelism, tables_apart)),
    "graph": Case(graph, (data_parallelism, nodes_split)),
    "mamba": Case(mamba, DECODERS),
    "llama-7b": Case(
        lambda: llama(layers=32, batch=256, tokens=2048, name="Llama 2 7B"), (fsdp,), devices=64
    ),
    "mixtral-8x7b": Case(
        lambda: mixtral(dense_experts, "Mixtral 8x7B, dense", layers=32, batch=128),
        (fsdp, fsdp_experts),
        devices=64,
    ),
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
    def of(cls, case: Case, compiler: str, folder: Path | None) -> Bench:
        """The bench of a case on devices of a kind."""
        model = case.model()
        exact = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (model.state, *model.batch)
        )
        args = arguments(model) if case.in_bfloat16 else exact
        cluster = load_cluster(CLUSTERS[compiler, case.devices])
        found = COMPILERS[compiler]
        return cls(model, args, found, cluster, found.devices(cluster.name), folder)

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
            options=None if limit_bytes is None else LIMITED,
        )
        took = perf_counter() - start

        name = PLANNED if limit_bytes is None else LIMITED_PLAN
        row = self.compiled(name, str(plan.mesh).strip("()"), plan.lower(self.devices))
        return replace(
            row,
            planning_s=took,
            predicted_s=plan.step_time_s,
            predicted_bytes=plan.peak_memory_bytes,
        )

    def limited(self, limit_bytes: int) -> Row | str:
        """The row of the plan that is found within `limit_bytes`, or else within the least that is found to do."""
        try:
            return self.planned(limit_bytes)
        except (NoFeasiblePlan, Unsolved) as refused:
            least = refused.min_peak_bytes
        try:
            return self.planned(least) if least else f"{LIMITED_PLAN}: no plan was found"
        except (NoFeasiblePlan, Unsolved) as refused:
            return f"{LIMITED_PLAN}: {refused}"

    def compiled(self, name: str, mesh: str, step: Any) -> Row:
        """The row of a step that JAX has lowered."""
        start = process_time()
        made = step.compile(compiler_options=dict(self.compiler.options))
        took = process_time() - start

        text = made.as_text()
        if self.folder is not None:
            file = re.sub(r"[^a-z0-9.]+", "-", f"{self.model.name}-{name}".lower())
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / f"{file}.hlo").write_text(text, encoding="utf-8")
        found = self.compiler.read(text, self.cluster)
        return Row(name, mesh, found, peak_memory_bytes(made), took)


def measure(case: Case, bench: Bench, known: Sequence[Row] = ()) -> Iterator[Row | str]:
    """The rows of a case, one by one; why there is none of a layout whose times are not known, or of a plan that counts
    as little memory as it may take. Those that are `known` are not made again.
    """
    made = {row.layout: row for row in known}
    rivals: list[Row] = []
    for layout in case.layouts:
        try:
            rivals.append(made.get(layout.name) or bench.by_hand(layout))
        except UnknownRounds as reason:
            yield f"{layout.name}: {reason}"
        else:
            yield rivals[-1]

    found = made.get(PLANNED) or bench.planned()
    yield found
    fastest = min(rivals, key=lambda row: row.made.serial_s, default=found)
    share = fastest.memory_bytes / found.memory_bytes
    if share < 1:
        yield made.get(LIMITED_PLAN) or bench.limited(int(share * found.predicted_bytes))


# All models -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """The rows of a model, and why there are not more, if something went wrong."""

    case: str
    model: str
    size: str
    rows: tuple[Row, ...]
    left_out: tuple[str, ...] = ()
    reason: str = ""

    @property
    def rival(self) -> Row | None:
        """The fastest by hand."""
        rivals = [row for row in self.rows if not row.is_planned]
        return min(rivals, key=lambda row: row.made.serial_s, default=None)

    @property
    def own(self) -> Row | None:
        """The fastest plan that takes no more memory than the rival; where none does, the one that takes least."""
        plans = [row for row in self.rows if row.is_planned]
        most = 0 if self.rival is None else self.rival.memory_bytes
        able = [row for row in plans if row.memory_bytes <= most]
        if able:
            return min(able, key=lambda row: row.made.serial_s)
        return min(plans, key=lambda row: row.memory_bytes, default=None)


def run_apart(name: str, options: argparse.Namespace, known: Sequence[Row] = ()) -> Result:
    """The result of a case, from a process of its own, as far as it came; rows that are `known` are as they are."""
    command = [sys.executable, "-m", "benchmarks.experts", "--case", name]
    command += ["--compiler", options.compiler]
    if options.programs:
        command += ["--programs", str(options.programs)]
    try:
        done = subprocess.run(
            command,
            input=json.dumps([asdict(row) for row in known]),
            capture_output=True,
            text=True,
            timeout=options.timeout,
            check=False,
        )
        lines = done.stdout.splitlines()
        errors = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        reason = errors[-1] if done.returncode else ""
    except subprocess.TimeoutExpired as error:
        lines = (error.stdout or b"").decode().splitlines()
        reason = f"cut off after {options.timeout:.0f} s"

    model = CASES[name].model()
    found = [json.loads(line) for line in lines]
    made = _rows(read for read in found if isinstance(read, dict))
    reached = {row.layout for row in made}
    rows = (*made, *(row for row in known if row.layout not in reached))
    left_out = tuple(read for read in found if isinstance(read, str))
    return Result(name, model.name, model.size, rows, left_out, reason)


def _rows(found: Iterable[Mapping[str, Any]]) -> tuple[Row, ...]:
    """Rows that were written as JSON."""
    return tuple(Row(**{**read, "made": Made(**read["made"])}) for read in found)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compiles and prints; the exit status is 1 if a model has not all its rows."""
    options = _parser().parse_args(arguments)
    if options.case:
        bench = Bench.of(CASES[options.case], options.compiler, options.programs)
        known = _rows(json.load(sys.stdin))
        for row in measure(CASES[options.case], bench, known):
            print(json.dumps(row if isinstance(row, str) else asdict(row)), flush=True)
        return 0

    compiler = COMPILERS[options.compiler]
    session = Session(__file__, options, compiler.version())
    known = {found.case: found for found in session.known(Result)}
    for name, case in CASES.items():
        if re.search(options.only, name):
            session.add(_completed(name, options, known.get(name)))
            show(
                session.console,
                session.results[-1],
                CLUSTERS[options.compiler, case.devices],
                compiler.work,
            )

    show_winners(session.console, session.results)
    session.end()
    return int(any(result.reason for result in session.results))


def _completed(name: str, options: argparse.Namespace, known: Result | None) -> Result:
    """The result of a case; of one that did not come to its end only the rows that are missing are made."""
    if known is None:
        return run_apart(name, options)
    return run_apart(name, options, known.rows) if known.reason else known


def _parser() -> argparse.ArgumentParser:
    parser = resuming_parser_of(__doc__)
    parser.add_argument("--compiler", choices=tuple(COMPILERS), default="gpu")
    parser.add_argument("--only", default="", help="models whose name holds this pattern")
    parser.add_argument(
        "--programs", type=Path, help="folder to keep what the compiler made in, as HLO text"
    )
    parser.add_argument(
        "--timeout", type=float, default=300.0, help="seconds that a model may take"
    )
    parser.add_argument("--case", choices=tuple(CASES), help=argparse.SUPPRESS)
    return parser


def show(console: Console, result: Result, cluster: str, work: str) -> None:
    """Prints one model's rows, those first that take least."""
    heads = (
        "layout",
        "mesh",
        "step ms",
        "computes ms",
        work,
        "communicates ms",
        "MB moved",
        "memory MB",
        "compile s",
        "plan s",
        "predicted ms",
        "predicted MB",
    )
    shown = table(f"{result.model} on {cluster}: {result.size}", heads, words=2)
    for row in sorted(result.rows, key=lambda row: row.made.serial_s):
        shown.add_row(*_cells(row))
    show_rows(console, shown, filter(None, (*result.left_out, result.reason)))


def _cells(row: Row) -> tuple[str, ...]:
    made = row.made
    return (
        row.layout,
        row.mesh,
        f"{1e3 * made.serial_s:.3f}",
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
    shown = table("Plans against the fastest layout by hand", heads, words=3)
    for result in results:
        if result.own is not None and result.rival is not None:
            shown.add_row(*_against(result.model, result.own, result.rival))
    console.print(shown)


def _against(model: str, own: Row, rival: Row) -> tuple[str, ...]:
    pairs = (
        (own.made.serial_s, rival.made.serial_s),
        (own.made.computing_s, rival.made.computing_s),
        (own.made.communicating_s, rival.made.communicating_s),
        (own.made.collective_bytes, rival.made.collective_bytes),
        (own.memory_bytes, rival.memory_bytes),
        (own.compile_s, rival.compile_s),
    )
    step = own.made.serial_s / rival.made.serial_s - 1
    verdict = "worse" if step > WORSE else "better" if step < -WORSE else "equal"
    if own.memory_bytes > (1 + WORSE) * rival.memory_bytes:
        verdict += ", more memory"
    return (model, rival.layout, own.layout, *(_more(*pair) for pair in pairs), verdict)


def _more(own: float, rival: float) -> str:
    return f"{100 * (own / rival - 1):+.1f} %" if rival else f"{own:.3g} for 0"


if __name__ == "__main__":
    raise SystemExit(main())
