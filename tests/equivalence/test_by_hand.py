"""What users split by hand: bodies of shard_map, over all or some axes of a mesh, under any plan of what is around."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.experimental import pallas as pl
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import autopar
from autopar.core.manual import manual_axes
from autopar.errors import UnpricedWarning
from tests.api.same import SLOW, assert_same
from tests.equivalence.cases import MESHES, Case
from tests.equivalence.check import check
from tests.equivalence.draw import local_plan, uniform_plan

X = np.random.default_rng(0).normal(size=(16, 16)).astype(np.float32)
W = np.random.default_rng(1).normal(size=(16, 16)).astype(np.float32) / 4
Step = Callable[[Any, Any], Any]


def mesh_of(sizes: dict[str, int]) -> Any:
    return jax.make_mesh(
        tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes)
    )


def steps(axes: tuple[str, ...], sizes: dict[str, int], dim: int) -> dict[str, Step]:
    """Things to do in a body with a shard of two dims and a matrix; each keeps the shard's shape."""
    count = int(np.prod([sizes[axis] for axis in axes]))
    in_order = tuple(axis for axis in sizes if axis in axes)

    def product(h: Any, w: Any) -> Any:
        return h @ w[: h.shape[1], : h.shape[1]]

    def scattered(h: Any, _w: Any) -> Any:
        return (
            h
            if h.shape[dim] % count
            else jnp.repeat(
                lax.psum_scatter(h, axes, scatter_dimension=dim, tiled=True), count, dim
            )
        )

    def joined(h: Any, _w: Any) -> Any:
        return lax.slice_in_dim(
            lax.all_gather(h, axes, axis=dim, tiled=True), 0, h.shape[dim], axis=dim
        )

    def exchanged(h: Any, _w: Any) -> Any:
        if h.shape[dim] % sizes[axes[0]]:
            return h
        return lax.all_to_all(h, axes[0], dim, 1 - dim, tiled=True).reshape(h.shape)

    def looped(h: Any, _w: Any) -> Any:
        return lax.fori_loop(0, 2, lambda n, h: jnp.sin(lax.pmean(h, axes) + h * n), h)

    return {
        "sin": lambda h, _w: jnp.sin(h),
        "psum": lambda h, _w: lax.psum(h, axes) / count,
        "psum of a product": lambda h, w: lax.psum(product(h, w), axes) / count,
        "pmax of a product": lambda h, w: lax.pmax(lax.stop_gradient(product(h, w)), axes) - h,
        "gathered": lambda h, _w: lax.all_gather(h, axes, axis=dim).sum(dim),
        "joined": joined,
        "scattered": scattered,
        "exchanged": exchanged,
        "permuted": lambda h, w: (
            lax.ppermute(
                product(h, w), in_order, [(n, (n + 1) % count) for n in range(0, count, 2)]
            )
            + h
        ),
        "numbered": lambda h, _w: h * (1 + lax.axis_index(axes)),
        "looped": looped,
    }


@st.composite
def bodies(draw: st.DrawFn) -> tuple[str, Any]:
    """The name of a mesh, and a function that does something before, in and behind a body, and its gradient."""
    name = draw(st.sampled_from([*MESHES]))
    sizes = dict(MESHES[name].axes)
    subsets = [some for n in range(1, len(sizes) + 1) for some in combinations(sizes, n)]
    manual = draw(st.sampled_from(subsets))
    where = {axis: draw(st.sampled_from([0, 1, None])) for axis in manual}
    spec = P(*(tuple(axis for axis in manual if where[axis] == dim) or None for dim in (0, 1)))
    some = [subset for subset in subsets if set(subset) <= set(manual)]
    inside = []
    for _ in range(draw(st.integers(1, 3))):
        axes = draw(st.permutations(draw(st.sampled_from(some))))
        known = steps(tuple(axes), sizes, draw(st.integers(0, 1)))
        inside.append(known[draw(st.sampled_from([*known]))])
    out = P(tuple(draw(st.permutations(manual))))

    def body(h: Any, w: Any) -> Any:
        for step in inside:
            h = step(h, w) + 0.1
        return h @ (h.T @ h) * w.mean()

    mapped = jax.shard_map(
        body,
        mesh=mesh_of(sizes),
        in_specs=(spec, P()),
        out_specs=out,
        axis_names={*manual},
        check_vma=False,
    )

    def fn(x: Any, w: Any) -> Any:
        return jnp.mean(jnp.sin(mapped(jnp.tanh(x @ w), w)) ** 2)

    return name, jax.value_and_grad(fn, (0, 1)) if draw(st.booleans()) else fn


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(drawn=bodies(), seed=st.integers(0, 2**16))
def test_random_bodies_under_random_plans(drawn: tuple[str, Any], seed: int) -> None:
    holds(drawn, seed)


