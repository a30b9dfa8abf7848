"""errors: what moves a step time by how much, against programs priced and scheduled anew with one number worse."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import hypot
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import autopar
from autopar.core.program import Compute, Move, ShardedProgram
from autopar.cost.pricing import Roofline
from autopar.passes.schedule import schedule
from autopar.report.errors import error_shares, standard_error_s
from autopar.report.summary import step_schedule
from cost_models import Cluster, load_cluster, slower_cluster, uncertain_figures

TINY = 1e-7
OVERLAPPING = load_cluster("2x4xh100")
SERIAL = replace(OVERLAPPING, device=replace(OVERLAPPING.device, overlap=None))


def training(params: Any, rows: Any) -> Any:
    def loss(params: Any) -> Any:
        x = rows
        for w in params:
            x = jnp.tanh(x @ w)
        return (x**2).mean()

    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))


@cache
def plan(mode: str, overlaps: bool) -> autopar.Plan:
    weights = [jax.ShapeDtypeStruct((2048, 2048), jnp.float32)] * 6
    rows = jax.ShapeDtypeStruct((4096, 2048), jnp.float32)
    cluster = OVERLAPPING if overlaps else SERIAL
    return autopar.plan(training, weights, rows, cluster=cluster, mesh={"x": 2, "y": 4}, mode=mode)


def repriced_s(made: autopar.Plan, cluster: Cluster) -> float:
    """The step time of the plan's program on another cluster: every price made anew."""
    planned = made.bound.planned
    pricing = Roofline(planned.graph, made.mesh, cluster)

    def again(instruction: Any) -> Any:
        if isinstance(instruction, Compute):
            return instruction._replace(exchanges=tuple(map(again, instruction.exchanges)))
        assert isinstance(instruction, Move)
        price = pricing.step_cost(instruction.kind, instruction.axes, instruction.size_bytes)
        return instruction._replace(time_s=price)

    program: ShardedProgram = replace(
        planned.program, instructions=tuple(map(again, planned.program.instructions))
    )
    return schedule(
        program, pricing.op_cost, cluster.device.overlap, planned.account.held_bytes
    ).makespan_s


@pytest.mark.parametrize("overlaps", [True, False])
@pytest.mark.parametrize("mode", ["auto", "data_parallel"])
def test_shares_are_what_a_worse_number_costs(mode: str, overlaps: bool) -> None:
    made = plan(mode, overlaps)
    base = OVERLAPPING if overlaps else SERIAL
    cluster = replace(base, errors=dict.fromkeys(uncertain_figures(base), TINY) | {"formula": TINY})
    planned = made.bound.planned
    found = {
        s.source: s.time_s for s in error_shares(planned, step_schedule(planned, cluster), cluster)
    }
    assert not found  # what moves the step by a part in 10,000,000 is not listed
    loose = replace(cluster, errors={**cluster.errors, "formula": 0.5})
    kernels = error_shares(planned, step_schedule(planned, loose), loose)
    assert sum(share.time_s for share in kernels) == pytest.approx(0.5 * made.step_time_s, rel=1e-3)
    for path in uncertain_figures(cluster):
        large = replace(cluster, errors={**cluster.errors, path: 1e-3})
        shares = {
            s.source: s.time_s for s in error_shares(planned, step_schedule(planned, large), large)
        }
        growth = repriced_s(made, slower_cluster(cluster, path, 1e-3)) - made.step_time_s
        assert shares.get(path, 0.0) == pytest.approx(
            growth, rel=0.02, abs=2e-5 * made.step_time_s
        ), path


def test_a_plan_says_how_sure_it_is() -> None:
    made = plan("auto", True)
    shares = made.summary.errors
    assert (
        made.step_error_s
        == standard_error_s(shares)
        == pytest.approx(hypot(*(s.time_s for s in shares)))
    )
    assert 0 < made.step_error_s < made.step_time_s
    assert [abs(s.time_s) for s in shares] == sorted((abs(s.time_s) for s in shares), reverse=True)
    assert all("float16" not in share.source for share in shares)


def test_two_plans_differ_by_less_than_either_is_unsure() -> None:
    planned, data_parallel = plan("auto", True), plan("data_parallel", True)
    found = autopar.compare(planned, data_parallel)
    assert found.difference_s == data_parallel.step_time_s - planned.step_time_s
    assert found.error_s < hypot(planned.step_error_s or 0.0, data_parallel.step_error_s or 0.0)
    assert autopar.compare(planned, planned).error_s == 0


def test_what_a_loop_cuts_out_for_itself_owes_nothing_to_any_number() -> None:
    """A sine of a whole operand, split, is as sure as that of a split one; a product has a kernel more."""

    def shares(fn: Any, whole: bool) -> dict[str, float]:
        pins = autopar.pin("x", P() if whole else P("x")), autopar.pin("output", P("x"))
        shape = jax.ShapeDtypeStruct((4096, 2048), jnp.float32)
        made = autopar.plan(fn, shape, cluster=OVERLAPPING, mesh={"x": 8}, constraints=pins)
        return {share.source: share.time_s for share in made.summary.errors}

    assert shares(jnp.sin, True) == pytest.approx(shares(jnp.sin, False))
    assert "slice" in shares(lambda x: x @ jnp.ones((2048, 8)), True)


def test_nothing_is_known_of_a_pricing_of_the_users_own() -> None:
    weights, rows = (
        [jax.ShapeDtypeStruct((256, 256), jnp.float32)],
        jax.ShapeDtypeStruct((64, 256), jnp.float32),
    )

    def own(graph: Any, mesh: Any) -> Any:
        return Roofline(graph, mesh, OVERLAPPING)

    made = autopar.plan(training, weights, rows, cluster=OVERLAPPING, mesh={"x": 8}, pricing=own)
    assert made.step_time_s == pytest.approx(made.serial_time_s)
    assert (made.summary.errors, made.step_error_s) == ((), None)
    assert made.timeline().makespan_s == pytest.approx(made.step_time_s)
