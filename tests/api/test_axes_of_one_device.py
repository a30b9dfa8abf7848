"""Mesh axes of one device cost nothing: they are no axes for the search, and are there in what comes of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import autopar
from autopar._compat import pcast_varying
from autopar.errors import InvalidConstraint, InvalidMesh, TraceError
from tests.api.same import SLOW, assert_same

X = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)
W = np.random.default_rng(1).normal(size=(8, 16)).astype(np.float32)
ONES = tuple((f"one{n}", 1) for n in range(4))
SEVERAL = (("a", 2), ("b", 4))


def mesh_of(axes: tuple[tuple[str, int], ...], count: int = 8) -> Mesh:
    devices = np.array(jax.devices()[:count]).reshape([size for _, size in axes])
    return Mesh(devices, tuple(name for name, _ in axes), axis_types=(AxisType.Auto,) * len(axes))


@st.composite
def padded(draw: st.DrawFn) -> tuple[tuple[str, int], ...]:
    """The mesh of several devices with some axes of one among its own."""
    axes = list(SEVERAL)
    for one in draw(st.lists(st.sampled_from(ONES), unique=True, min_size=1)):
        axes.insert(draw(st.integers(0, len(axes))), one)
    return tuple(axes)


@st.composite
def spelled(draw: st.DrawFn, axes: tuple[tuple[str, int], ...], *dims: tuple[str, ...]) -> P:
    """A spec of these dims, with axes of one device among theirs."""
    ones = draw(st.permutations([name for name, size in axes if size == 1]))
    entries: list[tuple[str, ...]] = []
    for dim in dims:
        taken = [ones.pop() for _ in range(draw(st.integers(0, len(ones))))]
        cut = draw(st.integers(0, len(taken)))
        entries.append((*taken[:cut], *dim, *taken[cut:]))
    return P(*(entry or None for entry in entries))


def sizes(plan: autopar.Plan) -> tuple[Any, ...]:
    """How many variables, candidates and instructions there are, and what is minimised."""
    ground = plan.bound.planned.ground
    return ground.space.counts, ground.mesh.axes, len(plan.program().instructions), plan.objective_s


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_a_plan_is_the_same_with_and_without_them(data: st.DataObject) -> None:
    """As are its pins, constraints and the function's own shardings, whether these name them or not."""
    axes = data.draw(padded())
    forbidden = data.draw(st.sampled_from([*(name for name, size in axes if size == 1), "b"]))

    def plan(axes: Any, own: P, pin: P, *others: Any) -> autopar.Plan:
        sharding = NamedSharding(mesh_of(axes), own)

        def fn(x: Any, w: Any) -> Any:
            return jnp.tanh(lax.with_sharding_constraint(x @ w, sharding)).sum(0)

        constraints = (autopar.pin("w", pin), *others)
        return autopar.plan(fn, X, W, cluster=SLOW, mesh=dict(axes), constraints=constraints)

    pin, own = data.draw(spelled(axes, (), ("b",))), data.draw(spelled(axes, ("b", "a"), ()))
    found = plan(axes, own, pin, autopar.forbid("x", forbidden))
    plain = plan(
        SEVERAL, P(("b", "a")), P(None, "b"), *[autopar.forbid("x", "b")] * (forbidden == "b")
    )
    assert sizes(found) == sizes(plain)
    assert found.mesh.axes == axes == found.summary.mesh
    assert found.in_shardings()[1].spec == pin
    assert found.in_shardings()[0].mesh.axis_names == tuple(name for name, _ in axes)


@settings(max_examples=6, deadline=None)
@given(st.data())
def test_values_are_those_of_jit(data: st.DataObject) -> None:
    """With a shard_map that names them in its specs and collectives."""
    axes = data.draw(padded())
    mesh, ones = mesh_of(axes), tuple(name for name, size in axes if size == 1)

    def body(x: Any) -> Any:
        x = pcast_varying(x, ones) * (1 + lax.axis_index(ones))
        x = lax.all_gather(jnp.sin(x), ones[0], axis=0, tiled=True)
        return lax.psum(x, ("b", *ones)) * lax.axis_size(ones[0])

    inner = jax.shard_map(
        body, mesh=mesh, in_specs=data.draw(spelled(axes, ("a",), ("b",))), out_specs=P("a")
    )
    spec = data.draw(spelled(axes, ("a",), ("b",)))
    outer = jax.shard_map(jnp.sin, mesh=mesh, in_specs=spec, out_specs=spec)

    def fn(x: Any) -> Any:
        return (inner(x * 2).sum(0) * outer(x).sum()) ** 2

    assert_same(autopar.compile(fn, cluster=SLOW)(X), jax.jit(fn)(X))


