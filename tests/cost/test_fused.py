"""Kernels of several operators: the slower of computing and moving, what is read several times read once.

10 operations a second, half a second a launch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import autopar
from autopar.core.graph import OpGraph, OpNode
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.core.recompute import Recomputed, with_recomputed
from autopar.core.strategy import Strategy
from autopar.cost.cached_pricing import Remembered
from autopar.cost.operators.fused import bounds
from autopar.cost.operators.moved import moved
from autopar.cost.pricing import Roofline
from autopar.operators import operator
from cost_models import Cluster, load_cluster
from cost_models.curves import Curve, Efficiency
from tests.cost.test_work import PLAIN, graph_of

MESH = DeviceMesh.of({"x": 8})
SHAPE = (8, 8)
FLOPS, BYTES = 64, 256  # of one elementwise operator, of one array


def at(bandwidth: float) -> Cluster:
    """Devices that move so many bytes in a second."""
    return replace(PLAIN, device=replace(PLAIN.device, memory_bandwidth_bytes_per_s=bandwidth))


SLOW, EVEN = at(1.0), at(40.0)
"""`gate` moves 16 times as long as it computes, or two fifths; its last operator moves longer than it computes."""


def gate(x: jax.Array) -> jax.Array:
    return jnp.tanh(x * x * x + x) * x


def seconds(graph: OpGraph, cluster: Cluster, parts: int = 1) -> float:
    """What the operators cost whose arrays, all of them, are split along the first dim into `parts`."""
    price = Roofline(graph, MESH, cluster)

    def placed(ndim: int) -> Placement:
        return Placement(
            ((("x",) if parts > 1 and ndim else ()), *[()] * (ndim - 1)) if ndim else ()
        )

    def strategy(op: OpNode) -> Strategy:
        return Strategy(
            tuple(placed(t.ndim) for t in op.ins),
            tuple(placed(t.ndim) for t in op.outs),
            split=parts,
        )

    return sum(price.op_cost(op, strategy(op)) for op in graph.ops)


@pytest.mark.parametrize("parts", [1, 8])
@pytest.mark.parametrize(("cluster", "slower_s"), [(EVEN, 5 * FLOPS / 10), (SLOW, 2 * BYTES / 1)])
def test_a_chain_is_one_kernel(cluster: Cluster, slower_s: float, parts: int) -> None:
    """Five operators read `x` four times: it is read once, the result written, and the slower of both is paid."""
    graph = graph_of(gate, SHAPE)
    assert len(graph.ops) == 5
    assert seconds(graph, cluster, parts=parts) == pytest.approx(slower_s / parts + 0.5)


def test_each_kernel_reads_for_itself() -> None:
    """Both branches end in the caller's hands, so there are two kernels: each reads `x` and `y` and writes a result."""
    graph = graph_of(lambda x, y: (jnp.tanh(x * y) + x, jnp.exp(x - y) * y), SHAPE, SHAPE)
    assert seconds(graph, SLOW) == pytest.approx(2 * (3 * BYTES / 1 + 0.5))


def test_what_is_read_for_itself_twice_is_read_once() -> None:
    graph = graph_of(lambda x: x * x, SHAPE)
    assert moved(graph) == ((0.5, 0.5, 1.0),)
    assert seconds(graph, SLOW) == pytest.approx(2 * BYTES / 1 + 0.5)


def test_parts_of_one_array_are_each_read() -> None:
    """Two slices are half of it, and all of it is read beside a third reader: never more than once."""
    halves = graph_of(lambda x: lax.slice(x, (0, 0), (4, 8)) * lax.slice(x, (4, 0), (8, 8)), SHAPE)
    assert seconds(halves, SLOW) == pytest.approx((BYTES + BYTES / 2) / 1 + 0.5)
    again = graph_of(
        lambda x: lax.slice(x * 2.0, (0, 0), (4, 8)) * lax.slice(x, (4, 0), (8, 8)), SHAPE
    )
    assert seconds(again, SLOW) == pytest.approx((BYTES + BYTES / 2) / 1 + 0.5)


def test_operators_that_are_not_fused_pay_for_themselves() -> None:
    """A sort reads what it reads, once for every byte of a number, and ends the kernel before it."""
    graph = graph_of(lambda x: jnp.sort(x * x) + x, SHAPE)
    shares = {op.kind: share for op, share in zip(graph.ops, moved(graph), strict=True)}
    assert shares == {"mul": (0.5, 0.5, 1.0), "sort": (4.0, 4.0), "add": (1.0, 1.0, 1.0)}
    assert not bounds(graph, PLAIN.device, 8)  # no kernel has several operators


