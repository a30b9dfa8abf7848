"""Copies in another order of dims: beside products that read across, beside steps along inner dims; nowhere else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autopar.backends.known import backend_of
from autopar.backends.xla_cpu.turns import (
    folded,
    product_turns_s,
    reads_across,
    regroups,
    step_turn_time_s,
    turned_products,
)
from autopar.core.dataflow import dataflow
from autopar.core.graph import OpGraph, OpNode
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.core.program import Move
from autopar.core.strategy import Strategy
from autopar.cost.assemble import assemble
from autopar.cost.cached_pricing import Remembered
from autopar.cost.pricing import Pricing, Roofline, pack_price, restricted, turn_price
from autopar.passes.fuse_collectives import FuseCollectives
from autopar.redistribute.route import Router
from autopar.redistribute.steps import steps_from
from autopar.search.space import build_space
from autopar.trace import trace
from cost_models import Cluster, load_cluster
from cost_models.curves import Curve, Efficiency
from tests.passes.build import Builder
from tests.passes.build import price as step_price

MESH = DeviceMesh.of({"x": 2, "y": 4})
ACCELERATOR = load_cluster("8xh100")
_BARE = load_cluster("cpu8")
_TURNING = Efficiency(work={"transpose": {"float32": Curve((), (), 1e-8)}})
CPU = replace(_BARE, device=replace(_BARE.device, efficiency=_TURNING))
"""Devices that transpose 1e8 elements in a second."""
MEASURED = replace(ACCELERATOR, device=replace(ACCELERATOR.device, efficiency=_TURNING))
"""Accelerators of which the same was measured, whose compiler is another."""
WHOLE, ROWS, COLUMNS = Placement(((), ())), Placement((("y",), ())), Placement(((), ("y",)))


def product(spec: str, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[OpGraph, OpNode]:
    args = tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (a, b))
    graph = trace(lambda x, y: jnp.einsum(spec, x, y), args).graph
    (found,) = [op for op in graph.ops if op.kind == "dot_general"]
    return graph, found


def whole(op: OpNode) -> Strategy:
    return Strategy(
        tuple(Placement.replicated(t.ndim) for t in op.ins),
        tuple(Placement.replicated(t.ndim) for t in op.outs),
    )


@pytest.mark.parametrize(
    ("spec", "a", "b"),
    [
        ("mk,kn->mn", (64, 32), (32, 16)),
        ("mk,nk->mn", (64, 32), (16, 32)),
        ("bmk,bkn->bmn", (4, 64, 32), (4, 32, 16)),
    ],
)
def test_a_left_operand_that_is_read_along_its_rows_is_not_turned(
    spec: str, a: Any, b: Any
) -> None:
    _, op = product(spec, a, b)
    assert not reads_across(op, 0)


def test_a_gradient_of_weights_reads_across_and_costs_more_where_the_profile_knows() -> None:
    """The gradient of x @ w by w contracts the rows of both."""
    x, w = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((512, 256), (256, 128)))
    graph = trace(lambda x, w: jax.grad(lambda w: ((x @ w) ** 2).sum())(w), (x, w)).graph
    forward, backward = (op for op in graph.ops if op.kind == "dot_general")
    across = [op for op in (forward, backward) if reads_across(op, 0)]
    assert len(across) == 1
    for cluster, dearer in ((CPU, True), (ACCELERATOR, False), (MEASURED, False)):
        price = Roofline(graph, MESH, cluster)
        costs = {reads_across(op, 0): price.op_cost(op, whole(op)) for op in (forward, backward)}
        assert (costs[True] > 1.01 * costs[False]) is dearer


def test_packing_counts_instead_of_a_transpose_where_it_was_measured() -> None:
    work = {"transpose": {"float32": Curve((), (), 1e-8)}, "pack": {"float32": Curve((), (), 3e-9)}}
    packing = replace(_BARE.device, efficiency=Efficiency(work=work))
    _, across = product("km,kn->mn", (32, 64), (32, 16))
    elements, flops = (1e6, 1e5, 1e9), 2 * 100 * 1e5
    assert product_turns_s(across, elements, flops, packing) == pytest.approx(3e-3)
    assert product_turns_s(across, elements, flops, CPU.device) == pytest.approx(1e-2)
    assert step_turn_time_s("all_gather", 4_000_000, packing) == step_turn_time_s(
        "all_gather", 4_000_000, CPU.device
    )


def test_rows_that_are_pages_apart_take_longer_to_pack() -> None:
    """Of lhs[k, m] m columns of float32: 1024 and 2048 of them are whole pages, also where a device has a part of m."""
    work = {
        kind: {"float32": Curve((), (), slope)}
        for kind, slope in (("pack", 1e-9), ("pack:pages", 2e-9))
    }
    device = replace(
        _BARE.device,
        efficiency=Efficiency(work={**work, "transpose": {"float32": Curve((), (), 1.0)}}),
    )
    _, across = product("km,kn->mn", (32, 64), (32, 16))
    k, n, columns = 50.0, 10.0, np.array([768.0, 1024.0, 1536.0, 2048.0])
    given = (k * columns, np.full(4, k * n), columns * n)
    found = product_turns_s(across, given, 2 * k * n * columns, device)
    assert found == pytest.approx(k * columns * np.array([1e-9, 2e-9, 1e-9, 2e-9]))
    for m, each in zip(columns, found, strict=True):
        one = product_turns_s(across, (k * m, k * n, m * n), 2 * k * n * m, device)
        assert one == pytest.approx(each)


def test_of_a_product_computed_the_other_way_round_the_right_operand_is_packed() -> None:
    """(lhs . rhs)^T is rhs^T . lhs^T: a gradient of weights packs the activations, not what comes back."""
    x, w = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((512, 256), (256, 8)))
    graph = trace(lambda x, w: jax.grad(lambda w: ((x @ w) ** 2).sum())(w), (x, w)).graph
    (turned,) = turned_products(graph)
    op = graph.ops[turned]
    assert [t.shape for t in op.ins] == [(512, 8), (512, 256)]
    device = replace(
        _BARE.device, efficiency=Efficiency(work={"transpose": {"float32": Curve((), (), 1e-3)}})
    )
    price = Roofline(graph, MESH, replace(_BARE, device=device))
    bare = Roofline(graph, MESH, _BARE).op_cost(op, whole(op))
    assert price.op_cost(op, whole(op)) - bare == pytest.approx(1e-3 * 512 * 256, rel=1e-3)
    flow = dataflow(graph)
    space = build_space(graph, flow, MESH, keep=price.keep)
    problem = assemble(graph, flow, space, Remembered(price, graph), Router(MESH, price.step_cost))
    each = [price.op_cost(op, strategy) for strategy in space.strategies[op.id]]
    assert problem.node_costs[len(space.inputs) + op.id] == pytest.approx(each)
    other = trace(
        lambda x, y: jnp.einsum("km,kn->mn", x, y), (x, jax.ShapeDtypeStruct((512, 8), jnp.float32))
    ).graph
    assert not turned_products(other)


def test_equal_products_of_which_one_is_turned_are_priced_apart() -> None:
    x, y = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((64, 32), (64, 8)))
    graph = trace(
        lambda x, y, z: (jnp.einsum("km,kn->mn", x, y).T, jnp.einsum("km,kn->mn", x, z)), (x, y, y)
    ).graph
    one, other = (op for op in graph.ops if op.kind == "dot_general")
    assert one.signature == other.signature
    price, strategy = Roofline(graph, MESH, CPU), whole(one)
    costs = [
        [p.op_cost(op, strategy) for op in (one, other)] for p in (price, Remembered(price, graph))
    ]
    assert costs[0][0] != costs[0][1]
    assert costs[0] == costs[1]


@pytest.mark.parametrize(
    ("spec", "a", "b", "expected"),
    [
        ("bmk,bkn->bmn", (4, 64, 32), (4, 32, 16), (False, False)),
        ("mk,kn->mn", (64, 32), (32, 16), (False, False)),
        ("bqhd,bkhd->bhqk", (4, 64, 8, 16), (4, 32, 8, 16), (True, True)),
        ("bhqk,bhkd->bhqd", (4, 8, 64, 32), (4, 8, 32, 16), (False, False)),
        ("bmk,kbn->bmn", (4, 64, 32), (32, 4, 16), (False, True)),
    ],
)
def test_operands_are_regrouped_whose_batch_dims_are_not_in_front(
    spec: str, a: Any, b: Any, expected: Any
) -> None:
    """At the price of a transpose by rows where that was measured; none where nothing was, or for other compilers."""
    _, op = product(spec, a, b)
    assert (regroups(op, 0), regroups(op, 1)) == expected
    both = {
        "transpose": {"float32": Curve((), (), 1e-8)},
        "transpose:rows": {"float32": Curve((), (), 4e-9)},
    }
    by_rows = replace(CPU.device, efficiency=Efficiency(work=both))
    count = 1e6 * expected[0] + 1e7 * expected[1]
    for device, each in (
        (by_rows, 4e-9),
        (CPU.device, 1e-8),
        (_BARE.device, 0.0),
        (MEASURED.device, 0.0),
    ):
        found = backend_of(device.compiler).product_turns_s(
            op, (1e6, 1e7, 1.0), 1.0, device, turned=False
        )
        assert found == pytest.approx(each * count)


def test_a_product_s_only_transpose_is_part_of_it_where_nothing_is_reduced_between() -> None:
    """So it is free for XLA's CPU compiler, one strategy at a time as all at once."""
    x, w = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((512, 256), (256, 128)))
    graph = trace(lambda x, w: jax.grad(lambda w: ((x @ w) ** 2).sum())(w), (x, w)).graph
    (op,) = [op for op in graph.ops if op.kind == "transpose"]
    assert folded(graph) == {op.id}
    for cluster, is_free in ((CPU, True), (_BARE, True), (ACCELERATOR, False), (MEASURED, False)):
        price, flow = Roofline(graph, MESH, cluster), dataflow(graph)
        space = build_space(graph, flow, MESH, keep=price.keep)
        problem = assemble(graph, flow, space, price, Router(MESH, price.step_cost))
        strategies = space.strategies[op.id]
        costs = [price.op_cost(op, strategy) for strategy in strategies]
        assert problem.node_costs[len(space.inputs) + op.id].tolist() == pytest.approx(
            costs, rel=1e-12
        )
        assert any(strategy.ins[0].unreduced for strategy in strategies)
        for cost, strategy in zip(costs, strategies, strict=True):
            assert (cost == 0) is (is_free and bool(strategy.ins[0].unreduced))