def test_twelve_axes_are_searched_as_one() -> None:
    """The mesh of a library whose axes are all there, used or not."""

    def fn(mesh: AbstractMesh) -> Callable[..., Any]:
        def loss(x: Any, w: Any) -> Any:
            return (
                lax.with_sharding_constraint(x @ w, NamedSharding(mesh, P("fsdp", None))) ** 2
            ).sum()

        return jax.grad(loss, argnums=1)

    def abstract(*names: str) -> AbstractMesh:
        return AbstractMesh(
            (64, *[1] * (len(names) - 1)), names, axis_types=(AxisType.Auto,) * len(names)
        )

    specs = jax.ShapeDtypeStruct((256, 64), "float32"), jax.ShapeDtypeStruct((64, 128), "float32")
    names = tuple(f"one{n}" for n in range(11))
    found, plain = (
        autopar.plan(fn(abstract("fsdp", *ones)), *specs, cluster="tpu-v5p-4x4x4")
        for ones in (names, ())
    )
    assert sizes(found) == sizes(plain)
    assert found.mesh.axes == (("fsdp", 64), *((name, 1) for name in names))


def test_the_mesh_of_a_file_has_them(tmp_path: Path) -> None:
    def fn(x: Any) -> Any:
        return jnp.sin(x) * 2

    axes = {"one": 1, "a": 2, "o": 1, "b": 4}
    made = autopar.plan(
        fn, X, cluster=SLOW, mesh=axes, constraints=(autopar.pin("x", P("o", ("one", "b"))),)
    )
    made.save(tmp_path / "plan.json")
    loaded = autopar.Plan.load(tmp_path / "plan.json")
    assert dict(loaded.mesh.axes) == axes
    compiled = loaded.compile(fn)
    assert_same(compiled(X), jax.jit(fn)(X))
    assert (
        compiled.plan(X).in_shardings()[0].spec
        == made.in_shardings()[0].spec
        == P("o", ("one", "b"))
    )
    assert str(made.placements["x"]) == "[o, one*b]"


@pytest.mark.parametrize("axes", [(("one", 1),), (("one", 1), ("two", 1))])
def test_a_mesh_of_one_device(axes: tuple[tuple[str, int], ...]) -> None:
    compiled = autopar.compile(
        lambda x: x * 2, mesh=mesh_of(axes, 1), constraints=(autopar.pin("x", P("one")),)
    )
    assert_same(compiled(X), jnp.asarray(X * 2))
    assert compiled.plan(X).mesh.axes == axes
    assert compiled.plan(X).in_shardings()[0].spec == P("one", None)


def test_the_functions_own_are_added_to_the_mesh_that_is_asked_for() -> None:
    mesh = mesh_of((("a", 2), ("one", 1), ("b", 4)))
    fn = jax.shard_map(
        lambda x: lax.psum(x, "b") * lax.axis_size("one"),
        mesh=mesh,
        in_specs=P("a", "b"),
        out_specs=P("a"),
    )
    compiled = autopar.compile(fn, cluster=SLOW, mesh={"a": 2, "b": 4})
    assert_same(compiled(X), jax.jit(fn)(X))
    assert dict(compiled.plan(X).mesh.axes) == {"a": 2, "one": 1, "b": 4}
    with pytest.raises(
        InvalidMesh, match=r"shard_map .* runs on the mesh \(a=2, one=1, b=4\), .* in another order"
    ):
        autopar.plan(fn, X, cluster=SLOW, mesh={"b": 4, "a": 2})


