"""What comes before the solver, beside JAX's own trace: does building a plan's space stay small?

    python -m benchmarks.building [--layers N ...] [--json FILE] [--record]

A training step of an unrolled GPT with Adam, in shape only, on a mesh (8, 8, 64): seconds of JAX's trace
(jax.make_jaxpr), of autopar's whole trace (that one included), of the strategies of all operators, and of all
candidates (copies included). The least of three runs each; JAX's caches are cleared before every trace.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import jax
from rich import box
from rich.table import Table

from autopar.core.dataflow import dataflow
from autopar.core.graph import OpNode
from autopar.core.mesh import DeviceMesh
from autopar.core.strategy import Strategy
from autopar.ops.rules import enumerate as enumerate_module
from autopar.ops.rules.enumerate import enumerate_strategies
from autopar.ops.rules.registry import rule_of
from autopar.search.space import build_space
from autopar.trace import trace
from benchmarks.end_to_end import describe_machine
from benchmarks.models import gpt
from benchmarks.record import Screen, add_record_option, record

MESH = DeviceMesh.of({"x": 8, "y": 8, "z": 64})
RUNS = 3


@dataclass(frozen=True)
class Row:
    """One depth: operators, their distinct signatures, and seconds."""

    layers: int
    operators: int
    signatures: int
    jax_trace_s: float
    trace_s: float
    strategies_s: float
    space_s: float


def measure(layers: int) -> Row:
    """The row of a GPT with this many layers."""
    model = gpt(layers=layers)
    args = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (model.state, *model.batch)
    )
    jax_trace_s = _least(lambda: jax.make_jaxpr(model.step())(*args))
    trace_s = _least(lambda: trace(model.step(), args))
    graph = trace(model.step(), args).graph
    flow = dataflow(graph)
    strategies_s = _least(lambda: _strategies(graph.ops))
    space_s = _least(lambda: build_space(graph, flow, MESH, keep=lambda _, strategies: strategies))
    signatures = len({op.signature for op in graph.ops})
    return Row(layers, len(graph.ops), signatures, jax_trace_s, trace_s, strategies_s, space_s)


def _strategies(ops: Sequence[OpNode]) -> dict[object, tuple[Strategy, ...]]:
    """Every operator's strategies, as `build_space` makes them: once for each signature."""
    known: dict[object, tuple[Strategy, ...]] = {}
    for op in ops:
        op.__dict__.pop("signature", None)  # remembered in the operator: counted here
        if op.signature not in known:
            known[op.signature] = enumerate_strategies(rule_of(op), MESH)
    return known


def _least(work: Callable[[], Any]) -> float:
    times: list[float] = []
    for _ in range(RUNS):
        jax.clear_caches()
        enumerate_module._of_equal_rules.cache_clear()
        start = perf_counter()
        work()
        times.append(perf_counter() - start)
    return min(times)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, nargs="+", default=[12, 48, 96])
    parser.add_argument("--json", type=Path)
    add_record_option(parser)
    given = parser.parse_args(arguments)
    console, machine = Screen(), describe_machine()
    console.print(", ".join(f"{name} {value}" for name, value in machine.items()))
    rows = [measure(layers) for layers in given.layers]
    table = Table(box=box.SIMPLE_HEAD, title=f"GPT training step, mesh {MESH}")
    columns = (
        "layers",
        "operators",
        "signatures",
        "JAX's trace",
        "trace",
        "strategies",
        "space",
        "strategies / JAX",
    )
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        seconds = (
            f"{value:.2f} s"
            for value in (row.jax_trace_s, row.trace_s, row.strategies_s, row.space_s)
        )
        share = f"{row.strategies_s / row.jax_trace_s:.2f}"
        table.add_row(str(row.layers), f"{row.operators:,}", str(row.signatures), *seconds, share)
    console.print(table)
    if given.json is not None:
        given.json.write_text(
            json.dumps({"machine": machine, "rows": [asdict(row) for row in rows]}, indent=1) + "\n"
        )
    record(__file__, given.record, console.tables)


if __name__ == "__main__":
    main()
