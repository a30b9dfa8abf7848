"""The host's memory: what a function puts there takes none of a device, crosses a link that has a price, and stays."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import ShapeDtypeStruct as Struct
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import SingleDeviceSharding

import autopar
from autopar.trace import trace
from cost_models import load_cluster

HOST, DEVICE = jax.memory.Space.Host, jax.memory.Space.Device
MESHES = [{"d": 8}, {"a": 2, "b": 4}]
SIDE = 4096


def on_host() -> SingleDeviceSharding:
    return SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")


def gradient(params: Any, x: Any) -> Any:
    return jax.grad(lambda p: jnp.mean((jnp.tanh(x @ p["a"]) @ p["b"]) ** 2))(params)


def offloaded(params: Any, moments: Any, x: Any) -> Any:
    """A step whose moments rest on the host."""
    moments = jax.tree.map(
        lambda m, g: 0.9 * m + g, jax.device_put(moments, DEVICE), gradient(params, x)
    )
    return jax.tree.map(lambda p, m: p - 0.1 * m, params, moments), jax.device_put(moments, HOST)


def resident(params: Any, moments: Any, x: Any) -> Any:
    """The same with moments that stay on the devices."""
    moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, gradient(params, x))
    return jax.tree.map(lambda p, m: p - 0.1 * m, params, moments), moments


def arrays(side: int = 64) -> Any:
    rng = np.random.default_rng(0)
    shapes = {"a": (side, 4 * side), "b": (4 * side, side)}
    params, moments = (
        {k: rng.normal(size=s).astype("float32") for k, s in shapes.items()} for _ in range(2)
    )
    return params, moments, rng.normal(size=(16, side)).astype("float32")


def structs(*, host: bool) -> Any:
    shapes = {"a": (SIDE, 4 * SIDE), "b": (4 * SIDE, SIDE)}
    params = {k: Struct(s, np.float32) for k, s in shapes.items()}
    moments = {
        k: Struct(s, np.float32, sharding=on_host() if host else None) for k, s in shapes.items()
    }
    return params, moments, Struct((64, SIDE), np.float32)


def assert_close(found: Any, expected: Any) -> None:
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mesh", MESHES)
def test_moments_on_the_host_go_there_and_back_step_by_step(mesh: dict[str, int]) -> None:
    params, moments, x = arrays()
    moments = jax.device_put(moments, on_host())
    step, plain = autopar.compile(offloaded, mesh=mesh), jax.jit(offloaded)
    ours = theirs = params, moments
    for _ in range(3):
        ours, theirs = step(*ours, x), plain(*theirs, x)
        assert_close(ours, theirs)
        assert {leaf.sharding.memory_kind for leaf in jax.tree.leaves(ours[1])} == {"pinned_host"}
        assert "pinned_host" not in {leaf.sharding.memory_kind for leaf in jax.tree.leaves(ours[0])}
    assert len(step.plans) == 1


@pytest.mark.parametrize("made_on", ["host", "device"])
def test_moments_are_born_and_placed_on_the_host_wherever_they_come_from(made_on: str) -> None:
    params, moments, x = arrays()
    there = jax.device_put(moments, on_host())
    plan = autopar.plan(offloaded, params, there, x, cluster="8xh100", mesh={"d": 8})

    def zeros() -> Any:
        made = jax.tree.map(jnp.zeros_like, params)
        return jax.device_put(made, HOST) if made_on == "host" else made

    given = there if made_on == "host" else moments
    for state in (plan.init(zeros, argument=1), plan.place(given, 1)):
        assert jax.tree.map(lambda leaf: leaf.sharding, state) == plan.in_shardings()[1]
    np.testing.assert_array_equal(plan.place(given, 1)["a"], moments["a"])


def test_what_is_on_the_host_takes_no_memory_of_a_device_and_the_way_there_takes_time() -> None:
    keywords: Any = {"cluster": "8xh100", "mesh": {"d": 8}, "donate_argnums": (0, 1)}
    there = autopar.plan(offloaded, *structs(host=True), **keywords)
    here = autopar.plan(resident, *structs(host=False), **keywords)
    part = 4 * SIDE * 4 * SIDE // 8
    assert [there.placements[f"moments['{k}']"].split_axes for k in "ab"] == [("d",)] * 2
    assert sum(row.local_bytes for row in here.summary.inputs) == 4 * part + 4 * 64 * SIDE
    assert sum(row.local_bytes for row in there.summary.inputs) == 2 * part + 4 * 64 * SIDE
    assert there.peak_memory_bytes <= here.peak_memory_bytes  # one moment at a time is fetched
    link = load_cluster("8xh100").device.host_bandwidth_bytes_per_s
    assert there.step_time_s == pytest.approx(here.step_time_s + 4 * part / link, rel=0.02)
    assert "[-, d] on the host" in there.report()
    kinds = jax.tree.map(lambda s: s.memory_kind, there.in_shardings()[1])
    assert (
        kinds
        == jax.tree.map(lambda s: s.memory_kind, there.out_shardings()[1])
        == dict.fromkeys("ab", "pinned_host")
    )


def test_arrays_come_from_the_host_right_before_they_are_read_and_leave_right_behind_what_made_them() -> (
    None
):
    graph = trace(offloaded, structs(host=True)).graph
    fetched = [op for op in graph.ops if op.crosses_memories and op.ins[0].on_host]
    stored = [op for op in graph.ops if op.crosses_memories and op.outs[0].on_host]
    assert len(fetched) == len(stored) == 2
    assert all(fetch.outs[0] in graph.ops[fetch.id + 1].ins for fetch in fetched)
    assert all(store.ins[0] in graph.ops[store.id - 1].outs for store in stored)


def test_what_lies_on_the_host_is_moved_by_no_collective() -> None:
    def step(moments: Any) -> Any:
        return jax.device_put(jax.device_put(moments, DEVICE).T @ jnp.ones((64, 64)), HOST)

    moments = jax.device_put(np.ones((64, 64), np.float32), on_host())
    plan = autopar.plan(
        step, moments, mesh={"d": 8}, in_shardings=jax.P("d"), out_shardings=jax.P("d")
    )
    program = plan.program()
    hosted = {v for v, value in program.values.items() if value.tensor.on_host}
    assert hosted
    assert not any(hosted.intersection((*move.ins, *move.outs)) for move in program.collectives)
    np.testing.assert_allclose(
        autopar.compile(step, mesh={"d": 8})(moments), np.full((64, 64), 64.0)
    )


POLICIES: dict[str, Any] = {
    "saved": jax.checkpoint_policies.save_only_these_names("hidden"),
    "offloaded": jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["hidden"],
        offload_src="device",
        offload_dst="pinned_host",
    ),
}


def layers(policy: str, *, scanned: bool) -> Any:
    def layer(x: Any, w: Any) -> Any:
        hidden = checkpoint_name(jnp.tanh(x @ w), "hidden")
        return jnp.sin(hidden) * 2 + x, None

    kept = jax.checkpoint(layer, policy=POLICIES[policy])

    def loss(ws: Any, x: Any) -> Any:
        if scanned:
            return (jax.lax.scan(kept, x, ws)[0] ** 2).mean()
        for w in ws:
            x, _ = kept(x, w)
        return (x**2).mean()

    return jax.value_and_grad(loss)


@pytest.mark.quick_share(2)
@pytest.mark.parametrize("scanned", [False, True])
@pytest.mark.parametrize("mesh", MESHES)
def test_offloaded_activations_give_the_same(mesh: dict[str, int], scanned: bool) -> None:
    rng = np.random.default_rng(0)
    args = (
        0.1 * rng.normal(size=(4, 32, 32)).astype("float32"),
        rng.normal(size=(16, 32)).astype("float32"),
    )
    expected = jax.jit(layers("saved", scanned=scanned))(*args)
    assert_close(autopar.compile(layers("offloaded", scanned=scanned), mesh=mesh)(*args), expected)


def test_offloaded_activations_of_scanned_layers_are_not_held() -> None:
    args = Struct((8, SIDE, SIDE), np.float32), Struct((65536, SIDE), np.float32)
    keywords: Any = {
        "cluster": "8xh100",
        "mesh": {"d": 8},
        "options": autopar.SearchOptions(recompute="never"),
    }
    saved, offloaded = (
        autopar.plan(layers(policy, scanned=True), *args, **keywords) for policy in POLICIES
    )
    assert saved.placements == offloaded.placements
    assert saved.peak_memory_bytes - offloaded.peak_memory_bytes == 8 * 65536 * SIDE * 4 // 8
