"""Explicit meshes, whose axes stand in types: what jit takes is taken, and what the user wrote in types is a pin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import autopar
from tests.api.same import SLOW, assert_same

# how arguments lie says their types
pytestmark = pytest.mark.filterwarnings("ignore::autopar.errors.MovedWarning")

EXPLICIT = (AxisType.Explicit,) * 2
MIXED = (AxisType.Auto, AxisType.Explicit)
X = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)
W = np.random.default_rng(1).normal(size=(16, 16)).astype(np.float32)
ROWS = np.array([2, 0, 1, 2, 7, 5, 0, 3])


def mesh_of(types: Any) -> Mesh:
    return jax.make_mesh((2, 4), ("a", "b"), axis_types=types)


def loss(w: Any, x: Any) -> Any:
    h = jnp.tanh(jnp.dot(x, w, out_sharding=P("a", "b")))
    return ((h + 1) ** 2).mean()


def kept(x: Any, w: Any) -> Any:
    return jax.sharding.reshard(jnp.ones_like(x) * 2, jax.typeof(x).sharding) * x


def asserted(x: Any, w: Any) -> Any:
    return lax.with_sharding_constraint(x * 2, jax.typeof(x).sharding)


def made(x: Any, w: Any) -> Any:
    return jnp.zeros((8, 16), out_sharding=P("a")) + jnp.ones_like(x) + jnp.arange(16.0) + 3.0 * x


def reshaped(x: Any, w: Any) -> Any:
    return x.reshape(2, 4, 16, out_sharding=P("a", None, None)).sum(2), x.T


def by_rows(x: Any, w: Any) -> Any:
    return x.at[ROWS].get(out_sharding=P("a", None)), x.at[ROWS[:2]].add(
        1.0, out_sharding=P("a", None)
    )


def without_axes(x: Any, w: Any) -> Any:
    return jax.sharding.auto_axes(lambda x: jnp.cumsum(jnp.sin(x), 0), out_sharding=P("a", None))(x)


def with_axes(x: Any, w: Any) -> Any:
    product = jax.sharding.explicit_axes(
        lambda x: jnp.dot(x, x.T, out_sharding=P("a", None)), in_sharding=P("a", None)
    )
    return jax.sharding.auto_axes(product, out_sharding=P(None, "b"))(x)


def random(x: Any, w: Any) -> Any:
    return x + jax.random.normal(jax.random.key(0), x.shape, out_sharding=P("a", "b"))


def looped(x: Any, w: Any) -> Any:
    columns = jax.sharding.reshard(x, P(None, "b"))
    return lax.scan(lambda c, row: (c * 0.5 + row, c.sum()), columns[0], columns)


def branched(x: Any, w: Any) -> Any:
    x = lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, jnp.sin(s[1])), (0, x))[1]
    return lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x)


def stopping(x: Any, w: Any) -> Any:
    """Each row's loop stops by itself."""
    return jax.vmap(lambda row: lax.while_loop(lambda r: r.sum() < 3, lambda r: r * r + 1, row))(x)


def mapped(x: Any, w: Any) -> Any:
    tiles = jax.sharding.reshard(x, P("a", "b"))
    return jax.shard_map(lambda mine: lax.psum(jnp.sin(mine), "b"), out_specs=P("a", None))(tiles)


def unreduced(x: Any, w: Any) -> Any:
    left, right = jax.sharding.reshard(x, P(None, "b")), jax.sharding.reshard(w, P("b", None))
    y = jnp.einsum("ij,jk->ik", left, right, out_sharding=P(None, None, unreduced={"b"}))
    return jax.sharding.reshard(y, P("a", None))


def segments(x: Any, w: Any) -> Any:
    return jax.ops.segment_sum(jax.sharding.reshard(x, P()), jnp.asarray(ROWS), 8)


@jax.custom_vjp
def scaled(x: Any) -> Any:
    return x * 2


scaled.defvjp(
    lambda x: (x * 2, x),
    lambda x, g: (jax.sharding.reshard(jax.sharding.reshard(g, P(None, "b")), P("a", "b")) * 2,),
)

