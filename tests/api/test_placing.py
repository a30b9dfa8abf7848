"""States where a plan has them: arrays that are put there, and states that are born there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import autopar
from autopar.api.placing import settings_of_state, slot_of
from autopar.errors import AutoparError, SignatureMismatch
from tests.api.same import SLOW, assert_same

MESH = {"a": 2, "b": 4}
X = np.linspace(-1, 1, 16 * 64, dtype=np.float32).reshape(16, 64)


def make_state(key: Any, width: int = 64) -> Any:
    keys = jax.random.split(key, 4)
    params = {
        "up": jax.random.normal(keys[0], (width, 4 * width)),
        "down": jax.nn.initializers.glorot_uniform()(keys[1], (4 * width, width)),
        "scale": jax.random.truncated_normal(keys[2], -2.0, 2.0, (width,)),
    }
    return {
        "params": params,
        "m": jax.tree.map(jnp.zeros_like, params),
        "count": jnp.int32(0),
        "key": keys[3],
    }


def train(state: Any, x: Any) -> Any:
    def loss(p: Any) -> Any:
        return ((jnp.tanh(x @ p["up"]) @ p["down"] * p["scale"]) ** 2).mean()

    value, gradient = jax.value_and_grad(loss)(state["params"])
    m = jax.tree.map(lambda m, g: 0.9 * m + g, state["m"], gradient)
    params = jax.tree.map(lambda p, m: p - 0.1 * m, state["params"], m)
    return {**state, "params": params, "m": m, "count": state["count"] + 1}, value


KEY = jax.random.key(7)
STATE = jax.eval_shape(make_state, KEY)


def wanted() -> Any:
    """The state as plain JAX makes it; arrays of its own, as they may be donated."""
    return jax.jit(make_state)(jax.random.key(7))


def compiled(**options: Any) -> autopar.Compiled:
    return autopar.compile(train, cluster=SLOW, mesh=MESH, donate_argnums=0, **options)


def assert_lies(tree: Any, shardings: Any) -> None:
    assert jax.tree.map(lambda leaf: leaf.sharding, tree) == shardings


# Placing --------------------------------------------------------------------------------------------------------------


def test_arrays_from_anywhere_are_put_in_place() -> None:
    step = compiled()
    plan = step.plan(STATE, X)
    (ours, batch), mesh = plan.in_shardings(), plan.jax_mesh()
    other = jax.make_mesh((8,), ("q",), axis_types=(jax.sharding.AxisType.Auto,))
    for put in (
        lambda leaf: leaf if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else np.asarray(leaf),
        lambda leaf: leaf,
        lambda leaf: jax.device_put(leaf, NamedSharding(other, P("q") if leaf.ndim else P())),
        lambda leaf: jax.device_put(leaf, NamedSharding(mesh, P())),
    ):
        state = plan.place(jax.tree.map(put, wanted()))
        assert_lies(state, ours)
        assert_same(state, wanted())
    x = plan.place(X, argument=1)
    assert x.sharding == plan.place(X, argument="x").sharding == batch


def test_what_was_placed_is_not_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    step = compiled()
    plan = step.plan(STATE, X)
    state, x = plan.place(wanted()), plan.place(X, argument=1)
    expected = jax.jit(train)(wanted(), X)
    monkeypatch.setattr(jax, "device_put", None)
    assert_same(step(state, x), expected)


def test_arguments_by_position_and_by_name() -> None:
    def fn(names: Any, w: Any, empty: Any, *, scale: Any, x: Any) -> Any:
        return x @ w * scale

    plan = autopar.plan(
        lambda *args, **kwargs: fn(*args, **kwargs), ("a",), np.ones((64, 8)), {}, cluster=SLOW, static_argnums=0,
        scale=2.0, x=X,
    )  # fmt: skip
    assert plan.place(np.ones((64, 8)), argument=1).shape == (64, 8)
    assert plan.place({}, argument=2) == {}
    assert plan.place(X, argument="x").shape == X.shape
    for argument in (0, 3, "y"):
        with pytest.raises(
            SignatureMismatch,
            match=f"has no argument {argument!r} that is planned; there are 'args",
        ):
            plan.place(X, argument=argument)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"count": np.float32(0)},
            r"state\['count'\] is float32\[\], the plan has int32\[\] there",
        ),
        (
            {"more": X},
            r"state\['more'\] is float32\[16,64\]|state\['more'\] is float32\[16, 64\], the plan has nothing",
        ),
        ({"m": X}, r"state\['m'\]\['down'\] is nothing, the plan has float32\[256, 64\]"),
        (
            {"key": np.ones(2, np.uint32)},
            r"state\['key'\] is uint32\[2\], the plan has key<fry>\[\]",
        ),
        ({"count": "one"}, r"state\['count'\] is a str"),
    ],
)
def test_other_arrays_are_refused(change: dict[str, Any], message: str) -> None:
    plan = compiled().plan(STATE, X)
    with pytest.raises(SignatureMismatch, match=message):
        plan.place({**wanted(), **change})


def test_another_structure_of_the_same_paths_is_refused() -> None:
    plan = autopar.plan(lambda s: s[0] + s[1], (X, X), cluster=SLOW)
    with pytest.raises(
        SignatureMismatch, match=r"s is of structure PyTreeDef\(\[\*, \*\]\), the plan has"
    ):
        plan.place([X, X])


def test_a_loaded_plan_places_once_it_is_bound(tmp_path: Path) -> None:
    plan = compiled().plan(STATE, X)
    plan.save(tmp_path / "plan.json")
    loaded = autopar.Plan.load(tmp_path / "plan.json")
    with pytest.raises(AutoparError, match="a loaded plan knows no function"):
        loaded.place(wanted())
    assert_lies(loaded.compile(train).plan(STATE, X).place(wanted()), plan.in_shardings()[0])


# Being born there -----------------------------------------------------------------------------------------------------


def test_a_state_is_born_in_place_bit_for_bit() -> None:
    step = compiled()
    with pytest.raises(
        SignatureMismatch, match="was not planned yet, so where its state lies is not known"
    ):
        step.init(make_state, KEY)
    state = step.init(make_state, KEY, others=(X,))
    assert_lies(state, step.plan(STATE, X).in_shardings()[0])
    for found, expected in zip(jax.tree.leaves(state), jax.tree.leaves(wanted()), strict=True):
        if jnp.issubdtype(found.dtype, jax.dtypes.prng_key):
            found, expected = jax.random.key_data(found), jax.random.key_data(expected)
        np.testing.assert_array_equal(found, expected)
    assert_lies(step.init(lambda: make_state(KEY)), step.plan(STATE, X).in_shardings()[0])
    assert_same(step(state, X), jax.jit(train)(wanted(), X))


def test_a_state_larger_than_a_device_is_never_whole() -> None:
    """The limit is a quarter of the state: XLA holds no array of a parameter's size, and no more than the limit."""
    whole = jax.eval_shape(lambda key: make_state(key, 256), KEY)
    size = sum(leaf.size * 4 for leaf in jax.tree.leaves(whole["params"])) * 2
    limit = size // 4
    small = replace(SLOW, device=replace(SLOW.device, memory_bytes=float(limit)))
    step = autopar.compile(train, cluster=small, mesh=MESH, donate_argnums=0)
    plan = step.plan(whole, jax.ShapeDtypeStruct((16, 256), jnp.float32))
    devices = plan.check_devices(None)
    born = autopar.Compiled(
        lambda key: make_state(key, 256),
        settings_of_state(plan.bound, slot_of(plan.bound, 0), devices),
    )
    assert born.plan(KEY).peak_memory_bytes <= limit < size
    program = born.lower(KEY).compile()
    spent = program.memory_analysis()
    assert (
        spent.argument_size_in_bytes + spent.output_size_in_bytes + spent.temp_size_in_bytes
        <= 1.02 * limit
    )
    text = program.as_text()
    leaves = zip(jax.tree.leaves(whole), jax.tree.leaves(plan.in_shardings()[0]), strict=True)
    shards = [
        ",".join(map(str, lies.shard_shape(leaf.shape))) for leaf, lies in leaves if leaf.ndim > 1
    ]
    assert all(f"f32[{shard}]" in text for shard in shards)
    assert "[256,1024]" not in text
    assert "[1024,256]" not in text
    state = step.init(make_state, KEY, width=256)
    assert all(
        leaf.addressable_shards[0].data.size * 8 == leaf.size
        for leaf in jax.tree.leaves(state)
        if leaf.ndim > 1
    )


