"""What does a call of a planned function take, beside jax.jit of the same function?

    python -m benchmarks.calls [--leaves N ...] [--calls N] [--json FILE] [--record]

A step that scales the arrays of its state, of 16 x 16 floats each, split over 8 virtual devices, without collectives.
State and data lie in place, as they do in a training loop after its first step. Microseconds until the results are
ready: the lower quartile of calls that take turns with those of jax.jit, which has the same shardings. The data also
comes as an array of the host, as from a data loader.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import quantiles
from time import perf_counter
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec as P
from rich import box
from rich.table import Table

import autopar
from autopar.emit.measure import use_virtual_devices
from benchmarks.end_to_end import describe_machine
from benchmarks.record import Screen, add_record_option, record

DEVICES = 8
SHAPE = (16, 16)
WARM = 5
"""Calls of each that are not measured: the first compile, the next ones fill JAX's caches."""


@dataclass(frozen=True)
class Row:
    """A state of so many arrays: microseconds of a call, planned and jitted, with data in place or on the host."""

    leaves: int
    data: str
    planned_us: float
    jitted_us: float

    @property
    def ratio(self) -> float:
        """How many times jax.jit's time a planned call takes."""
        return self.planned_us / self.jitted_us


def step(state: Any, x: Any) -> Any:
    """The state scaled, and something made of the data."""
    return {name: 0.9 * leaf for name, leaf in state.items()}, 2 * x


def measure(leaves: int, calls: int) -> list[Row]:
    """The rows of a state of so many arrays."""
    state = {f"w{n}": np.ones(SHAPE, np.float32) for n in range(leaves)}
    x = np.ones(SHAPE, np.float32)
    split = (autopar.pin("state", P("a")), autopar.pin("x", P("a")))
    planned = autopar.compile(step, mesh={"a": DEVICES}, donate_argnums=0, constraints=split)
    plan = planned.plan(state, x)
    shardings = plan.in_shardings()
    jitted = jax.jit(
        step, in_shardings=shardings, out_shardings=plan.out_shardings(), donate_argnums=0
    )
    rows: list[Row] = []
    for data, given in (("in place", jax.device_put(x, shardings[1])), ("on the host", x)):
        both = [_Loop(fn, jax.device_put(state, shardings[0]), given) for fn in (planned, jitted)]
        for loop in both * WARM:
            loop.call()
        times: list[list[float]] = [[], []]
        for turn in range(2 * calls):
            first = turn % 2
            for n in (first, 1 - first):
                times[n].append(both[n].call())
        planned_us, jitted_us = (1e6 * quantiles(column, n=4)[0] for column in times)
        rows.append(Row(leaves, data, planned_us, jitted_us))
    return rows


class _Loop:
    """A loop of steps; each call is one."""

    def __init__(self, fn: Callable[..., Any], state: Any, x: Any) -> None:
        self._fn, self._state, self._x = fn, state, x

    def call(self) -> float:
        """Seconds of the next step."""
        start = perf_counter()
        self._state, y = jax.block_until_ready(self._fn(self._state, self._x))
        del y
        return perf_counter() - start


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--leaves", type=int, nargs="+", default=[1, 100, 400])
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--json", type=Path)
    add_record_option(parser)
    given = parser.parse_args(arguments)
    use_virtual_devices(DEVICES)
    console, machine = Screen(), describe_machine()
    console.print(", ".join(f"{name} {value}" for name, value in machine.items()))
    rows = [row for leaves in given.leaves for row in measure(leaves, given.calls)]
    table = Table(box=box.SIMPLE_HEAD, title="A call, by the arrays of its state")
    for column in ("arrays", "data", "planned", "jax.jit", "planned / jit"):
        table.add_column(column, justify="left" if column == "data" else "right")
    for row in rows:
        times = (f"{value:,.0f} us" for value in (row.planned_us, row.jitted_us))
        table.add_row(str(row.leaves), row.data, *times, f"{row.ratio:.2f}")
    console.print(table)
    if given.json is not None:
        found = [{**asdict(row), "ratio": row.ratio} for row in rows]
        given.json.write_text(json.dumps({"machine": machine, "rows": found}, indent=1) + "\n")
    record(__file__, given.record, console.tables)


if __name__ == "__main__":
    main()