PINS = {
    "asserted": (asserted, []),
    "branched": (branched, []),
    "by rows": (by_rows, ["[a, -]", "[a, -]"]),
    "einsum": (lambda x, w: jnp.einsum("ij,jk->ik", x, w, out_sharding=P("a", "b")), ["[a, b]"]),
    "gradient": (lambda x, w: jax.grad(loss)(w, x), ["[a, b]"]),
    "its own backward pass": (
        lambda x, w: jax.grad(lambda x: jnp.sin(scaled(x)).sum())(x),
        ["[-, b]", "[a, b]"],
    ),
    "kept": (kept, ["[a, b]"]),
    "looped": (looped, ["[-, b]"]),
    "made": (made, ["[a, -]"]),
    "mapped": (mapped, ["[a, b]", "[a, -]"]),
    "random": (random, ["[a, b]"]),
    "rematerialised": (lambda x, w: jax.grad(lambda w: jax.checkpoint(loss)(w, x))(w), ["[a, b]"]),
    "reshaped": (reshaped, ["[a, -, -]"]),
    "segments": (segments, []),
    "softmax": (lambda x, w: jax.grad(lambda x: (jax.nn.softmax(x) * jax.nn.gelu(x)).max())(x), []),
    "stopping": (stopping, []),
    "unreduced": (unreduced, ["[-, b]", "[b, -]", "[a, -]"]),
    "with axes": (with_axes, ["[a, -]", "[a, -]", "[-, b]"]),
    "without axes": (without_axes, ["[a, -]"]),
}
"""Functions, and how what they pin lies, in order: what is only propagated, or transposed, pins nothing."""


def pinned(plan: autopar.Plan) -> list[str]:
    graph, stage = plan.bound.planned.graph, plan.record.stage
    kinds = ("reshard", "sharding_constraint", "leave_manual")
    return [
        str(s.outs[0])
        for op, s in zip(graph.ops, stage.strategies, strict=True)
        if op.kind in kinds
    ]


@pytest.mark.quick_share(3)
@pytest.mark.parametrize("name", PINS)
def test_values_are_those_of_jit_and_pins_are_what_was_written(name: str) -> None:
    fn, pins = PINS[name]
    mesh = mesh_of(EXPLICIT)
    with jax.set_mesh(mesh):
        x, w = jax.device_put(
            (X, W), (NamedSharding(mesh, P("a", "b")), NamedSharding(mesh, P(None, "b")))
        )
        compiled = autopar.compile(fn, cluster=SLOW, carry=None)
        assert_same(compiled(x, w), jax.jit(fn)(x, w))
        assert pinned(compiled.plan(x, w)) == pins
        assert dict(compiled.plan(x, w).mesh.axes) == {"a": 2, "b": 4}


@pytest.mark.parametrize(
    "name", ["branched", "looped", "kept", "segments", "softmax", "stopping", "with axes"]
)
def test_axes_may_be_of_both_types(name: str) -> None:
    fn, _ = PINS[name]
    mesh = mesh_of(MIXED)
    with jax.set_mesh(mesh):
        x, w = jax.device_put(
            (X, W), (NamedSharding(mesh, P("a", "b")), NamedSharding(mesh, P(None, "b")))
        )
        assert_same(autopar.compile(fn, cluster=SLOW, carry=None)(x, w), jax.jit(fn)(x, w))


@pytest.mark.parametrize("spec", [P(None, "b"), P("b", None), P("b", "a")])
def test_a_dim_of_auto_axes_is_left_open(spec: P) -> None:
    """`a` is Auto: a type cannot say that nothing is split along it."""
    mesh = mesh_of(MIXED)
    with jax.set_mesh(mesh):
        plan = autopar.plan(lambda x: jax.sharding.reshard(x, P(None, "b")) * 2, X, cluster=SLOW)
    (placement,) = pinned(plan)
    assert placement.endswith(", b]")


def test_types_of_arguments_count_where_no_mesh_is_set() -> None:
    x = jax.device_put(X, NamedSharding(mesh_of(EXPLICIT), P("a", "b")))
    compiled = autopar.compile(lambda x: kept(x, None), cluster=SLOW)
    assert_same(compiled(x), x * 2)
    assert pinned(compiled.plan(x)) == ["[a, b]"]


def test_arguments_of_other_types_are_moved_and_not_planned_for_anew() -> None:
    mesh = mesh_of(EXPLICIT)
    compiled = autopar.compile(lambda x: jnp.sin(x) @ x.T, cluster=SLOW)
    with jax.set_mesh(mesh):
        wanted = jax.jit(lambda x: jnp.sin(x) @ x.T)(X)
        for spec in (P(), P("a"), P(None, ("a", "b"))):  # the last is one that jit refuses
            assert_same(compiled(jax.device_put(X, NamedSharding(mesh, spec))), wanted)
        assert compiled.plan(X) is compiled.plan(jnp.asarray(X))


