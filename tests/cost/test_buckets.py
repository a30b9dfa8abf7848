"""What a gradient's reduction costs as its share of a bucket, and what plans make of it."""

from __future__ import annotations

from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autopar
from autopar.core.graph import OpGraph
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import StepKind
from autopar.cost.alpa import alpa_pricing
from autopar.cost.buckets import (
    BUCKET_BYTES,
    SHARD_BUCKET_BYTES,
    gradient_bytes,
    shared_price,
    waiting,
)
from autopar.cost.pricing import Roofline, restricted
from autopar.trace import trace
from cost_models import load_cluster

CLUSTER = "8x8xh100"
MESH = DeviceMesh.of({"x": 8, "y": 8})
WIDTH = 1024


def spec(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def step(layers: list[dict[str, Any]], x: Any) -> Any:
    """Many layers, most of whose parameters are small."""

    def loss(layers: list[dict[str, Any]]) -> Any:
        h = x
        for p in layers:
            h = h + jnp.tanh(h @ p["w"] + p["b"]) * p["g"]
        return jnp.mean(h**2)

    return jax.tree.map(lambda p, g: p - 0.1 * g, layers, jax.grad(loss)(layers))


def args(count: int) -> tuple[Any, Any]:
    layer = {"w": spec(WIDTH, WIDTH), "b": spec(WIDTH), "g": spec(WIDTH)}
    return [layer] * count, spec(65536, WIDTH)


def graph_of(count: int) -> OpGraph:
    return trace(step, args(count)).graph


def test_gradients_are_counted_once() -> None:
    """Not their transposes, nor what the update makes of them."""
    graph = graph_of(3)
    assert gradient_bytes(graph) == 3 * 4 * (WIDTH**2 + 2 * WIDTH)
    updates = {t.id for op in graph.ops if op.phase == "update" for t in op.outs}
    assert waiting(graph)
    assert updates.isdisjoint(waiting(graph))


def test_a_bucket_is_of_what_a_device_has() -> None:
    """Of gradients that are reduced over some axes, what the others leave it."""
    graph = graph_of(3)
    pricing = Roofline(graph, MESH, load_cluster(CLUSTER))
    price, whole = shared_price(pricing, graph, MESH), gradient_bytes(graph)
    for axes, bucket in ((("x",), whole // 8), (("y",), whole // 8), (("x", "y"), whole)):
        shared = pricing.step_cost("all_reduce", axes, bucket) / bucket
        assert price("all_reduce", axes, 4096) == pytest.approx(4096 * shared, rel=1e-3)
        assert price("all_reduce", axes, bucket) == pricing.step_cost("all_reduce", axes, bucket)


@pytest.mark.parametrize("count", [8, 40])
@pytest.mark.parametrize("kind", ["all_reduce", "reduce_scatter"])
def test_shares_of_a_bucket_add_up_to_it(kind: StepKind, count: int) -> None:
    graph = graph_of(count)
    pricing = Roofline(graph, MESH, load_cluster(CLUSTER))
    price = shared_price(pricing, graph, MESH)
    closed = BUCKET_BYTES if kind == "all_reduce" else SHARD_BUCKET_BYTES
    bucket = min(closed, gradient_bytes(graph) // 8)  # y splits what is reduced over x
    assert 16 * price(kind, ("x",), bucket // 16) == pytest.approx(
        pricing.step_cost(kind, ("x",), bucket), rel=1e-6
    )
    sizes = [0, 1, 4096, bucket // 16, bucket // 2, bucket, bucket + 1, 4 * bucket]
    costs = [price(kind, ("x",), size) for size in sizes]
    assert all(less <= more for less, more in pairwise(costs[1:]))
    assert all(
        c <= pricing.step_cost(kind, ("x",), size) for c, size in zip(costs, sizes, strict=True)
    )
    assert price(kind, ("x",), 4096) < 0.1 * pricing.step_cost(kind, ("x",), 4096)


def test_others_pay_alone() -> None:
    """Steps that nothing waits for, other people's formulas, and what is not allowed."""
    graph = graph_of(3)
    roofline, alpa = (
        Roofline(graph, MESH, load_cluster(CLUSTER)),
        alpa_pricing((1.0, 1.0), (0.1, 0.1))(graph, MESH),
    )
    for kind in ("all_gather", "all_to_all", "permute", "slice"):
        assert shared_price(roofline, graph, MESH)(kind, ("x",), 4096) == roofline.step_cost(
            kind, ("x",), 4096
        )
    assert shared_price(alpa, graph, MESH)("all_reduce", ("x",), 4096) == alpa.step_cost(
        "all_reduce", ("x",), 4096
    )
    only_gathers = restricted(roofline, ("all_gather",))
    assert shared_price(only_gathers, graph, MESH)("all_reduce", ("x",), 4096) == inf


def test_the_program_that_is_dumped_is_the_one_that_runs(tmp_path: Path) -> None:
    """With the routes of what shares a bucket, which are others than those of what is alone."""
    plan = autopar.plan(step, *args(16), cluster=CLUSTER, mesh={"x": 8, "y": 8}, dump=tmp_path)
    assert max(tmp_path.iterdir()).read_text() == f"{plan.program()}\n"


def test_latencies_of_buckets_are_paid_once() -> None:
    """Where each small gradient pays for a latency of its own, the work is done on all servers rather than split."""
    found = autopar.plan(
        step, *args(16), cluster=CLUSTER, options=autopar.SearchOptions(gap_tolerance=0.0)
    )
    batches = autopar.plan(step, *args(16), cluster=CLUSTER, mesh={"x": 64}, mode="data_parallel")
    assert batches.objective_s == pytest.approx(batches.serial_time_s, rel=0.01)
    assert found.gap == 0
    assert found.objective_s <= batches.objective_s
    assert found.serial_time_s <= 1.2 * batches.serial_time_s
