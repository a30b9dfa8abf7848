"""Collectives alone: what the cost model says, and what they take, between processes on one machine.

    python -m benchmarks.collectives [--processes 2 4] [--gbit 1 0.2] [--calibrate SECONDS] [--json FILE] [--record]

Each kind from 64 KiB to 64 MiB: between 2 and 4 processes of one device side by side, over loopback; and, where
network namespaces can be made, between two hosts of two devices that a link of `--gbit` joins, along the hosts (two
groups share the link), inside them, and over all four. Sizes are the larger of a device's bytes before and after.
Times are medians over repetitions. What the model says is that of the profiles that ship, which were measured on other
machines, or, with `--calibrate`, of what `autopar.calibrate` makes of the same processes before.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from rich import box
from rich.console import Console
from rich.table import Table

import autopar
from benchmarks import hosts
from benchmarks.record import Screen, add_record_option, record
from cost_models import Cluster, CollectiveKind, collective_time_s, group, load_cluster

KINDS: tuple[CollectiveKind, ...] = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "all_to_all",
    "permute",
)
SIZES = tuple(2**power for power in (16, 18, 20, 22, 24, 26))
BUDGET_S = 0.2
AXES = ("host", "device")


@dataclass(frozen=True)
class Row:
    """One collective on one cluster: along which mesh axes, bytes, seconds as measured (the median; the mean, which a
    step of many pays) and as the model says.
    """

    cluster: str
    axes: tuple[str, ...]
    kind: CollectiveKind
    size_bytes: int
    measured_s: float
    mean_s: float
    model_s: float

    @property
    def error(self) -> float:
        """By which part the model says more than was measured."""
        return self.model_s / self.measured_s - 1


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints the tables, and writes JSON if asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--processes", type=int, nargs="*", default=[2, 4], help="side by side, one device each"
    )
    parser.add_argument(
        "--gbit", type=float, nargs="*", default=[1.0, 0.2], help="links between two hosts of two"
    )
    parser.add_argument("--most-mib", type=float, default=64.0, help="the largest size")
    parser.add_argument(
        "--calibrate", type=float, metavar="SECONDS", help="calibrate first, for so long at most"
    )
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    add_record_option(parser)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker is not None:
        _work(options.worker)
        return
    sizes = [size for size in SIZES if size <= options.most_mib * 2**20]
    console, rows = Screen(width=120), []
    for found in _measured(options.processes, options.gbit, sizes, console, options.calibrate):
        show(console, found)
        rows += found
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    record(__file__, options.record, console.tables)


def _measured(
    processes: Sequence[int],
    gbits: Sequence[float],
    sizes: Sequence[int],
    console: Console,
    calibrate_s: float | None,
) -> Iterator[list[Row]]:
    """The rows of each cluster, one after the other."""
    for number in processes:
        cluster = load_cluster(f"cpu-loopback{number}")
        yield measure(hosts.same_host(number), cluster, 1, [("host",)], sizes, calibrate_s)
    reason = hosts.why_not() if gbits else ""
    if reason:
        console.print(f"No linked hosts: {reason}.")
        return
    for gbit in gbits:
        with hosts.linked_hosts(1e9 * gbit) as pair:
            cluster = hosts.linked_cluster(1e9 * gbit)
            yield measure(pair, cluster, 2, [("host",), ("device",), AXES], sizes, calibrate_s)


def measure(
    where: Sequence[hosts.Host],
    cluster: Cluster,
    local_devices: int,
    axes: Sequence[tuple[str, ...]],
    sizes: Sequence[int],
    calibrate_s: float | None = None,
) -> list[Row]:
    """All kinds and sizes along `axes` of a mesh of hosts and their devices, beside what the model says.

    That is what `cluster` says, or the profile that is calibrated first, for `calibrate_s` at most.
    """
    with TemporaryDirectory() as folder:
        profile = Path(folder) / "profile.toml"
        task = {"axes": axes, "sizes": sizes, "calibrate_s": calibrate_s, "profile": str(profile)}
        found = hosts.run_everywhere(
            where, "benchmarks.collectives", task, local_devices=local_devices, timeout_s=1800
        )
        topology = cluster.topology if calibrate_s is None else load_cluster(profile).topology
    mesh = (len(where), local_devices)
    rows: list[Row] = []
    for along, kind, size, measured_s, mean_s in found:
        members = group(topology, mesh, tuple(AXES.index(axis) for axis in along))
        model_s = collective_time_s(kind, size, members)
        rows.append(Row(cluster.name, tuple(along), kind, size, measured_s, mean_s, model_s))
    return rows


def show(console: Console, rows: Sequence[Row]) -> None:
    """Prints the table of one cluster: for each size measured ms, and by how much the model says more."""
    sizes = sorted({row.size_bytes for row in rows})
    table = Table(title=rows[0].cluster, title_justify="left", title_style="bold", box=box.MARKDOWN)
    for head in ("along", "kind", *(f"{size / 2**20:g} MiB: ms, model" for size in sizes)):
        table.add_column(head, justify="left" if head in ("along", "kind") else "right")
    for along, kind in dict.fromkeys((row.axes, row.kind) for row in rows):
        line = [row for row in rows if (row.axes, row.kind) == (along, kind)]
        cells = (f"{1e3 * row.measured_s:.2f} {100 * row.error:+.0f} %" for row in line)
        table.add_row(", ".join(along), kind, *cells)
    console.print(table)
    large = [abs(row.error) for row in rows if row.size_bytes >= 2**20]
    errors = [abs(row.error) for row in rows]
    console.print(
        f"Mean error {100 * mean(errors):.0f} %, of 1 MiB and more {100 * mean(large):.0f} %; the largest "
        f"{100 * max(errors):.0f} % and {100 * max(large):.0f} %.\n",
        highlight=False,
    )


# In a worker ----------------------------------------------------------------------------------------------------------


def _work(told: Path) -> None:
    work = hosts.join(told)
    grid = np.array(hosts.devices_in_order()).reshape(work.processes, work.local_devices)
    mesh = Mesh(grid, AXES, axis_types=(AxisType.Auto,) * 2)
    if work.task["calibrate_s"] is not None:
        calibration = autopar.calibrate(time_limit_s=work.task["calibrate_s"])
        if work.number == 0:
            calibration.write(work.task["profile"])
    found = [
        (along, kind, size, *_seconds(mesh, kind, tuple(along), size))
        for along in work.task["axes"]
        for kind in KINDS
        for size in work.task["sizes"]
    ]
    hosts.answer(work, found)


def _seconds(
    mesh: Mesh, kind: CollectiveKind, along: tuple[str, ...], size_bytes: int
) -> tuple[float, float]:
    """The median and mean seconds of a collective of `size_bytes`, the larger of a device's bytes before and after."""
    members = int(np.prod([mesh.shape[axis] for axis in along]))
    held = size_bytes // 4 // (members if kind == "all_gather" else 1)
    everywhere = P(AXES)
    shape = (mesh.size * held,)
    x = jax.make_array_from_callback(
        shape, NamedSharding(mesh, everywhere), lambda _: np.ones(held, np.float32)
    )
    body = BODIES[kind](along, members)
    run = jax.jit(
        jax.shard_map(body, mesh=mesh, in_specs=everywhere, out_specs=everywhere, check_vma=False)
    )
    jax.block_until_ready(run(x))
    repetitions = hosts.agreed_least(min(20.0, BUDGET_S / _timed(run, x)))
    times = [_timed(run, x) for _ in range(max(3, int(repetitions)))]
    return median(times), mean(times)


def _timed(run: Callable[[Any], Any], x: Any) -> float:
    start = perf_counter()
    jax.block_until_ready(run(x))
    return perf_counter() - start


Body = Callable[[jax.Array], jax.Array]

BODIES: dict[CollectiveKind, Callable[[tuple[str, ...], int], Body]] = {
    "all_reduce": lambda along, _: lambda x: lax.psum(x, along),
    "reduce_scatter": lambda along, _: (
        lambda x: lax.psum_scatter(x, along, scatter_dimension=0, tiled=True)
    ),
    "all_gather": lambda along, _: lambda x: lax.all_gather(x, along, axis=0, tiled=True),
    "all_to_all": lambda along, _: lambda x: lax.all_to_all(x, along, 0, 0, tiled=True),
    "permute": lambda along, n: (
        lambda x: lax.ppermute(x, along, [(i, (i + 1) % n) for i in range(n)])
    ),
}
"""For each kind what a device does, made for the axes and the number of members. JAX has no broadcast on CPUs."""

if __name__ == "__main__":
    main()
