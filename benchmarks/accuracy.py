"""How well does the cost model predict and order plans, in time and memory, on the machine this runs on?

    python -m benchmarks.accuracy [--calibrate] [--json FILE] [--record] [--models mlp gpt ...] [--plans N]
                                  [--cache FOLDER]

Five training steps on 8 virtual devices, each under some plans: the solver's own, data and tensor parallel ones, and
random ones (`benchmarks.accuracy_plans`). All plans of a model take turns of some steps; each round's times are divided
by its common factor (`accuracy_figures.round_factors`), as the host's speed drifts, and the median of a plan's rounds
counts.
What is predicted with the profile that ships for this machine's processor, or with cpu8 where none does, is
"uncalibrated"; "calibrated" with one that is measured first (`--calibrate`, as `autopar calibrate` does, under three
minutes), or was before (`--cluster FILE`). Plans are found at the prices of cpu8, so that they are the same on all
machines; a plan's times are predicted for the very program that ran. The process keeps the memory that is freed
(`benchmarks.kept_memory`). Compiling takes most of the time: with `--cache FOLDER` it is kept for the next run.
Predicted peaks of memory stand beside what XLA sets aside, and so do those that limits are held against
(`benchmarks.memory`).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median
from time import perf_counter

import jax
from rich.console import Console

import autopar
from autopar.core.graph import OpGraph
from autopar.core.program import Compute, Instruction, Move, ShardedProgram
from autopar.cost.buckets import joined_price, ready
from autopar.cost.local_steps import FUSED_S
from autopar.cost.pricing import Roofline
from autopar.emit.measure import use_virtual_devices
from autopar.memory.account import Account
from autopar.passes.price_joined import PriceJoined
from autopar.redistribute.step import changes_inside
from autopar.search.limited_solve import account_of
from benchmarks import models, sparse_models
from benchmarks.accuracy_figures import (
    Figures,
    PeakFigures,
    agreement,
    clear_tau,
    figures,
    overall,
    peak_figures,
    round_factors,
)
from benchmarks.accuracy_plans import Drawn, drawn_plans
from benchmarks.accuracy_steps import all_ready, interleaved
from benchmarks.end_to_end import describe_machine, shipped_cluster
from benchmarks.kept_memory import keep_memory
from benchmarks.models import Model
from benchmarks.record import Screen, add_record_option, record, table
from cost_models import Cluster, load_cluster

DEVICES = 8
ROUNDS = 6
CALIBRATE_S = 170.0
LEAST_STEP_S = 0.03
MODELS: dict[str, Callable[[], Model]] = {
    "mlp": lambda: models.mlp((512, 1024, 1024, 512), batch=768),
    "gpt": lambda: models.gpt(layers=1),
    "cnn": lambda: models.cnn(batch=32),
    "experts": lambda: sparse_models.experts(groups=48),
    "embeddings": lambda: sparse_models.embeddings(batch=3072),
}


@dataclass(frozen=True)
class Row:
    """One plan: its times by round over the rounds' factors, what each profile predicts, and its peaks of memory."""

    kind: str
    mesh: str
    collectives: int
    steps_s: tuple[float, ...]
    predicted_s: dict[str, float]
    predicted_communication_s: dict[str, float]
    predicted_peak_bytes: int
    limited_peak_bytes: int
    peak_bytes: int

    @property
    def measured_s(self) -> float:
        """The median of its steps."""
        return median(self.steps_s)


@dataclass(frozen=True)
class Result:
    """One model: its plans, by how much each round was slower than usual, and how well each profile predicts them.

    `clear_taus`: of each profile over the pairs of plans that even and odd rounds order alike.
    """

    model: str
    size: str
    rows: tuple[Row, ...]
    round_factors: tuple[float, ...]
    figures: dict[str, Figures]
    peaks: PeakFigures
    limited_peaks: PeakFigures
    agreement: float
    clear_taus: dict[str, float]
    seconds: float


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints the tables, and writes JSON if asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    add_record_option(parser)
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=tuple(MODELS))
    parser.add_argument("--plans", type=int, default=12, help="plans of each model, at least 5")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="turns of each plan, at least 2")
    profile = parser.add_mutually_exclusive_group()
    profile.add_argument("--calibrate", action="store_true", help="calibrate first")
    profile.add_argument(
        "--cluster", type=Path, help="a profile that was calibrated on this machine"
    )
    parser.add_argument(
        "--cache", type=Path, help="folder where compiled programs are kept for the next run"
    )
    options = parser.parse_args(arguments)
    use_virtual_devices(DEVICES)
    if options.cache:
        jax.config.update("jax_compilation_cache_dir", str(options.cache))
    profiles = {"uncalibrated": shipped_cluster()}
    console, machine = (
        Screen(width=120),
        describe_machine() | {"uncalibrated": profiles["uncalibrated"].name},
    )
    console.print(", ".join(f"{name}: {value}" for name, value in machine.items()), highlight=False)
    if options.calibrate:
        profiles["calibrated"] = autopar.calibrate(name="here", time_limit_s=CALIBRATE_S).cluster
    elif options.cluster:
        profiles["calibrated"] = load_cluster(options.cluster)
    results = []
    for name in options.models:
        results.append(measure(MODELS[name](), profiles, options.plans, options.rounds))
        show_plans(console, results[-1])
    plans = len(console.tables)
    show_figures(console, results)
    if options.json:
        content = {"machine": machine, "results": [asdict(result) for result in results]}
        options.json.write_text(json.dumps(content, indent=1) + "\n")
    record(__file__, options.record, console.tables[plans:])