def test_other_transposes_take_their_time() -> None:
    a, b = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((8, 16), (16, 4)))
    assert not folded(trace(lambda a, b: (lambda y: (y.T, y + 1))(a @ b), (a, b)).graph)
    assert not folded(trace(lambda a, b: a.T * b.sum(), (a, b)).graph)


@pytest.mark.parametrize(
    ("spec", "order", "a", "b", "is_folded"),
    [
        ("mk,kn->mn", (1, 0), (64, 32), (32, 48), True),
        ("bmk,bkn->bmn", (0, 2, 1), (8, 64, 32), (8, 32, 48), True),
        ("cbmk,cbkn->cbmn", (0, 1, 3, 2), (4, 8, 64, 32), (4, 8, 32, 48), True),
        ("bkm,bkn->bmn", (0, 2, 1), (8, 32, 64), (8, 32, 48), True),
        ("bmk,bkn->bmn", (1, 0, 2), (8, 64, 32), (8, 32, 48), False),
        ("bmk,bkn->bmn", (2, 1, 0), (8, 64, 32), (8, 32, 48), False),
        ("xyk,kn->xyn", (0, 2, 1), (6, 8, 32), (32, 48), False),
        ("xyk,kn->xyn", (2, 0, 1), (6, 8, 32), (32, 48), False),
        ("bxyk,bkn->bxyn", (0, 3, 1, 2), (4, 6, 8, 32), (4, 32, 48), False),
    ],
)
def test_a_transpose_that_turns_each_product_of_matrices_is_part_of_it(
    spec: str, order: tuple[int, ...], a: Any, b: Any, is_folded: bool
) -> None:
    """As XLA's CPU compiler has it: of what it compiles nothing is transposed, or something is."""

    def fn(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.transpose(jnp.einsum(spec, a, b), order)

    args = tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (a, b))
    graph = trace(fn, args).graph
    assert {graph.ops[n].kind for n in folded(graph)} == ({"transpose"} if is_folded else set())
    compiled = jax.jit(fn).lower(*args).compile().as_text()
    assert ("transpose(" in compiled) is not is_folded