@settings(max_examples=6, deadline=None)
@given(drawn=bodies(), seed=st.integers(0, 2**16))
def test_some_random_bodies_under_random_plans(drawn: tuple[str, Any], seed: int) -> None:
    holds(drawn, seed)


def holds(drawn: tuple[str, Any], seed: int) -> None:
    """Values and collectives are right, and nothing moves along manual axes where they are."""
    name, fn = drawn
    # a sine of what is large makes much of rounding: so in double precision
    case = Case(fn, (X.astype(np.float64), W.astype(np.float64)), "float64")
    space = case.space(MESHES[name])
    program = case.program(uniform_plan(space, seed) if seed % 2 else local_plan(case, space, seed))
    for move in program.collectives:
        tensor = program.values[move.ins[0]].tensor
        assert move.role == "exchange" or {*tensor.manual}.isdisjoint(move.axes)
    check(case, program)


def by_hand(body: Any, specs: Any, out: Any, **options: Any) -> Any:
    return jax.shard_map(
        body, mesh=mesh_of({"a": 2, "b": 4}), in_specs=specs, out_specs=out, **options
    )


def test_what_is_not_manual_is_searched_inside() -> None:
    wide = jax.ShapeDtypeStruct((4096, 4096), np.float32)

    def fn(x: Any, w: Any) -> Any:
        body = by_hand(
            lambda x, w: lax.psum(x @ w, "a"), (P(None, "a"), P("a")), P(), axis_names={"a"}
        )
        return body(x, w)

    plan = autopar.plan(fn, wide, wide, cluster=SLOW)
    product = next(op for op in plan.bound.planned.graph.ops if op.kind == "dot_general")
    assert manual_axes(product) == {"a"}
    strategy = plan.record.stage.strategies[product.id]
    assert strategy.split == 4
    assert {
        axis for placement in (*strategy.ins, *strategy.outs) for axis in placement.varying_axes
    } == {"b"}


def test_a_body_is_priced_and_accounted_as_the_program_that_it_is() -> None:
    x, w = (
        jax.ShapeDtypeStruct((8192, 2048), np.float32),
        jax.ShapeDtypeStruct((2048, 2048), np.float32),
    )
    rows, whole = P(("a", "b")), P()

    def planned(fn: Any, *constraints: Any) -> autopar.Plan:
        return autopar.plan(
            fn, x, w, cluster="8xh100", mesh={"a": 2, "b": 4}, constraints=constraints
        )

    mine = planned(by_hand(lambda x, w: x @ w, (rows, whole), rows))
    plain = planned(
        lambda x, w: x @ w,
        autopar.pin("x", rows),
        autopar.pin("w", whole),
        autopar.pin("output", rows),
    )
    assert mine.compute_time_s == pytest.approx(plain.compute_time_s, rel=1e-9)
    assert mine.peak_memory_bytes == plain.peak_memory_bytes
    assert not mine.collectives

    def gathering(x: Any, w: Any) -> Any:
        return x @ lax.all_gather(w, ("a", "b"), axis=0, tiled=True)

    gathered = planned(by_hand(gathering, (rows, rows), rows))
    assert gathered.compute_time_s == pytest.approx(plain.compute_time_s, rel=1e-9)
    (row,) = gathered.collectives
    assert (row.kind, row.axes, row.size_bytes) == ("all_gather", ("a", "b"), 2048 * 2048 * 4)
    assert gathered.peak_memory_bytes == mine.peak_memory_bytes + 2048 * 2048 * 4 // 8


def test_shard_maps_that_are_checked_and_not_in_one_function() -> None:
    checked = by_hand(lambda x: lax.psum(x, "b"), P("a", "b"), P("a"))
    free = by_hand(
        lambda x: lax.all_gather(x, "b", axis=1, tiled=True), P("a", "b"), P("a"), check_vma=False
    )

    def fn(x: Any) -> Any:
        return checked(x).mean() + free(jnp.sin(x))

    assert_same(autopar.compile(fn, cluster=SLOW)(X), jax.jit(fn)(X))


def test_one_shard_map_in_another() -> None:
    def outer(x: Any) -> Any:
        inner = jax.shard_map(
            lambda x: lax.psum(x, "b") * 2, in_specs=P("b"), out_specs=P(), axis_names={"b"}
        )
        return lax.psum(inner(jnp.sin(x)), "a")

    fn = by_hand(outer, P("a"), P(), axis_names={"a"})
    assert_same(autopar.compile(fn, cluster=SLOW)(X), jax.jit(fn)(X))


def doubled(x_ref: Any, out_ref: Any) -> None:
    out_ref[...] = x_ref[...] * 2


