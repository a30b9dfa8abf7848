"""What is each technique of the solver worth? Everything is solved with all of them, and with one switched off.

    python -m benchmarks.ablation [INSTANCE...] [--off NAME ...] [--rows PATTERN] [--tolerance SHARE]
                                  [--time-limit S] [--json FILE]

Rows are training steps in shape only, planned with the default gap tolerance: a limit that binds and none, few layers
and many, one plan, a front, and another limit after the first; and the contest's instances that are given as paths,
solved with `--tolerance` and, if it is given, `--time-limit`. A technique is a switch of `SolveOptions`, `room.name`;
`--off` picks some of them, by parts of their names. Each row runs in a process of its own, in which every loop is
compiled before and the figures with all techniques are taken first, twice, the lesser of which counts.

Seconds are of the process's own computing, all of its threads together. Cost and gap are shown as the change in percent
and in points; "-" is: nothing found.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import process_time

import jax
from rich import box
from rich.console import Console
from rich.table import Table

import autopar
from autopar.errors import AutoparError
from autopar.search.task import SearchOptions
from autopar.solve import Problem, SolveOptions, solve
from benchmarks import shapes
from benchmarks.iopddl_instance import as_problem, read
from benchmarks.iopddl_process import solve_drawn
from benchmarks.shapes import Shapes

ALL = "all techniques"


@dataclass(frozen=True)
class Figures:
    """Seconds of computing, the cost of what was found, and its gap; inf: nothing was found."""

    seconds: float
    cost: float
    gap: float


Measure = Callable[[SolveOptions], Figures]
"""What solves a row with such options."""


@dataclass(frozen=True)
class Planning:
    """A model on a mesh of as many H100. `limits` are shares of its peak without a limit, planned one after another."""

    model: Callable[[], Shapes]
    mesh: tuple[int, ...]
    limits: tuple[float, ...] = ()
    points: int = 0

    def measure(self) -> Measure:
        """Traces once; each call plans."""
        model = self.model()
        return partial(self._planned, model)

    def _planned(self, model: Shapes, solver: SolveOptions) -> Figures:
        jax.clear_caches()
        keywords = {
            "cluster": f"{math.prod(self.mesh) // 8}x8xh100",
            "mesh": {f"axis{n}": size for n, size in enumerate(self.mesh)},
            "donate_argnums": 0,
            "options": SearchOptions(solve=solver),
        }
        start = process_time()
        try:
            costs, gaps = zip(*self._found(model, keywords), strict=True)
        except AutoparError:
            return Figures(process_time() - start, math.inf, math.inf)
        return Figures(process_time() - start, sum(costs), max(gaps))

    def _found(self, model: Shapes, keywords: dict[str, object]) -> Iterator[tuple[float, float]]:
        """Objective and gap of every plan of the row."""
        if self.points:
            front = autopar.front(model.step, *model.args, points=self.points, **keywords)
            yield from ((point.objective_s, point.gap) for point in front.points)
            return
        plan = autopar.plan(model.step, *model.args, **keywords)
        yield plan.objective_s, plan.gap
        peak = plan.peak_memory_bytes
        for share in self.limits:
            plan = plan.resolve(memory_limit_bytes=int(share * peak))
            yield plan.objective_s, plan.gap


@dataclass(frozen=True)
class Instance:
    """One of the contest's instances."""

    path: Path
    tolerance: float
    time_limit_s: float | None

    def measure(self) -> Measure:
        """Reads once; each call solves."""
        return partial(self._solved, as_problem(read(self.path)))

    def _solved(self, problem: Problem, solver: SolveOptions) -> Figures:
        rounds = {"max_rounds": 10**6} if self.time_limit_s is not None else {}
        own = {"gap_tolerance": self.tolerance, "time_limit_s": self.time_limit_s, **rounds}
        start = process_time()
        try:
            found = solve(problem, options=SolveOptions(**{**vars(solver), **own}))
        except AutoparError:
            return Figures(process_time() - start, math.inf, math.inf)
        return Figures(process_time() - start, found.objective, found.gap)