def test_meshes_that_differ_by_them_are_one_but_for_shard_maps() -> None:
    wide, narrow = mesh_of((("a", 2), ("one", 1), ("b", 4))), mesh_of(SEVERAL)

    def constrained(x: Any) -> Any:
        return lax.with_sharding_constraint(
            lax.with_sharding_constraint(x, NamedSharding(wide, P("a"))),
            NamedSharding(narrow, P("b")),
        )

    assert dict(autopar.plan(constrained, X, cluster=SLOW).mesh.axes) == {"a": 2, "one": 1, "b": 4}

    def mapped(x: Any) -> Any:
        for mesh in (wide, narrow):
            x = jax.shard_map(jnp.sin, mesh=mesh, in_specs=P("a"), out_specs=P("a"))(x)
        return x

    with pytest.raises(TraceError, match="for different meshes"):
        autopar.plan(mapped, X, cluster=SLOW)


def test_an_axis_that_is_not_there_is_refused() -> None:
    with pytest.raises(
        InvalidConstraint,
        match=r"mesh \(a=2, one=1, b=4\) has no axis 'two'; its axes are a, one, b",
    ):
        autopar.plan(
            jnp.sin,
            X,
            cluster=SLOW,
            mesh={"a": 2, "one": 1, "b": 4},
            constraints=(autopar.pin("x", P("two")),),
        )


COLLECTIVES: dict[str, tuple[Callable[..., Any], P]] = {
    "all_gather": (lambda x: lax.all_gather(x, "d", tiled=True), P("d")),
    "all_gather of a dim": (lambda x: lax.all_gather(x, "d").sum(0), P("d")),
    "all_to_all": (lambda x: lax.all_to_all(x, "d", 1, 0, tiled=True), P("d")),
    "all_to_all of a dim": (lambda x: lax.all_to_all(x[:, None], "d", 1, 0)[0], P("d")),
    "axis_index": (lambda x: x + lax.axis_index("d"), P("d")),
    "branches": (
        lambda x: lax.cond(
            lax.psum(x.sum(), "d") > 0, jnp.sin, lambda x: lax.ppermute(x, "d", [(0, 0)]), x
        ),
        P("d"),
    ),
    "gradient": (
        jax.grad(lambda x: lax.psum(lax.all_gather(jnp.sin(x), "d", tiled=True), "d").sum()),
        P("d"),
    ),
    "keys": (
        lambda x: (
            x
            + jax.random.normal(jax.random.fold_in(jax.random.key(0), lax.axis_index("d")), x.shape)
        ),
        P("d"),
    ),
    "loop": (lambda x: lax.scan(lambda c, r: (c + r, lax.psum(c, "d")), x[0], x)[1], P()),
    "mapped": (lambda x: jax.vmap(lambda row: lax.psum(row, "d") + lax.pmean(row, "d"))(x), P()),
    "no permute": (lambda x: x + lax.ppermute(x, "d", []), P("d")),
    "permute": (lambda x: lax.ppermute(x, "d", [(0, 0)]), P("d")),
    "psum": (lambda x: lax.psum(x, "d") + lax.pmax(x, "d") - lax.pmin(x, "d"), P()),
    "scattered": (lambda x: lax.psum_scatter(x, "d", tiled=True), P("d")),
}


@pytest.mark.quick_share(2)
@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_shard_map_over_one_device_is_planned_as_what_it_computes(name: str) -> None:
    body, out = COLLECTIVES[name]
    fn = jax.shard_map(body, mesh=mesh_of((("d", 1),), 1), in_specs=P("d"), out_specs=out)
    compiled = autopar.compile(fn, cluster=SLOW, mesh={"d": 8})
    assert_same(compiled(X), jax.jit(fn)(X))
    assert all(op.kind != "shard_map" for op in compiled.plan(X).bound.traced.graph.ops)


def test_a_shard_map_over_axes_of_one_device_leaves_the_others_to_the_plan() -> None:
    mesh = mesh_of((("a", 2), ("one", 1), ("b", 4)))
    fn = jax.shard_map(
        lambda x: lax.psum(jnp.sin(x), "one"),
        mesh=mesh,
        in_specs=P("one"),
        out_specs=P(),
        axis_names={"one"},
    )
    compiled = autopar.compile(fn, cluster=SLOW)
    assert_same(compiled(X), jnp.sin(X))
    assert str(compiled.plan(X).placements["x"]) != "[-, -]"
