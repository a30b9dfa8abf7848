"""Is the predicted peak of memory what XLA sets aside?

    python -m benchmarks.memory [--json FILE] [--record] [--models REGEX]

Training steps in shape only (`benchmarks/memory_models.py`), each under four plans on 8 virtual devices: the solver's
own, data parallelism, and two drawn at random of all feasible ones, such that neighbours mostly agree. For each what
XLA is predicted to set aside over `argument + output + temp - alias` of its memory_analysis; no step is run. LLVM's
optimisation, which comes when memory is assigned already, is off. Beside it, in the summary, the peak that limits are
held against: the largest of that prediction, the same if temporaries live a kernel or two longer, and the account in
program order. Models "held out" were not looked at while the prediction was developed.
"""

from __future__ import annotations

import argparse
import json
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from platform import machine, python_version
from statistics import mean
from time import perf_counter, process_time
from typing import Any

import jax
from rich import box
from rich.console import Console
from rich.table import Table

import autopar
from autopar.backends.known import XLA_CPU
from autopar.core.plan import Stage
from autopar.core.program import ShardedProgram
from autopar.emit.measure import describe_devices, use_virtual_devices
from autopar.emit.wrap import device_mesh, wrap
from autopar.inspect.hlo import peak_memory_bytes
from autopar.memory.account import Account
from autopar.ops.workspace import workspace_bytes
from autopar.passes.pipeline import build_program
from autopar.search.limited_solve import account_of
from benchmarks.flat_call import flatten
from benchmarks.memory_models import MODELS, Measured
from benchmarks.record import Screen, add_record_option, record
from tests.equivalence.cases import Case
from tests.equivalence.draw import local_plan

DEVICES = 8
CLUSTER = "cpu8"
MESH = {"x": 2, "y": 4}
AGREEMENTS = (0.95, 0.7)
QUICK = {"xla_backend_optimization_level": 0}
GOAL_ERROR, GOAL_UNDER = 0.05, 0.02


@dataclass(frozen=True)
class Pair:
    """A model under a plan, in bytes of one device: what is predicted, what limits are held against, what XLA says.

    `predicting_s` and `asking_s` are seconds of CPU: of the prediction, and of tracing and compiling the program.
    """

    model: str
    plan: str
    held_out: bool
    predicted_bytes: int
    peak_bytes: int
    xla_bytes: int
    predicting_s: float
    asking_s: float

    @property
    def ratio(self) -> float:
        """Predicted over XLA's."""
        return self.predicted_bytes / self.xla_bytes


@dataclass(frozen=True)
class Program:
    """A plan's program, and its account."""

    plan: str
    program: ShardedProgram
    spent: Account


def measure(name: str, model: Measured) -> Iterator[Pair]:
    """The pairs of one model."""
    fn, args = model.make()
    donate = (0,) if model.donates else ()
    own = autopar.plan(fn, *args, cluster=CLUSTER, mesh=MESH, donate_argnums=donate)
    inputs = [*flatten(own.bound.traced, args, {}), *own.bound.traced.constants]
    for found in _programs(own, fn, args, donate):
        donated = own.bound.traced.graph.donated
        began = process_time()
        xla = _xla_bytes(found.program, inputs, donated)
        asked = process_time()
        XLA_CPU.set_aside(found.program, donated, workspace_bytes)
        predicting_s = process_time() - asked

        peak = found.spent.peak_memory_bytes
        predicted = peak if found.spent.set_aside_bytes is None else found.spent.set_aside_bytes
        yield Pair(
            name, found.plan, model.held_out, predicted, peak, xla, predicting_s, asked - began
        )


def _programs(
    own: autopar.Plan, fn: Any, args: tuple[Any, ...], donate: tuple[int, ...]
) -> Iterator[Program]:
    yield Program("own", own.program(), own.bound.planned.account)
    whole = autopar.plan(
        fn, *args, cluster=CLUSTER, mesh={"x": 8}, mode="data_parallel", donate_argnums=donate
    )
    yield Program("data parallel", whole.program(), whole.bound.planned.account)
    case, space = Case(fn, args, "float32"), own.bound.planned.ground.space
    case.__dict__["traced"] = own.bound.traced
    for seed, agreement in enumerate(AGREEMENTS):
        yield _drawn(f"random {agreement}", own, local_plan(case, space, seed, agreement))


