"""What do parameter servers take, beside synchronous data parallelism, with a slow worker and without?

    python -m benchmarks.parameter_server [--steps N] [--json FILE] [--record]

The classifier of examples/digits_mlp.py (784-512-512-10, plain SGD) on 4 processes of one device each. Data parallel:
one plan over all four, by jax.distributed and gloo. Parameter servers: the same four as workers, 2 servers, on Ray. A
slow worker sleeps before each of its steps; with hiccups one worker does at each step, another each time.

Batches a second: those begun by all workers together, between the step that the last one begins after warming up and
the first end; a batch is 96 examples, of which a worker has 24. Asynchronous updates are by 24 examples, so there are
four for each batch. Bytes: what a worker sends and receives in a step; of data parallelism by the plan's collectives,
as a ring. The loss is that over all training images after as many batches.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import jax
import numpy as np
import optax
from rich import box
from rich.table import Table

import autopar
from autopar import parameter_server as ps
from autopar.parameter_server.cluster import local
from benchmarks import hosts
from benchmarks.end_to_end import describe_machine
from benchmarks.record import Screen, add_record_option, record
from examples import digits_mlp

PROCESSES = 4
SERVERS = 2
BATCH = 96
IMAGES = digits_mlp.TRAINING_IMAGES
WARM = 5
"""Steps that are not measured: they are planned and compiled in."""
SLOW_S = 0.05
STALENESS = 4
DELAYS = ("none", "one slow", "hiccups")


@dataclass(frozen=True)
class Row:
    """A way to train under delays: batches a second, bytes of a worker's step, and the loss in the end."""

    way: str
    delays: str
    batches_per_s: float
    sent_bytes: float
    received_bytes: float
    loss: float


@dataclass(frozen=True)
class Begun:
    """Leaves in a folder when each worker begins a step, after the delay that it has."""

    folder: str
    delays: str

    def __call__(self, step: int, index: int) -> None:
        """Waits, and takes note."""
        late = {"none": -1, "one slow": 0, "hiccups": step % PROCESSES}[self.delays]
        if index == late and step >= WARM:
            sleep(SLOW_S)
        with (Path(self.folder) / str(index)).open("a") as file:
            file.write(f"{monotonic()}\n")

    def batches_per_s(self) -> float:
        """Of all workers, while all of them train."""
        times = [
            [float(line) for line in path.read_text().split()]
            for path in Path(self.folder).iterdir()
        ]
        start = max(one[WARM] for one in times)
        end = min(one[-1] for one in times)
        begun = sum(start < time <= end for one in times for time in one)
        return begun / PROCESSES / (end - start)


