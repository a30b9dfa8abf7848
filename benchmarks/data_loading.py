"""Does a loop over batches wait for them, and is that cured by tuning?

    python -m benchmarks.data_loading [--steps N] [--json FILE] [--record]

A training step of two layers on 8 virtual devices, and a source whose rows take long: each waits, as for storage that
is far away, or computes in Python, as what is parsed. Milliseconds of a step, and the part of it in which the loop
waits for data, with batches made when they are asked for; by one thread, while the step runs; as tuned, once tuning
has ended; and, as the floor, with one batch that is passed again and again. Rows that compute share the cores of this
machine with the devices. Ends within three minutes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import repeat
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich import box
from rich.table import Table

import autopar
from autopar.data import Reading, Rows, Waits, loader
from autopar.emit.measure import use_virtual_devices
from benchmarks.end_to_end import describe_machine
from benchmarks.record import Screen, add_record_option, record

DEVICES = 8
BATCH, WIDTH, HIDDEN = 64, 256, 1024
MOST_TUNING_STEPS = 400
READINGS = {"when asked for": Reading(0, 0, 0), "one thread": Reading(0, 1, 2), "tuned": None}


@dataclass(frozen=True)
class Row:
    """Seconds of a step, and the part of it that is waiting, by how long the rows of a batch take."""

    map: str
    making_s: float
    batches: str
    reading: Reading
    step_s: float
    waiting: float
    ratio: float
    """Of the step with batches made when they are asked for to this one."""


def step(params: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """A step of gradient descent."""

    def loss(params: Any) -> Any:
        return jnp.mean((jnp.tanh(x @ params["up"]) @ params["down"] - y) ** 2)

    value, gradients = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 1e-2 * g, params, gradients), value


def waiting_map(element: Any, seconds: float) -> Any:
    """The element, after so long."""
    sleep(seconds)
    return element


def computing_map(element: Any, rounds: int) -> Any:
    """The element, after so many rounds of a loop in Python."""
    total = 0
    for n in range(rounds):
        total += n * n % 7
    return {**element, "y": element["y"] + np.float32(total % 2)}


class Case:
    """A compiled step, its state, and a source."""

    def __init__(self) -> None:
        shape = jax.ShapeDtypeStruct
        params = {
            "up": shape((WIDTH, HIDDEN), np.float32),
            "down": shape((HIDDEN, WIDTH), np.float32),
        }
        batch = shape((BATCH, WIDTH), np.float32)
        self.run = autopar.compile(
            step, mesh={"a": DEVICES}, mode="data_parallel", donate_argnums=0
        )
        self.plan = self.run.plan(params, batch, batch)
        rows = np.random.default_rng(0).normal(size=(2, 4096, WIDTH)).astype(np.float32)
        self.source = Rows({"x": rows[0], "y": rows[1]})
        self._state = self.plan.place(
            jax.tree.map(lambda p: np.full(p.shape, 0.01, p.dtype), params)
        )

    def loop(self, batches: Any, steps: int) -> float:
        """Seconds of a step, of so many."""
        started = perf_counter()
        for _ in range(steps):
            self._state, value = self.run(self._state, *next(batches))
            value.block_until_ready()
        return (perf_counter() - started) / steps

    def floor_s(self, steps: int) -> float:
        """Seconds of a step whose batch is there."""
        with loader(self.source, self.plan, "x", "y") as given:
            batches = repeat(next(given))
            self.loop(batches, 5)
            return self.loop(batches, steps)

    def measured(
        self, transform: Callable[..., Any], reading: Reading | None, steps: int
    ) -> tuple[float, Waits, Reading]:
        """Seconds of a step and the waits, once nothing is tuned any more, and how batches were made."""
        depth = 0 if reading == READINGS["when asked for"] else 2
        options: Any = {"shuffle": True, "transforms": (transform,), "reading": reading}
        with loader(self.source, self.plan, "x", "y", depth=depth, **options) as given:
            self.loop(given, 5)
            for _ in range(MOST_TUNING_STEPS):
                if given.is_tuned:
                    break
                self.loop(given, 1)
            self.loop(given, given.reading.lanes * given.reading.buffer + 5)
            before = given.waits
            step_s = self.loop(given, steps)
            return step_s, given.waits - before, given.reading


def making_s(transform: Callable[..., Any], source: Rows) -> float:
    """Seconds that the rows of a batch take, one after the other."""
    started = perf_counter()
    for n in range(BATCH):
        transform(source[n])
    return perf_counter() - started


def measure(steps: int) -> tuple[float, list[Row]]:
    """The floor, and a row for each map and each way to make batches: as slow as three steps."""
    case = Case()
    floor_s = case.floor_s(steps)
    wanted_s = 3 * floor_s
    rounds = round(10_000 * wanted_s / making_s(partial(computing_map, rounds=10_000), case.source))
    maps = {
        "waits": partial(waiting_map, seconds=wanted_s / BATCH),
        "computes": partial(computing_map, rounds=rounds),
    }
    rows: list[Row] = []
    for name, transform in maps.items():
        alone_s, first_s = making_s(transform, case.source), 0.0
        for batches, reading in READINGS.items():
            step_s, waits, used = case.measured(transform, reading, steps)
            first_s = first_s or step_s
            rows.append(Row(name, alone_s, batches, used, step_s, waits.share, first_s / step_s))
    return floor_s, rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--json", type=Path)
    add_record_option(parser)
    given = parser.parse_args(arguments)
    use_virtual_devices(DEVICES)
    console, machine = Screen(), describe_machine()
    console.print(", ".join(f"{name} {value}" for name, value in machine.items()))
    floor_s, rows = measure(given.steps)
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"A step that takes {1e3 * floor_s:.1f} ms where its batch is there",
    )
    table.add_column("rows")
    table.add_column("a batch of them", justify="right")
    table.add_column("made")
    for head in ("processes", "threads", "ahead", "step", "waiting", "times as fast"):
        table.add_column(head, justify="right")
    for row in rows:
        table.add_row(
            row.map,
            f"{1e3 * row.making_s:.1f} ms",
            row.batches,
            str(row.reading.workers),
            str(row.reading.threads),
            str(row.reading.buffer),
            f"{1e3 * row.step_s:.1f} ms",
            f"{row.waiting:.0%}",
            f"{row.ratio:.2f}",
        )
    console.print(table)
    if given.json is not None:
        found = {"machine": machine, "floor_s": floor_s, "rows": [asdict(row) for row in rows]}
        given.json.write_text(json.dumps(found, indent=1) + "\n")
    record(__file__, given.record, console.tables)


if __name__ == "__main__":
    main()
