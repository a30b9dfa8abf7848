"""Work by hand, which tensors reach memory, and the roofline of one operator."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autopar
from autopar.core.graph import OpGraph, OpNode
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.core.strategy import Strategy
from autopar.cost.pricing import Roofline, restricted
from autopar.ops.fusion import materialised, recomputed
from autopar.ops.traits import is_fusible, work_flops
from autopar.trace import trace
from cost_models import collective_time_s, group, load_cluster

MESH = DeviceMesh.of({"x": 2, "y": 4})
CPU = load_cluster("cpu8")
# Times that can be read off: 10 flops/s, 100 bytes/s, half a second a launch.
PLAIN = replace(
    CPU,
    device=replace(
        CPU.device,
        peak_flops_per_s={"float32": 10.0},
        memory_bandwidth_bytes_per_s=100.0,
        launch_s=0.5,
        efficiency=None,
    ),
)


def graph_of(fn: Any, *shapes: tuple[int, ...]) -> OpGraph:
    return trace(fn, tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)).graph


def only(graph: OpGraph, kind: str) -> OpNode:
    (found,) = [op for op in graph.ops if op.kind == kind]
    return found


@pytest.mark.parametrize(
    ("spec", "a", "b", "flops"),
    [
        ("mk,kn->mn", (3, 5), (5, 7), 2 * 3 * 5 * 7),
        ("bmk,bkn->bmn", (2, 3, 5), (2, 5, 7), 2 * 2 * 3 * 5 * 7),
        ("k,k->", (5,), (5,), 2 * 5),
        ("mkl,kln->mn", (3, 5, 2), (5, 2, 7), 2 * 3 * 5 * 2 * 7),
        ("m,n->mn", (3,), (7,), None),
    ],
)
def test_products(spec: str, a: tuple[int, ...], b: tuple[int, ...], flops: int | None) -> None:
    graph = graph_of(lambda x, y: jnp.einsum(spec, x, y), a, b)
    products = [op for op in graph.ops if op.kind == "dot_general"]
    assert sum(map(work_flops, products)) == (
        2 * 3 * 7 if flops is None and products else flops or 0
    )


@pytest.mark.parametrize(("groups", "layout"), [(1, "NCHW"), (2, "NCHW"), (1, "NHWC")])
def test_convolutions(groups: int, layout: str) -> None:
    """Batch 2, 4 channels in, 6 out, 3 x 3 window on 8 x 8: every output element is a sum over the window."""
    numbers = (layout, "OIHW" if layout == "NCHW" else "HWIO", layout)
    image = (2, 4, 8, 8) if layout == "NCHW" else (2, 8, 8, 4)
    kernel = (6, 4 // groups, 3, 3) if layout == "NCHW" else (3, 3, 4, 6)

    def fn(x: Any, w: Any) -> Any:
        return jax.lax.conv_general_dilated(
            x, w, (1, 1), "VALID", dimension_numbers=numbers, feature_group_count=groups
        )

    convolution = only(graph_of(fn, image, kernel), "conv_general_dilated")
    assert work_flops(convolution) == 2 * (2 * 6 * 6 * 6) * (3 * 3 * 4 // groups)


def test_everything_else_is_one_for_each_element_and_views_are_free() -> None:
    assert work_flops(only(graph_of(jnp.tanh, (3, 4)), "tanh")) == 12
    assert work_flops(only(graph_of(lambda a: a.sum(0), (3, 4)), "reduce_sum")) == 12
    assert work_flops(only(graph_of(lambda a: a.reshape(12), (3, 4)), "reshape")) == 0
    assert (
        work_flops(only(graph_of(lambda a: jnp.broadcast_to(a, (5, 4)), (4,)), "broadcast_in_dim"))
        == 0
    )


def test_what_reaches_memory() -> None:
    """What one loop or reduction reads stays inside; products, results, and what two read are written."""

    def fn(w: Any, x: Any) -> Any:
        hidden = x @ w
        fused = jnp.tanh(hidden) * 2
        shared = jnp.exp(fused)
        return (shared + 1).sum(), shared - 1

    graph = graph_of(fn, (8, 8), (8, 8))
    written = {op.kind: op.outs[0].id in materialised(graph) for op in graph.ops}
    assert written == {
        "dot_general": True,
        "tanh": False,
        "mul": False,
        "exp": True,
        "add": False,
        "reduce_sum": True,
        "sub": True,
    }
    assert {t.id for t in graph.inputs} <= materialised(graph)
    assert not is_fusible(only(graph, "reduce_sum"))


def test_what_one_fused_loop_reads_several_times_stays_in_registers() -> None:
    """But not what another reads too, nor what is read in a loop inside."""

    def fn(x: Any, w: Any) -> Any:
        h = x @ w
        t, u, v = jnp.tanh(h), jnp.sin(h), jnp.exp(h)
        rounds = jax.lax.fori_loop(0, 2, lambda _, c: c * v + v, h)
        return (t * t + t) @ w, jnp.cos(u) * u, u + 1, rounds

    graph, kinds = graph_of(fn, (8, 8), (8, 8)), ("tanh", "sin", "cos", "exp")
    written = {
        op.kind: op.outs[0].id in materialised(graph) for op in graph.ops if op.kind in kinds
    }
    assert written == {"tanh": False, "sin": True, "cos": False, "exp": True}


def test_of_what_is_kept_and_that_in_another_shape_one_is_enough() -> None:
    """A product is kept, a sum may be computed anew, whoever reads it: so may that in another shape."""

    def centred(h: Any) -> Any:
        h = h.reshape(4, 2, 8)
        return h - h.mean(0)

    def fn(x: Any, w: Any) -> Any:
        shared = x - w
        return centred(x @ w), centred(jnp.abs(x + w)), centred(shared), shared.sum()

    graph = graph_of(fn, (8, 8), (8, 8))
    found = [op.outs[0].id in recomputed(graph) for op in graph.ops if op.kind == "reshape"]
    assert found == [False, True, True]


@pytest.mark.quick_share(4)
@pytest.mark.parametrize("kept", [1, 8])
def test_a_rematerialised_block_keeps_what_it_is_given_alone(kept: int) -> None:
    """As XLA's GPU compiler does (jax 0.10.2, H100): an activation for each of them, 8 for each block that is kept.

    The sum that a block gives is read by the next one and by its own backward pass: what it is the sum of is not kept.
    """
    width, batch = 64, 512

    def normed(scale: Any, x: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale

    def block(weights: Any, x: Any) -> Any:
        for scale, up, down, bias in weights:
            x = x + (jax.nn.gelu(normed(scale, x) @ up) @ down + bias)
        return x

    def loss(weights: Any, x: Any) -> Any:
        for pair in weights:
            x = (jax.checkpoint(block) if kept == 1 else block)(pair, x)
        return (x * x).sum()

    def peak(blocks: int) -> int:
        vector, matrix = (jax.ShapeDtypeStruct(s, jnp.float32) for s in ((width,), (width, width)))
        weights = [[(vector, matrix, matrix, vector)] * 2] * blocks
        given = jax.ShapeDtypeStruct((batch, width), jnp.float32)
        plan = autopar.plan(
            jax.grad(loss), weights, given, cluster="8xh100", mesh={"x": 8}, mode="data_parallel"
        )
        return plan.peak_memory_bytes

    passed = 2 * 4 * 2 * (2 * width**2 + 2 * width)  # weights of a block, and their gradients
    activation = 4 * batch * width // 8
    activations = (peak(6) - peak(3) - 3 * passed) / 3 / activation
    assert activations == pytest.approx(1, rel=0.02) if kept == 1 else activations >= kept


def test_the_roofline_by_hand() -> None:
    """8 x 8 x 8: 1024 flops on 8 devices; its bytes are those of the shards."""
    graph = graph_of(lambda a, b: a @ b, (8, 8), (8, 8))
    (product,) = graph.ops
    price = Roofline(graph, MESH, PLAIN)
    rows, whole = Placement((("x", "y"), ())), Placement.replicated(2)
    split = Strategy((rows, whole), (rows,), split=8)
    assert price.op_cost(product, split) == pytest.approx(
        max(1024 / 8 / 10, (32 + 256 + 32) / 100) + 0.5
    )
    replicated = Strategy((whole, whole), (whole,), split=1)
    assert price.op_cost(product, replicated) == pytest.approx(max(1024 / 10, 3 * 256 / 100) + 0.5)
    slow_memory = replace(PLAIN, device=replace(PLAIN.device, memory_bandwidth_bytes_per_s=1.0))
    assert Roofline(graph, MESH, slow_memory).op_cost(product, split) == pytest.approx(320 + 0.5)


def test_what_stays_in_registers_counts_no_bytes_and_no_launch() -> None:
    graph = graph_of(lambda a: jnp.tanh(a * 2), (8, 8))
    scale, tanh = graph.ops
    price = Roofline(graph, MESH, PLAIN)
    whole = Placement.replicated(2)
    assert price.op_cost(scale, Strategy((whole, Placement(())), (whole,))) == pytest.approx(
        max(64 / 10, 256 / 100)
    )
    assert price.op_cost(tanh, Strategy((whole,), (whole,))) == pytest.approx(
        max(64 / 10, 256 / 100) + 0.5
    )
    view = graph_of(lambda a: a.reshape(64), (8, 8))
    assert (
        Roofline(view, MESH, PLAIN).op_cost(view.ops[0], Strategy((whole,), (Placement(((),)),)))
        == 0.0
    )


def test_steps_are_priced_by_the_topology() -> None:
    price = Roofline(graph_of(jnp.tanh, (8, 8)), MESH, PLAIN)
    # half of it is read, and written
    assert price.step_cost("slice", ("x",), 200) == 2 * 100 / 100 + 0.5
    assert price.step_cost("mask", ("x",), 200) == 2 * 200 / 100 + 0.5
    members = group(PLAIN.topology, MESH.sizes, (1,))
    assert price.step_cost("all_reduce", ("y",), 4096) == collective_time_s(
        "all_reduce", 4096, members
    )
    assert price.step_cost("all_reduce", ("x", "y"), 4096) > price.step_cost(
        "all_reduce", ("x",), 4096
    )
    limited = restricted(price, ("all_reduce",))
    assert limited.step_cost("all_gather", ("x",), 4) == inf
    assert limited.step_cost("all_reduce", ("y",), 4096) == price.step_cost(
        "all_reduce", ("y",), 4096
    )
    assert restricted(price, ()) is price