LLAMA_70B = partial(shapes.llama, 80, 8192, 28672, 64, batch=256)
ROWS: dict[str, Planning] = {
    "gpt-12 8x8x8": Planning(partial(shapes.gpt, 12), (8, 8, 8)),
    "gpt-12 8x8x64": Planning(partial(shapes.gpt, 12), (8, 8, 64)),
    "gpt-48 8x8": Planning(partial(shapes.gpt, 48), (8, 8)),
    "gpt-96-scanned 8x8x64": Planning(partial(shapes.gpt, 96, scanned=True), (8, 8, 64)),
    "llama-8B-unrolled 8x8": Planning(
        partial(shapes.llama, 32, 4096, 14336, 32, scanned=False), (8, 8)
    ),
    "llama-70B 64x8": Planning(LLAMA_70B, (64, 8)),
    "llama-70B 8x8x8": Planning(LLAMA_70B, (8, 8, 8)),
    "moe-671B 64x8": Planning(shapes.mixture, (64, 8)),
    "gpt-4 8x8 limits": Planning(partial(shapes.gpt, 4), (8, 8), limits=(0.9, 0.5, 0.3)),
    "gpt-4 8x8 front": Planning(partial(shapes.gpt, 4), (8, 8), points=6),
}


def _off(patterns: Sequence[str]) -> list[str]:
    """The switches that hold one of the patterns; all without any."""
    every = SolveOptions().switches
    return [switch for switch in every if not patterns or any(part in switch for part in patterns)]


def figures_of(measure: Measure, off: Sequence[str]) -> Iterator[tuple[str, Figures]]:
    """The figures with all techniques, and without one after the other."""
    measure(SolveOptions())  # caches, and loops that are not compiled yet
    first, second = (measure(SolveOptions()) for _ in range(2))
    yield ALL, min(first, second, key=lambda found: found.seconds)
    for switch in off:
        yield switch, measure(SolveOptions().without(switch))


def run_apart(name: str, arguments: Sequence[str]) -> dict[str, Figures]:
    """The figures of one row, from a process of its own; those that it came to."""
    command = [sys.executable, "-m", "benchmarks.ablation", "--row", name, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    return {switch: Figures(**figures) for switch, figures in lines}


def table_of(name: str, found: dict[str, Figures]) -> Table:
    """One row of the benchmark as a table with a line for each switch."""
    whole, table = found[ALL], Table(box=box.MARKDOWN, title=name)
    for n, head in enumerate(("off", "CPU s", "seconds", "cost", "gap", "points of gap")):
        table.add_column(head, justify="right" if n else "left")
    for switch, own in found.items():
        more = (
            own.seconds / whole.seconds - 1,
            own.cost / whole.cost - 1,
            100 * (own.gap - whole.gap),
        )
        if own.cost == math.inf:
            table.add_row(switch, f"{own.seconds:.2f}", f"{more[0]:+.0%}", "-", "-", "-")
            continue
        cells = (
            f"{own.seconds:.2f}",
            f"{more[0]:+.0%}",
            f"{more[1]:+.3%}",
            f"{own.gap:.3%}",
            f"{more[2]:+.2f}",
        )
        table.add_row(switch, *cells)
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints; the exit status is 1 if a row failed."""
    given = _parser().parse_args(arguments)
    off = _off(given.off)
    rows = {name: row.measure for name, row in ROWS.items()}
    rows |= {
        str(path): Instance(path, given.tolerance, given.time_limit).measure
        for path in given.instances
    }
    if given.row is not None:
        solve_drawn()
        for switch, figures in figures_of(rows[given.row](), off):
            print(json.dumps([switch, asdict(figures)]), flush=True)
        return 0
    console, results, failed = Console(width=150), dict[str, dict[str, Figures]](), False
    passed = [
        *map(str, given.instances),
        *(f"--off={part}" for part in given.off),
        f"--tolerance={given.tolerance}",
    ]
    passed += [] if given.time_limit is None else [f"--time-limit={given.time_limit}"]
    for name in rows:
        if name in ROWS and not re.search(given.rows, name):
            continue
        results[name] = run_apart(name, passed)
        failed = failed or len(results[name]) <= len(off)
        console.print(table_of(name, results[name]) if ALL in results[name] else f"{name}: failed")
        if given.json is not None:
            content = {
                row: {key: asdict(one) for key, one in found.items()}
                for row, found in results.items()
            }
            given.json.write_text(json.dumps(content, indent=1) + "\n")
    return int(failed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "instances", type=Path, nargs="*", help="the contest's instances to solve as well"
    )
    parser.add_argument(
        "--off", action="append", default=[], help="a part of the names of techniques to switch off"
    )
    parser.add_argument(
        "--rows", default="", help="planning rows whose names hold this regular expression"
    )
    parser.add_argument(
        "--tolerance", type=float, default=0.005, help="the gap that instances may keep"
    )
    parser.add_argument("--time-limit", type=float, help="seconds of wall clock for each instance")
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
