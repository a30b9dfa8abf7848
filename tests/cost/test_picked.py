"""What picking rows costs, however indices and rows are split; and broadcasts that are written."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from autopar.core.dataflow import dataflow
from autopar.core.graph import OpGraph, OpNode
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.core.strategy import Strategy
from autopar.cost.assemble import assemble
from autopar.cost.pricing import Roofline
from autopar.operators import operator
from autopar.operators.primitive import KEEP
from autopar.ops.fusion import materialised, written_out
from autopar.ops.picked import picked_runs
from autopar.redistribute.route import Router
from autopar.search.space import build_space
from autopar.trace import trace
from cost_models import Curve, Efficiency
from tests.cost.test_work import PLAIN

MESH = DeviceMesh.of({"x": 4})
ROWS, WIDTH, COUNT = 4096, 32, 512
RUN = Curve((4.0, 128.0), (1e-6, 3e-6), 1e-8)
FAST = replace(
    PLAIN.device,
    peak_flops_per_s={"float32": 1e15},
    memory_bandwidth_bytes_per_s=1e12,
    launch_s=1e-6,
)
PICKING = replace(
    PLAIN, device=replace(FAST, efficiency=Efficiency(runs={"gather": RUN, "scatter-add": RUN}))
)


def look_up(table: jax.Array, indices: jax.Array) -> jax.Array:
    return table.at[indices].get(mode="promise_in_bounds")


def add_to(table: jax.Array, indices: jax.Array, rows: jax.Array) -> jax.Array:
    return table.at[indices].add(rows, mode="promise_in_bounds")


def largest_at(table: jax.Array, indices: jax.Array, rows: jax.Array) -> jax.Array:
    return table.at[indices].max(rows, mode="promise_in_bounds")


def graph_of(fn: Any) -> OpGraph:
    shapes = ((ROWS, WIDTH), jnp.float32), ((COUNT,), jnp.int32), ((COUNT, WIDTH), jnp.float32)
    args = tuple(
        jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes[: fn.__code__.co_argcount]
    )
    return trace(fn, args).graph


def only(graph: OpGraph, kind: str) -> OpNode:
    (found,) = [op for op in graph.ops if op.kind == kind]
    return found


def split(op: OpNode, dims: dict[int, int]) -> Strategy:
    """Operands and results, by position, split along a dim over the only axis; the others whole."""
    placed = [
        Placement(tuple(("x",) if dims.get(n) == d else () for d in range(tensor.ndim)))
        for n, tensor in enumerate((*op.ins, *op.outs))
    ]
    return Strategy(
        tuple(placed[: len(op.ins)]), tuple(placed[len(op.ins) :]), split=4 if dims else 1
    )


@pytest.mark.parametrize(
    ("dims", "count", "run_bytes"),
    [
        ({}, COUNT, 4 * WIDTH),
        ({1: 0, 2: 0}, COUNT / 4, 4 * WIDTH),  # a part of the indices: fewer rows
        ({0: 1, 2: 1}, COUNT, WIDTH),  # a part of each row: as many that are shorter
        ({0: 0}, COUNT, 4 * WIDTH),  # a part of the table: the index may be anywhere
    ],
)
def test_a_device_picks_what_its_indices_name(
    dims: dict[int, int], count: float, run_bytes: float
) -> None:
    graph = graph_of(look_up)
    op = only(graph, "gather")
    strategy = split(op, dims)
    time_s = Roofline(graph, MESH, PICKING).op_cost(op, strategy)
    assert time_s == pytest.approx(count * RUN.time_s(run_bytes) + FAST.launch_s)
    assert Roofline(graph, MESH, replace(PLAIN, device=FAST)).op_cost(op, strategy) < time_s / 10


@pytest.mark.parametrize(("fn", "kind"), [(add_to, "scatter-add"), (largest_at, "scatter-max")])
def test_a_scatter_picks_the_rows_of_its_updates(fn: Any, kind: str) -> None:
    graph = graph_of(fn)
    op = only(graph, kind)
    assert picked_runs(op, (1.0, 2.0, 8.0, 1.0)) == (COUNT / 2, 4 * WIDTH / 4)
    time_s = Roofline(graph, MESH, PICKING).op_cost(op, split(op, {}))
    assert time_s == pytest.approx(COUNT * RUN.time_s(4 * WIDTH) + FAST.launch_s)


def test_what_others_call_a_scatter_picks_nothing() -> None:
    """A primitive of a library need not have indices, or three operands."""
    op = only(graph_of(look_up), "gather")
    assert picked_runs(replace(op, kind="scatter_rows", ins=op.ins[:1]), (1.0, 1.0)) is None


@pytest.mark.parametrize("fn", [look_up, add_to])
def test_all_strategies_at_once_are_priced_as_each(fn: Any) -> None:
    graph = graph_of(fn)
    price, flow = Roofline(graph, MESH, PICKING), dataflow(graph)
    space = build_space(graph, flow, MESH, keep=price.keep)
    problem = assemble(graph, flow, space, price, Router(MESH, price.step_cost))
    (op,) = [op for op in graph.ops if op.kind in ("gather", "scatter-add")]
    found = [price.op_cost(op, strategy) for strategy in space.strategies[op.id]]
    assert len(set(found)) > 2
    assert problem.node_costs[len(space.inputs) + op.id] == pytest.approx(found)


def test_a_function_in_one_piece_picks_as_its_parts_do() -> None:
    whole = operator("r w, c -> c w", frozen="r")(look_up)
    with KEEP(True):
        graph = graph_of(lambda table, indices: whole(table, indices))
    parts = graph_of(look_up)
    kept, apart = only(graph, "look_up"), Roofline(parts, MESH, PICKING)
    expected = sum(apart.op_cost(op, split(op, {})) for op in parts.ops)
    assert Roofline(graph, MESH, PICKING).op_cost(kept, split(kept, {})) == pytest.approx(expected)


def test_a_broadcast_costs_what_it_writes_where_no_loop_takes_it_in() -> None:
    """A scatter reads an array; a sum makes the elements itself; the caller is given one."""

    def written(table: jax.Array, indices: jax.Array, rows: jax.Array) -> Any:
        row = rows.sum(0)
        return add_to(table, indices, jnp.broadcast_to(row, rows.shape)), jnp.broadcast_to(
            row * 2, (8, WIDTH)
        )

    def taken_in(table: jax.Array, indices: jax.Array, rows: jax.Array) -> Any:
        return jnp.broadcast_to(rows.sum(0), rows.shape) + table[:COUNT], indices

    graph = graph_of(written)
    paid = [graph.ops[n] for n in written_out(graph) if graph.ops[n].outs[0].shape[-1] == WIDTH]
    assert {op.outs[0].shape for op in paid} == {(COUNT, WIDTH), (8, WIDTH)}
    price = Roofline(graph, MESH, PICKING)
    for op in paid:
        moved = op.outs[0].size_bytes + sum(
            t.size_bytes for t in op.ins if t.id in materialised(graph)
        )
        seconds = moved / FAST.memory_bandwidth_bytes_per_s + FAST.launch_s
        assert price.op_cost(op, split(op, {})) == pytest.approx(seconds)
    assert not written_out(graph_of(taken_in))


def test_equal_broadcasts_of_which_one_is_written_are_priced_apart() -> None:
    """The other is kept for two sums in loops of their own, each of which makes the elements itself."""

    def both(table: jax.Array, indices: jax.Array, rows: jax.Array) -> Any:
        a, b = rows[0] * 2, rows[1] * 3
        spread = jnp.broadcast_to(b, rows.shape)
        return (
            add_to(table, indices, jnp.broadcast_to(a, rows.shape)),
            (spread + rows).sum(),
            (spread * rows).sum(0),
        )

    graph = graph_of(both)
    other, one = (
        op
        for op in graph.ops
        if op.kind == "broadcast_in_dim" and op.outs[0].shape == (COUNT, WIDTH)
    )
    assert {one.outs[0].id, other.outs[0].id} <= materialised(graph)
    price = Roofline(graph, MESH, PICKING)
    assert [op.id in written_out(graph) for op in (one, other)] == [True, False]
    assert price.context(one) != price.context(other)
    assert price.op_cost(one, split(one, {})) > price.op_cost(other, split(other, {})) == 0
