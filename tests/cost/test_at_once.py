"""Prices of all strategies at once, and remembered ones, against those of each strategy on its own."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from autopar.core.dataflow import dataflow
from autopar.core.graph import OpGraph, OpNode
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.core.strategy import Strategy
from autopar.cost.assemble import assemble
from autopar.cost.cached_pricing import Remembered
from autopar.cost.pricing import Batched, Pricing, Roofline, cost_of, restricted
from autopar.redistribute.route import Router
from autopar.search.space import build_space
from autopar.trace import trace
from cost_models import load_cluster

MESH = DeviceMesh.of({"x": 2, "y": 4})
CLUSTER = load_cluster("cpu8")


def convolve(x: Any, kernel: Any) -> Any:
    """Halos are exchanged inside; a step of training, so that something is linear."""

    def loss(kernel: Any) -> Any:
        y = lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return (jnp.tanh(y).reshape(8, -1) ** 2).sum()

    return jax.grad(loss)(kernel) * 2


def graph_of(fn: Any, *shapes: tuple[int, ...]) -> OpGraph:
    return trace(fn, tuple(np.zeros(shape, np.float32) for shape in shapes)).graph


GRAPHS = {"convolution": lambda: graph_of(convolve, (8, 16, 16, 8), (3, 3, 8, 16))}
PRICINGS = {
    "roofline": lambda graph: Roofline(graph, MESH, CLUSTER),
    "lanes": lambda graph: Roofline(graph, MESH, load_cluster("tpu-v5e-2x4")),
    "restricted": lambda graph: restricted(
        Roofline(graph, MESH, CLUSTER), ("all_gather", "all_reduce", "slice")
    ),
    "remembered": lambda graph: Remembered(Roofline(graph, MESH, CLUSTER), graph),
}


def test_parts_of_a_last_dim_are_filled_up_to_whole_lanes_on_tpus() -> None:
    """Of 128 columns 16 are moved as 128, of 1024 a part of 128 as it is; rows are none the dearer."""
    cluster = load_cluster("tpu-v5e-2x4")

    def moving_s(shape: tuple[int, int], dim: int) -> float:
        graph = graph_of(lambda x: -x, shape)
        placed = Placement(tuple(("x", "y") if n == dim else () for n in range(2)))
        cost = Roofline(graph, MESH, cluster).op_cost(
            graph.ops[0], Strategy((placed,), (placed,), split=8)
        )
        return cost - cluster.device.launch_s

    assert moving_s((4096, 128), 1) == pytest.approx(8 * moving_s((4096, 128), 0))
    assert moving_s((4096, 1024), 1) == pytest.approx(moving_s((4096, 1024), 0))
    assert moving_s((4096, 1376), 1) == pytest.approx(moving_s((4096, 1376), 0) * 8 * 256 / 1408)


def test_equal_operators_are_priced_once() -> None:
    graph = graph_of(
        lambda x: jnp.tanh(jnp.sin(jnp.tanh(jnp.sin(x) * 2) * 3).sum(0, keepdims=True) + x), (8, 8)
    )
    asked: list[tuple[OpNode, Strategy]] = []

    class Counting(Roofline):
        def op_cost(self, op: OpNode, strategy: Strategy) -> float:
            asked.append((op, strategy))
            return super().op_cost(op, strategy)

    plain, price = Roofline(graph, MESH, CLUSTER), Remembered(Counting(graph, MESH, CLUSTER), graph)
    space = build_space(graph, dataflow(graph), MESH, keep=price.keep)
    pairs = [
        (op, s)
        for op, strategies in zip(graph.ops, space.strategies, strict=True)
        for s in strategies
    ]
    for _ in range(2):
        assert [price.op_cost(op, s) for op, s in pairs] == [
            plain.op_cost(op, s) for op, s in pairs
        ]
    keys = {(op.signature, plain.context(op), id(s)) for op, s in pairs}
    assert len(asked) == len(keys) < len(pairs)


@pytest.mark.parametrize("pricing", PRICINGS)
@pytest.mark.parametrize("graph", GRAPHS)
def test_all_at_once_is_each_on_its_own(graph: str, pricing: str) -> None:
    made = GRAPHS[graph]()
    price: Pricing = PRICINGS[pricing](made)
    assert isinstance(price, Batched)
    flow = dataflow(made)
    space = build_space(made, flow, MESH, keep=price.keep)
    problem = assemble(made, flow, space, price, Router(MESH, price.step_cost))
    exchanging = False
    for op, strategies in zip(made.ops, space.strategies, strict=True):
        expected = [cost_of(price, op, strategy) for strategy in strategies]
        assert problem.node_costs[len(space.inputs) + op.id].tolist() == expected
        exchanging |= any(strategy.exchanges for strategy in strategies)
    assert exchanging == (pricing != "restricted")
