"""Plan.resolve: after a pin, another limit or other links the plan that is made afresh, on one axis and on two."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import autopar
from autopar.search.task import SearchOptions
from autopar.solve import SolveOptions
from cost_models import Cluster

ONE, TWO = {"x": 8}, {"x": 2, "y": 4}
LAYERS, WIDTH = 2, 256
QUICK = SolveOptions(max_sweeps=100, max_rounds=1, anneal_passes=20, cp_sat_work=0.2)
BY_TABLES = SearchOptions(recompute="never", max_tightenings=2, solve=QUICK)
BY_MESSAGES = replace(BY_TABLES, solve=replace(QUICK, max_table_entries=1000))


def step(state: dict[str, Any], x: Any, y: Any) -> Any:
    """SGD with momentum on residual layers."""

    def loss(params: list[Any]) -> Any:
        h = x
        for up, down in params:
            h = h + jnp.tanh(h @ up) @ down
        return ((h - y) ** 2).mean()

    value, gradient = jax.value_and_grad(loss)(state["params"])
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state["momentum"], gradient)
    params = jax.tree.map(lambda p, m: p - 0.1 * m, state["params"], momentum)
    return {"params": params, "momentum": momentum}, value


def arguments() -> tuple[Any, ...]:
    def shape(*dims: int) -> Any:
        return jax.ShapeDtypeStruct(dims, jnp.float32)

    layers = [(shape(WIDTH, 4 * WIDTH), shape(4 * WIDTH, WIDTH)) for _ in range(LAYERS)]
    return {"params": layers, "momentum": layers}, shape(512, WIDTH), shape(512, WIDTH)


def slower() -> Cluster:
    """8xh100 with links a third as fast."""
    cluster = autopar.load_cluster("8xh100")
    levels = cluster.topology.levels
    links = [
        replace(one.link, bandwidth_bytes_per_s=one.link.bandwidth_bytes_per_s / 3)
        for one in levels
    ]
    changed = tuple(replace(one, link=link) for one, link in zip(levels, links, strict=True))
    return replace(cluster, topology=replace(cluster.topology, levels=changed))


@lru_cache
def planned(axes: tuple[str, ...], by_messages: bool, **change: Any) -> autopar.Plan:
    options = BY_MESSAGES if by_messages else BY_TABLES
    change = {"cluster": "8xh100", "options": options, **change}
    return autopar.plan(step, *arguments(), mesh=ONE if len(axes) == 1 else TWO, **change)


def assert_same(found: autopar.Plan, wanted: autopar.Plan) -> None:
    """The same optimum where both are proven; else neither contradicts the other's bound."""
    if not (found.gap or wanted.gap):
        assert found.objective_s == pytest.approx(wanted.objective_s, rel=1e-9)
    assert found.objective_s >= wanted.lower_bound_s * (1 - 1e-9)
    assert wanted.objective_s >= found.lower_bound_s * (1 - 1e-9)
    assert found.summary.space == wanted.summary.space
    limits = found.summary.memory_limit_bytes, wanted.summary.memory_limit_bytes
    assert limits[0] == limits[1]
    assert found.peak_memory_bytes <= limits[0]
    assert found.program().outputs


PIN = autopar.pin("state['params'][1][0]", P(None, "x"))


@pytest.mark.parametrize("by_messages", [False, True])
@pytest.mark.parametrize("axes", [("x",), ("x", "y")])
def test_a_pin_and_other_links_give_the_plan_made_afresh(
    axes: tuple[str, ...], by_messages: bool
) -> None:
    start = planned(axes, by_messages)
    assert not start.gap
    pinned, cluster = start.resolve(constraints=(PIN,)), slower()
    assert not pinned.gap
    assert_same(pinned, planned(axes, by_messages, constraints=(PIN,)))
    assert_same(start.resolve(cluster=cluster), planned(axes, by_messages, cluster=cluster))


@pytest.mark.slow
def test_within_a_limit_each_change_gives_the_plan_made_afresh() -> None:
    axes, free = ("x",), planned(("x",), False)
    limit = free.peak_memory_bytes * 19 // 20
    tight = free.resolve(memory_limit_bytes=limit)
    assert_same(tight, planned(axes, False, memory_limit_bytes=limit))
    wanted = planned(axes, False, memory_limit_bytes=limit, constraints=(PIN,))
    assert_same(tight.resolve(constraints=(PIN,)), wanted)


def test_messages_are_kept_where_tables_are_too_large() -> None:
    ground = planned(("x", "y"), True).bound.planned.ground
    standing = ground.standing((), BY_MESSAGES.solve)
    assert standing is not None
    assert len(standing.chains.nodes)