def test_which_bound_is_decided_on_what_each_device_does() -> None:
    """At 8 bytes a second moving takes twice as long as computing, however many devices share the work."""
    graph = graph_of(gate, SHAPE)
    everything = {op.id for op in graph.ops}
    for devices in (1, 8):
        assert bounds(graph, at(8.0).device, devices) == dict.fromkeys(everything, 0.0)
        assert bounds(graph, at(32.0).device, devices) == dict.fromkeys(everything, 1.0)
    # an eighth of 512 bytes is in a cache, which takes no time
    cached = Curve((64.0, 512.0), (1e-3, 64.0), 1.0)
    bent = replace(PLAIN.device, efficiency=Efficiency(memory=cached))
    assert {*bounds(graph, bent, 1).values()} == {0.0}
    assert {*bounds(graph, bent, 8).values()} == {1.0}


def test_equal_operators_of_kernels_that_different_things_bound_are_priced_apart() -> None:
    """`x * 2` within four operators that compute 25.6 s and move 17.1, and within two of 12.8 and 17.1."""
    graph = graph_of(lambda x, y: (jnp.tanh(jnp.exp(jnp.tanh(x * 2))), y * 2 + 1), SHAPE, SHAPE)
    one, other = (op for op in graph.ops if op.kind == "mul")
    assert (one.signature, moved(graph)[one.id]) == (other.signature, moved(graph)[other.id])
    whole, price = Placement.replicated(2), Roofline(graph, MESH, at(30.0))
    strategy = Strategy((whole, Placement(())), (whole,))
    for each in (price, Remembered(price, graph)):
        assert each.op_cost(one, strategy) == pytest.approx(FLOPS / 10)
        assert each.op_cost(other, strategy) == pytest.approx(BYTES / 30)


def test_what_is_recomputed_counts_as_if_it_were_not() -> None:
    """The last kernel reads `z` three times, made again or not."""

    def fn(x: jax.Array, y: jax.Array) -> jax.Array:
        z = jnp.exp(x * y)
        return (z * z - z) * jnp.sort(z)

    graph = graph_of(fn, SHAPE, SHAPE)
    kinds = [op.kind for op in graph.ops]
    again = with_recomputed(
        graph, [Recomputed(kinds.index(k), kinds.index("sub")) for k in ("mul", "exp")]
    ).graph
    first = [op for op in again.ops if op.recomputes is None]
    twins = [op for op in again.ops if op.recomputes is not None]
    assert len(first) == len(graph.ops)
    assert len(twins) == 2
    known, shares = bounds(again, PLAIN.device, 8), moved(again)
    assert [shares[op.id] for op in first] == [*moved(graph)]
    assert [known.get(op.id) for op in first] == [
        bounds(graph, PLAIN.device, 8).get(op.id) for op in graph.ops
    ]
    for op in twins:
        assert (shares[op.id], known.get(op.id)) == (
            shares[op.recomputes or 0],
            known.get(op.recomputes or 0),
        )
    assert known[twins[0].id] == 1.0


@pytest.mark.parametrize(("cluster", "slower_s"), [(EVEN, 5 * FLOPS / 10), (SLOW, 2 * BYTES / 1)])
def test_in_a_function_treated_as_one_operator_too(cluster: Cluster, slower_s: float) -> None:
    whole: Any = operator("r c -> r c", frozen=("r", "c"))(gate)
    kept = autopar.SearchOptions(operators="kept")
    plan = autopar.plan(
        whole, jax.ShapeDtypeStruct(SHAPE, "float32"), cluster=cluster, mesh={"x": 8}, options=kept
    )
    assert plan.compute_time_s == pytest.approx(slower_s + 0.5)


@pytest.mark.parametrize("readers", [9, 11])
def test_what_many_kernels_make_for_themselves_moves_nothing_where_computing_bounds_all(
    readers: int,
) -> None:
    """Ninths that add up to 1 + 2e-16 are more than all: what is moved was less than nothing."""
    slow = load_cluster("8xh100-xla").device
    quick = replace(slow, memory_bandwidth_bytes_per_s=1e30)

    def fn(x: jax.Array) -> list[jax.Array]:
        shared = x + 1.0
        return [jnp.tanh(shared * n) for n in range(2, readers + 2)]

    graph = graph_of(fn, SHAPE)
    found = bounds(graph, quick, 8)
    assert max(found.values()) == 1.0