def measure(model: Model, profiles: dict[str, Cluster], plans: int, rounds: int) -> Result:
    """All figures of one model. Plans are found at the prices of cpu8."""
    start = perf_counter()
    drawn = drawn_plans(model, load_cluster(f"cpu{DEVICES}"), plans)
    steps = all_ready([d.plan for d in drawn], model)
    measured_s = interleaved(steps, rounds)
    factors = round_factors(measured_s)
    times = [
        [time_s / factor for time_s, factor in zip(mine, factors, strict=True)]
        for mine in measured_s
    ]
    rows = tuple(
        _row(d, t, s.peak_memory_bytes, profiles)
        for d, t, s in zip(drawn, times, steps, strict=True)
    )
    measured = [row.measured_s for row in rows]
    return Result(
        model.name,
        model.size,
        rows,
        tuple(factors),
        {name: figures([row.predicted_s[name] for row in rows], measured) for name in profiles},
        *_peaks(rows),
        agreement([row.steps_s for row in rows]),
        {
            name: clear_tau([r.predicted_s[name] for r in rows], [r.steps_s for r in rows])
            for name in profiles
        },
        perf_counter() - start,
    )


def _row(
    drawn: Drawn, steps_s: Sequence[float], peak_bytes: int, profiles: dict[str, Cluster]
) -> Row:
    program, graph = drawn.plan.program(), drawn.plan.bound.planned.graph
    spent = {name: predicted(graph, program, cluster) for name, cluster in profiles.items()}
    first = next(iter(spent.values()))
    return Row(
        drawn.kind,
        str(drawn.plan.mesh),
        len(program.collectives),
        tuple(steps_s),
        {name: account.serial_time_s for name, account in spent.items()},
        {name: account.communication_time_s for name, account in spent.items()},
        first.set_aside_bytes or first.peak_memory_bytes,
        first.peak_memory_bytes,
        peak_bytes,
    )


def predicted(
    graph: OpGraph, program: ShardedProgram, cluster: Cluster, *, copies: bool = True
) -> Account:
    """What `program`, which is one of `graph`, costs on `cluster`, whatever prices it was made at.

    Without `copies` what is laid out beside collectives costs nothing.
    """
    pricing = Roofline(graph, program.mesh, cluster)
    joined = joined_price(pricing, graph)
    joining = None if joined is None else PriceJoined(ready(graph), joined)

    def priced(move: Move) -> Move:
        if not move.is_collective and move.time_s <= FUSED_S:
            return move
        turned = sum(pricing.turn_cost(move.kind, size) for size in _turned_bytes(program, move))
        sizes = [
            max(map(program.local_bytes, pair)) for pair in zip(move.ins, move.outs, strict=True)
        ]
        packed = pricing.pack_cost(move.kind, move.axes, sizes) if len(sizes) > 1 else 0.0
        is_joined = joining is not None and joining.is_joined(program, move)
        price = joining.joined if joining is not None and is_joined else pricing.step_cost
        beside_s = turned + packed if copies else 0.0
        return move._replace(time_s=price(move.kind, move.axes, move.size_bytes) + beside_s)

    def anew(instruction: Instruction) -> Instruction:
        if isinstance(instruction, Move):
            return priced(instruction)
        if isinstance(instruction, Compute) and instruction.exchanges:
            return instruction._replace(exchanges=tuple(map(priced, instruction.exchanges)))
        return instruction

    program = program.with_instructions(tuple(map(anew, program.instructions)))
    return account_of(graph, program if joining is None else joining.apply(program), pricing)