def test_a_function_that_types_refuse_is_traced_without_them() -> None:
    """As arguments are moved, the placements that a plan left them in need not be types that the function takes."""
    mesh = mesh_of(EXPLICIT)
    with jax.set_mesh(mesh):
        x = jax.device_put(X, NamedSharding(mesh, P("a", "b")))
        w = jax.device_put(W, NamedSharding(mesh, P("b", None)))
        with pytest.raises(Exception, match="ambiguous"):
            jax.jit(jnp.dot)(x, w)
        assert_same(autopar.compile(jnp.dot, cluster=SLOW)(x, w), jnp.asarray(X @ W))


def test_results_are_typed_arrays_of_the_users_mesh() -> None:
    mesh = mesh_of(EXPLICIT)
    with jax.set_mesh(mesh):
        compiled = autopar.compile(lambda x: (x * 2, x.sum()), cluster=SLOW)
        plan = compiled.plan(X)
        doubled, total = compiled(X)
        assert jax.typeof(doubled).sharding.mesh == mesh.abstract_mesh
        assert plan.out_shardings()[0] == doubled.sharding == plan.in_shardings()[0]
        assert_same(doubled + jax.device_put(X, doubled.sharding), jnp.asarray(X * 3))
        assert float(total * 2) == pytest.approx(float(2 * X.sum()), rel=1e-5)
        assert_same(compiled(doubled)[0], jnp.asarray(X * 4))


def test_typed_arrays_may_be_kept_where_they_lie() -> None:
    mesh = mesh_of(EXPLICIT)
    with jax.set_mesh(mesh):
        x = jax.device_put(X, NamedSharding(mesh, P("b", "a")))
        compiled = autopar.compile(lambda x: jnp.sin(x) * 2, cluster=SLOW, shardings="keep")
        assert_same(compiled(x), jax.jit(lambda x: jnp.sin(x) * 2)(x))
        assert compiled.plan(x).in_shardings()[0] == x.sharding
        assert compiled.plan(x).place(X).sharding == x.sharding


def test_a_state_is_born_typed() -> None:
    mesh = mesh_of(EXPLICIT)
    with jax.set_mesh(mesh):
        plan = autopar.plan(lambda w, x: (w - 1, (x @ w).sum()), W, X, cluster=SLOW)
        w = plan.init(lambda: jnp.zeros((16, 16)))
        assert w.sharding == plan.in_shardings()[0]
        assert jax.typeof(w).sharding.mesh == mesh.abstract_mesh


def test_a_training_step_goes_on_with_its_own_results() -> None:
    mesh = mesh_of(EXPLICIT)

    def step(w: Any, x: Any) -> tuple[Any, Any]:
        value, gradient = jax.value_and_grad(loss)(w, x)
        return w - 0.1 * gradient, value

    with jax.set_mesh(mesh):
        compiled: Callable[..., Any] = autopar.compile(step, cluster=SLOW)
        place = NamedSharding(mesh, P(None, "b"))
        w, plain, x = (
            jax.device_put(W, place),
            jax.device_put(W, place),
            jax.device_put(X, NamedSharding(mesh, P("a"))),
        )
        for _ in range(3):
            w, found = compiled(w, x)
            plain, wanted = jax.jit(step)(plain, x)
            assert_same((w, found), (plain, wanted))


def test_what_is_whole_for_gradients_to_be_summed_later_is_whole() -> None:
    def gradient(x: Any, w: Any) -> Any:
        w = jax.sharding.reshard(w, P(reduced={"a"}))
        return jax.grad(lambda w: jnp.tanh(x @ w).mean())(w)

    mesh = jax.make_mesh((8,), ("a",), axis_types=EXPLICIT[:1])
    with jax.set_mesh(mesh):
        x = jax.device_put(X, P("a"))
        w = jax.device_put(W, P())
        found = autopar.compile(gradient, cluster=SLOW, mesh={"a": 8})(x, w)
    np.testing.assert_allclose(
        found, jax.grad(lambda w: jnp.tanh(X @ w).mean())(W), rtol=1e-4, atol=1e-6
    )
