"""The time/memory front beside one search: what do ten points cost, given that trace, candidates and prices are shared?

    python -m benchmarks.fronts [--layers N ...] [--points N] [--cluster NAME] [--mesh NAME=SIZE,...] [--any-mesh]
                                [--clock wall|cpu] [--json FILE] [--record]

A training step of an unrolled GPT with Adam, in shape only: seconds of one search without a binding limit
(`autopar.plan`, trace included) and of the front (`autopar.front`), whose points are printed with their gaps. Without
`--mesh` it is run on 8 devices on one axis and on 64 on two; with `--any-mesh` on all mesh shapes of one cluster.
One run each; imports, and a front that loads compiled kernels, are done before.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, TypeVar

import jax
from rich import box
from rich.console import Console
from rich.table import Table

import autopar
from autopar.cli import parse_mesh
from benchmarks.end_to_end import describe_machine
from benchmarks.models import gpt
from benchmarks.record import Screen, add_record_option, record

Made = TypeVar("Made")


@dataclass(frozen=True)
class Point:
    """One point of a front; bytes of one device."""

    limit_bytes: int
    peak_bytes: int
    objective_s: float
    lower_bound_s: float


@dataclass(frozen=True)
class Row:
    """One depth on one mesh, or (None) on all of a cluster: seconds of one search, and of the front; its points."""

    layers: int
    mesh: dict[str, int] | None
    operators: int
    search_s: float
    front_s: float
    points: tuple[Point, ...]

    @property
    def ratio(self) -> float:
        """The front in searches."""
        return self.front_s / self.search_s


@dataclass(frozen=True)
class Asked:
    """What is measured, and by which clock."""

    points: int
    clock: Callable[[], float]


def measure(layers: int, cluster: str, mesh: dict[str, int] | None, asked: Asked) -> Row:
    """The row of a GPT with this many layers. The state is donated, as in training."""
    model = gpt(layers=layers)
    args = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (model.state, *model.batch)
    )
    keeping = autopar.SearchOptions(recompute="never")  # as fronts do
    options: dict[str, Any] = {
        "cluster": cluster,
        "mesh": mesh,
        "donate_argnums": (0,),
        "options": keeping,
    }

    def timed(work: Callable[[], Made]) -> tuple[float, Made]:
        jax.clear_caches()
        start = asked.clock()
        made = work()
        return asked.clock() - start, made

    autopar.front(model.step(), *args, points=2, **options)
    search_s, plan = timed(lambda: autopar.plan(model.step(), *args, **options))
    front_s, front = timed(
        lambda: autopar.front(model.step(), *args, points=asked.points, **options)
    )
    found = tuple(
        Point(
            p.summary.memory_limit_bytes or p.peak_memory_bytes,
            p.peak_memory_bytes,
            p.objective_s,
            p.lower_bound_s,
        )
        for p in front
    )
    return Row(layers, mesh, len(plan.strategies), search_s, front_s, found)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, nargs="+", default=[12])
    parser.add_argument("--points", type=int, default=10)
    parser.add_argument("--cluster", help="default: 8xh100, and 8x8xh100")
    parser.add_argument("--mesh", type=parse_mesh, help="default: x=8, and x=8,y=8")
    parser.add_argument("--any-mesh", action="store_true")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--json", type=Path)
    add_record_option(parser)
    given = parser.parse_args(arguments)
    asked = Asked(given.points, perf_counter if given.clock == "wall" else process_time)
    console, machine = Screen(width=150), describe_machine()
    console.print(", ".join(f"{name} {value}" for name, value in machine.items()))
    rows: list[Row] = []
    for layers, (cluster, mesh) in product(
        given.layers, _places(given.cluster, given.mesh, given.any_mesh)
    ):
        rows.append(measure(layers, cluster, mesh, asked))
        _show(console, rows[-1], given.clock)
        if given.json is not None:
            text = json.dumps(
                {"machine": machine, "clock": given.clock, "rows": [asdict(r) for r in rows]},
                indent=1,
            )
            given.json.write_text(text + "\n")
    table = table_of(rows, given.clock)
    console.print(table)
    record(__file__, given.record, console.tables)


def table_of(rows: Sequence[Row], clock: str) -> Table:
    """A row for each front."""
    table = Table(box=box.SIMPLE_HEAD, title=f"Fronts of a GPT training step, {clock} seconds")
    for head in (
        "layers",
        "mesh",
        "one search",
        "front",
        "searches",
        "points",
        "gaps, least memory first",
    ):
        table.add_column(head, justify="right")
    for row in rows:
        mesh = "any" if row.mesh is None else "x".join(map(str, row.mesh.values()))
        gaps = ", ".join(
            f"{1 - point.lower_bound_s / point.objective_s:.1%}" for point in row.points
        )
        times = (f"{row.search_s:.1f} s", f"{row.front_s:.1f} s", f"{row.ratio:.1f}")
        table.add_row(str(row.layers), mesh, *times, str(len(row.points)), gaps)
    return table


def _places(
    cluster: str | None, mesh: dict[str, int] | None, any_mesh: bool
) -> list[tuple[str, dict[str, int] | None]]:
    """The clusters and meshes that are asked for."""
    if any_mesh:
        return [(cluster or "8xh100", None)]
    if cluster is None and mesh is None:
        return [("8xh100", {"x": 8}), ("8x8xh100", {"x": 8, "y": 8})]
    name = cluster or "8xh100"
    return [(name, mesh or {"x": autopar.load_cluster(name).device_count})]


def _show(console: Console, row: Row, clock: str) -> None:
    """Prints a row and its points."""
    mesh = row.mesh or "any"
    console.print(
        f"\nGPT, {row.layers} layers, {row.operators:,} operators, mesh {mesh} ({clock} seconds): one search "
        f"{row.search_s:.1f} s, front of {len(row.points)} points {row.front_s:.1f} s: {row.ratio:.1f} searches"
    )
    for point in row.points:
        gap = 1 - point.lower_bound_s / point.objective_s
        console.print(
            f"  limit {point.limit_bytes / 2**20:9.1f} MiB, peak {point.peak_bytes / 2**20:9.1f} MiB, "
            f"objective {point.objective_s * 1e3:.4f} ms, gap {gap:.2%}"
        )


if __name__ == "__main__":
    main()
