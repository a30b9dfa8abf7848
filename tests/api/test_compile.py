"""autopar.compile: called like the function, computes the same, whatever comes in and goes out."""

from __future__ import annotations

from collections import namedtuple
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

import autopar
from autopar import Compiled
from autopar.api import pure as module
from autopar.errors import UnsplitDataWarning
from tests.api.same import PARAMS, SLOW, W, X, arrays, assert_same, check, layer, step

Pair = namedtuple("Pair", "w b")


@jax.tree_util.register_dataclass
@dataclass
class Record:
    w: Any
    b: Any


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one for every plan that is made."""
    made: list[int] = []
    real = module.make_plan

    def counting(*args: Any) -> Any:
        made.append(1)
        return real(*args)

    monkeypatch.setattr(module, "make_plan", counting)
    return made


def test_function_decorator_and_decorator_with_options() -> None:
    @autopar.compile
    def bare(w: Any, x: Any) -> Any:
        """Doc."""
        return layer(w, x)

    @autopar.compile(cluster=SLOW, mesh={"a": 8})
    def optioned(w: Any, x: Any) -> Any:
        return layer(w, x)

    assert isinstance(bare, Compiled)
    assert (bare.__name__, bare.__doc__) == ("bare", "Doc.")
    for compiled in (bare, optioned, autopar.compile(layer, cluster=SLOW)):
        check(compiled, layer, W, X)
    assert optioned.plan(W, X).mesh.names == ("a",)


def test_one_plan_for_each_signature(plans: list[int]) -> None:
    compiled = autopar.compile(layer, cluster=SLOW)
    for w, x, count in (
        (W, X, 1),
        (W + 1, X, 1),
        (jnp.asarray(W), X, 1),
        (W, X[:4], 2),
        (W, X.astype(np.int32), 3),
        (W, X, 3),
    ):
        check(compiled, layer, w, x)
        assert len(plans) == count
    compiled.plan(
        jax.ShapeDtypeStruct(W.shape, "float32"), jax.ShapeDtypeStruct(X.shape, "float32")
    )
    assert len(plans) == 3


def test_weak_types_and_structure_are_part_of_the_signature(plans: list[int]) -> None:
    def scale(x: Any, by: Any) -> Any:
        return jax.tree.leaves(x)[0] * jax.tree.leaves(by)[0]

    compiled = autopar.compile(scale, cluster=SLOW)
    half = X.astype(np.float16)
    for args in ((half, 2.0), (half, np.float32(2)), ([half], 2.0), (half, 3.0)):
        check(compiled, scale, *args)
    assert len(plans) == 3


def test_state_that_begins_as_python_numbers_is_planned_once(plans: list[int]) -> None:
    def count(state: Any, x: Any) -> Any:
        return {"step": state["step"] + 1, "rate": state["rate"] * 0.5}, x * state["rate"]

    compiled = autopar.compile(count, cluster=SLOW)
    state, wanted = {"step": 0, "rate": 1.0}, {"step": 0, "rate": 1.0}
    for _ in range(3):
        state, y = compiled(state, X)
        wanted, z = jax.jit(count)(wanted, X)
        assert_same((state, y), (wanted, z))
    assert len(plans) == 1


def test_keyword_arguments() -> None:
    def fn(w: Any, *, scale: Any, x: Any) -> Any:
        return {"a": layer(w, x) * scale, "b": (scale,)}

    compiled = autopar.compile(fn, cluster=SLOW)
    check(compiled, fn, W, x=X, scale=2.0)
    check(compiled, fn, w=W, scale=2, x=X)
    (w, kwargs) = compiled.plan(W, x=X, scale=2.0).in_shardings()
    assert isinstance(w, NamedSharding)
    assert sorted(kwargs) == ["scale", "x"]


def test_pytrees() -> None:
    def fn(p: Any, xs: Any, d: Any) -> Any:
        return Pair(p.w * 2, p.b), {"y": [xs[0] @ p.w + p.b, None]}, Record(d.w + 1, d.b)

    out = check(autopar.compile(fn, cluster=SLOW), fn, Pair(W, W[0]), [X], Record(W, W[0]))
    assert isinstance(out[0], Pair)
    assert isinstance(out[2], Record)


def test_static_arguments(plans: list[int]) -> None:
    def fn(n: int, x: Any, names: Any) -> Any:
        return (x * n).sum() + len(names)

    compiled = autopar.compile(fn, cluster=SLOW, static_argnums=(0, -1))
    plain = jax.jit(fn, static_argnums=(0, 2))
    for args, count in (
        ((3, X, "ab"), 1),
        ((4, X, "ab"), 2),
        ((3, X + 1, "ab"), 2),
        ((3, X, ("a",)), 3),
    ):
        assert_same(compiled(*args), plain(*args))
        assert len(plans) == count


@pytest.mark.parametrize("mode", ["auto", "data_parallel"])
def test_donated_state_over_many_steps(mode: str, plans: list[int]) -> None:
    compiled = autopar.compile(step, cluster=SLOW, donate_argnums=0, mode=mode)
    state, wanted = arrays(PARAMS), PARAMS
    placed = None
    for _ in range(5):
        before = state
        state, loss = compiled(before, X)
        wanted, wanted_loss = jax.jit(step)(wanted, X)
        assert_same((state, loss), (wanted, wanted_loss))
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before))
        shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
        assert placed in (None, shardings)
        placed = shardings
    plan = compiled.plan(state, X)
    assert plan.in_shardings()[0] == plan.out_shardings()[0] == placed
    assert len(plans) == 1


def test_what_is_not_donated_stays(plans: list[int]) -> None:
    compiled = autopar.compile(step, cluster=SLOW)
    given, data = arrays(PARAMS), jnp.asarray(X)
    compiled(given, data)
    check(compiled, step, given, data)
    numpy = {name: value.copy() for name, value in PARAMS.items()}
    autopar.compile(step, cluster=SLOW, donate_argnums=0)(numpy, X)
    np.testing.assert_array_equal(numpy["w"], W)


@pytest.mark.parametrize("donated", [0, "carried"])
def test_one_array_may_stand_in_a_donated_state_twice(donated: Any) -> None:
    """As an average does that begins with the weights; JAX ends the process where memory is given up twice."""

    def averaged(state: Any, x: Any, w: Any) -> Any:
        new, _ = step(state["new"], x)
        return {"new": new, "mean": jax.tree.map(lambda m, n: (m + n) / 2, state["mean"], new)}, w

    state = {"new": PARAMS, "mean": PARAMS}
    wanted, _ = jax.jit(averaged)(state, X, W)
    compiled = autopar.compile(averaged, cluster=SLOW, mesh={"a": 8}, donate_argnums=donated)
    given = arrays(PARAMS)
    plan = compiled.plan({"new": given, "mean": given}, X, given["w"])
    placed = plan.place({"new": given, "mean": given}, 0)
    found, _ = compiled({"new": given, "mean": given}, X, given["w"])
    assert_same(found, wanted)
    assert [given[name].is_deleted() for name in "bw"] == [True, False]  # "w" is read beside

    assert_same(compiled(placed, X, W)[0], wanted)
    lying = plan.place({"new": PARAMS, "mean": PARAMS}, 0)["new"]
    assert_same(compiled({"new": lying, "mean": lying}, X, W)[0], wanted)


def test_a_donated_array_may_be_a_constant_of_the_function() -> None:
    start = jnp.asarray(W)

    def near(w: Any) -> Any:
        return w - 0.1 * (w - start) - 1

    compiled = autopar.compile(near, cluster=SLOW, mesh={"a": 8}, donate_argnums=0)
    for _ in range(2):
        np.testing.assert_array_equal(compiled(start), W - 1)


def test_typed_and_raw_keys_in_and_out() -> None:
    def fn(key: Any, x: Any) -> Any:
        a, b = jax.random.split(key)
        return jax.random.normal(a, x.shape) + x, b

    for key in (jax.random.key(0), jax.random.PRNGKey(0), jax.random.key(1, impl="unsafe_rbg")):
        compiled = autopar.compile(fn, cluster=SLOW, carry=[(1, 0)])
        x, key = check(compiled, fn, key, X)
        check(compiled, fn, key, x)
        ins, outs = compiled.plan(key, x).in_shardings(), compiled.plan(key, x).out_shardings()
        assert_same(jax.jit(fn, in_shardings=ins, out_shardings=outs)(key, x), jax.jit(fn)(key, x))


def test_many_keys_are_split_but_never_one_key() -> None:
    def fn(keys: Any, x: Any) -> Any:
        return jax.vmap(lambda key, row: row + jax.random.uniform(key, row.shape))(keys, x), keys

    compiled = autopar.compile(fn, cluster=SLOW, mesh={"a": 2, "b": 4})
    keys = jax.random.split(jax.random.key(1), 8)
    check(compiled, fn, keys, X)
    placement = compiled.plan(keys, X).placements["keys"]
    assert placement.dims[0]
    assert not placement.dims[1]


def test_no_arrays_in_and_none_out() -> None:
    def constants() -> Any:
        return jnp.arange(16.0) * 2, 3.0, 1, np.ones(8, np.float32)

    check(autopar.compile(constants, cluster=SLOW), constants)
    for nothing in (lambda: (), lambda: None, lambda: {"a": []}):
        check(autopar.compile(nothing, cluster=SLOW), nothing)
    assert autopar.compile(lambda x: None, cluster=SLOW)(X) is None


def test_results_that_are_inputs_literals_and_repeated() -> None:
    def fn(x: Any, s: Any) -> Any:
        y = x * 2
        return x, x, y, s, 1.5, True, jnp.float32(2), y, np.ones((8, 2), np.float32)

    check(autopar.compile(fn, cluster=SLOW), fn, X, 3)
    found = autopar.compile(fn, cluster=SLOW, donate_argnums=0)(jnp.array(X), 3)
    assert_same(found, jax.jit(fn)(X, 3))


@pytest.mark.quick_share(2)
@pytest.mark.parametrize("dtype", ["int32", "int8", "uint8", "bool", "bfloat16", "float16"])
def test_element_types(dtype: str) -> None:
    def fn(a: Any) -> Any:
        return a.sum(0), a.max(), a.min(1), a == a.T, jnp.where(a > 0, a, 0), (a @ a.T).any()

    check(autopar.compile(fn, cluster=SLOW), fn, jnp.arange(64).reshape(8, 8).astype(dtype))


@pytest.mark.parametrize("shapes", [((0, 8), (8, 8)), ((8, 0), (0, 8)), ((8, 8), (8, 0))])
def test_arrays_without_elements(shapes: Any) -> None:
    def fn(x: Any, y: Any) -> Any:
        return x.sum(0), x @ y, jnp.concatenate([x, x]), y

    check(autopar.compile(fn, cluster=SLOW), fn, *(np.ones(shape, np.float32) for shape in shapes))


@pytest.mark.parametrize("args", [(1, 2), (1.5, 2), (True, 2), (np.float32(3), np.int32(2))])
def test_scalars_only(args: Any) -> None:
    def fn(a: Any, b: Any) -> Any:
        return a * b, a > b, jnp.int32(3) + b

    check(autopar.compile(fn, cluster=SLOW), fn, *args)


@pytest.mark.filterwarnings("ignore::autopar.errors.MovedWarning")
def test_arrays_that_lie_elsewhere(plans: list[int]) -> None:
    devices = np.array(jax.devices())
    compiled = autopar.compile(layer, cluster=SLOW)
    for sharding in (
        NamedSharding(Mesh(devices[:4], ("q",)), PartitionSpec("q")),
        NamedSharding(Mesh(devices.reshape(4, 2)[::-1], ("q", "r")), PartitionSpec("r", "q")),
        SingleDeviceSharding(devices[3]),
    ):
        check(compiled, layer, W, jax.device_put(X, sharding))
    assert len(plans) == 1


@pytest.mark.quick_share(3)
@pytest.mark.filterwarnings("ignore::autopar.errors.MovedWarning")
@pytest.mark.parametrize(
    "types", [(AxisType.Auto,) * 2, (AxisType.Explicit,) * 2, (AxisType.Auto, AxisType.Explicit)]
)
def test_a_jax_mesh_of_any_axis_types(types: Any) -> None:
    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=types)
    placed = jax.device_put(X, NamedSharding(mesh, PartitionSpec("a", "b")))
    compiled = autopar.compile(step, cluster=SLOW, mesh=mesh)
    wanted = jax.jit(step)(PARAMS, X)
    assert_same(compiled(PARAMS, X), wanted)
    assert_same(compiled(PARAMS, placed), wanted)
    with jax.set_mesh(mesh):
        assert_same(compiled(PARAMS, placed), wanted)
        assert_same(autopar.compile(step, cluster=SLOW, mesh=mesh)(PARAMS, placed), wanted)
    assert compiled.plan(PARAMS, X).mesh.axes == (("a", 2), ("b", 4))


@pytest.mark.quick_share(2)
@pytest.mark.parametrize(
    "numbers", [(7, 6, 5, 4), (5, 0, 3, 6), (2,), (0, 1, 2, 3, 4, 5), (7, 6, 5, 4, 3, 2, 1, 0)]
)
@pytest.mark.filterwarnings(
    "ignore::autopar.errors.UnsplitDataWarning"
)  # six devices do not divide eight rows
def test_devices_in_the_order_given(numbers: tuple[int, ...]) -> None:
    devices = [jax.devices()[number] for number in numbers]
    compiled = autopar.compile(step, devices=devices, mode="data_parallel")
    state, _ = check(compiled, step, PARAMS, X)
    check(compiled, step, state, X)
    assert list(state["w"].sharding.mesh.devices.flat) == devices
    assert compiled.plan(PARAMS, X).mesh.size == len(devices)


def test_a_jax_mesh_brings_its_devices() -> None:
    devices = jax.devices()[::-2]
    compiled = autopar.compile(layer, mesh=Mesh(np.array(devices).reshape(2, 2), ("a", "b")))
    out = check(compiled, layer, W, X)
    assert list(out.sharding.mesh.devices.flat) == devices


def test_without_a_mesh_the_shapes_are_searched() -> None:
    plan = autopar.plan(layer, W, X, cluster=SLOW)
    for mesh in ({"x": 8}, {"x": 2, "y": 4}):
        fixed = autopar.plan(layer, W, X, cluster=SLOW, mesh=mesh)
        assert plan.objective_s <= fixed.objective_s
        assert str(fixed.mesh) in plan.summary.space
    assert plan.lower_bound_s <= plan.objective_s


@pytest.mark.parametrize("rows", [8, 6])
def test_data_parallel_splits_the_data_and_replicates_the_rest(rows: int) -> None:
    with (
        nullcontext()
        if rows == 8
        else pytest.warns(UnsplitDataWarning, match="every device computes all of it")
    ):
        plan = autopar.plan(
            step, PARAMS, X[:rows], cluster=SLOW, mesh={"a": 2, "b": 4}, mode="data_parallel"
        )
    assert str(plan.placements["p['w']"]) == "[-, -]"
    assert str(plan.placements["p['b']"]) == "[-]"
    assert str(plan.placements["x"]) == ("[a*b, -]" if rows == 8 else "[-, -]")


def test_the_lowered_program_can_be_looked_into() -> None:
    compiled = autopar.compile(layer, cluster=SLOW, mesh={"a": 2, "b": 4})
    text = compiled.lower(W, X).compile().as_text()
    assert "HloModule" in text


def test_lowering_places_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that it can be for devices that are not there, in several processes: topologies describe such."""
    table = np.arange(8.0, dtype=np.float32)
    plan = autopar.plan(
        lambda x: x * table, jax.ShapeDtypeStruct((16, 8), np.float32), cluster=SLOW
    )
    assert plan.bound.traced.constants

    def refuse(*_: Any) -> Any:
        raise AssertionError("placed")

    with monkeypatch.context() as patched:
        patched.setattr("autopar.api.runner.all_placed", refuse)
        patched.setattr("autopar.api.pure.agreed", refuse)
        there, back = jax.devices(), jax.devices()[::-1]
        texts = [plan.lower(devices).compile().as_text() for devices in (None, there, back)]
        texts.append(
            plan.compile(devices=there)
            .lower(jax.ShapeDtypeStruct((16, 8), np.float32))
            .compile()
            .as_text()
        )
    assert "f32[2,8]" in texts[0] or "f32[16,1]" in texts[0]
    x = np.ones((16, 8), np.float32)
    np.testing.assert_array_equal(plan.compile()(x), x * table)
    with pytest.raises(autopar.AutoparError, match="8 devices, 4 are given"):
        plan.lower(there[:4])