def _turned_bytes(program: ShardedProgram, move: Move) -> list[int]:
    """The bytes of each tensor that a move splits or joins along a dim other than the first."""
    if move.role == "exchange":
        return []
    pairs = [(v, w) for v, w in zip(move.ins, move.outs, strict=True)]
    placed = [(v, w, program.values[v].placement, program.values[w].placement) for v, w in pairs]
    return [max(map(program.local_bytes, (v, w))) for v, w, a, b in placed if changes_inside(a, b)]


def show_plans(console: Console, result: Result) -> None:
    """Prints the plans of one model, the fastest first."""
    names = tuple(result.figures)
    shown = table(
        f"{result.model}: {result.size}",
        (
            "plan",
            "mesh",
            "collectives",
            "step ms",
            *(f"{n} ms" for n in names),
            "error",
            "peak MB",
            "predicted",
        ),
    )
    for row in sorted(result.rows, key=lambda row: row.measured_s):
        shown.add_row(
            row.kind,
            row.mesh,
            str(row.collectives),
            f"{1e3 * row.measured_s:.1f}",
            *(f"{1e3 * row.predicted_s[name]:.1f}" for name in names),
            f"{100 * (row.predicted_s[names[-1]] / row.measured_s - 1):+.0f} %",
            f"{row.peak_bytes / 1e6:.2f}",
            f"{100 * (row.predicted_peak_bytes / row.peak_bytes - 1):+.1f} %",
        )
    console.print(shown)
    least = min(row.measured_s for row in result.rows)
    short = (
        "" if least >= LEAST_STEP_S else f" The shortest step is under {1e3 * LEAST_STEP_S:.0f} ms."
    )
    console.print(f"{result.seconds:.0f} s for {len(result.rows)} plans.{short}\n", highlight=False)


def show_figures(console: Console, results: Sequence[Result]) -> None:
    """Prints the figures of every model and of all together, for each profile, and those of memory."""
    for name in results[0].figures:
        heads = (
            "model",
            "plans",
            "mean error",
            "largest",
            "tau",
            "Spearman",
            "regret",
            "tau of halves",
            "clear tau",
        )
        shown = table(f"Step times, {name}", heads)
        for result in results:
            own = (f"{result.agreement:.2f}", f"{result.clear_taus[name]:.2f}")
            shown.add_row(result.model, *_figure_cells(result.figures[name]), *own)
        parts = [
            ([r.predicted_s[name] for r in res.rows], [r.measured_s for r in res.rows])
            for res in results
        ]
        means = (
            f"{mean(r.agreement for r in results):.2f}",
            f"{mean(r.clear_taus[name] for r in results):.2f}",
        )
        shown.add_row("all", *_figure_cells(overall(parts)), *means)
        console.print(shown)
        together = figures(*([time for part in parts for time in part[n]] for n in (0, 1)))
        console.print(
            f"All {together.plans} plans in one order, whatever the model: tau {together.kendall_tau:.2f}.\n"
        )
    heads = (
        "model",
        "mean error",
        "worst under",
        "as held against limits: mean error",
        "worst under",
    )
    shown = table("Peak memory", heads)
    for result in results:
        shown.add_row(result.model, *_peak_cells(result.peaks), *_peak_cells(result.limited_peaks))
    predicted_peaks, limited = _peaks([row for result in results for row in result.rows])
    shown.add_row("all", *_peak_cells(predicted_peaks), *_peak_cells(limited))
    console.print(shown)
    console.print(
        "Errors are shares of what was measured. Regret: how much slower the plan predicted to be the fastest is than "
        "the fastest. Tau of halves: between the even and odd rounds of the same steps; clear tau: over the pairs of "
        "plans that both order alike. For all models, taus, Spearman and regret are means.",
        highlight=False,
    )


def _figure_cells(f: Figures) -> tuple[str, ...]:
    shares = (f"{100 * f.mean_error:.1f} %", f"{100 * f.max_error:.1f} %")
    return (
        str(f.plans),
        *shares,
        f"{f.kendall_tau:.2f}",
        f"{f.spearman:.2f}",
        f"{100 * f.regret:.1f} %",
    )


def _peaks(rows: Sequence[Row]) -> tuple[PeakFigures, PeakFigures]:
    """Of the predictions, and of what limits are held against."""
    said = [row.peak_bytes for row in rows]
    predictions, limited = (
        [row.predicted_peak_bytes for row in rows],
        [row.limited_peak_bytes for row in rows],
    )
    return peak_figures(predictions, said), peak_figures(limited, said)


def _peak_cells(f: PeakFigures) -> tuple[str, ...]:
    return f"{100 * f.mean_error:.1f} %", f"{100 * f.worst_under:.1f} %"


if __name__ == "__main__":
    keep_memory("benchmarks.accuracy")
    main()
