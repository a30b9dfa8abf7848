"""What a report says of donating: by how many bytes the peak falls, which a plan that donates then has."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import autopar
from autopar.core.graph import OpGraph
from autopar.core.program import ShardedProgram
from autopar.cost.pricing import Pricing
from autopar.memory.account import Account
from autopar.report.donation import Donation
from autopar.search.limited_solve import account_of


def train_step(params: Any, momentum: Any, x: Any, y: Any) -> Any:
    def loss(p: Any) -> Any:
        return jnp.mean((jax.nn.gelu(x @ p["up"]) @ p["down"] - y) ** 2)

    value, grads = jax.value_and_grad(loss)(params)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
    return jax.tree.map(lambda p, m: p - 1e-2 * m, params, momentum), momentum, value


def shape(*dims: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, jnp.bfloat16)


STATE = {"up": shape(1024, 4096), "down": shape(4096, 1024)}
ARGS = STATE, STATE, shape(512, 1024), shape(512, 1024)


def planned(function: Any = train_step, args: Any = ARGS, **options: Any) -> autopar.Plan:
    return autopar.plan(function, *args, mesh={"x": 8}, **{"cluster": "8xh100", **options})


@pytest.mark.parametrize("cluster", ["8xh100", "cpu8"])
def test_donating_saves_what_is_said(cluster: str) -> None:
    plan = planned(cluster=cluster)
    found = plan.summary.donation
    assert found is not None
    assert found.arguments == ("params", "momentum")
    donating = planned(cluster=cluster, donate_argnames=found.arguments)
    assert donating.summary.donation is None
    assert plan.peak_memory_bytes - donating.peak_memory_bytes == found.saved_bytes > 0
    assert "donate_argnames=('params', 'momentum') would save" in " ".join(str(plan).split())
    assert "would save" not in str(donating)


def test_only_what_is_left_is_said() -> None:
    found = planned(donate_argnums=0).summary.donation
    assert found is not None
    assert found.arguments == ("momentum",)


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (lambda params, x: (x @ params["up"] @ params["down"]).sum(), (STATE, shape(512, 1024))),
        (lambda x: x * 2, (shape(512, 1024),)),
    ],
    ids=["results of other shapes", "data"],
)
def test_nothing_is_said_of_what_no_result_replaces(function: Any, args: Any) -> None:
    assert planned(function, args).summary.donation is None


def test_it_is_in_the_file(tmp_path: Any) -> None:
    plan = planned()
    plan.save(tmp_path / "plan.json")
    loaded = autopar.Plan.load(tmp_path / "plan.json").summary.donation
    assert isinstance(loaded, Donation)
    assert loaded == plan.summary.donation


def test_what_is_known_of_the_function_that_donates_serves_all_plans(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What becomes of a graph's loops is worked out once for each graph object."""
    seen: list[OpGraph] = []

    def noted(graph: OpGraph, program: ShardedProgram, pricing: Pricing) -> Account:
        seen.append(graph)
        return account_of(graph, program, pricing)

    monkeypatch.setattr("autopar.report.donation.account_of", noted)
    plan = planned()
    assert plan.summary.donation is not None
    pinned = plan.resolve(constraints=(autopar.pin("params['up']", P()),))
    assert pinned.summary.donation is not None
    first, second = seen
    assert first is second
    assert first.donated
