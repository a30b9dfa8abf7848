"""Re-solving: how long does a plan take after one pin, another memory limit or another link, beside the first plan?

    python -m benchmarks.resolving [--layers N ...] [--mesh 8 2,4 ...] [--tight] [--json FILE]

A training step of an unrolled GPT with Adam, in shape only, planned for 8 H100. Seconds of wall clock, once each, and
of them those in the solver, in the program with its account, and the rest (for the first plan: trace, space, prices).
A pin that the plan keeps to already needs no solving where the plan is proven optimal, nor does a limit that it fits
in. "--tight" adds a limit of nine tenths of the plan's peak. Reports are made when they are asked for: not counted.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any
from unittest.mock import patch

import jax
from jax.sharding import PartitionSpec
from rich import box
from rich.console import Console
from rich.table import Table

import autopar
from autopar.errors import NoFeasiblePlan
from autopar.search import search as search_module
from benchmarks.end_to_end import describe_machine
from benchmarks.models import gpt
from cost_models import Cluster

PINNED = "state['params']['blocks'][0]['fc1']['kernel']"
EVERY = "state['params']['blocks'][*]['fc1']['kernel']"
PARTS = {"solve": "solve_s", "build_program": "program_s", "_account": "program_s"}


@dataclass(frozen=True)
class Row:
    """One plan: how it came about, seconds, and what is proven of it (the gap is None where nothing was found)."""

    layers: int
    mesh: str
    change: str
    total_s: float
    solve_s: float
    program_s: float
    objective_s: float | None
    gap: float | None

    @property
    def rest_s(self) -> float:
        """Seconds outside of solver and program."""
        return self.total_s - self.solve_s - self.program_s


def measure(layers: int, sizes: Sequence[int], tight: bool) -> Iterator[Row]:
    """The rows of a GPT with this many layers on a mesh of these sizes, each as soon as it is there."""
    model = gpt(layers=layers)
    args = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (model.state, *model.batch))
    mesh = dict(zip("xyz", sizes, strict=False))
    cluster = autopar.load_cluster("8xh100")

    def timed(change: str, make: Callable[[], autopar.Plan]) -> tuple[Row, autopar.Plan | None]:
        with _clocks() as spent:
            start = perf_counter()
            try:
                plan = make()
            except NoFeasiblePlan:
                plan = None
            total = perf_counter() - start
        found = (None, None) if plan is None else (plan.objective_s, plan.gap)
        return Row(layers, "x".join(map(str, sizes)), change, total, spent["solve_s"], spent["program_s"], *found), plan

    row, first = timed("first plan", lambda: autopar.plan(model.step(), *args, cluster=cluster, mesh=mesh))
    yield row
    assert first is not None
    kept, other = _placements(first)
    limit = first.peak_memory_bytes
    changes: dict[str, dict[str, Any]] = {
        "pin it keeps to": {"constraints": (autopar.pin(PINNED, kept),)},
        "one pin": {"constraints": (autopar.pin(PINNED, other),)},
        "a pin in every layer": {"constraints": (autopar.pin(EVERY, other),)},
        "limit it fits in": {"memory_limit_bytes": 2 * limit},
        "links half as fast": {"cluster": _slower(cluster)},
    }
    if tight:
        changes["limit 0.9 of its peak"] = {"memory_limit_bytes": limit * 9 // 10}
    for change, options in changes.items():
        yield timed(change, lambda options=options: first.resolve(**options))[0]


def _placements(plan: autopar.Plan) -> tuple[PartitionSpec, PartitionSpec]:
    """Where the pinned parameter lies, and another way: whole if it is split, else its columns on the last axis."""
    dims = plan.placements[PINNED].dims
    is_whole = not any(dims)
    return PartitionSpec(*(axes or None for axes in dims)), PartitionSpec(
        *((None, plan.mesh.names[-1]) if is_whole else ())
    )


def _slower(cluster: Cluster) -> Cluster:
    levels = tuple(
        replace(level, link=replace(level.link, bandwidth_bytes_per_s=level.link.bandwidth_bytes_per_s / 2))
        for level in cluster.topology.levels
    )
    return replace(cluster, topology=replace(cluster.topology, levels=levels))


@contextmanager
def _clocks() -> Iterator[dict[str, float]]:
    """The seconds spent in each of PARTS."""
    spent = dict.fromkeys(PARTS.values(), 0.0)

    def clocked(name: str, part: str) -> Callable[..., Any]:
        original = getattr(search_module, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            start = perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                spent[part] += perf_counter() - start

        return call

    with patch.multiple(search_module, **{name: clocked(name, part) for name, part in PARTS.items()}):
        yield spent


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, nargs="+", default=[32])
    parser.add_argument("--mesh", nargs="+", default=["8", "2,4"])
    parser.add_argument("--tight", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    console, machine = Console(width=120), describe_machine()
    console.print(", ".join(f"{name} {value}" for name, value in machine.items()))
    rows: list[Row] = []
    for layers in given.layers:
        for mesh in given.mesh:
            for row in measure(layers, tuple(map(int, mesh.split(","))), given.tight):
                console.print(f"{row.layers} layers, mesh {row.mesh}, {row.change}: {row.total_s:.2f} s", style="dim")
                rows.append(row)
    table = Table(box=box.SIMPLE_HEAD, title="GPT training step on 8 H100")
    for column in ("layers", "mesh", "change", "total", "solver", "program", "rest", "objective", "gap"):
        table.add_column(column, justify="left" if column == "change" else "right")
    for row in rows:
        seconds = (f"{value:.2f} s" for value in (row.total_s, row.solve_s, row.program_s, row.rest_s))
        found = ("none found", "") if row.objective_s is None else (f"{row.objective_s * 1e3:.4f} ms", f"{row.gap:.2%}")
        table.add_row(str(row.layers), row.mesh, row.change, *seconds, *found)
    console.print(table)
    if given.json is not None:
        given.json.write_text(json.dumps({"machine": machine, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
