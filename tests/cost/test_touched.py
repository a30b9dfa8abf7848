"""What is read and written of operands and results: slices, rows that are gathered, updates in place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import autopar
from autopar.core.graph import OpGraph, OpNode
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.core.strategy import Strategy, StrategyArrays
from autopar.cost.pricing import Roofline
from autopar.operators import operator
from autopar.ops.fusion import materialised
from autopar.ops.touched import is_in_place, touched
from autopar.ops.traits import work_flops
from autopar.trace import trace
from tests.cost.test_work import PLAIN

MESH = DeviceMesh.of({"x": 2})
MOVING = replace(PLAIN, device=replace(PLAIN.device, peak_flops_per_s={"float32": 1e9}))
LONG, PART = (1000, 4), (10, 4)


def graph_of(fn: Any, *shapes: tuple[int, ...], donate: tuple[int, ...] = ()) -> OpGraph:
    args = tuple(
        jax.ShapeDtypeStruct(shape, jnp.float32 if shape else jnp.int32) for shape in shapes
    )
    return trace(fn, args, donate_argnums=donate).graph


def only(graph: OpGraph, kind: str) -> OpNode:
    (found,) = [op for op in graph.ops if op.kind == kind]
    return found


def update(x: jax.Array, part: jax.Array, at: jax.Array) -> jax.Array:
    return lax.dynamic_update_slice(x, part, (at, 0))


@pytest.mark.parametrize(
    ("fn", "kind", "shapes", "share"),
    [
        (lambda x: lax.slice(x, (5, 0), (15, 4)), "slice", [LONG], 0.01),
        (lambda x, at: lax.dynamic_slice(x, (at, 0), PART), "dynamic_slice", [LONG, ()], 0.01),
        (lambda x, at: x[(at + jnp.arange(10)) * 7], "gather", [LONG, ()], 0.01),
        (
            lambda x, at: x[(at + jnp.arange(5000)) % 7],
            "gather",
            [LONG, ()],
            1.0,
        ),  # all of it may be read
    ],
)
def test_slices_read_as_many_elements_as_they_give(
    fn: Any, kind: str, shapes: Any, share: float
) -> None:
    graph = graph_of(fn, *shapes)
    op = only(graph, kind)
    assert touched(graph, op) == (share, *[1.0] * (len(op.ins) + len(op.outs) - 1))
    assert work_flops(op) == op.outs[0].size_bytes / 4


def test_an_update_in_place_writes_the_update_alone() -> None:
    graph = graph_of(update, LONG, PART, (), donate=(0,))
    op = only(graph, "dynamic_update_slice")
    assert touched(graph, op) == (0.0, *[1.0] * (len(op.ins) - 1), 0.01)
    assert work_flops(op) == 40


def copied(x: jax.Array, part: jax.Array, at: jax.Array) -> tuple[jax.Array, jax.Array]:
    y = jnp.sort(x)
    return update(y, part, at), y


def into_zeros(part: jax.Array, at: jax.Array) -> jax.Array:
    return update(jnp.zeros(LONG), part, at)


def read_every_round(x: jax.Array, part: jax.Array, at: jax.Array) -> jax.Array:
    y = jnp.sort(x)
    return lax.fori_loop(0, 3, lambda _, part: update(y, part, at)[5:15], part)


@pytest.mark.parametrize(
    ("fn", "shapes"),
    [
        (update, [LONG, PART, ()]),
        (copied, [LONG, PART, ()]),
        (into_zeros, [PART, ()]),
        (read_every_round, [LONG, PART, ()]),
    ],
)
def test_what_may_not_be_written_over_is_copied(fn: Any, shapes: Any) -> None:
    """An argument that the caller keeps, what is read later, zeros that were never written, what a loop reads again."""
    graph = graph_of(fn, *shapes)
    op = only(graph, "dynamic_update_slice")
    assert touched(graph, op) == (1.0,) * (len(op.ins) + 1)
    assert not is_in_place(graph, op)


def test_what_a_loop_carries_is_updated_in_place() -> None:
    def fill(x: jax.Array, part: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 100, lambda n, x: update(x, part, n * 10), x)

    graph = graph_of(fill, LONG, PART)
    assert is_in_place(graph, only(graph, "dynamic_update_slice"))


@pytest.mark.parametrize(("kind", "read"), [("set", 0.0), ("add", 0.01)])
def test_a_scatter_in_place_reads_no_more_than_it_adds_to(kind: str, read: float) -> None:
    def fill(x: jax.Array, part: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 9, lambda n, x: getattr(x.at[n + jnp.arange(10)], kind)(part), x)

    graph = graph_of(fill, LONG, PART)
    op = only(graph, "scatter" if kind == "set" else "scatter-add")
    assert touched(graph, op) == (read, 1.0, 1.0, 0.01)


@pytest.mark.parametrize("split", [False, True])
def test_it_costs_what_it_moves(split: bool) -> None:
    """100 bytes/s and half a second a launch: one number at a time, and all at once."""
    graph = graph_of(lambda x, at: lax.dynamic_slice(x, (at, 0), PART), LONG, ())
    op = only(graph, "dynamic_slice")
    parts = 2 if split else 1
    matrix = Placement(((), ("x",) if split else ()))
    strategy = Strategy((matrix, *[Placement(())] * (len(op.ins) - 1)), (matrix,), split=parts)
    indices = sum(t.size_bytes for t in op.ins[1:] if t.id in materialised(graph))
    pricing = Roofline(graph, MESH, MOVING)
    assert pricing.op_cost(op, strategy) == pytest.approx(0.5 + (320 / parts + indices) / 100)
    layout = StrategyArrays(
        np.array([[parts]] + [[1]] * (len(op.ins) - 1) + [[parts]]), np.array([parts]), ()
    )
    at_once = pricing.op_costs(op, (strategy,), layout)
    assert at_once is not None
    assert at_once[0] == pricing.op_cost(op, strategy)


def test_in_a_function_treated_as_one_operator_too() -> None:
    @operator("r c -> k c", frozen=("r", "k"))
    def rows(x: jax.Array) -> jax.Array:
        return lax.slice(x, (5, 0), (15, 4))

    kept = autopar.SearchOptions(operators="kept")
    plan = autopar.plan(
        rows, jax.ShapeDtypeStruct(LONG, jnp.float32), cluster=MOVING, mesh={"x": 8}, options=kept
    )
    assert plan.compute_time_s == pytest.approx(0.5 + 320 / 100)
