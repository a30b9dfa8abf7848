"""Calls: whatever comes in, wherever it lies, in any order, is taken as by jax.jit; what is in place costs little."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

import autopar
from tests.api.same import SLOW, assert_same

MESH = {"a": 2, "b": 4}
SOURCES = str(Path(autopar.__file__).parent)


def step(state: Any, x: Any) -> Any:
    new = {name: leaf * 2 for name, leaf in state.items()}
    return new, sum(leaf.sum() for leaf in state.values()) * x


@cache
def forms(kind: tuple[tuple[int, ...], str]) -> dict[str, Any]:
    """The same values in all places that they may come from."""
    value = VALUES[kind]
    mesh = autopar.plan(jnp.sin, value, cluster=SLOW, mesh=MESH).jax_mesh()
    rows, columns = (
        NamedSharding(mesh, PartitionSpec("b")),
        NamedSharding(mesh, PartitionSpec(None, ("a", "b"))),
    )
    return {
        "host": value,
        "first device": jnp.asarray(value),
        "another device": jax.device_put(value, jax.devices()[3]),
        "rows": jax.device_put(value, rows),
        "columns": jax.device_put(value, columns),
        "whole": jax.device_put(value, NamedSharding(mesh, PartitionSpec())),
    }


VALUES = {
    (shape, dtype): np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    for shape in ((8, 8), (16, 8))
    for dtype in ("float32", "int32", "bfloat16")
}
places = st.sampled_from(["host", "first device", "another device", "rows", "columns", "whole"])
calls = st.tuples(
    st.sampled_from(sorted(VALUES)), places, places, st.sampled_from([2, 2.0, np.float32(2), None])
)
COMPILED = {
    donate: autopar.compile(step, cluster=SLOW, mesh=MESH, donate_argnums=donate)
    for donate in ((), 0)
}
JITTED = jax.jit(step)


@pytest.mark.filterwarnings("ignore::autopar.errors.MovedWarning", "ignore:Some donated buffers")
@settings(max_examples=15, deadline=None)
@given(order=st.lists(calls, min_size=1, max_size=6), donate=st.sampled_from([(), 0]))
def test_calls_of_all_kinds_in_any_order(order: list[Any], donate: Any) -> None:
    """None for the number is the results of the call before, which lie in place, where they fit."""
    state: Any = None
    for kind, first, second, number in order:
        if number is None and state is not None:
            given, x = state, 2.0
        else:
            given, x = (
                {"u": forms(kind)[first], "v": forms(kind)[second]},
                2.0 if number is None else number,
            )
        if donate == 0:
            given = jax.tree.map(
                lambda leaf: leaf if isinstance(leaf, np.ndarray) else leaf.copy(), given
            )
        wanted = JITTED(jax.tree.map(np.asarray, given), x)
        found = COMPILED[donate](given, x)
        assert_same(found, wanted)
        arrays = [leaf for leaf in jax.tree.leaves(given) if isinstance(leaf, jax.Array)]
        assert all(leaf.is_deleted() == (donate == 0) for leaf in arrays)
        state = found[0]


def python_calls(compiled: Any, *args: Any) -> int:
    """How many functions of autopar run in one call."""
    count = 0

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal count
        count += event == "call" and frame.f_code.co_filename.startswith(SOURCES)

    sys.setprofile(profile)
    try:
        compiled(*args)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("number", [1, 40])
def test_what_lies_in_place_costs_no_call_for_each_array(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = autopar.compile(step, cluster=SLOW, mesh={"a": 8}, donate_argnums=0)
    state: Any = {f"w{n}": np.ones((8, 8), np.float32) for n in range(number)}
    x: Any = jnp.float32(1)
    for _ in range(2):
        state, x = compiled(state, x)
    moved: list[Any] = []
    put = jax.device_put
    monkeypatch.setattr(
        jax, "device_put", lambda *args, **kwargs: moved.append(args) or put(*args, **kwargs)
    )
    for _ in range(2):
        state, x = compiled(state, x)
        assert not moved
    # What donation costs: one call an array.
    assert python_calls(compiled, state, x) <= 14 + number


def test_a_call_in_place_is_not_traced_again() -> None:
    traced: list[int] = []

    def counted(state: Any, x: Any) -> Any:
        traced.append(1)
        return step(state, x)

    compiled = autopar.compile(counted, cluster=SLOW, mesh=MESH)
    state: Any = {"u": VALUES[(8, 8), "float32"]}
    for _ in range(4):
        state, _ = compiled(state, 2.0)
    assert len(traced) == 1


def test_one_sharding_of_arrays_of_several_types() -> None:
    """What lies in place is told by its type as well: the very same sharding may be that of another shape or dtype."""
    compiled = autopar.compile(
        step, cluster=SLOW, mesh={"a": 8}, constraints=(autopar.pin("state", PartitionSpec("a")),)
    )
    rows = compiled.plan({"u": VALUES[(8, 8), "float32"]}, 2.0).in_shardings()[0]["u"]
    for kind in (*VALUES, *VALUES):
        state = {"u": jax.device_put(VALUES[kind], rows)}
        assert state["u"].sharding is rows
        assert_same(compiled(state, 2.0), JITTED({"u": VALUES[kind]}, 2.0))


def test_deleted_arrays_are_refused() -> None:
    compiled = autopar.compile(step, cluster=SLOW, mesh=MESH, donate_argnums=0)
    state = {"u": jnp.ones((8, 8))}
    compiled(state, 2.0)
    with pytest.raises(RuntimeError, match="deleted"):
        compiled(state, 2.0)


def test_keys_in_place_stay_typed() -> None:
    def draw(state: Any, x: Any) -> Any:
        key, now = jax.random.split(state["key"])
        return {"key": key, "w": state["w"] + jax.random.normal(now, x.shape)}, x

    compiled = autopar.compile(draw, cluster=SLOW, mesh=MESH, donate_argnums=0)
    found: Any = {"key": jax.random.key(3), "w": jnp.ones((8, 8))}
    wanted: Any = {"key": jax.random.key(3), "w": jnp.ones((8, 8))}
    x = np.ones((8, 8), np.float32)
    for _ in range(3):
        (found, y), (wanted, z) = compiled(found, x), jax.jit(draw)(wanted, x)
        assert_same((found, y), (wanted, z))