def asked(pricing: str) -> Pricing:
    graph, _ = product("mk,kn->mn", (8, 8), (8, 8))
    price = Roofline(graph, MESH, CPU)
    return {
        "plain": price,
        "kept": Remembered(price, graph),
        "limited": restricted(price, ("all_gather",)),
    }[pricing]


@pytest.mark.parametrize("pricing", ["plain", "kept", "limited"])
def test_a_gather_of_columns_costs_more_than_one_of_rows(pricing: str) -> None:
    price = asked(pricing)
    router = Router(MESH, price.step_cost, turn_price(price))
    rows, columns = (
        router.cost_matrix((1024, 1024), 4, [p], [WHOLE])[0, 0] for p in (ROWS, COLUMNS)
    )
    turn = turn_price(price)("all_gather", 2**22)
    (step,) = [s for s in steps_from(COLUMNS, (1024, 1024), MESH) if s.kind == "all_gather"]
    if pricing == "limited":  # no other way round
        assert columns == pytest.approx(rows + turn)
    assert rows < columns <= rows + turn
    assert router.step_cost(step, (1024, 1024), 4) == pytest.approx(
        price.step_cost("all_gather", ("y",), 2**22) + turn
    )


@pytest.mark.parametrize("cluster", [ACCELERATOR, MEASURED])
def test_without_a_turn_price_all_dims_cost_the_same(cluster: Cluster) -> None:
    graph, _ = product("mk,kn->mn", (8, 8), (8, 8))
    price = Roofline(graph, MESH, cluster)
    router = Router(MESH, price.step_cost, turn_price(price))
    rows, columns = (
        router.cost_matrix((1024, 1024), 4, [p], [WHOLE])[0, 0] for p in (ROWS, COLUMNS)
    )
    assert rows == columns