def _drawn(name: str, own: autopar.Plan, stage: Stage) -> Program:
    """The program of a plan that was drawn from the space of `own`."""
    planned = own.bound.planned
    graph, ground, pricing = planned.task.graph, planned.ground, planned.pricing
    program = build_program(graph, ground.flow, stage, ground.router(()), pricing.step_cost)
    return Program(name, program, account_of(graph, program, pricing))


def _xla_bytes(program: ShardedProgram, inputs: Sequence[Any], donated: Sequence[int]) -> int:
    jitted: Any = wrap(program, device_mesh(program.mesh, jax.devices()[:DEVICES]), donated)
    return peak_memory_bytes(jitted.lower(*inputs).compile(compiler_options=QUICK))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures all models and prints the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write every pair to this file")
    add_record_option(parser)
    parser.add_argument(
        "--models", default="", help="only those whose name matches this regular expression"
    )
    given = parser.parse_args(arguments)
    use_virtual_devices(DEVICES)
    warnings.simplefilter("ignore")
    console, start = Screen(width=140), perf_counter()
    pairs: list[Pair] = []
    for name, model in MODELS.items():
        if re.search(given.models, name):
            pairs.extend(measure(name, model))
            console.print(
                f"{name}: {', '.join(f'{p.plan} {p.ratio:.3f}' for p in pairs if p.model == name)}"
            )
    show(console, pairs)
    console.print(
        f"On {describe_devices()} ({machine()}), cluster {CLUSTER}, JAX {jax.__version__}, Python {python_version()}."
    )
    console.print(
        f"{len(pairs)} pairs in {perf_counter() - start:.0f} s; compiled only, no step was run."
    )
    if given.json:
        rows = [{**asdict(pair), "ratio": pair.ratio} for pair in pairs]
        given.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    record(__file__, given.record, console.tables)


def show(console: Console, pairs: Sequence[Pair]) -> None:
    """A row for each model; those held out apart."""
    plans = list(dict.fromkeys(pair.plan for pair in pairs))
    for held_out in (False, True):
        mine = [pair for pair in pairs if pair.held_out == held_out]
        if not mine:
            continue
        table = Table(box=box.MARKDOWN, title="held out" if held_out else "looked at")
        for column in ("model", "XLA's MB, own plan", *plans, "mean error", "lowest"):
            table.add_column(column, justify="left" if column == "model" else "right")
        for name in dict.fromkeys(pair.model for pair in mine):
            table.add_row(*_cells(name, plans, [pair for pair in mine if pair.model == name]))
        console.print(table)
        console.print(_summary(mine))


def _cells(name: str, plans: Sequence[str], pairs: Sequence[Pair]) -> tuple[str, ...]:
    ratios = {pair.plan: f"{pair.ratio:.3f}" for pair in pairs}
    own = next(pair for pair in pairs)
    shown = (ratios.get(plan, "-") for plan in plans)
    return (
        name,
        f"{own.xla_bytes / 1e6:.1f}",
        *shown,
        f"{_error(pairs):.1%}",
        f"{min(p.ratio for p in pairs):.3f}",
    )


def _error(pairs: Sequence[Pair]) -> float:
    return mean(abs(pair.ratio - 1.0) for pair in pairs)


def _summary(pairs: Sequence[Pair]) -> str:
    under = [pair for pair in pairs if pair.ratio < 1.0 - GOAL_UNDER]
    lowest = min(pairs, key=lambda pair: pair.ratio)
    return (
        f"{len(pairs)} pairs: mean error {_error(pairs):.1%} (goal {GOAL_ERROR:.0%}), {len(under)} more than "
        f"{GOAL_UNDER:.0%} under, the lowest {lowest.ratio:.3f} ({lowest.model}, {lowest.plan}); limits are held "
        f"against {mean(pair.peak_bytes / pair.xla_bytes for pair in pairs):.2f} times XLA's on average; a prediction "
        f"takes {1e3 * mean(pair.predicting_s for pair in pairs):.0f} ms of CPU, to ask the compiler "
        f"{1e3 * mean(pair.asking_s for pair in pairs):.0f} ms"
    )


if __name__ == "__main__":
    main()