def test_another_argument_may_be_born() -> None:
    def decode(params: Any, cache: Any, x: Any) -> Any:
        return cache.at[0].set(x @ params), (x @ params).sum()

    step = autopar.compile(
        decode, cluster=SLOW, mesh=MESH, constraints=(autopar.pin("cache", P(None, "b")),)
    )
    params = np.ones((64, 8), np.float32)
    cache = step.init(lambda: jnp.zeros((4, 16, 8)), argument=1, others=(params, X))
    assert cache.sharding.spec == P(None, "b", None)
    assert step.plan(params, cache, X).init(
        lambda: jnp.zeros((4, 16, 8)), argument="cache"
    ).shape == (4, 16, 8)


def test_the_first_plan_that_takes_the_state_is_taken() -> None:
    step = compiled()
    step.plan(
        jax.eval_shape(lambda: make_state(KEY, 128)), jax.ShapeDtypeStruct((16, 128), jnp.float32)
    )
    with pytest.raises(
        SignatureMismatch,
        match=r"init: the result of make_state: state\['m'\]\['down'\] is float32\[256",
    ):
        step.init(make_state, KEY)
    second = step.plan(STATE, X)
    assert_lies(step.init(make_state, KEY), second.in_shardings()[0])


def test_an_argument_is_told_as_shapes_with_shardings() -> None:
    plan = compiled().plan(STATE, X)
    told = plan.abstract()
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), told) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), STATE
    )
    assert jax.tree.map(lambda leaf: leaf.sharding, told) == plan.in_shardings()[0]
    assert plan.abstract("x").sharding == plan.in_shardings()[1]
    with pytest.raises(SignatureMismatch, match="no argument 'y'"):
        plan.abstract("y")