def rows_of(step: int, index: int, count: int) -> np.ndarray:
    """The training images of part `index` of `count` of a step's batch."""
    every = np.random.default_rng(step).choice(IMAGES, BATCH, replace=False)
    return every[BATCH * index // count : BATCH * (index + 1) // count]


def part_of(data: Any, begun: Begun, step: int, index: int, count: int) -> Any:
    """A worker's part of a batch."""
    begun(step, index)
    rows = rows_of(step, index, count)
    return data[0][rows], data[1][rows]


def loss_of(params: Any, batch: Any) -> Any:
    """The example's loss."""
    return digits_mlp.loss_fn(params, *batch)


def loss_after(params: Any) -> float:
    """Over all training images."""
    images, labels = digits_mlp.digits()
    return float(loss_of(params, (images[:IMAGES], labels[:IMAGES])))


def through_servers(steps: int, delays: str, staleness: int | None) -> Row:
    """The row of a job on parameter servers."""
    with tempfile.TemporaryDirectory() as folder:
        begun = Begun(folder, delays)
        job = ps.Job(
            digits_mlp.initial_state()["params"],
            optax.sgd(digits_mlp.LEARNING_RATE),
            steps,
            SERVERS,
            PROCESSES,
            staleness,
            patience_s=60.0,
        )
        batch_of = partial(part_of, digits_mlp.digits(), begun)
        found = ps.train(job, loss_of, batch_of, devices=1, mesh={"x": 1})
        rate = begun.batches_per_s()

    done = steps * PROCESSES
    way = "servers, synchronous" if staleness is None else f"servers, up to {staleness} ahead"
    sent, received = found.traffic.pushed_bytes / done, found.traffic.pulled_bytes / done
    return Row(way, delays, rate, sent, received, loss_after(found.params))


def data_parallel(steps: int, delays: str) -> Row:
    """The row of one plan over all processes."""
    with tempfile.TemporaryDirectory() as folder:
        task = {"steps": steps, "delays": delays, "folder": folder}
        found = hosts.run_everywhere(
            hosts.same_host(PROCESSES),
            "benchmarks.parameter_server",
            task,
            local_devices=1,
            timeout_s=300,
        )
        rate = Begun(folder, delays).batches_per_s()
    moved = found["bytes"]
    return Row("data parallel", delays, rate, moved, moved, found["loss"])


def work(told: Path) -> None:
    """What each process of data parallelism does: plans, trains, and answers with bytes and the loss."""
    mine = hosts.join(told)
    begun = Begun(mine.task["folder"], mine.task["delays"])
    state = digits_mlp.initial_state()
    data = digits_mlp.digits()
    run = autopar.compile(
        digits_mlp.step,
        cluster=hosts.SHARED,
        mesh={"x": PROCESSES},
        mode="data_parallel",
        devices=hosts.devices_in_order(),
    )
    shapes = [jax.ShapeDtypeStruct((BATCH, *part.shape[1:]), part.dtype) for part in data]
    plan = run.plan(state, *shapes)
    shardings = plan.in_shardings()[1:]

    for step in range(mine.task["steps"]):
        part = part_of(data, begun, step, mine.number, PROCESSES)
        batch = map(jax.make_array_from_process_local_data, shardings, part)
        state, loss = run(state, *batch)
        jax.block_until_ready(loss)
    params = jax.tree.map(lambda leaf: np.asarray(leaf.addressable_data(0)), state["params"])
    hosts.answer(mine, {"loss": loss_after(params), "bytes": ring_bytes(plan)})


def ring_bytes(plan: autopar.Plan) -> float:
    """What a device sends, and receives, in a step: all-reduces, each 2 (n - 1) / n times its bytes."""
    kinds = {row.kind for row in plan.collectives}
    if kinds != {"all_reduce"}:
        raise ValueError(f"data parallelism has collectives {kinds}; only all-reduces are counted")
    times = 2 * (PROCESSES - 1) / PROCESSES
    return times * sum(row.size_bytes * row.runs for row in plan.collectives)


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains in every way and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    add_record_option(parser)
    given = parser.parse_args(arguments)
    if given.worker is not None:
        work(given.worker)
        return

    console = Screen()
    with local():  # Ray forks: before JAX runs, which is asked about the machine
        machine = describe_machine()
        console.print(", ".join(f"{name} {value}" for name, value in machine.items()))
        servers = [
            _told(through_servers(given.steps, delays, staleness))
            for staleness in (None, STALENESS)
            for delays in DELAYS
        ]
    rows = [_told(data_parallel(given.steps, delays)) for delays in DELAYS] + servers
    console.print(_table(rows))
    if given.json is not None:
        found = [asdict(row) for row in rows]
        given.json.write_text(json.dumps({"machine": machine, "rows": found}, indent=1) + "\n")
    record(__file__, given.record, console.tables)


def _told(row: Row) -> Row:
    """The row, which is told as soon as it is there."""
    print(f"{row.way}, {row.delays}: {row.batches_per_s:.1f} batches/s", flush=True)
    return row


def _table(rows: Sequence[Row]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="Training by four processes")
    for column in ("way", "delays", "batches/s", "sent", "received", "loss"):
        table.add_column(column, justify="left" if column in ("way", "delays") else "right")
    for row in rows:
        moved = (f"{size / 1e6:.2f} MB" for size in (row.sent_bytes, row.received_bytes))
        table.add_row(row.way, row.delays, f"{row.batches_per_s:.1f}", *moved, f"{row.loss:.3f}")
    return table


if __name__ == "__main__":
    main()
