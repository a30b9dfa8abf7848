"""Re-solving: how long does a plan take after one pin, another memory limit or another link, beside the first plan?

    python -m benchmarks.resolving [--layers N ...] [--mesh 8 8,8 ...] [--tight] [--questions] [--json FILE] [--record]

A training step of an unrolled GPT with Adam, in shape only, planned for servers of 8 H100. Timed is all that makes a
plan that can be used: choices solved and verified, the program built and verified, its time and peak memory accounted
and compared with the limit, and the summary with objective, bound, every placement, operator and collective. Seconds of
wall clock and of CPU, once each; of the CPU's those in the solver, in the program with its account, in the summary, and
the rest (for the first plan: trace, space, prices). Where the plan is proven optimal, a pin that it keeps to already
needs no solving, nor does a limit that it fits in. "--tight" adds limits of 0.9, 0.5 and 0.3 of the plan's peak. No
change traces or enumerates strategies again; other links make prices anew. "--questions" asks a session
(`autopar.explore`) the same and more, each timed until its answer is text: a limit that binds, the first and another,
another mesh and another batch, which are searched anew.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from math import prod
from pathlib import Path
from time import perf_counter, process_time
from typing import Any
from unittest.mock import patch

import jax
from jax.sharding import PartitionSpec
from rich import box
from rich.table import Table

import autopar
from autopar.api.bound import Bound
from autopar.errors import NoFeasiblePlan, Unsolved
from autopar.search import limited_solve
from autopar.search.mesh_context import MeshContext
from autopar.solve.parametric.single_limit import Focus
from autopar.solve.pipeline.incremental import Standing
from benchmarks.end_to_end import describe_machine
from benchmarks.models import gpt
from benchmarks.record import Screen, add_record_option, record
from cost_models import Cluster

PINNED = "state['params']['blocks'][0]['fc1']['kernel']"
ANOTHER = "state['params']['blocks'][1]['out']['kernel']"
EVERY = "state['params']['blocks'][*]['fc1']['kernel']"
TIGHT_TENTHS = (9, 5, 3)
Ask = Callable[[autopar.Session], object]
PARTS: tuple[tuple[object, str, str], ...] = (
    (limited_solve, "solve", "solve_s"),
    (MeshContext, "standing", "solve_s"),
    (Standing, "solve", "solve_s"),
    (Focus, "__init__", "solve_s"),
    (Focus, "turn_to", "solve_s"),
    (Focus, "mix", "solve_s"),
    (limited_solve, "build_program", "program_s"),
    (limited_solve, "account_of", "program_s"),
    (Bound, "report", "summary_s"),
)


@dataclass(frozen=True)
class Row:
    """One plan: how it came about, seconds of wall clock (`total_s`) and CPU (all others), and what is proven of it.

    `objective_s` and `gap` are None where nothing was found.
    """

    layers: int
    mesh: str
    change: str
    total_s: float
    cpu_s: float
    solve_s: float
    program_s: float
    summary_s: float
    objective_s: float | None
    gap: float | None

    @property
    def rest_s(self) -> float:
        """CPU seconds outside of solver, program and summary."""
        return self.cpu_s - self.solve_s - self.program_s - self.summary_s


def measure(layers: int, sizes: Sequence[int], tight: bool, questions: bool) -> Iterator[Row]:
    """The rows of a GPT with this many layers on a mesh of these sizes, each as soon as it is there."""
    model = gpt(layers=layers)
    args = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (model.state, *model.batch)
    )
    mesh = dict(zip("xyz", sizes, strict=False))
    cluster = autopar.load_cluster("8xh100" if prod(sizes) == 8 else f"{prod(sizes) // 8}x8xh100")

    def timed(change: str, make: Callable[[], autopar.Plan]) -> tuple[Row, autopar.Plan | None]:
        with _clocks() as spent:
            start, start_cpu = perf_counter(), process_time()
            try:
                plan = make()
                assert plan.summary.inputs
            except (NoFeasiblePlan, Unsolved):
                plan = None
            total, cpu = perf_counter() - start, process_time() - start_cpu
        found = (None, None) if plan is None else (plan.objective_s, plan.gap)
        return Row(
            layers,
            "x".join(map(str, sizes)),
            change,
            total,
            cpu,
            **spent,
            objective_s=found[0],
            gap=found[1],
        ), plan

    session: list[autopar.Session] = []

    def explored() -> autopar.Plan:
        session.append(autopar.explore(model.step(), *args, cluster=cluster, mesh=mesh))
        return session[0].plan

    row, first = timed("first plan", explored)
    yield row
    assert first is not None
    kept, other = _placements(first)
    limit = first.peak_memory_bytes
    changes: dict[str, dict[str, Any]] = {
        "pin it keeps to": {"constraints": (autopar.pin(PINNED, kept),)},
        "one pin": {"constraints": (autopar.pin(PINNED, other),)},
        "another pin": {"constraints": (autopar.pin(ANOTHER, other),)},
        "a pin in every layer": {"constraints": (autopar.pin(EVERY, other),)},
        "limit it fits in": {"memory_limit_bytes": 2 * limit},
        "links half as fast": {"cluster": _slower(cluster)},
    }
    if tight:
        for tenths in TIGHT_TENTHS:
            changes[f"limit 0.{tenths} of its peak"] = {"memory_limit_bytes": limit * tenths // 10}
    for change, options in changes.items():
        yield timed(change, lambda options=options: first.resolve(**options))[0]
    if questions:
        for question, ask in _questions(first, limit).items():
            yield timed(f"asked: {question}", lambda ask=ask: _answered(session[0], ask))[0]


def _questions(plan: autopar.Plan, peak_bytes: int) -> dict[str, Ask]:
    """What a session about `plan` is asked, in order."""
    _, other = _placements(plan)
    names = [f"a{n}" for n in range(2)]
    another = dict(zip(names, (2, plan.mesh.size // 2), strict=True))
    return {
        "pin": lambda s: s.pin(PINNED, other),
        "forbid": lambda s: s.forbid(ANOTHER, plan.mesh.names[-1]),
        "undo": lambda s: s.undo(),
        "links half as fast": lambda s: s.links(0.5),
        "links as they are": lambda s: s.links(1),
        "nothing pinned": lambda s: s.release(PINNED),
        "limit 0.9 of its peak": lambda s: s.limit(peak_bytes * 9 // 10),
        "limit 0.6 of its peak": lambda s: s.limit(peak_bytes * 6 // 10),
        "no limit": lambda s: s.limit(None),
        "another mesh": lambda s: s.mesh(another),
        "the mesh before": lambda s: s.mesh(None),
        "twice the batch": lambda s: s.batch(2 * plan.summary.throughput.rows),
    }


def _answered(session: autopar.Session, ask: Ask) -> autopar.Plan:
    """The plan after a question, once its answer is text."""
    assert str(ask(session))
    return session.plan


def _placements(plan: autopar.Plan) -> tuple[PartitionSpec, PartitionSpec]:
    """Where the pinned parameter lies, and another way: whole if it is split, else its columns on the last axis."""
    dims = plan.placements[PINNED].dims
    is_whole = not any(dims)
    return PartitionSpec(*(axes or None for axes in dims)), PartitionSpec(
        *((None, plan.mesh.names[-1]) if is_whole else ())
    )


def _slower(cluster: Cluster) -> Cluster:
    levels = tuple(
        replace(
            level,
            link=replace(level.link, bandwidth_bytes_per_s=level.link.bandwidth_bytes_per_s / 2),
        )
        for level in cluster.topology.levels
    )
    return replace(cluster, topology=replace(cluster.topology, levels=levels))


@contextmanager
def _clocks() -> Iterator[dict[str, float]]:
    """The CPU seconds spent in each of PARTS."""
    spent = dict.fromkeys((part for _, _, part in PARTS), 0.0)

    def clocked(owner: object, name: str, part: str) -> Callable[..., Any]:
        original = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            start = process_time()
            try:
                return original(*args, **kwargs)
            finally:
                spent[part] += process_time() - start

        return call

    with ExitStack() as stack:
        for owner, name, part in PARTS:
            stack.enter_context(patch.object(owner, name, clocked(owner, name, part)))
        yield spent


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, nargs="+", default=[32])
    parser.add_argument("--mesh", nargs="+", default=["8", "8,8"])
    parser.add_argument("--tight", action="store_true")
    parser.add_argument("--questions", action="store_true")
    parser.add_argument("--json", type=Path)
    add_record_option(parser)
    given = parser.parse_args(arguments)
    console, machine = Screen(width=120), describe_machine()
    console.print(", ".join(f"{name} {value}" for name, value in machine.items()))
    rows: list[Row] = []
    for layers in given.layers:
        for mesh in given.mesh:
            for row in measure(
                layers, tuple(map(int, mesh.split(","))), given.tight, given.questions
            ):
                console.print(
                    f"{row.layers} layers, mesh {row.mesh}, {row.change}: {row.total_s:.2f} s",
                    style="dim",
                )
                rows.append(row)
    table = Table(box=box.SIMPLE_HEAD, title="GPT training step on servers of 8 H100")
    for column in (
        "layers",
        "mesh",
        "change",
        "wall",
        "CPU",
        "solver",
        "program",
        "summary",
        "rest",
        "objective",
        "gap",
    ):
        table.add_column(column, justify="left" if column == "change" else "right")
    for row in rows:
        times = (row.total_s, row.cpu_s, row.solve_s, row.program_s, row.summary_s, row.rest_s)
        seconds = (f"{value:.2f} s" for value in times)
        found = (
            ("none found", "")
            if row.objective_s is None
            else (f"{row.objective_s * 1e3:.4f} ms", f"{row.gap:.2%}")
        )
        table.add_row(str(row.layers), row.mesh, row.change, *seconds, *found)
    console.print(table)
    if given.json is not None:
        given.json.write_text(
            json.dumps({"machine": machine, "rows": [asdict(row) for row in rows]}, indent=1) + "\n"
        )
    record(__file__, given.record, console.tables)


if __name__ == "__main__":
    main()
