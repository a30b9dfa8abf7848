"""A process that solves an instance of the IOPDDL contest and hands on what it finds, and who waits for it.

Every better choice is sent at once, so that there is an answer whatever becomes of the process: it may fail, run out
of memory, or be somewhere where it does not look at the clock when the time is up.
"""

from __future__ import annotations

import multiprocessing
import resource
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from autopar.errors import AutoparError
from autopar.solve import Edge, Problem, Progress, Solution, SolveOptions, Usage, solve, verify
from benchmarks.iopddl_instance import as_problem, read

# kept of the limit, in s and as a share, for the last moves of the search
SPARE_S, SPARE = (
    0.5,
    0.03,
)
LAST_S, LAST = 0.25, 0.004  # and for the answer of a process that is late

Work = Callable[[Path, float, bool, Connection], None]


@dataclass(frozen=True)
class Moment:
    """A moment of a search: seconds since reading began, the best cost and bound, and the choice if it is news."""

    time_s: float
    cost: float
    bound: float
    peak_memory_bytes: int
    choice: NDArray[np.int32] | None


@dataclass(frozen=True)
class Ended:
    """The search is over, and why."""

    why: str


@dataclass(frozen=True)
class Verified:
    """What is proven anew of the bound."""

    what: str


@dataclass
class Record:
    """What a process said; `choices`: each cheaper than the one before. Seconds count from when reading began."""

    moments: list[Moment] = field(default_factory=list[Moment])
    choices: list[NDArray[np.int32]] = field(default_factory=list[NDArray[np.int32]])
    ended: str = ""
    verified: str | None = None
    total_s: float = 0.0

    def take(self, said: Moment | Ended | Verified) -> None:
        """Adds it."""
        match said:
            case Moment():
                self.moments.append(replace(said, choice=None))
                self.total_s = max(self.total_s, said.time_s)
                self.choices += [said.choice] if said.choice is not None else []
            case Ended():
                self.ended = said.why
            case Verified():
                self.verified = said.what


class Apart:
    """A process that solves an instance within the limit, its start included, and verifies its bound if `check`.

    `work` is what it does: given the path, when to end (as `perf_counter` counts), `check`, and where to send.
    """

    def __init__(
        self, path: Path, time_limit_s: float, check: bool, work: Work | None = None
    ) -> None:
        self._began, self._limit_s = perf_counter(), time_limit_s
        context = multiprocessing.get_context("spawn")
        self._said, theirs = context.Pipe(duplex=False)
        ends = self._began + max(0.0, (1 - SPARE) * time_limit_s - SPARE_S)
        self._process = context.Process(
            target=work or _solve_file, args=(path, ends, check, theirs), daemon=True
        )
        self._process.start()
        theirs.close()

    def record(self, on_moment: Callable[[Moment], None]) -> Record:
        """All that it says, once it has ended; it is ended if it is late."""
        record, last = Record(), self._began + (1 - LAST) * self._limit_s - LAST_S
        while record.verified is None:
            if not self._said.poll(None if record.ended else max(0.0, last - perf_counter())):
                record.ended, record.total_s = (
                    "late: ended from outside",
                    perf_counter() - self._began,
                )
                break
            try:
                said = self._said.recv()
            except EOFError:
                self._process.join()
                record.ended = record.ended or f"failed: exit code {self._process.exitcode}"
                break
            record.take(said)
            if isinstance(said, Moment):
                on_moment(said)
        self._process.kill()
        self._process.join()
        return record


def compile_loops() -> str:
    """Solves a small drawn problem in a process of its own, so that all loops are compiled that others need.

    Says what came of it: it takes 20 to 40 s once for an installation, then a few.
    """
    began = perf_counter()
    process = multiprocessing.get_context("spawn").Process(target=solve_drawn, daemon=True)
    process.start()
    process.join()
    if process.exitcode:
        return f"loops not compiled (exit code {process.exitcode}): that counts as the first instance's time"
    return f"loops compiled, or found compiled, within {perf_counter() - began:.1f} s"


def solve_drawn(nodes: int = 16, strategies: int = 8) -> None:
    """A problem that neither reductions nor messages solve, its limit binding, by little of every kind of work."""
    rng = np.random.default_rng(0)
    pairs = [(u, v) for v in range(nodes) for u in range(v) if rng.random() < 0.5]
    edges = tuple(Edge(u, v, rng.random((strategies, strategies))) for u, v in pairs)
    for edge in edges[::3]:
        edge.cost[rng.integers(strategies, size=2), rng.integers(strategies, size=2)] = np.inf
    sizes = rng.random((nodes, strategies))
    usages = tuple(Usage(v, v % 3, v % 3 + 3, size) for v, size in enumerate(sizes))
    limit = float((0.6 * sizes.min(axis=1) + 0.4 * sizes.max(axis=1)).sum())
    little = SolveOptions(
        max_table_entries=4,
        max_sweeps=20,
        anneal_passes=30,
        region_steps=120,
        branch_entries=100_000,
        cp_sat_work=0.2,
    )
    solve(Problem(tuple(rng.random((nodes, strategies))), edges, usages, limit), options=little)


def _solve_file(path: Path, ends: float, check: bool, out: Connection) -> None:
    """Reads and solves one instance, and sends what it finds."""
    start, sent = perf_counter(), list[object]([None])
    problem = as_problem(read(path))
    read_s = perf_counter() - start

    def on_progress(now: Progress) -> None:
        news = np.array(now.choice, dtype=np.int32) if now.choice is not sent[0] else None
        sent[0] = now.choice
        out.send(Moment(read_s + now.time_s, now.objective, now.bound, _peak_memory_bytes(), news))

    options = SolveOptions(time_limit_s=max(0.0, ends - perf_counter()), max_rounds=10**6)
    try:
        solution = solve(problem, options=options, on_progress=on_progress)
    except AutoparError as error:
        out.send(Ended(f"{type(error).__name__}: {error}"))
        return
    bound, choice = solution.lower_bound, np.array(solution.choice, dtype=np.int32)
    out.send(
        Moment(perf_counter() - start, solution.objective, bound, _peak_memory_bytes(), choice)
    )
    out.send(Ended(solution.stopped or ("all searched" if solution.gap else "proven optimal")))
    if check:
        out.send(Verified(_verified(problem, solution)))


def _peak_memory_bytes() -> int:
    """The peak of this process alone: on Linux getrusage's begins at what the process held that started it."""
    status = Path("/proc/self/status")
    if status.exists():
        peak = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(peak.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _verified(problem: Problem, solution: Solution) -> str:
    """What is proven anew of the bound."""
    start = perf_counter()
    found = verify(problem, solution, search_work=SolveOptions().cp_sat_work)
    rest = "".join(f", but for what {search} searched through" for search in found.stated_by)
    rest += "".join(f", {search}'s search done again" for search in found.repeated)
    return f"bound {found.bound:,.0f} re-checked in {perf_counter() - start:.1f} s{rest}"
