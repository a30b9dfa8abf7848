"""What do sizes cost that no number of devices divides, beside the even ones next above them?

    python -m benchmarks.uneven [--json FILE] [--record]

Training steps of GPT-2 in shape only, planned for `8xh100` on one, two and three axes: 50,257 words, 30 rows, 12 and 25
heads of 64 numbers, 12 layers, 1,024 tokens, dropout, Adam, the state donated; and the same with 50,264 words and 32
rows, the heads as they are. Then steps of stencils by slices and by rolls on grids of 2^28 numbers in one, two and
three dims, whose inner parts no device's share divides: the peak beside an eighth of that on one device.
Times are predictions of one pricing, peaks are what the programs hold; nothing is run. Ends within five minutes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp
from rich import box
from rich.table import Table

import autopar
from benchmarks.end_to_end import describe_machine
from benchmarks.record import Screen, parser_of, record
from benchmarks.shapes import gpt

CLUSTER = "8xh100"
MESHES = ({"a": 8}, {"a": 2, "b": 4}, {"a": 2, "b": 2, "c": 2})
HEADS = (12, 25)
GRIDS = ((1 << 28,), (1 << 14, 1 << 14), (512, 512, 1024))


@dataclass(frozen=True)
class Row:
    """A plan beside another one, or beside a share of a peak: ratios, the seconds that planning took, the gap."""

    name: str
    mesh: tuple[int, ...]
    time_ratio: float | None
    peak_ratio: float
    seconds: float
    gap: float


def planned(
    step: Callable[..., Any],
    args: Any,
    mesh: dict[str, int],
    donated: tuple[int, ...] = (),
    cluster: str = CLUSTER,
) -> tuple[autopar.Plan, float]:
    """The plan, and the seconds that it took."""
    start = perf_counter()
    plan = autopar.plan(step, *args, cluster=cluster, mesh=mesh, donate_argnums=donated)
    return plan, perf_counter() - start


def language_models() -> Iterator[Row]:
    """GPT-2 of uneven sizes beside even ones."""
    for heads in HEADS:
        sizes: dict[str, Any] = {"width": 64 * heads, "heads": heads, "sequence": 1024}
        for mesh in MESHES:
            both = (
                gpt(12, vocab=words, batch=rows, **sizes)
                for words, rows in ((50257, 30), (50264, 32))
            )
            (uneven, seconds), (even, _) = (planned(one.step, one.args, mesh, (0,)) for one in both)
            ratios = (
                uneven.step_time_s / even.step_time_s,
                uneven.peak_memory_bytes / even.peak_memory_bytes,
            )
            yield Row(f"GPT-2, {heads} heads", tuple(mesh.values()), *ratios, seconds, uneven.gap)


def by_slices(u: jax.Array) -> jax.Array:
    """A step of the heat equation, written by slices: the edge stays."""
    inner = (slice(1, -1),) * u.ndim
    ends = [(dim, end) for dim in range(u.ndim) for end in (slice(2, None), slice(None, -2))]
    total = sum(u[(*inner[:dim], end, *inner[dim + 1 :])] for dim, end in ends)
    return u.at[inner].add(0.1 * (total - 2 * u.ndim * u[inner]))


def by_rolls(u: jax.Array) -> jax.Array:
    """The same on a torus, by rolls."""
    total = sum(jnp.roll(u, shift, dim) for dim in range(u.ndim) for shift in (1, -1))
    return u + 0.1 * (total - 2 * u.ndim * u)


def wave(u: jax.Array, before: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A step of the wave equation by slices."""
    moved = by_slices(u)
    return 2 * u - before + 5 * (moved - u), u


STENCILS: dict[str, tuple[Callable[..., Any], int]] = {
    "heat by slices": (by_slices, 1),
    "heat by rolls": (by_rolls, 1),
    "wave by slices": (wave, 2),
}


def stencils() -> Iterator[Row]:
    """Stencils beside an eighth of what they take on one device."""
    for name, (step, grids) in STENCILS.items():
        for grid in GRIDS:
            args = (jax.ShapeDtypeStruct(grid, jnp.float32),) * grids
            alone, _ = planned(step, args, {"a": 1}, cluster="1xh100")
            for mesh in MESHES[:1] if len(grid) == 1 else MESHES:
                plan, seconds = planned(step, args, mesh)
                ratio = plan.peak_memory_bytes / (alone.peak_memory_bytes / 8)
                yield Row(
                    f"{name}, {len(grid)} dims",
                    tuple(mesh.values()),
                    None,
                    ratio,
                    seconds,
                    plan.gap,
                )


def table(rows: list[Row]) -> Table:
    """The rows, to be read."""
    found = Table(box=box.SIMPLE_HEAD)
    for name in ("step", "mesh", "time", "peak", "planned in", "gap"):
        found.add_column(name, justify="left" if name in ("step", "mesh") else "right")
    for row in rows:
        time = "" if row.time_ratio is None else f"{row.time_ratio:.4f}"
        mesh = "x".join(map(str, row.mesh))
        found.add_row(
            row.name, mesh, time, f"{row.peak_ratio:.4f}", f"{row.seconds:.1f} s", f"{row.gap:.3%}"
        )
    return found


def main() -> None:
    """Plans all, prints the table."""
    options = parser_of(__doc__).parse_args()
    rows = [*language_models(), *stencils()]
    console = Screen(width=100)
    console.print(describe_machine())
    console.print(table(rows))
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    record(__file__, options.record, console.tables)


if __name__ == "__main__":
    main()
