"""How good and how fast is the solver on instances that other people made? (IOPDDL contest format, JSON or JSON.gz)

    python -m benchmarks.iopddl PATH... --time-limit S [--json OUT] [--record] [--progress] [--verify]

For each instance: cost, lower bound, gap, seconds to the first feasible choice, to within 1 % of the last one, and in
all, and the peak memory of the process that solved it. The limit is of wall-clock time, from the start of that process
on; one that is late is ended, and the best choice that it sent is the result. Costs and feasibility are evaluated from
the file's own numbers, by code that shares nothing with the solver; with --verify so is the bound, from its witness,
after the time is up.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from benchmarks.end_to_end import describe_machine
from benchmarks.iopddl_instance import evaluate, read
from benchmarks.iopddl_process import Apart, Moment, compile_loops
from benchmarks.record import Screen, add_record_option, record


@dataclass(frozen=True)
class Result:
    """What became of one instance; costs in the file's unit, times in seconds from when reading began.

    Without a feasible choice: no cost, gap and times to it, and no strategies. `ended`: what ended the search.
    """

    name: str
    nodes: int
    edges: int
    cost: int | None
    lower_bound: float | None
    gap: float | None
    first_s: float | None
    within_1_percent_s: float | None
    total_s: float
    peak_memory_bytes: int
    choice: list[int]
    verified: str | None
    ended: str


def run(path: Path, time_limit_s: float, show: bool, check: bool) -> Result:
    """Solves and checks one instance; its bound too if `check`."""

    def on_moment(now: Moment) -> None:
        if show:
            print(f"{now.time_s:8.1f} s  {now.cost:,.0f}  bound {now.bound:,.0f}", flush=True)

    apart = Apart(path, time_limit_s, check)
    instance = read(path)  # while the other process starts
    told = apart.record(on_moment)
    cost, choice = cheapest(instance, [choice.tolist() for choice in reversed(told.choices)])
    low = max((now.bound for now in told.moments if now.bound > -math.inf), default=None)
    times = [(now.time_s, now.cost) for now in told.moments]
    if cost is not None and low is not None:
        low = min(low, cost)
    return Result(
        instance["name"],
        len(instance["nodes"]["costs"]),
        len(instance["edges"]["nodes"]),
        cost,
        low,
        None if cost is None or low is None else (cost - low) / cost if cost > low else 0.0,
        None if cost is None else next(time for time, value in times if value < math.inf),
        None if cost is None else next(time for time, value in times if value <= 1.01 * cost),
        told.total_s,
        max((now.peak_memory_bytes for now in told.moments), default=0),
        choice,
        told.verified,
        told.ended,
    )


def cheapest(
    instance: dict[str, Any], choices: Iterable[list[int]]
) -> tuple[int | None, list[int]]:
    """The first choice that is feasible in the file's own numbers, with its cost."""
    for choice in choices:
        try:
            return evaluate(instance, choice), choice
        except (
            ValueError
        ) as error:  # rounding in the solver's floats: the one before is the next best
            print(error)
    return None, []


def main(arguments: Sequence[str] | None = None) -> None:
    """Solves every instance in a process of its own, and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", type=Path, nargs="+")
    parser.add_argument("--time-limit", type=float, required=True, help="seconds for each instance")
    parser.add_argument("--json", type=Path)
    add_record_option(parser)
    parser.add_argument(
        "--progress", action="store_true", help="print every better choice and bound"
    )
    parser.add_argument(
        "--verify", action="store_true", help="prove each lower bound anew, by other code"
    )
    given = parser.parse_args(arguments)
    missing = [str(path) for path in given.paths if not path.is_file()]
    if missing:
        parser.error(f"no such files: {', '.join(missing)}")
    console, machine = Screen(width=150), describe_machine()
    console.print(", ".join(f"{name} {value}" for name, value in machine.items()))
    console.print(compile_loops())
    results: list[Result] = []
    for path in given.paths:
        results.append(run(path, given.time_limit, given.progress, given.verify))
        if given.json is not None:
            content = {
                "machine": machine,
                "time_limit_s": given.time_limit,
                "instances": [asdict(r) for r in results],
            }
            given.json.write_text(json.dumps(content) + "\n")
    console.print(_table(results, given.time_limit))
    for result in results:
        console.print(
            f"{result.name}: {result.ended}{f', {result.verified}' if result.verified else ''}"
        )
    record(__file__, given.record, console.tables)


def _table(results: list[Result], time_limit_s: float) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=f"{time_limit_s:g} s for each instance")
    for column in (
        "instance",
        "nodes",
        "edges",
        "cost",
        "lower bound",
        "gap",
        "first",
        "in 1 %",
        "total",
        "memory",
    ):
        table.add_column(column, justify="right")
    for r in results:
        costs = (
            f"{r.nodes:,}",
            f"{r.edges:,}",
            _shown(r.cost, ",.0f"),
            _shown(r.lower_bound, ",.0f"),
        )
        times = (_shown(r.first_s, ".1f"), _shown(r.within_1_percent_s, ".1f"), f"{r.total_s:.1f}")
        gap, memory = _shown(r.gap, ".3%"), f"{r.peak_memory_bytes / 2**20:,.0f} MiB"
        table.add_row(r.name, *costs, gap, *(f"{time} s" for time in times), memory)
    return table


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


if __name__ == "__main__":
    main()
