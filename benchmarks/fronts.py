"""The time/memory front beside one search: what do ten points cost, given that trace, candidates and prices are shared?

    python -m benchmarks.fronts [--layers N ...] [--points N] [--cluster NAME] [--mesh NAME=SIZE,...] [--json FILE]

A training step of an unrolled GPT with Adam, in shape only: seconds of one search without a binding limit
(`autopar.plan`, trace included), of one search within the middle limit of the front, and of the front
(`autopar.front`). One run each, imports done before.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import jax
from rich.console import Console

import autopar
from autopar.cli import parse_mesh
from benchmarks.end_to_end import describe_machine
from benchmarks.models import gpt

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
    """One depth: seconds of one search (without a binding limit, and within one), of the front, and its points."""

    layers: int
    operators: int
    search_s: float
    limited_search_s: float
    front_s: float
    points: tuple[Point, ...]

    @property
    def ratio(self) -> float:
        """The front in searches."""
        return self.front_s / self.search_s


def measure(layers: int, points: int, cluster: str, mesh: dict[str, int] | None) -> Row:
    """The row of a GPT with this many layers. The state is donated, as in training."""
    model = gpt(layers=layers)
    args = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (model.state, *model.batch))
    keeping = autopar.SearchOptions(recompute="never")  # as fronts do
    options: dict[str, Any] = {"cluster": cluster, "mesh": mesh, "donate_argnums": (0,), "options": keeping}
    search_s, plan = _timed(lambda: autopar.plan(model.step(), *args, **options))
    front_s, front = _timed(lambda: autopar.front(model.step(), *args, points=points, **options))
    found = tuple(
        Point(p.summary.memory_limit_bytes or p.peak_memory_bytes, p.peak_memory_bytes, p.objective_s, p.lower_bound_s)
        for p in front
    )
    middle = found[len(found) // 2].limit_bytes
    limited_s, _ = _timed(lambda: autopar.plan(model.step(), *args, memory_limit_bytes=middle, **options))
    return Row(layers, len(plan.strategies), search_s, limited_s, front_s, found)


def _timed(work: Callable[[], Made]) -> tuple[float, Made]:
    jax.clear_caches()
    start = perf_counter()
    made = work()
    return perf_counter() - start, made


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, nargs="+", default=[12])
    parser.add_argument("--points", type=int, default=10)
    parser.add_argument("--cluster", default="8xh100")
    parser.add_argument("--mesh", type=parse_mesh, help="default: all devices on one axis, x")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    mesh = given.mesh or {"x": autopar.load_cluster(given.cluster).device_count}
    console, machine = Console(width=150), describe_machine()
    console.print(", ".join(f"{name} {value}" for name, value in machine.items()))
    rows: list[Row] = []
    for layers in given.layers:
        row = measure(layers, given.points, given.cluster, mesh)
        rows.append(row)
        console.print(
            f"\nGPT, {row.layers} layers, {row.operators:,} operators, mesh {mesh}: one search {row.search_s:.1f} s, "
            f"within a limit {row.limited_search_s:.1f} s, front of {len(row.points)} points {row.front_s:.1f} s: "
            f"{row.ratio:.1f} searches, {row.front_s / row.limited_search_s:.1f} within a limit"
        )
        for point in row.points:
            gap = 1 - point.lower_bound_s / point.objective_s
            console.print(
                f"  limit {point.limit_bytes / 2**20:9.1f} MiB, peak {point.peak_bytes / 2**20:9.1f} MiB, "
                f"objective {point.objective_s * 1e3:.4f} ms, gap {gap:.2%}"
            )
        if given.json is not None:
            text = json.dumps({"machine": machine, "mesh": mesh, "rows": [asdict(r) for r in rows]}, indent=1)
            given.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
