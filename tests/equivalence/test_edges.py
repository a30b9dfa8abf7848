"""Whole functions at their edges, planned and compiled: indices far outside of split arrays, and empty arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import autopar
from tests.api.same import SLOW, assert_same
from tests.quick_some import diagonal

ROWS, COLUMNS = 16, 24
X = np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)
STARTS = (-(2**31), -100, -49, -25, -17, -16, -1, 0, 3, 13, 15, 16, 23, 24, 40, 2**31 - 20)
Array = jax.Array


def written(x: Array, start: Array) -> Any:
    return lax.dynamic_update_slice(x, jnp.full((3, 5), 99.0), (start, start + 2)), x.at[start].set(
        5.0
    )


def read(x: Array, start: Array) -> Any:
    return (
        lax.dynamic_slice(x, (start, start), (5, 7)),
        lax.dynamic_index_in_dim(x, start, 1),
        x[start],
    )


def filled(x: Array, start: Array) -> Any:
    return x.at[start].get(mode="fill", fill_value=-1), x[:, start], x.at[:, start].get(mode="clip")


def indices_of(start: Array) -> Array:
    return jnp.stack([start, start + 1, start + 17, -start])


def taken(x: Array, start: Array) -> Any:
    at = indices_of(start)
    return tuple(
        jnp.take(x, at, axis=axis, mode=mode)
        for axis in (0, 1)
        for mode in ("clip", "wrap", "fill")
    )


def scattered(x: Array, start: Array) -> Any:
    at = indices_of(start)
    return tuple(
        getattr(x.at[at], way)(2.0, mode=mode)
        for way in ("add", "max", "set")
        for mode in ("clip", "drop")
    )


def rolled(x: Array, shift: Array) -> Any:
    return jnp.roll(x, shift, axis=0), jnp.roll(x, (shift, shift), axis=(0, 1))


SPLIT = {"rows": P("d"), "columns": P(None, "d")}


@pytest.mark.quick_share(2)
@pytest.mark.parametrize(
    ("fn", "split"), diagonal([written, read, filled, taken, scattered, rolled], SPLIT)
)
def test_indices_far_outside(fn: Callable[..., Any], split: str) -> None:
    pins = (autopar.pin("x", SPLIT[split]),)
    plan = autopar.plan(fn, X, np.int32(3), mesh={"d": 8}, cluster=SLOW, constraints=pins)
    run, plain = plan.compile(), jax.jit(fn)
    for start in STARTS:
        assert_same(run(X, np.int32(start)), plain(X, np.int32(start)))


@pytest.mark.parametrize("start", [0, 3, 9, 40])
def test_a_slice_far_outside_is_cut_into_shards(start: int) -> None:
    """A device reads its part of what was read whole: to add both starts, as XLA may, is to leave out a clamp."""

    whole = NamedSharding(jax.make_mesh((8,), ("d",), (AxisType.Auto,)), P())

    def part(x: Array, start: Array) -> Array:
        return lax.with_sharding_constraint(lax.dynamic_slice(x, (start,), (8,)), whole)

    given, pins = (
        (X[0, :16], np.int32(start)),
        (autopar.pin("x", P()), autopar.pin("output[0]", P("d"))),
    )
    plan = autopar.plan(part, *given, mesh={"d": 8}, cluster="8xh100", constraints=pins)
    assert_same(plan.compile()(*given), part(*given))


@pytest.mark.parametrize(
    ("fn", "start"), diagonal([written, read, filled, scattered], [-100, -17, 40])
)
def test_known_indices_far_outside(fn: Callable[..., Any], start: int) -> None:
    """Numbers while the function is traced."""

    def known(x: Array) -> Any:
        return fn(x, jnp.int32(start))

    plan = autopar.plan(
        known, X, mesh={"d": 8}, cluster=SLOW, constraints=(autopar.pin("x", P("d")),)
    )
    assert_same(plan.compile()(X), jax.jit(known)(X))


@pytest.mark.parametrize("dtype", ["int4", "int8", "uint8", "uint32"])
def test_indices_of_other_types(dtype: str) -> None:
    """Four bits too, which numpy has no limits of."""

    def looked_up(x: Array, at: Array) -> Any:
        return x[at], x.at[at].add(1.0), lax.dynamic_slice(x, (at[0], at[1]), (2, 2))

    info = jnp.iinfo(dtype)
    at = np.array([info.min, info.max, 3, 5]).astype(jnp.dtype(dtype))
    plan = autopar.plan(
        looked_up, X, at, mesh={"d": 8}, cluster=SLOW, constraints=(autopar.pin("x", P("d")),)
    )
    assert_same(plan.compile()(X, at), jax.jit(looked_up)(X, at))


def indexed(x: Array, index: Array, rows: Array) -> Any:
    """What reads and writes rows, mapped over the first dim."""
    return jax.vmap(lambda x, i: x[i])(x, index), jax.vmap(lambda x, i, v: x.at[i].add(v))(
        x, index, rows
    )


def scanned(x: Array, index: Array, rows: Array) -> Any:
    """An associative scan halves its operands until they are of no elements."""

    def last(a: jax.Array, b: jax.Array) -> jax.Array:
        return jax.vmap(lambda r, i: r[i])(jnp.concatenate([a, b], 1), jnp.full((len(a), 4), 4))

    return lax.associative_scan(last, x), index.sum() + rows.sum()


def trained(x: Array, index: Array, rows: Array) -> Any:
    loss = lambda x: ((jnp.tanh(x.sum(1)) - rows.sum(1)) ** 2).sum() + index.sum()  # noqa: E731
    return jax.value_and_grad(loss)(x)


EMPTY = {"no batch": (0, 3), "no indices": (8, 0), "nothing at all": (0, 0), "some": (8, 3)}


@pytest.mark.quick_share(3)
@pytest.mark.parametrize("shape", EMPTY)
@pytest.mark.parametrize("fn", [indexed, scanned, trained])
def test_arrays_without_elements(fn: Callable[..., Any], shape: str) -> None:
    batch, count = EMPTY[shape]
    x = np.arange(batch * 4 * 16, dtype=np.float32).reshape(batch, 4, 16)
    index = np.arange(batch * count, dtype=np.int32).reshape(batch, count) % 4
    args = x, index, np.ones((batch, count, 16), np.float32)
    plan = autopar.plan(
        fn, *args, mesh={"a": 2, "b": 4}, cluster=SLOW, constraints=(autopar.pin("x", P("a")),)
    )
    assert_same(plan.compile()(*args), jax.jit(fn)(*args))


@pytest.mark.parametrize("spec", [P("d"), P(None, "d")])
def test_shardings_of_an_array_without_elements_are_taken(spec: P) -> None:
    """Pinned, constrained inside, and in a shard_map: nothing is sent for it."""
    mesh = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))

    def inside(x: Array) -> Any:
        held = lax.with_sharding_constraint(x * 2, jax.sharding.NamedSharding(mesh, spec))
        return jax.shard_map(lambda x: x + 1, mesh=mesh, in_specs=spec, out_specs=spec)(
            held
        ), held.sum(0)

    x = np.zeros((0, 8), np.float32)
    plan = autopar.plan(
        inside, x, mesh={"d": 8}, cluster=SLOW, constraints=(autopar.pin("x", spec),)
    )
    added, total = plan.compile()(x)
    assert np.asarray(added).shape == (0, 8)
    np.testing.assert_array_equal(total, np.zeros(8))


def test_a_batch_without_elements_is_not_said_to_divide_unevenly() -> None:
    """Warnings are errors."""

    def loss(w: Array, x: Array) -> Any:
        return (jnp.tanh(x @ w) ** 2).sum()

    batch = np.zeros((0, ROWS), np.float32)
    plan = autopar.plan(
        loss, X, batch, mesh={"d": 8}, cluster=SLOW, constraints=autopar.data_parallel()
    )
    assert float(plan.compile()(X, batch)) == 0.0
