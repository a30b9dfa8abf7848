"""Shardings that the user's function names itself hold in every plan of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import autopar
from autopar.core.placement import Placement
from autopar.errors import AutoparError, InvalidConstraint, InvalidMesh, NoFeasiblePlan, TraceError
from tests.api.same import assert_same

X = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)
W = np.random.default_rng(1).normal(size=(8, 16)).astype(np.float32)


def mesh_of(**axes: int) -> jax.sharding.Mesh:
    return jax.make_mesh(
        tuple(axes.values()), tuple(axes), axis_types=(jax.sharding.AxisType.Auto,) * len(axes)
    )


def constrained(spec: P, mesh: jax.sharding.Mesh) -> Any:
    def fn(x: Any, w: Any) -> Any:
        h = jax.lax.with_sharding_constraint(jnp.tanh(x @ w), NamedSharding(mesh, spec))
        return (h * 2).sum(0)

    return fn


def placements(plan: autopar.Plan, kind: str) -> list[Placement]:
    graph, stage = plan.bound.traced.graph, plan.record.stage
    return [s.outs[0] for op, s in zip(graph.ops, stage.strategies, strict=True) if op.kind == kind]


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        (P("a", "b"), "[a, b]"),
        (P(("b", "a")), "[b*a, -]"),
        (P(), "[-, -]"),
        (P(None, "a"), "[-, a]"),
    ],
)
def test_a_constraint_is_a_pin(spec: P, found: str) -> None:
    fn = constrained(spec, mesh_of(a=2, b=4))
    compiled = autopar.compile(fn, cluster="cpu8")
    plan = compiled.plan(X, W)
    assert dict(plan.mesh.axes) == {"a": 2, "b": 4}
    assert [str(p) for p in placements(plan, "sharding_constraint")] == [found]
    assert_same(compiled(X, W), jax.jit(fn)(X, W))


def test_an_open_dim_is_chosen() -> None:
    fn = constrained(P(P.UNCONSTRAINED, "b"), mesh_of(a=2, b=4))
    plan = autopar.compile(fn, cluster="cpu8").plan(X, W)
    (found,) = placements(plan, "sharding_constraint")
    assert found.dims[1] == ("b",)
    assert_same(plan.compile()(X, W), jax.jit(fn)(X, W))


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        (P(P.UNCONSTRAINED, ("b", "a")), "[-, b*a]"),
        (P(P.UNCONSTRAINED, P.UNCONSTRAINED), ""),
        (P(P.UNCONSTRAINED, None), ""),
        (P(("b", "a"), P.UNCONSTRAINED), "[b*a, -]"),
    ],
)
def test_open_dims_beside_axes_in_any_order(spec: P, found: str) -> None:
    fn = constrained(spec, mesh_of(a=2, b=4))
    plan = autopar.compile(fn, cluster="cpu8").plan(X, W)
    (placement,) = placements(plan, "sharding_constraint")
    assert str(placement) == found or not found
    assert_same(plan.compile()(X, W), jax.jit(fn)(X, W))


def test_open_dims_beside_a_dim_that_does_not_divide() -> None:
    fn = constrained(P(P.UNCONSTRAINED, "b"), mesh_of(a=2, b=4))
    with pytest.raises(
        NoFeasiblePlan, match=r"places a tensor of shape \(16, 6\) \[-, b\] on mesh \(a=2, b=4\)"
    ):
        autopar.plan(fn, X, W[:, :6], cluster="cpu8")


def test_inputs_and_outputs_are_pinned_in_any_order_of_axes(tmp_path: Path) -> None:
    def step(w: Any, x: Any) -> Any:
        return w - 0.1 * (x.T @ jnp.tanh(x @ w)), (x @ w).sum(0)

    pins = (
        autopar.pin("w", P(None, ("b", "a"))),
        autopar.pin("output[1]", P(("b", "a"))),
        autopar.pin("x", P(P.UNCONSTRAINED, ("b", "a"))),
    )
    compiled = autopar.compile(
        step, cluster="cpu8", mesh={"a": 2, "b": 4}, constraints=pins, carry=((0, 0),)
    )
    plan = compiled.plan(W, X)
    assert str(plan.placements["w"]) == str(plan.record.stage.outputs[0]) == "[-, b*a]"
    assert str(plan.placements["x"]) == "[-, b*a]"
    assert plan.out_shardings()[1].spec == P(("b", "a"))
    assert_same(compiled(W, X), jax.jit(step)(W, X))
    plan.save(tmp_path / "plan.json")
    assert_same(autopar.Plan.load(tmp_path / "plan.json").compile(step)(W, X), jax.jit(step)(W, X))
    with pytest.raises(
        InvalidConstraint, match=r"at operators, and where a plan is resolved, .* in mesh order"
    ):
        autopar.plan(
            step,
            W,
            X,
            cluster="cpu8",
            constraints=(autopar.pin(autopar.at(kind="tanh"), P(("b", "a"))),),
            mesh={"a": 2, "b": 4},
        )


def test_gradients_are_pinned_too() -> None:
    """The constraint on the value itself goes: the gradient of a linear loss does not need it."""
    loss = constrained(P("a", "b"), mesh_of(a=2, b=4))
    fn = jax.grad(lambda w, x: loss(x, w).sum())
    plan = autopar.compile(fn, cluster="cpu8", carry=None).plan(W, X)
    assert [str(p) for p in placements(plan, "sharding_constraint")] == ["[a, b]"]
    assert_same(plan.compile()(W, X), jax.jit(fn)(W, X))


@pytest.mark.parametrize("check_vma", [True, False])
def test_a_shard_map_runs_as_it_is(check_vma: bool) -> None:
    mesh = mesh_of(a=2, b=4)

    def columns(x: Any, w: Any) -> Any:
        return jax.lax.psum(x @ w, "a") * jax.lax.axis_size("b")

    inner = jax.shard_map(
        columns,
        mesh=mesh,
        in_specs=(P(None, "a"), P("a", "b")),
        out_specs=P(None, "b"),
        check_vma=check_vma,
    )

    def fn(w: Any, x: Any) -> Any:
        return jnp.sum(inner(jnp.tanh(x), w) ** 2)

    step = jax.value_and_grad(fn)
    compiled = autopar.compile(step, cluster="cpu8", carry=None)
    plan = compiled.plan(W, X)
    own = {(row.kind, row.axes) for row in plan.collectives if "own psum" in row.reason}
    assert own == {("all_reduce", ("a",))}
    assert not plan.program().proves_replication  # what its author proved is not asked again
    assert_same(compiled(W, X), jax.jit(step)(W, X))


def test_a_mesh_of_another_size_is_refused() -> None:
    fn = constrained(P("a"), mesh_of(a=2, b=2))
    with pytest.raises(
        InvalidMesh, match=r"shardings are for mesh \(a=2, b=2\) of 4 devices, cluster 'cpu8' has 8"
    ):
        autopar.plan(fn, X, W, cluster="cpu8")


def test_an_axis_that_the_mesh_lacks_is_refused() -> None:
    fn = constrained(P("a"), mesh_of(a=2, b=4))
    message = (
        r"test_own_shardings\.py:\d+ \(fn\).* names mesh axes a=2, b=4, which mesh x=8 has not"
    )
    with pytest.raises(InvalidMesh, match=message):
        autopar.plan(fn, X, W, cluster="cpu8", mesh={"x": 8})


def test_two_meshes_are_refused() -> None:
    def fn(x: Any, w: Any) -> Any:
        return constrained(P("a"), mesh_of(a=2, b=4))(x, w) + constrained(P("a"), mesh_of(a=8))(
            x, w
        )

    with pytest.raises(TraceError, match=r"for different meshes: .*test_own_shardings"):
        autopar.plan(fn, X, W, cluster="cpu8")


def test_what_does_not_divide_is_refused() -> None:
    def fn(x: Any) -> Any:
        return (
            jax.lax.with_sharding_constraint(x[:3], NamedSharding(mesh_of(a=2, b=4), P(None, "b")))
            * 2
        )

    with pytest.raises((NoFeasiblePlan, AutoparError), match="divi"):
        autopar.plan(lambda x: fn(x[:, :6]), X, cluster="cpu8")


def test_typed_keys_have_shardings_too() -> None:
    mesh = mesh_of(a=2, b=4)

    def fn(keys: Any) -> Any:
        keys = jax.lax.with_sharding_constraint(keys, NamedSharding(mesh, P("b")))
        split = jax.shard_map(
            lambda k: jax.vmap(jax.random.split)(k), mesh=mesh, in_specs=P("b"), out_specs=P("b")
        )
        return jax.vmap(jax.random.normal)(split(keys)[:, 0])

    compiled = autopar.compile(fn, cluster="cpu8")
    keys = jax.random.split(jax.random.key(0), 8)
    assert [str(p) for p in placements(compiled.plan(keys), "sharding_constraint")] == ["[b, -]"]
    assert_same(compiled(keys), jax.jit(fn)(keys))


@pytest.mark.parametrize("operators", ["kept", "best"])
def test_a_constraint_in_a_function_made_an_operator_is_a_pin(operators: Any) -> None:
    mesh = mesh_of(a=2, b=4)

    @autopar.operator("a b -> a b", name=f"pinned_{operators}")
    def pinned(x: Any) -> Any:
        return jax.lax.with_sharding_constraint(jnp.sin(x), NamedSharding(mesh, P("b")))

    options = autopar.SearchOptions(operators=operators)
    compiled = autopar.compile(lambda x: pinned(x) * 2, cluster="cpu8", options=options)
    assert [str(p) for p in placements(compiled.plan(X), "sharding_constraint")] == ["[b, -]"]
    assert_same(compiled(X), jax.jit(lambda x: jnp.sin(x) * 2)(X))
