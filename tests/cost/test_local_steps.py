"""A device that takes its part of what it holds computes: in its reader's loop, or as a kernel; it sends nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import autopar
from autopar.core.mesh import DeviceMesh
from autopar.cost.buckets import router_of
from autopar.cost.local_steps import FUSED_S
from autopar.cost.pricing import Roofline
from autopar.trace import trace
from cost_models import load_cluster
from cost_models.compute import moving_time_s
from tests.arrivals import arrival_s

CLUSTER = load_cluster("8xh100")
MESH = {"d": 8}
ROWS, COLUMNS = 512, 256
X = jax.ShapeDtypeStruct((ROWS, COLUMNS), "float32")
W = np.ones((COLUMNS, 1024), np.float32)
PART_BYTES = 4 * ROWS * COLUMNS // 8
KERNEL_S = moving_time_s(2 * PART_BYTES, CLUSTER.device) + CLUSTER.device.launch_s

ALONE: dict[str, Callable[[Any], Any]] = {
    "a product": lambda x: x @ W,
    "row sums": lambda x: x.sum(1),
    "a loop that reads it in every round": lambda x: lax.fori_loop(
        0, 3, lambda _, y: jnp.sin(y) + x, x * 0
    ),
}


def planned(fn: Any, whole: bool) -> autopar.Plan:
    """A plan whose operand comes in whole, or split along its rows; its results are split along theirs."""
    pins = autopar.pin("x", P() if whole else P("d")), autopar.pin("output", P("d"))
    return autopar.plan(fn, X, mesh=MESH, cluster=CLUSTER, constraints=pins)


def added_s(fn: Any) -> float:
    """What computing takes longer where the operand comes in whole."""
    return planned(fn, True).compute_time_s - planned(fn, False).compute_time_s


def test_what_the_reader_does_in_its_loop_costs_next_to_nothing() -> None:
    def scaled(x: Any) -> Any:
        return jnp.sin(x) * 2 + x

    plan = planned(scaled, True)
    assert added_s(scaled) == pytest.approx(FUSED_S)
    assert (plan.communication_time_s, plan.collectives) == (0.0, ())


@pytest.mark.parametrize("name", ["a product", "row sums"])
def test_before_a_kernel_of_its_own_it_is_one_that_reads_and_writes_the_part(name: str) -> None:
    plan = planned(ALONE[name], True)
    assert added_s(ALONE[name]) == pytest.approx(KERNEL_S)
    assert (plan.communication_time_s, plan.collectives) == (0.0, ())


def test_xla_makes_a_kernel_where_one_is_priced() -> None:
    """For CPUs: as many as if the operand came in split, and one more before a product."""

    def kernels(fn: Any, whole: bool) -> int:
        return planned(fn, whole).lower().compile().as_text().count(" fusion(")

    def scaled(x: Any) -> Any:
        return jnp.sin(x) * 2 + x

    for fn, more in ((scaled, 0), (ALONE["a product"], 1)):
        assert kernels(fn, True) - kernels(fn, False) == more


def test_for_a_loop_it_is_done_once_before_and_for_the_caller_it_is_written() -> None:
    def looped(x: Any) -> Any:
        return lax.fori_loop(
            0, 3, lambda _, y: jnp.sin(y) + x, jnp.zeros((ROWS, COLUMNS), np.float32)
        )

    assert added_s(looped) == pytest.approx(KERNEL_S)
    assert planned(lambda x: x, True).compute_time_s == pytest.approx(KERNEL_S)


@pytest.mark.parametrize("name", sorted(ALONE))
def test_search_program_and_report_have_one_price(name: str) -> None:
    plan = planned(ALONE[name], True)
    assert plan.objective_s == pytest.approx(plan.serial_time_s + arrival_s(plan, CLUSTER))
    rows = plan.summary.operators
    assert sum(row.time_s * row.runs for row in rows) == pytest.approx(plan.compute_time_s)
    assert any(row.kind == "local slice" for row in rows)


def test_a_mask_reads_and_writes_all_of_its_part_or_is_done_in_a_loop() -> None:
    graph = trace(lambda x: x + 1, (X,)).graph
    pricing = Roofline(graph, DeviceMesh.of(MESH), CLUSTER)
    router = router_of(graph, pricing.mesh, pricing)
    assert pricing.step_cost("mask", ("d",), PART_BYTES) == pytest.approx(KERNEL_S)
    assert pricing.step_cost("slice", ("d",), 8 * PART_BYTES) == pytest.approx(KERNEL_S)
    assert router.fused._price("mask", ("d",), PART_BYTES) == FUSED_S
    assert router.fused._price("all_gather", ("d",), PART_BYTES) == pricing.step_cost(
        "all_gather", ("d",), PART_BYTES
    )