def test_a_bucket_costs_what_its_moves_turn_beside_it() -> None:
    def price(kind: str, axes: tuple[str, ...], size_bytes: int) -> float:
        return 1.0 + size_bytes

    build = Builder()
    values = [build.compute([build.input()], Placement(((),), ("x",))) for _ in range(2)]
    moves = [
        Move(
            "all_reduce",
            ("x",),
            (v,),
            (build.value(Placement(((),))),),
            32,
            price("", (), 32) + extra,
            "mirror",
        )
        for v, extra in zip(values, (0.0, 5.0), strict=True)
    ]
    assert FuseCollectives(price).fused(moves).time_s == pytest.approx(price("", (), 64) + 5.0)


@pytest.mark.parametrize("pricing", ["plain", "kept", "limited"])
def test_a_bucket_of_several_is_laid_end_to_end_where_that_was_measured(pricing: str) -> None:
    assert pack_price(asked(pricing))("all_gather", ("x",), (2**20, 2**20)) == 0
    joining = replace(
        _BARE.device, efficiency=Efficiency(work={"concatenate": {"float32": Curve((), (), 1e-9)}})
    )
    graph, _ = product("mk,kn->mn", (8, 8), (8, 8))
    price = Roofline(graph, MESH, replace(_BARE, device=joining))
    given = {
        "plain": price,
        "kept": Remembered(price, graph),
        "limited": restricted(price, ("all_gather",)),
    }[pricing]
    pack, half = pack_price(given), 2**21
    for kind, axes in (("all_gather", ("x",)), ("reduce_scatter", ("x", "y"))):
        assert pack(kind, axes, (half, half)) == pytest.approx(2**20 * 1e-9)
    latency_s = price.step_cost("all_reduce", ("x",), 4)
    assert pack("all_reduce", ("x",), (half, half)) == pytest.approx(latency_s)
    assert pack("all_reduce", ("x",), (half, 4000, half, 4000)) == pytest.approx(
        2 * latency_s + 2000 * 1e-9
    )
    assert pack("all_reduce", ("x",), (4000, 4000)) == pytest.approx(2000 * 1e-9)
    build = Builder()
    values = [build.compute([build.input()], Placement(((),), ("x",))) for _ in range(2)]
    moves = build.program([build.all_reduce(value) for value in values]).collectives
    one, two = (FuseCollectives(step_price, pack=pack).fused(moves[:count]) for count in (1, 2))
    assert one.time_s == moves[0].time_s
    assert two.time_s == pytest.approx(
        step_price("all_reduce", ("x",), two.size_bytes)
        + pack("all_reduce", ("x",), [move.size_bytes for move in moves])
    )
