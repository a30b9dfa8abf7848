"""How good and how fast is the solver on instances that other people made? (IOPDDL contest format, JSON or JSON.gz)

    python -m benchmarks.iopddl PATH... --time-limit S [--json OUT] [--progress] [--verify]

For each instance: cost, lower bound, gap, seconds to the first feasible choice, to within 1 % of the last one, and in
all, and the peak memory of the process that solved it. The limit is of wall-clock time, reading the file included.
Costs and feasibility are evaluated from the file's own numbers, by code that shares nothing with the solver; with
--verify so is the bound, from its witness, after the time is up.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import resource
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from autopar.solve import Edge, Problem, Progress, Solution, SolveOptions, Usage, solve, verify
from benchmarks.end_to_end import describe_machine

FORBIDDEN = 1e18
SPARE_S, SPARE = 0.5, 0.03  # kept of the limit, in s and as a share, for the last moves and for checking the answer


@dataclass(frozen=True)
class Result:
    """What became of one instance; costs in the file's unit, times in seconds from when reading began."""

    name: str
    nodes: int
    edges: int
    cost: float
    lower_bound: float
    gap: float
    first_s: float
    within_1_percent_s: float
    total_s: float
    peak_memory_bytes: int
    choice: list[int]
    verified: str | None


def read(path: Path) -> dict[str, Any]:
    """The instance in a file."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt") as file:
        return json.load(file)["problem"]


def as_problem(instance: dict[str, Any]) -> Problem:
    """The instance as the solver wants it: forbidden entries are infinite, equal matrices one object."""
    nodes, known = instance["nodes"], dict[tuple[int, bytes], np.ndarray]()
    costs = tuple(_costs(cost) for cost in nodes["costs"])

    def edge(ends: list[int], cost: list[float]) -> Edge:
        flat = _costs(cost)
        u, v = ends
        key = (len(costs[u]), flat.tobytes())
        if key not in known:
            known[key] = flat.reshape(len(costs[u]), len(costs[v]))
        return Edge(u, v, known[key])

    spans = zip(nodes["intervals"], nodes["usages"], strict=True)
    return Problem(
        costs,
        tuple(map(edge, instance["edges"]["nodes"], instance["edges"]["costs"])),
        tuple(
            Usage(v, low, high, np.array(sizes, dtype=np.float64))
            for v, ((low, high), sizes) in enumerate(spans)
            if low < high
        ),
        instance["usage_limit"],
    )


def _costs(values: list[float]) -> np.ndarray:
    costs = np.array(values, dtype=np.float64)
    costs[costs >= FORBIDDEN] = np.inf
    return costs


def evaluate(instance: dict[str, Any], choice: Sequence[int]) -> int:
    """The cost of a choice in the file's own numbers.

    Raises:
      ValueError: it takes a forbidden entry, or exceeds the limit at some time.
    """
    nodes, edges, limit = instance["nodes"], instance["edges"], instance["usage_limit"]
    taken = [costs[s] for costs, s in zip(nodes["costs"], choice, strict=True)]
    taken += [
        costs[choice[u] * len(nodes["costs"][v]) + choice[v]]
        for (u, v), costs in zip(edges["nodes"], edges["costs"], strict=True)
    ]
    if max(taken) >= FORBIDDEN:
        raise ValueError(f"{instance['name']}: the choice takes a forbidden entry")
    change: dict[int, int] = {}
    for (low, high), sizes, s in zip(nodes["intervals"], nodes["usages"], choice, strict=True):
        if low < high:
            change[low] = change.get(low, 0) + sizes[s]
            change[high] = change.get(high, 0) - sizes[s]
    used = 0
    for time in sorted(change):
        used += change[time]
        if used > limit:
            raise ValueError(f"{instance['name']}: {used} bytes at time {time}, the limit is {limit}")
    return sum(taken)


def run(path: Path, time_limit_s: float, show: bool, check: bool) -> Result:
    """Reads, solves and checks one instance; its bound too if `check`."""
    start, moments = perf_counter(), list[tuple[float, float]]()
    instance = read(path)
    problem = as_problem(instance)
    read_s = perf_counter() - start

    def on_progress(now: Progress) -> None:
        moments.append((read_s + now.time_s, now.objective))
        if show:
            print(f"{read_s + now.time_s:8.1f} s  {now.objective:,.0f}  bound {now.bound:,.0f}", flush=True)

    left_s = max(0.0, (1 - SPARE) * time_limit_s - SPARE_S - read_s)
    options = SolveOptions(time_limit_s=left_s, max_rounds=10**6)
    solution = solve(problem, options=options, on_progress=on_progress)
    total_s = perf_counter() - start
    cost = evaluate(instance, solution.choice)
    return Result(
        instance["name"],
        len(problem.node_costs),
        len(problem.edges),
        cost,
        min(solution.lower_bound, cost),
        solution.gap,
        next(time for time, value in moments if value < np.inf),
        next(time for time, value in moments if value <= 1.01 * cost),
        total_s,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        list(solution.choice),
        _verified(problem, solution) if check else None,
    )


def _verified(problem: Problem, solution: Solution) -> str:
    """What is proven anew of the bound."""
    start = perf_counter()
    found = verify(problem, solution, search_work=SolveOptions().cp_sat_work)
    rest = "".join(f", but for what {search} searched through" for search in found.stated_by)
    rest += "".join(f", {search}'s search done again" for search in found.repeated)
    return f"bound {found.bound:,.0f} re-checked in {perf_counter() - start:.1f} s{rest}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Solves every instance in a process of its own, and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", type=Path, nargs="+")
    parser.add_argument("--time-limit", type=float, required=True, help="seconds for each instance")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--progress", action="store_true", help="print every better choice and bound")
    parser.add_argument("--verify", action="store_true", help="prove each lower bound anew, by other code")
    given = parser.parse_args(arguments)
    console, machine = Console(width=150), describe_machine()
    console.print(", ".join(f"{name} {value}" for name, value in machine.items()))
    results: list[Result] = []
    context = multiprocessing.get_context("spawn")
    for path in given.paths:
        with context.Pool(1) as pool:
            results.append(pool.apply(run, (path, given.time_limit, given.progress, given.verify)))
    console.print(_table(results, given.time_limit))
    for result in results:
        if result.verified is not None:
            console.print(f"{result.name}: {result.verified}")
    if given.json is not None:
        record = {"machine": machine, "time_limit_s": given.time_limit, "instances": [asdict(r) for r in results]}
        given.json.write_text(json.dumps(record) + "\n")


def _table(results: list[Result], time_limit_s: float) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=f"{time_limit_s:g} s for each instance")
    for column in ("instance", "nodes", "edges", "cost", "lower bound", "gap", "first", "in 1 %", "total", "memory"):
        table.add_column(column, justify="right")
    for r in results:
        times = (f"{value:.1f} s" for value in (r.first_s, r.within_1_percent_s, r.total_s))
        sizes = (f"{r.nodes:,}", f"{r.edges:,}", f"{r.cost:,.0f}", f"{r.lower_bound:,.0f}", f"{r.gap:.3%}")
        table.add_row(r.name, *sizes, *times, f"{r.peak_memory_bytes / 2**20:,.0f} MiB")
    return table


if __name__ == "__main__":
    main()
