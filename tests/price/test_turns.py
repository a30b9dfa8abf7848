"""Copies in another order of dims: beside products that read across, beside steps along inner dims; nowhere else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from autopar.core.graph import OpGraph, OpNode
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.core.strategy import Strategy
from autopar.passes.fuse_collectives import FuseCollectives
from autopar.passes.program import Move
from autopar.price.pricing import Pricing, Roofline, restricted, turn_price
from autopar.price.remembered import Remembered
from autopar.price.turns import left_turn_time_s, step_turn_time_s, turns_left
from autopar.redistribute.route import Router
from autopar.redistribute.steps import steps_from
from autopar.trace import trace
from cost_models import Cluster, load_cluster
from cost_models.curves import Curve, Efficiency
from tests.passes.build import Builder

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
        tuple(Placement.replicated(t.ndim) for t in op.ins), tuple(Placement.replicated(t.ndim) for t in op.outs)
    )


@pytest.mark.parametrize(
    ("spec", "a", "b"),
    [
        ("mk,kn->mn", (64, 32), (32, 16)),
        ("mk,nk->mn", (64, 32), (16, 32)),
        ("bmk,bkn->bmn", (4, 64, 32), (4, 32, 16)),
    ],
)
def test_a_left_operand_that_is_read_along_its_rows_is_not_turned(spec: str, a: Any, b: Any) -> None:
    _, op = product(spec, a, b)
    assert not turns_left(op)


def test_a_gradient_of_weights_reads_across_and_costs_more_where_the_profile_knows() -> None:
    """The gradient of x @ w by w contracts the rows of both."""
    x, w = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((512, 256), (256, 128)))
    graph = trace(lambda x, w: jax.grad(lambda w: ((x @ w) ** 2).sum())(w), (x, w)).graph
    forward, backward = (op for op in graph.ops if op.kind == "dot_general")
    across = [op for op in (forward, backward) if turns_left(op)]
    assert len(across) == 1
    for cluster, dearer in ((CPU, True), (ACCELERATOR, False), (MEASURED, False)):
        price = Roofline(graph, MESH, cluster)
        costs = {turns_left(op): price.op_cost(op, whole(op)) for op in (forward, backward)}
        assert (costs[True] > 1.01 * costs[False]) is dearer


def test_packing_counts_instead_of_a_transpose_where_it_was_measured() -> None:
    work = {"transpose": {"float32": Curve((), (), 1e-8)}, "pack": {"float32": Curve((), (), 3e-9)}}
    packing = replace(_BARE.device, efficiency=Efficiency(work=work))
    assert left_turn_time_s(1e6, "float32", packing) == pytest.approx(3e-3)
    assert left_turn_time_s(1e6, "float32", CPU.device) == pytest.approx(1e-2)
    assert step_turn_time_s("all_gather", 4_000_000, packing) == step_turn_time_s("all_gather", 4_000_000, CPU.device)


def asked(pricing: str) -> Pricing:
    graph, _ = product("mk,kn->mn", (8, 8), (8, 8))
    price = Roofline(graph, MESH, CPU)
    return {"plain": price, "kept": Remembered(price, graph), "limited": restricted(price, ("all_gather",))}[pricing]


@pytest.mark.parametrize("pricing", ["plain", "kept", "limited"])
def test_a_gather_of_columns_costs_more_than_one_of_rows(pricing: str) -> None:
    price = asked(pricing)
    router = Router(MESH, price.step_cost, turn_price(price))
    rows, columns = (router.cost_matrix((1024, 1024), 4, [p], [WHOLE])[0, 0] for p in (ROWS, COLUMNS))
    turn = turn_price(price)("all_gather", 2**22)
    (step,) = [s for s in steps_from(COLUMNS, (1024, 1024), MESH) if s.kind == "all_gather"]
    if pricing == "limited":  # no other way round
        assert columns == pytest.approx(rows + turn)
    assert rows < columns <= rows + turn
    assert router.step_cost(step, (1024, 1024), 4) == pytest.approx(price.step_cost("all_gather", ("y",), 2**22) + turn)


@pytest.mark.parametrize("cluster", [ACCELERATOR, MEASURED])
def test_without_a_turn_price_all_dims_cost_the_same(cluster: Cluster) -> None:
    graph, _ = product("mk,kn->mn", (8, 8), (8, 8))
    price = Roofline(graph, MESH, cluster)
    router = Router(MESH, price.step_cost, turn_price(price))
    rows, columns = (router.cost_matrix((1024, 1024), 4, [p], [WHOLE])[0, 0] for p in (ROWS, COLUMNS))
    assert rows == columns


def test_a_bucket_costs_what_its_moves_turn_beside_it() -> None:
    def price(kind: str, axes: tuple[str, ...], size_bytes: int) -> float:
        return 1.0 + size_bytes

    build = Builder()
    values = [build.compute([build.input()], Placement(((),), ("x",))) for _ in range(2)]
    moves = [
        Move("all_reduce", ("x",), (v,), (build.value(Placement(((),))),), 32, price("", (), 32) + extra, "mirror")
        for v, extra in zip(values, (0.0, 5.0), strict=True)
    ]
    assert FuseCollectives(price).fused(moves).time_s == pytest.approx(price("", (), 64) + 5.0)
