"""batch_rows: data lies split along its rows where that costs next to nothing, and nowhere else."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autopar
from autopar.search import limited_solve
from autopar.search.single_changes import SingleChanges
from autopar.solve import verify
from cost_models import replace_link


def step(params: dict[str, Any], tokens: Any) -> Any:
    def loss(p: dict[str, Any]) -> Any:
        return jnp.mean(jnp.tanh(jnp.tanh(p["table"][tokens] @ p["up"]) @ p["down"]))

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


def shape(*dims: int, dtype: Any = jnp.float32) -> Any:
    return jax.ShapeDtypeStruct(dims, dtype)


ARGS = (
    {"table": shape(32_768, 512), "up": shape(512, 2048), "down": shape(2048, 512)},
    shape(512, 64, dtype=jnp.int32),
)


def planned(latency_s: float, **options: Any) -> autopar.Plan:
    cluster = replace_link(autopar.load_cluster("8xh100"), "device", latency_s=latency_s)
    return autopar.plan(
        step, *ARGS, cluster=cluster, mesh={"x": 8}, donate_argnums="carried", **options
    )


def tokens_of(plan: autopar.Plan) -> str:
    return next(row.placement for row in plan.summary.inputs if row.name == "tokens")


@pytest.fixture
def unlooked(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What makes the plan that the search finds before it looks at rows."""

    def made(latency_s: float) -> autopar.Plan:
        with monkeypatch.context() as patch:
            patch.setattr(limited_solve, "with_rows_split", lambda _, __, found, ___: found)
            return planned(latency_s)

    return made


def test_rows_are_split_where_that_costs_next_to_nothing(unlooked: Any) -> None:
    plan = planned(1e-9)
    before = unlooked(1e-9)
    assert (tokens_of(before), tokens_of(plan)) == ("[-, -]", "[x, -]")
    assert 0 < plan.objective_s / before.objective_s - 1 <= 1e-3
    assert plan.lower_bound_s == before.lower_bound_s
    assert 0 < plan.gap <= autopar.SearchOptions().gap_tolerance
    gathered = [row for row in plan.summary.collectives if row.kind == "all_gather"]
    assert len(gathered) == 1 + sum(row.kind == "all_gather" for row in before.summary.collectives)

    found = plan.bound.planned
    assert found.problem is not None
    assert found.solution is not None
    verify(found.problem, found.solution)
    changes = SingleChanges(before.bound.planned).of_inputs([3])[3]
    (costs_s,) = [one.costs_s for one in changes if str(one.candidate) == "[x, -]"]
    assert plan.objective_s - before.objective_s == pytest.approx(costs_s, rel=1e-6)


def test_rows_stay_whole_where_that_costs_more_or_is_asked_for(unlooked: Any) -> None:
    plan = planned(1e-7)  # 0.3 %, within the gap tolerance
    assert tokens_of(plan) == "[-, -]"
    assert plan.objective_s == unlooked(1e-7).objective_s
    assert tokens_of(planned(1e-9, constraints=[autopar.replicate("tokens")])) == "[-, -]"
    best = planned(1e-9, options=autopar.SearchOptions(gap_tolerance=0))
    assert (tokens_of(best), best.gap) == ("[-, -]", 0)
