"""The search goes into loops: a body's costs count for every round, and a scan is planned as if it were unrolled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autopar
from autopar.core.graph import OpGraph
from autopar.core.mesh import DeviceMesh
from autopar.cost.pricing import Roofline
from autopar.errors import InvalidOption
from autopar.report.groups import group_collectives, group_operators
from cost_models import load_cluster

LAYERS, WIDTH, BATCH = 6, 4096, 2048
CLUSTER = "8xh100"


def spec(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def block(h: Any, w: Any) -> Any:
    return h + jnp.tanh(h @ w["up"]) @ w["down"]


def scanned(params: Any, x: Any) -> Any:
    return jnp.sum(
        jax.lax.scan(lambda h, w: (block(h, w), None), x, params)[0].astype(jnp.float32) ** 2
    )


def unrolled(params: Any, x: Any) -> Any:
    for n in range(LAYERS):
        x = block(x, {name: w[n] for name, w in params.items()})
    return jnp.sum(x.astype(jnp.float32) ** 2)


PARAMS = {"up": spec(LAYERS, WIDTH, 4 * WIDTH), "down": spec(LAYERS, 4 * WIDTH, WIDTH)}


def plan(loss: Any, params: Any, mesh: dict[str, int], **options: Any) -> autopar.Plan:
    def step(params: Any, x: Any) -> Any:
        grads, below = jax.grad(loss, argnums=(0, 1))(params, x)
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads), below

    options = {"carry": [(0, 0), (1, 1)]} | options
    return autopar.plan(step, params, spec(BATCH, WIDTH), cluster=CLUSTER, mesh=mesh, **options)


def product_of(made: autopar.Plan) -> set[tuple[Any, ...]]:
    """The factors along which the forward products are split."""
    record = made.bound.traced.graph
    return {
        (op.ins[1].shape, strategy.ins, strategy.outs)
        for op, strategy in zip(record.ops, made.record.stage.strategies, strict=True)
        if op.kind == "dot_general" and op.phase == "forward"
    }


class Apart(Roofline):
    """Every collective at its own price, as in loops, in which nothing waits for anything."""

    @property
    def shares(self) -> bool:
        return False


def apart(graph: OpGraph, mesh: DeviceMesh) -> Apart:
    return Apart(graph, mesh, load_cluster("2x4xh100"))


@pytest.mark.parametrize("mesh", [{"x": 8}, {"x": 2, "y": 4}])
def test_a_scan_over_layers_has_the_plan_of_the_unrolled_model(mesh: dict[str, int]) -> None:
    """Products are placed alike, and one call communicates as many bytes over the same axes.

    The gradient of the data is asked for too: a scan computes it in any case, the unrolled model does not. Where all
    links are equal, other plans on two axes cost the same.
    """
    inside, outside = (plan(loss, PARAMS, mesh, pricing=apart) for loss in (scanned, unrolled))
    assert inside.gap == outside.gap == 0
    assert product_of(inside) == product_of(outside)
    one, other = communicated(inside), communicated(outside)
    assert one.keys() == other.keys()
    for key, size in one.items():
        assert size == pytest.approx(other[key], rel=0.05)


def communicated(made: autopar.Plan) -> dict[tuple[str, tuple[str, ...]], float]:
    program = made.program()
    found: dict[tuple[str, tuple[str, ...]], float] = {}
    for move in program.collectives:
        found[move.kind, move.axes] = (
            found.get((move.kind, move.axes), 0.0) + program.runs(move) * move.size_bytes
        )
    return found


def test_a_loop_costs_what_its_rounds_do() -> None:
    def fn(x: Any, w: Any, rounds: int) -> Any:
        return jax.lax.scan(lambda h, _: (jnp.tanh(h @ w), None), x, None, length=rounds)[0]

    few, many = (
        autopar.plan(
            lambda x, w, n=n: fn(x, w, n), spec(BATCH, WIDTH), spec(WIDTH, WIDTH), cluster=CLUSTER
        )
        for n in (1, 100)
    )
    assert many.compute_time_s == pytest.approx(100 * few.compute_time_s, rel=0.01)


def test_what_a_loop_only_reads_is_redistributed_once() -> None:
    """Weights that arrive split and are used whole are gathered before the loop and not in each of its rounds."""

    def fn(x: Any, w: Any) -> Any:
        return jax.lax.scan(lambda h, _: (jnp.tanh(h @ w), None), x, None, length=50)[0]

    made = autopar.plan(
        fn,
        spec(8 * BATCH, 512),
        spec(512, 512),
        cluster=CLUSTER,
        mesh={"x": 8},
        memory_limit_bytes=10**9,
    )
    program = made.program()
    assert all(program.runs(move) == 1 for move in program.collectives)


def train_scanned(weights: Any, x: Any) -> Any:
    def loss(weights: Any) -> Any:
        return (jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, weights)[0] ** 2).mean()

    return weights - 0.1 * jax.grad(loss)(weights)


@pytest.mark.quick_share(2)
@pytest.mark.parametrize("share", [0.3, 0.15])
def test_a_loop_holds_all_that_it_slices(share: float) -> None:
    """Gathered weights of all layers at once do not fit: they are sliced split, gathered round by round."""
    args = (
        jax.ShapeDtypeStruct((16, 64, 64), jnp.float32),
        jax.ShapeDtypeStruct((64, 64), jnp.float32),
    )
    setting: dict[str, Any] = {"cluster": CLUSTER, "mesh": {"x": 8}, "donate_argnums": 0}
    setting["options"] = autopar.SearchOptions(recompute="never")
    free = autopar.plan(train_scanned, *args, **setting)
    limit = int(share * free.peak_memory_bytes)
    found = autopar.plan(train_scanned, *args, **setting, memory_limit_bytes=limit)
    assert found.peak_memory_bytes <= limit
    assert found.gap < 0.3


def test_the_rounds_of_a_while_loop_can_be_told() -> None:
    def fn(x: Any, w: Any) -> Any:
        return jax.lax.while_loop(lambda h: jnp.max(h) < 1, lambda h: jnp.tanh(h @ w), x)

    options = [autopar.SearchOptions(while_trips=trips) for trips in (1.0, 1000.0)]
    few, many = (
        autopar.plan(
            fn, spec(BATCH, WIDTH), spec(WIDTH, WIDTH), cluster=CLUSTER, options=o
        ).step_time_s
        for o in options
    )
    assert many == pytest.approx(1000 * few, rel=0.05)


def test_the_report_of_a_loop_adds_up() -> None:
    """Rows are of one run; with their runs they are the whole."""
    report = plan(scanned, PARAMS, {"x": 8}).summary
    assert {row.runs for row in report.collectives} >= {float(LAYERS)}
    assert sum(row.runs * row.time_s for row in report.operators) == pytest.approx(
        report.compute_time_s
    )
    assert sum(group.time_s for group in group_operators(report.operators)) == pytest.approx(
        report.compute_time_s
    )
    crossing = sum(group.time_s for group in group_collectives(report.collectives))
    assert 0.9 * report.communication_time_s <= crossing <= report.communication_time_s


@pytest.mark.parametrize("trips", [0, -1.0, float("nan"), float("inf"), "3", None, True])
def test_rounds_that_are_none(trips: Any) -> None:
    with pytest.raises(InvalidOption, match="pass how often while loops go round"):
        autopar.SearchOptions(while_trips=trips)


def test_a_loaded_plan_goes_round_as_often(tmp_path: Path) -> None:
    def fn(x: Any, w: Any) -> Any:
        return jax.lax.while_loop(lambda h: jnp.max(h) < 1, lambda h: jnp.tanh(h @ w), x)

    args = (jnp.ones((8, 8)), jnp.eye(8))
    made = autopar.plan(
        fn, *args, cluster="cpu8", mesh={"x": 8}, options=autopar.SearchOptions(while_trips=77.0)
    )
    made.save(tmp_path / "plan.json")
    again = autopar.Plan.load(tmp_path / "plan.json").compile(fn).plan(*args)
    assert again.bound.planned.account == made.bound.planned.account
