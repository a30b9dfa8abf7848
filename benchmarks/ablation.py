"""What is each technique of the solver worth? Everything is solved with all of them, and with one switched off.

    python -m benchmarks.ablation [INSTANCE...] [--off NAME ...] [--rows PATTERN] [--tolerance SHARE]
                                  [--time-limit S] [--json FILE] [--record]

Rows are training steps in shape only: a limit that binds and none, few layers and many, one plan, a front, and another
limit after the first; and the contest's instances that are given as paths, solved with `--time-limit` if it is given.
All may keep a gap of `--tolerance`. A technique is a switch of `SolveOptions`, `room.name`; `--off` picks some of them,
by parts of their names. Each row runs in a process of its own, in which every loop is compiled before and the figures
with all techniques are taken first. The lesser seconds of two runs count, where those of the first are more than
with all of them.

Seconds are of the process's own computing after the trace, which is done once; those of all threads together. Shown is
by what share they change without a technique, and where they change, the points of gap and the cost; "-" is: nothing
found. All rows and techniques take half an hour: what `--json` has already is not measured again, so that a run may be
of some of them.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any
from unittest.mock import patch

from rich import box
from rich.table import Table

import autopar
from autopar.api import make
from autopar.errors import AutoparError
from autopar.search.task import GAP_TOLERANCE, SearchOptions
from autopar.solve import Problem, SolveOptions, solve
from benchmarks import shapes
from benchmarks.iopddl_instance import as_problem, read
from benchmarks.iopddl_process import solve_drawn
from benchmarks.record import Screen, add_record_option, record
from benchmarks.shapes import Shapes

TRACING = ("autopar.api.make.alternatives", "autopar.api.front.alternatives")
_TRIES = 2
_NOISE = 1.05  # times the seconds with all techniques
ALL = "all techniques"
LEAST_POINTS = 0.005
LEAST_SHARE = 5e-5  # of gap, and of the cost: smaller changes are not shown


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

    def measure(self, tolerance: float) -> Measure:
        """Traces at the first call, whose figures are not used; each call plans."""
        return partial(self._planned, self.model(), tolerance, list[Any]())

    def _planned(
        self, model: Shapes, tolerance: float, traces: list[Any], solver: SolveOptions
    ) -> Figures:
        trace = make.alternatives

        def traced(*arguments: Any) -> list[Any]:
            traces[:] = traces or trace(*arguments)
            return list(traces)

        keywords = {
            "cluster": f"{math.prod(self.mesh) // 8}x8xh100",
            "mesh": {f"axis{n}": size for n, size in enumerate(self.mesh)},
            "donate_argnums": 0,
            "options": SearchOptions(solve=solver, gap_tolerance=tolerance),
        }
        with ExitStack() as patches:
            for place in TRACING:
                patches.enter_context(patch(place, traced))
            start = process_time()
            try:
                costs, gaps = zip(*self._found(model, keywords), strict=True)
            except AutoparError:
                costs, gaps = (math.inf,), (math.inf,)
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
    time_limit_s: float | None

    def measure(self, tolerance: float) -> Measure:
        """Reads once; each call solves."""
        return partial(self._solved, as_problem(read(self.path)), tolerance)

    def _solved(self, problem: Problem, tolerance: float, solver: SolveOptions) -> Figures:
        rounds = {"max_rounds": 10**6} if self.time_limit_s is not None else {}
        own = {"gap_tolerance": tolerance, "time_limit_s": self.time_limit_s, **rounds}
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
    """The figures with all techniques, and without one after the other.

    What takes longer than with all is measured again, as other processes slow this one down: the lesser counts.
    """
    measure(SolveOptions())  # caches, and loops that are not compiled yet
    whole = _quickest(measure(SolveOptions()) for _ in range(_TRIES))
    yield ALL, whole
    for switch in off:
        own = measure(SolveOptions().without(switch))
        for _ in range(1, _TRIES):
            if own.seconds <= _NOISE * whole.seconds:
                break
            own = _quickest((own, measure(SolveOptions().without(switch))))
        yield switch, own


def _quickest(found: Iterable[Figures]) -> Figures:
    return min(found, key=lambda figures: figures.seconds)


def run_apart(name: str, arguments: Sequence[str]) -> dict[str, Figures]:
    """The figures of one row, from a process of its own; those that it came to."""
    command = [sys.executable, "-m", "benchmarks.ablation", "--row", name, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    return {switch: Figures(**figures) for switch, figures in lines}


def table_of(results: Mapping[str, Mapping[str, Figures]], tolerance: float) -> Table:
    """A line for each technique, and a column for each row of the benchmark."""
    table = Table(box=box.MARKDOWN, title=f"Without a technique, within a gap of {tolerance:.1%}")
    table.add_column("off")
    for name in results:
        table.add_column(Path(name).name.partition(".")[0], justify="right")
    for switch in dict.fromkeys(switch for found in results.values() for switch in found):
        table.add_row(switch, *(_cell(switch, found) for found in results.values()))
    return table


def _cell(switch: str, found: Mapping[str, Figures]) -> str:
    """What a technique changes in one row: seconds, points of gap and cost, the latter where they change."""
    if switch not in found:
        return ""
    own = found[switch]
    whole = found[ALL]
    if own.cost == math.inf:
        return "-"
    if switch == ALL:
        return f"{own.seconds:.2f} s, {own.gap:.2%}"
    points = 100 * (own.gap - whole.gap)
    share = own.cost / whole.cost - 1
    parts = [f"{own.seconds / whole.seconds - 1:+.0%}"]
    parts += [f"{points:+.2f} points"] if abs(points) >= LEAST_POINTS else []
    parts += [f"cost {share:+.2%}"] if abs(share) >= LEAST_SHARE else []
    return ", ".join(parts)


def _kept(path: Path | None) -> dict[str, dict[str, Figures]]:
    """The figures that a file has already."""
    if path is None or not path.exists():
        return {}
    content = json.loads(path.read_text())
    return {row: {key: Figures(**one) for key, one in own.items()} for row, own in content.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints; the exit status is 1 if a row failed."""
    given = _parser().parse_args(arguments)
    off = _off(given.off)
    rows = {name: row.measure for name, row in ROWS.items() if re.search(given.rows, name)}
    rows |= {str(path): Instance(path, given.time_limit).measure for path in given.instances}
    if given.row is not None:
        solve_drawn()
        for switch, figures in figures_of(rows[given.row](given.tolerance), off):
            print(json.dumps([switch, asdict(figures)]), flush=True)
        return 0

    results = _kept(given.json)
    for name in rows:
        _measure(name, off, given, results.setdefault(name, {}))
        if given.json is not None:
            content = {row: {k: asdict(f) for k, f in own.items()} for row, own in results.items()}
            given.json.write_text(json.dumps(content, indent=1) + "\n")

    done = {name: found for name, found in results.items() if ALL in found}
    console = Screen(width=400)
    console.print(table_of(done, given.tolerance))
    record(__file__, given.record, console.tables)
    return int(any(switch not in results[name] for name in rows for switch in off))


def _measure(
    name: str, off: Sequence[str], given: argparse.Namespace, found: dict[str, Figures]
) -> None:
    """Adds the figures of a row that are not there yet."""
    left = [switch for switch in off if switch not in found]
    if not left:
        return
    passed = [*map(str, given.instances), *(f"--off={switch}" for switch in left)]
    passed += [f"--tolerance={given.tolerance}"]
    passed += [] if given.time_limit is None else [f"--time-limit={given.time_limit}"]
    found |= {**run_apart(name, passed), **found}


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
        "--tolerance", type=float, default=GAP_TOLERANCE, help="the gap that may be kept"
    )
    parser.add_argument("--time-limit", type=float, help="seconds of wall clock for each instance")
    parser.add_argument("--json", type=Path, help="file of figures, to be added to")
    add_record_option(parser)
    parser.add_argument("--row", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
