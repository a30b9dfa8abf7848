"""Constraints through the public API: plans that keep to them, are saved with them, resolved, and told their prices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import autopar
from autopar.api.plan_file import to_json
from autopar.errors import (
    AutoparError,
    InvalidConstraint,
    InvalidMesh,
    InvalidOption,
    PlanFileError,
)
from tests.api.same import SLOW

MESH = {"a": 2, "b": 4}
W = {"w1": np.ones((64, 128), np.float32) / 64, "w2": np.ones((128, 64), np.float32) / 128}
X = np.arange(32 * 64, dtype=np.float32).reshape(32, 64) / 1000
PINNED = (autopar.pin("params['w1']", P(None, "b")), autopar.forbid("x", "b"))


def step(params: Any, x: Any) -> Any:
    def loss(p: Any) -> Any:
        return ((jnp.tanh(x @ p["w1"]) @ p["w2"]) ** 2).mean()

    value, gradient = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda a, b: a - 0.1 * b, params, gradient), value


def plan(**options: Any) -> autopar.Plan:
    return autopar.plan(step, W, X, cluster=SLOW, mesh=MESH, **options)


def test_a_compiled_function_keeps_to_its_constraints() -> None:
    compiled = autopar.compile(step, cluster=SLOW, mesh=MESH, constraints=PINNED)
    (params, value), (wanted, expected) = compiled(W, X), jax.jit(step)(W, X)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), params, wanted)
    lying = params["w1"].sharding
    assert isinstance(lying, NamedSharding)
    assert lying.spec == P(None, "b")
    assert compiled.plan(W, X).constraints == PINNED


def test_what_a_plan_is_held_to_is_saved_and_shown(tmp_path: Path) -> None:
    made = plan(constraints=PINNED)
    text = "pin(\"params['w1']\", P(None, 'b')); forbid('x', 'b')"
    assert text in made.summary.space
    made.save(tmp_path / "plan.json")
    loaded = autopar.Plan.load(tmp_path / "plan.json")
    assert loaded.constraints == PINNED
    bound = loaded.compile(step).plan(W, X)
    assert bound.resolve(constraints=()).objective_s == plan().objective_s
    with pytest.raises(AutoparError, match="a loaded plan knows no function"):
        loaded.resolve(constraints=())
    with pytest.raises(AutoparError, match="a loaded plan knows no function"):
        loaded.constraint_prices()


@pytest.mark.parametrize("mode", ["data_parallel", "manual"])
def test_every_kind_of_constraint_is_saved(mode: str, tmp_path: Path) -> None:
    given = (
        (autopar.tie("params['w1']", "params['w2']"),)
        if mode == "data_parallel"
        else (
            autopar.replicate("params"),
            autopar.pin("x", autopar.Placement((("a",), ()))),
            autopar.pin(autopar.at(kind="tanh"), P("a")),
            autopar.forbid(autopar.at(kind="dot_general", operand=1), P("b")),
        )
    )
    made = plan(mode=mode, constraints=given)
    made.save(tmp_path / "plan.json")
    assert autopar.Plan.load(tmp_path / "plan.json").constraints == made.constraints
    assert set(given) < set(made.constraints)


def test_a_file_whose_plan_breaks_its_constraints_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    document = json.loads(to_json(plan(constraints=PINNED).file))
    document["signature"]["constraints"][0]["layout"]["dims"] = [["b"]]
    path.write_text(json.dumps(document))
    with pytest.raises(
        PlanFileError,
        match=r"does not keep to its own constraints, pin\(\"params\['w1'\]\", P\('b'\)\)",
    ):
        autopar.Plan.load(path).compile(step).plan(W, X)
    document["signature"]["constraints"][0]["constraint"] = "wish"
    path.write_text(json.dumps(document))
    with pytest.raises(PlanFileError, match="damaged plan file"):
        autopar.Plan.load(path)


def test_resolving_changes_what_is_asked_for() -> None:
    free = plan()
    held = free.resolve(constraints=PINNED)
    assert (held.placements, held.objective_s) == (
        plan(constraints=PINNED).placements,
        plan(constraints=PINNED).objective_s,
    )
    assert held.constraints == PINNED
    assert held.resolve(constraints=()).objective_s == free.objective_s
    more = held.resolve(constraints=(*held.constraints, autopar.replicate("params['w2']")))
    assert more.placements["params['w2']"] == autopar.Placement(((), ()))
    faster = held.resolve(cluster="8xh100")
    assert faster.constraints == PINNED
    assert (
        faster.objective_s
        == autopar.plan(step, W, X, cluster="8xh100", mesh=MESH, constraints=PINNED).objective_s
    )
    assert faster.summary.cluster == "8xh100"
    limit = free.peak_memory_bytes + 1
    assert free.resolve(memory_limit_bytes=limit).summary.memory_limit_bytes == limit
    compiled = held.resolve(constraints=PINNED[:1]).compile()
    np.testing.assert_allclose(compiled(W, X)[1], jax.jit(step)(W, X)[1], rtol=1e-5)


def test_resolving_refuses_what_planning_refuses() -> None:
    free = plan()
    with pytest.raises(InvalidMesh, match="has 8 devices"):
        free.resolve(cluster="4x8xh100")
    with pytest.raises(InvalidOption, match="memory_limit_bytes"):
        free.resolve(memory_limit_bytes=0)
    with pytest.raises(
        InvalidConstraint, match="'no such thing' is no constraint: pass constraints="
    ):
        free.resolve(constraints=["no such thing"])  # pyright: ignore[reportArgumentType]


def test_the_report_tells_prices_when_asked() -> None:
    made = plan(constraints=PINNED)
    assert "What the constraints cost" not in made.report()
    text = made.report(prices=True)
    assert "What the constraints cost" in text
    assert "forbid('x', 'b')" in text.partition("What the constraints cost")[2]
    prices = made.constraint_prices()
    assert prices is made.constraint_prices()
    assert [price.constraint for price in prices] == [str(constraint) for constraint in PINNED]
    assert all(0 <= price.at_least_s <= price.at_most_s for price in prices)


@pytest.mark.parametrize("given", ["w", 3, [autopar.at(kind="tanh")]])
def test_what_is_no_constraint_is_refused(given: Any) -> None:
    with pytest.raises(InvalidConstraint, match="is no constraint: pass constraints="):
        plan(constraints=given)


def test_a_sharding_constraint_of_the_function_may_be_tied_to() -> None:
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("a", "b"))

    def own(w: Any, x: Any) -> Any:
        return jax.lax.with_sharding_constraint(x @ w, NamedSharding(mesh, P("a", "b"))).sum()

    args = (np.ones((64, 64), np.float32), np.ones((32, 64), np.float32))
    made = autopar.plan(
        own,
        *args,
        cluster=SLOW,
        constraints=(autopar.tie("x", autopar.at(kind="sharding_constraint")),),
    )
    assert made.placements["x"] == autopar.Placement((("a",), ("b",)))
    with pytest.raises(InvalidConstraint, match="cannot lie so on mesh"):
        made.resolve(
            constraints=(autopar.pin(autopar.at(kind="sharding_constraint"), P("b", "a")),)
        )