@pytest.mark.parametrize("is_stated", [True, False])
def test_kernels_cost_what_is_stated(is_stated: bool) -> None:
    big = jax.ShapeDtypeStruct((8192, 8192), np.float32)
    cost = (
        pl.CostEstimate(flops=10**12, transcendentals=0, bytes_accessed=10**8)
        if is_stated
        else None
    )

    def kernel(x: Any) -> Any:
        return pl.pallas_call(doubled, out_shape=x, interpret=True, cost_estimate=cost)(x)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        plan = autopar.plan(by_hand(kernel, P(("a", "b")), P(("a", "b"))), big, cluster="8xh100")
    assert [warning.category for warning in told] == [] if is_stated else [UnpricedWarning]
    assert ("no price inside" in plan.report()) != is_stated
    assert (
        plan.compute_time_s > 1e-3
    ) == is_stated  # 1e12 operations take 15 ms, moving 64 MB takes 0.02


def test_a_body_that_cannot_be_walked_runs_as_it_is_and_says_so() -> None:
    def body(x: Any) -> Any:
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    def fn(x: Any) -> Any:
        return by_hand(body, P(("a", "b")), P(("a", "b")))(x)

    compiled = autopar.compile(fn, cluster=SLOW)
    with pytest.warns(UnpricedWarning, match=r"a shard_map \(test_by_hand\.py:\d+ .*no more"):
        found = compiled(X)
    assert_same(found, jax.jit(fn)(X))


ALONE = {
    "sin": jnp.sin,
    "chain": lambda x: jnp.tanh(jnp.sin(x) * 2 + x),
    "sum": lambda x: x.sum(1, keepdims=True) * x,
    "product": lambda x: jnp.tanh(x @ x.T) @ x,
    "rows": lambda x: jnp.sort(jax.nn.softmax(x)),
    "loop": lambda x: lax.fori_loop(0, 3, lambda _, x: jnp.cos(x) * 2, x),
}


@pytest.mark.quick_share(5)
@pytest.mark.parametrize("inside", ALONE)
@pytest.mark.parametrize("around", ["nothing", "loops", "products", "several"])
def test_a_body_costs_what_it_costs_outside(inside: str, around: str) -> None:
    """One device does in a body what it does alone, in kernels that go on across the borders."""

    def surrounded(body: Any) -> Any:
        if around == "nothing":
            return body
        if around == "loops":
            return lambda x: jnp.cos(body(x * 2)) - 1
        if around == "products":
            return lambda x: body(x @ jnp.ones((256, 256))) @ jnp.ones((256, 256))
        return lambda x: (body(jnp.sin(x)), jnp.cos(body(jnp.sin(x))) * jnp.sin(x))

    rows = P(("a", "b"))
    whole, shard = (jax.ShapeDtypeStruct((count, 256), np.float32) for count in (8192, 1024))
    mine = autopar.plan(surrounded(by_hand(ALONE[inside], rows, rows)), whole, cluster="8xh100")
    plain = autopar.plan(surrounded(ALONE[inside]), shard, cluster="1xh100")
    assert mine.compute_time_s == pytest.approx(plain.compute_time_s, rel=1e-9)
    assert mine.peak_memory_bytes == plain.peak_memory_bytes


BESIDE = {
    "loops over samples inside": by_hand(
        lambda x: lax.scan(lambda n, row: (n + 1, jnp.tanh(row * 2).sum()), 0, x)[1],
        P("a"),
        P("a"),
        axis_names={"a"},
    ),
    "loops over samples around": lambda x: lax.scan(
        lambda n, row: (
            n + 1,
            by_hand(lambda r: lax.psum(r, "a"), P("a"), P(), axis_names={"a"})(row),
        ),
        0,
        x,
    )[1],
    "uneven dims": lambda x: by_hand(
        lambda x: lax.psum(jnp.sin(x @ x.T), "a"), P("a"), P(), axis_names={"a"}
    )(x @ x.T),
}


@pytest.mark.parametrize("beside", BESIDE)
def test_rewrites_of_loops_and_uneven_dims_leave_bodies_alone(beside: str) -> None:
    count = 62 if beside == "uneven dims" else 64
    x = np.random.default_rng(0).normal(size=(count, count)).astype(np.float32) / 10
    compiled = autopar.compile(BESIDE[beside], cluster=SLOW)
    assert_same(compiled(x), jax.jit(BESIDE[beside])(x))


def test_plans_with_bodies_are_saved_and_verified(tmp_path: Path) -> None:
    def body(x: Any) -> Any:
        return lax.ppermute(lax.psum(x, "a"), "b", [(0, 3), (2, 1)])

    fn = by_hand(body, P("a", "b"), P(None, "b"))
    plan = autopar.plan(fn, X, cluster=SLOW)
    plan.save(tmp_path / "plan.json")
    loaded = autopar.Plan.load(tmp_path / "plan.json")
    assert loaded.report() == plan.report(compare=False)
    assert_same(loaded.compile(fn)(X), jax.jit(fn)(X))
    plan.verify()
