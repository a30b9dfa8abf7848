"""What XLA for CPUs copies of what loops go through and stack: it has a price there, and none elsewhere."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from autopar.backends.known import UNKNOWN, XLA_CPU
from autopar.core.graph import OpGraph
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.core.strategy import Strategy
from autopar.cost.pricing import Roofline
from autopar.trace import trace
from cost_models import load_cluster

LAYERS, ROWS, WIDTH = 4, 8, 16
WEIGHTS = jax.ShapeDtypeStruct((LAYERS, WIDTH, WIDTH), jnp.float32)
X = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)


def copies(graph: OpGraph) -> list[tuple[str, tuple[int, ...]]]:
    """The boundary operators that copy, and the shapes of what they pass on in one round."""
    assert UNKNOWN.copied(graph) == frozenset()
    ops = [graph.ops[n] for n in sorted(XLA_CPU.copied(graph))]
    return [(op.kind, (op.outs if op.kind == "scan_slice" else op.ins)[0].shape) for op in ops]


def products(w: Any, x: Any, **options: Any) -> Any:
    return lax.scan(lambda x, w: (jnp.tanh(x @ w), x), x, w, **options)


def sums(w: Any, x: Any) -> Any:
    return lax.scan(lambda x, w: (x, x + w), x, w)[1]


def test_a_product_is_given_a_copy_and_what_is_read_twice_is_stacked_by_one() -> None:
    graph = trace(products, (WEIGHTS, X)).graph
    assert copies(graph) == [("scan_slice", (WIDTH, WIDTH)), ("scan_stack", (ROWS, WIDTH))]


def test_kernels_take_slices_and_write_to_stacks_themselves() -> None:
    rows = jax.ShapeDtypeStruct((LAYERS, ROWS, WIDTH), jnp.float32)
    assert copies(trace(sums, (rows, X)).graph) == []


@pytest.mark.parametrize(
    ("unroll", "expected"),
    [(1, ["scan_slice", "scan_stack", "scan_stack"]), (LAYERS, ["scan_stack"])],
)
def test_a_loop_in_a_loop_that_is_unrolled_stacks_once(unroll: int, expected: list[str]) -> None:
    def ticks(w: Any, x: Any) -> Any:
        return lax.scan(lambda x, _: products(w, x, unroll=unroll), x, None, length=3)

    found = copies(trace(ticks, (WEIGHTS, X)).graph)
    assert sorted(kind for kind, _ in found) == expected


def test_a_copy_reads_and_writes_all_rounds_and_a_stack_its_zeros() -> None:
    graph = trace(products, (WEIGHTS, X)).graph
    cluster = load_cluster("cpu8")
    pricing = Roofline(graph, DeviceMesh.of({"x": 8}), cluster)
    assert cluster.device.compiler == "xla_cpu"
    sizes = {"scan_slice": 2 * WEIGHTS.size * 4, "scan_stack": 3 * LAYERS * X.size * 4}
    bandwidth = cluster.device.memory_bandwidth_bytes_per_s
    for n in XLA_CPU.copied(graph):
        op = graph.ops[n]
        whole = [Placement.replicated(t.ndim) for t in (op.ins[0], op.outs[0])]
        cost = pricing.op_cost(op, Strategy((whole[0],), (whole[1],)))
        assert cost >= sizes[op.kind] / bandwidth
        moved = pricing.local_work(op, Strategy((whole[0],), (whole[1],)))
        assert moved.size_bytes == sizes[op.kind]
