"""Transformations of compiled functions: the values of plain JAX, and as few plans and collectives as they need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.sharding import AxisType, PartitionSpec

import autopar
from autopar.api import make
from autopar.errors import InvalidConstraint
from tests.api.same import PARAMS, SLOW, W, X

MESH = {"a": 2, "b": 4}
XS = np.stack([X, X * 2])
Transform = Callable[[Callable[..., Any]], Any]


def net(p: Any, x: Any) -> Any:
    return jnp.tanh(x @ p["w"] + p["b"])


def loss(p: Any, x: Any) -> Any:
    return (net(p, x) ** 2).mean()


def loss_and_more(p: Any, x: Any) -> Any:
    hidden = net(p, x)
    return (hidden**2).mean(), {"hidden": hidden, "best": jnp.argmax(hidden), "max": hidden.max()}


def rows(x: Any) -> Any:
    return jnp.tanh(x @ W).sum(-1)


def shrink(x: Any) -> Any:
    return x * 0.5


@jax.custom_vjp
def twice(x: Any) -> Any:
    """A function that knows its backward direction only, which is twice the true one."""
    return jnp.sin(x)


twice.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (2 * g * jnp.cos(x),))


def with_own_derivative(p: Any, x: Any) -> Any:
    return twice(x @ p["w"])


def halves(p: Any, x: Any) -> Any:
    """Gradients of less than 1e-8, which are zero in float16 unless they are scaled before."""
    return (x.astype(jnp.float16) @ p["w"].astype(jnp.float16)).mean() * jnp.float16(1e-6)


def squared(z: Any) -> Any:
    return (jnp.abs(z) ** 2).sum()


def spun(z: Any) -> Any:
    return jnp.exp(z) * z


def decay(p: Any, x: Any) -> Any:
    return jax.tree.map(lambda a: a * 0.9, p), net(p, x).sum()


def noisy(key: Any, x: Any) -> Any:
    return jax.random.normal(key, x.shape) + x, jax.random.split(key)


def scaled_sum(f: Any) -> Any:
    return lambda p: (f(p, X) * 3).sum()


def gradient_in_a_loop(f: Any) -> Any:
    def body(p: Any, x: Any) -> Any:
        value, gradient = jax.value_and_grad(f)(p, x)
        return jax.tree.map(lambda a, b: a - 0.1 * b, p, gradient), value

    return lax.scan(body, PARAMS, XS)


def gradient_of_a_loop(f: Any) -> Any:
    def total(p: Any) -> Any:
        return lax.scan(lambda q, x: (jax.tree.map(lambda a: a * 0.9, q), f(q, x).sum()), p, XS)[
            1
        ].sum()

    return jax.grad(total)(PARAMS)


def both_branches(f: Any) -> Any:
    def chosen(p: Any) -> Any:
        return lax.cond(p["b"][0] > 0, lambda q: f(q, X).sum(), lambda q: f(q, X).max(), p)

    return jax.jit(jax.grad(chosen))(PARAMS)


def product_with_the_hessian(f: Any) -> Any:
    return jax.jvp(jax.grad(lambda p: f(p, X)), (PARAMS,), (PARAMS,))


def pulled(f: Any) -> Any:
    out, pull = jax.vjp(f, PARAMS, X)
    return out, pull(out)


def pushed_twice(f: Any) -> Any:
    out, push = jax.linearize(f, PARAMS, X)
    return out, push(PARAMS, X), push(PARAMS, 2 * X)


FORWARD: list[tuple[Any, Transform]] = [
    (net, lambda f: jax.jit(f)(PARAMS, X)),
    (net, lambda f: jax.jit(lambda x: f(PARAMS, X) + x)(1.0)),
    (
        loss_and_more,
        lambda f: jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(f, PARAMS, X)),
    ),
    (loss, lambda f: jax.vmap(f, (None, 0))(PARAMS, XS)),
    (
        net,
        lambda f: jax.vmap(f, ({"w": None, "b": 0}, 1), 1)(
            {"w": W, "b": W[:8]}, np.stack([X] * 8, 1)
        ),
    ),
    (decay, lambda f: jax.vmap(f, (None, 0), (None, 0))(PARAMS, XS)),
    (decay, lambda f: lax.scan(f, PARAMS, XS)),
    (shrink, lambda f: lax.while_loop(lambda x: x.max() > 0.1, f, jnp.asarray(X))),
    (noisy, lambda f: jax.jit(f)(jax.random.key(0), X)),
    (lambda x: x - lax.pmean(x, "i"), lambda f: jax.vmap(f, axis_name="i")(X)),
    (lambda: (), lambda f: jax.jit(f)()),
    (lambda x: None, lambda f: jax.jit(f)(X)),
]
DIFFERENTIATED: list[tuple[Any, Transform]] = [
    (loss, lambda f: jax.grad(f)(PARAMS, X)),
    (loss, lambda f: jax.value_and_grad(f, argnums=(0, 1))(PARAMS, X)),
    (loss_and_more, lambda f: jax.value_and_grad(f, has_aux=True)(PARAMS, X)),
    (loss_and_more, lambda f: jax.grad(lambda p: sum(jax.tree.leaves(f(p, X))).sum())(PARAMS)),
    (loss, lambda f: jax.jit(jax.grad(f))(PARAMS, X)),
    (loss, lambda f: jax.grad(jax.jit(f))(PARAMS, X)),
    (loss, lambda f: jax.vmap(jax.grad(f), (None, 0))(PARAMS, XS)),
    (loss, lambda f: jax.grad(lambda p: jax.vmap(f, (None, 0))(p, XS).sum())(PARAMS)),
    (loss, lambda f: jax.grad(lambda p: jnp.log(f(p, X)))(PARAMS)),
    (net, lambda f: jax.value_and_grad(scaled_sum(f))(PARAMS)),
    (net, lambda f: jax.jit(jax.grad(scaled_sum(f)))(PARAMS)),
    (net, lambda f: jax.jvp(f, (PARAMS, X), (PARAMS, X))),
    (net, lambda f: jax.jit(lambda p, x: jax.jvp(f, (p, x), (p, x)))(PARAMS, X)),
    (net, pulled),
    (net, pushed_twice),
    (loss, pushed_twice),
    (loss, gradient_in_a_loop),
    (net, gradient_of_a_loop),
    (loss, gradient_of_a_loop),
    (loss, lambda f: jax.grad(jax.checkpoint(f))(PARAMS, X)),
    (net, lambda f: jax.jit(jax.grad(lambda p: jax.checkpoint(f)(p, X).sum()))(PARAMS)),
    (net, both_branches),
    (rows, lambda f: jax.jacrev(f)(X)),
    (rows, lambda f: jax.jacfwd(f)(X)),
    (lambda x: rows(x).sum(), lambda f: jax.hessian(f)(X[:1])),
    (lambda x: rows(x).sum(), lambda f: jax.grad(lambda x: (jax.grad(f)(x) ** 2).sum())(X)),
    (loss, product_with_the_hessian),
    (with_own_derivative, lambda f: jax.grad(scaled_sum(f))(PARAMS)),
    (with_own_derivative, lambda f: jax.grad(scaled_sum(jax.checkpoint(f)))(PARAMS)),
    (lambda p, x: with_own_derivative(p, x).sum(), lambda f: jax.grad(f)(PARAMS, X)),
    (squared, lambda f: jax.grad(f)((X + 1j).astype(np.complex64))),
    (spun, lambda f: jax.vjp(f, (X + 1j).astype(np.complex64))[1]((X - 1j).astype(np.complex64))),
    (lambda p, i: (p[i] ** 2).sum(), lambda f: jax.value_and_grad(f)(W, np.array([1, 2, 3]))),
    (lambda a, b: a * b + a, lambda f: jax.grad(f)(2.0, 3.0)),
    (
        lambda p, key: (jax.random.normal(key, p.shape) * p).sum(),
        lambda f: jax.grad(f)(W, jax.random.key(0)),
    ),
    (lambda x: x @ W, lambda f: jax.linear_transpose(f, X)(X @ W)),
]


def assert_close(found: Any, wanted: Any, close: float = 1e-5) -> None:
    """Equal structures, shapes and types; values up to the rounding of sums in another order."""
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for a, b in zip(
        map(jnp.asarray, jax.tree.leaves(found)),
        map(jnp.asarray, jax.tree.leaves(wanted)),
        strict=True,
    ):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        scale = np.abs(np.asarray(b)).max(initial=0)
        np.testing.assert_allclose(a, b, rtol=close, atol=close * scale)


@pytest.mark.quick_share(3)
@pytest.mark.parametrize("number", range(len(FORWARD)))
def test_forward(number: int) -> None:
    fn, transform = FORWARD[number]
    assert_close(
        transform(autopar.compile(fn, cluster=SLOW, mesh=MESH)), jax.jit(lambda: transform(fn))()
    )


@pytest.mark.quick_share(6)
@pytest.mark.parametrize("number", range(len(DIFFERENTIATED)))
def test_derivatives(number: int) -> None:
    fn, transform = DIFFERENTIATED[number]
    assert_close(
        transform(autopar.compile(fn, cluster=SLOW, mesh=MESH)), jax.jit(lambda: transform(fn))()
    )


def test_half_precision_is_scaled_before_the_derivative() -> None:
    """Behind the derivative there is nothing left to scale."""

    def scaled(f: Any, scale: float) -> Any:
        return jax.grad(lambda p: f(p, X).astype(jnp.float32) * scale)(PARAMS)

    assert not np.asarray(scaled(halves, 1.0)["w"]).any()
    assert_close(
        scaled(autopar.compile(halves, cluster=SLOW), 2.0**15), scaled(halves, 2.0**15), close=1e-2
    )


STEPS: dict[str, Callable[[Any], Any]] = {
    "grad": lambda f: jax.grad(
        lambda *args: sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(f(*args)))
    ),
    "vmap": lambda f: (
        lambda p, x: jax.tree.map(
            lambda a: a.sum(0), jax.vmap(f, (None, 0))(p, jnp.stack([x, 2 * x]))
        )
    ),
    "jit": jax.jit,
    "jvp": lambda f: lambda p, x: jax.jvp(f, (p, x), (p, x)),
    "checkpoint": jax.checkpoint,
    "scan": lambda f: lambda p, x: lax.scan(lambda c, _: (c * 0.5, f(p, c)), x, length=2)[1],
}


@settings(max_examples=8, deadline=None)
@given(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=3))
def test_transformations_of_transformations(names: list[str]) -> None:
    def transformed(f: Any) -> Any:
        for name in names:
            f = STEPS[name](f)
        return f({"w": W[:, :8], "b": W[0, :8]}, X)

    assert_close(transformed(autopar.compile(net, cluster=SLOW, mesh={"a": 8})), transformed(net))


# Plans ----------------------------------------------------------------------------------------------------------------


def functions(compiled: autopar.Compiled) -> list[str]:
    return [plan.summary.function for plan in compiled.plans]


def test_a_loss_and_its_gradients_are_one_plan_for_all_calls() -> None:
    compiled = autopar.compile(loss, cluster=SLOW)
    step = jax.jit(jax.value_and_grad(compiled))
    for _ in range(2):
        jax.value_and_grad(compiled)(PARAMS, X)
        jax.grad(compiled)(PARAMS, X)
        step(PARAMS, X)
    assert functions(compiled) == ["gradient of loss"]
    jax.grad(compiled, argnums=1)(PARAMS, X)
    compiled(PARAMS, X)
    assert functions(compiled) == ["loss", "gradient of loss", "gradient of loss"]


def test_shapes_need_no_plan() -> None:
    compiled = autopar.compile(loss_and_more, cluster=SLOW)
    jax.eval_shape(jax.grad(compiled, has_aux=True), PARAMS, X)
    jax.make_jaxpr(lambda p, x: lax.scan(lambda c, y: (c, compiled(c, y)), p, x))(PARAMS, XS)
    assert functions(compiled) == []


def test_inside_jit_the_program_of_the_plan_is_inlined() -> None:
    compiled = autopar.compile(net, cluster=SLOW, mesh=MESH)
    text = jax.jit(lambda p, x: compiled(p, x) + 1).lower(PARAMS, X).as_text()
    assert text.count("stablehlo.all_reduce") == sum(
        row.kind == "all_reduce" for row in compiled.plans[0].collectives
    )
    assert text.count("manual_computation") >= 1
    assert functions(compiled) == ["net"]
    compiled(PARAMS, X)
    assert functions(compiled) == ["net"]


def test_both_directions_of_a_function_meet_where_one_plan_says() -> None:
    compiled = autopar.compile(net, cluster=SLOW, mesh=MESH)
    jax.grad(scaled_sum(compiled))(PARAMS)
    joint, forward, backward = compiled.plans
    assert functions(compiled) == [
        "vjp of net",
        "forward of net",
        "transpose of linear part of net",
    ]
    placed = {name: str(placement) for name, placement in joint.placements.items()}
    assert {name: str(forward.placements[name]) for name in forward.placements} == {
        name: placed[name] for name in forward.placements
    }
    shared = backward.placements.keys() & placed.keys()
    assert "gradient of output[0]" in shared
    assert {name: str(backward.placements[name]) for name in shared} == {
        name: placed[name] for name in shared
    }
    ahead = dict(
        zip(
            (row.name for row in forward.summary.outputs), forward.record.stage.outputs, strict=True
        )
    )
    residuals = [name for name in backward.placements if name.startswith("residual")]
    assert residuals
    assert all(backward.placements[name] == ahead[name] for name in residuals)
    assert forward.mesh == backward.mesh == joint.mesh


def tied(p: Any, x: Any) -> Any:
    """`w` is used twice, `gate` on one path only, `idle` not at all."""
    hidden = jnp.tanh(x @ p["w"] + p["b"])
    gated = lax.cond(p["b"][0] > 5, lambda h: h * p["gate"], lambda h: h, hidden)
    return ((gated @ p["w"].T - x) ** 2).mean()


def test_each_gradient_is_reduced_once_over_the_axes_of_its_parameter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Data over `a`, `w` split over `b`: its gradient, of two uses, is reduced over `a` once.

    Those of `b` and `gate`, whole on all devices, are reduced over both axes once; that of `idle` never. A plan that
    gathers is faster at this size (`search.apart`).
    """
    monkeypatch.setattr(make, "or_apart", lambda planned, _: planned)
    w, x, spec = np.tile(W, (64, 64)), np.tile(X, (64, 64)), PartitionSpec
    params = {"w": w, "b": w[0], "gate": w[1], "idle": w}
    pins = (
        autopar.pin("x", spec("a")),
        autopar.pin("p['w']", spec(None, "b")),
        *(autopar.replicate(f"p['{name}']") for name in ("b", "gate", "idle")),
    )
    compiled = autopar.compile(
        tied, cluster="8xh100", devices=jax.devices(), mesh=MESH, constraints=pins
    )
    gradient = jax.grad(compiled)(params, x)
    assert_close(gradient, jax.grad(tied)(params, x), close=1e-4)
    (plan,) = compiled.plans
    reductions = [
        (row.kind, row.axes, row.size_bytes) for row in plan.collectives if row.role == "mirror"
    ]
    assert sorted(reductions) == [
        ("all_reduce", ("a",), w.nbytes // 4),
        ("all_reduce", ("a", "b"), 2 * w[0].nbytes),
    ]
    assert gradient["w"].sharding.spec == spec(None, "b")
    assert gradient["idle"].sharding.is_fully_replicated


@pytest.mark.quick_share(2)
@pytest.mark.parametrize("transform", [jax.grad, lambda f: jax.jit(jax.grad(f))])
def test_data_parallel_reduces_all_gradients_in_one_bucket(transform: Any) -> None:
    compiled = autopar.compile(tied, cluster="8xh100", devices=jax.devices(), mode="data_parallel")
    params = {"w": W, "b": W[0], "gate": W[1], "idle": W}
    assert_close(transform(compiled)(params, X), jax.grad(tied)(params, X))
    (plan,) = compiled.plans
    (bucket,) = [row for row in plan.collectives if row.role == "mirror"]
    assert (bucket.kind, bucket.size_bytes) == ("all_reduce", W.nbytes + 2 * W[0].nbytes)
    text = jax.jit(jax.grad(compiled)).lower(params, X).as_text()
    assert text.count("stablehlo.all_reduce") == len(plan.collectives)


# Constraints ----------------------------------------------------------------------------------------------------------


def pinned(fn: Any) -> autopar.Compiled:
    pins = (autopar.pin("p['w']", PartitionSpec("a")), autopar.pin("x", PartitionSpec(None, "a")))
    return autopar.compile(
        fn, cluster=SLOW, mesh=MESH, constraints=(*pins, autopar.replicate("output*"))
    )


def test_constraints_hold_for_what_is_derived() -> None:
    compiled = pinned(net)
    jax.grad(scaled_sum(compiled))(PARAMS)
    jax.jvp(compiled, (PARAMS, X), (PARAMS, X))
    jax.jit(jax.grad(lambda p: jax.checkpoint(compiled)(p, X).sum()))(PARAMS)
    jax.vmap(compiled, (None, 0))(PARAMS, XS)
    assert functions(compiled) == [
        *("vjp of net", "forward of net", "transpose of linear part of net", "jvp of net"),
        *("transpose of tangent of net", "vmap of net"),
    ]
    for plan in compiled.plans:
        if "p['w']" in plan.placements:
            assert str(plan.placements["p['w']"]) == "[a, -]"
        if "x" in plan.placements:
            assert str(plan.placements["x"]).endswith("-, a]")


def test_a_mapped_dim_is_open_in_constraints() -> None:
    compiled = pinned(net)
    out = jax.vmap(compiled, (None, 1))(PARAMS, np.stack([X] * 8, 1))
    assert_close(out, jax.vmap(net, (None, 1))(PARAMS, np.stack([X] * 8, 1)))
    (plan,) = compiled.plans
    (output,) = plan.record.stage.outputs
    assert output.dims[1:] == ((), ())
    assert plan.placements["x"].dims[2] == ("a",)


def test_constraints_on_operators_cannot_be_mapped() -> None:
    compiled = autopar.compile(
        net,
        cluster=SLOW,
        mesh=MESH,
        constraints=(autopar.pin(autopar.at(kind="tanh"), PartitionSpec("a")),),
    )
    with pytest.raises(
        InvalidConstraint, match=r"pin\(at\(kind='tanh'\).*under jax.vmap there is a dim more"
    ):
        jax.vmap(compiled, (None, 0))(PARAMS, XS)
    assert_close(jax.grad(scaled_sum(compiled))(PARAMS), jax.grad(scaled_sum(net))(PARAMS))


@pytest.mark.quick_share(2)
@pytest.mark.parametrize("mode", ["data_parallel", "manual"])
def test_modes(mode: str) -> None:
    pins = (
        autopar.replicate("p"),
        autopar.pin("x", PartitionSpec("a")),
        autopar.replicate("output"),
    )
    constraints = pins if mode == "manual" else ()
    for fn, transform in (
        (loss, lambda f: jax.grad(f)(PARAMS, X)),
        (net, pulled),
        (net, pushed_twice),
    ):
        compiled = autopar.compile(
            fn, cluster=SLOW, mesh={"a": 8}, mode=mode, constraints=constraints
        )
        assert_close(transform(compiled), transform(fn))
        for plan in compiled.plans:
            assert all(
                str(plan.placements[name]) in ("[-]", "[-, -]")
                for name in plan.placements
                if name[:2] == "p["
            )


# What is around -------------------------------------------------------------------------------------------------------


def test_values_of_the_trace_around_are_operands() -> None:
    def forward(p: Any, x: Any) -> Any:
        return autopar.compile(lambda x: net(p, x), cluster=SLOW)(x)

    assert_close(jax.jit(forward)(PARAMS, X), net(PARAMS, X))
    assert_close(
        jax.grad(lambda p: forward(p, X).sum())(PARAMS), jax.grad(lambda p: net(p, X).sum())(PARAMS)
    )


def test_a_compiled_function_within_another_is_part_of_it() -> None:
    inner = autopar.compile(net, cluster=SLOW)
    jitted = jax.jit(lambda p, x: inner(p, x).sum())
    jitted(PARAMS, X)
    outer = autopar.compile(lambda p, x: jax.grad(jitted)(p, x), cluster=SLOW)
    assert_close(outer(PARAMS, X), jax.grad(lambda p: net(p, X).sum())(PARAMS))
    assert functions(inner) == ["net"]
    closed = jax.make_jaxpr(jax.value_and_grad(autopar.compile(loss, cluster=SLOW)))(PARAMS, X)
    again = autopar.compile(jax.extend.core.jaxpr_as_fun(closed), cluster=SLOW)
    assert_close(
        again(*jax.tree.leaves((PARAMS, X))), jax.tree.leaves(jax.value_and_grad(loss)(PARAMS, X))
    )


def test_prints_are_made_once(capfd: pytest.CaptureFixture[str]) -> None:
    def talking(x: Any) -> Any:
        jax.debug.print("sum {}", x.sum())
        return (x * 2).sum()

    compiled = autopar.compile(talking, cluster=SLOW)
    jax.block_until_ready((jax.jit(compiled)(X), jax.grad(compiled)(X)))
    jax.effects_barrier()
    assert capfd.readouterr().out.count("sum") == 2


def test_static_arguments() -> None:
    compiled = autopar.compile(lambda n, x: x * n, cluster=SLOW, static_argnums=0)
    np.testing.assert_array_equal(jax.jit(lambda x: compiled(3, x))(X), 3 * X)
    np.testing.assert_array_equal(jax.grad(lambda x: compiled(4, x).sum())(X), np.full_like(X, 4))


@pytest.mark.quick_share(2)
@pytest.mark.parametrize("fn", [loss, net])
def test_gradients_have_the_types_of_an_explicit_mesh(fn: Any) -> None:
    mesh = jax.make_mesh((8,), ("z",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        x = jax.device_put(X, PartitionSpec("z"))
        for transform in (jax.grad, lambda f: jax.jit(jax.grad(f))):
            found, wanted = (
                transform(lambda x, f=f: f(PARAMS, x).sum())(x) for f in (autopar.compile(fn), fn)
            )
            assert jax.typeof(found) == jax.typeof(wanted)
            assert_close(np.asarray(found), np.asarray(wanted))


def test_placements_of_results_are_named_where_the_mesh_is_known() -> None:
    compiled = autopar.compile(net, cluster=SLOW, mesh={"a": 8})
    out = jax.jit(compiled)(PARAMS, X)
    assert out.sharding.is_equivalent_to(compiled.plan(PARAMS, X).out_shardings(), 2)
    assert isinstance(out.sharding, jax.sharding.NamedSharding)
    free = autopar.compile(net, cluster=SLOW)
    found = jax.jit(free)(PARAMS, X)
    assert found.sharding.is_equivalent_to(free.plan(PARAMS, X).out_shardings(), 2)
