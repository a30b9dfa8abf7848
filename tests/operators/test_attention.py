"""`jax.nn.dot_product_attention` in a plan: one operator, whatever is asked of it, with the values of plain JAX."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.nn import dot_product_attention  # known under this name before autopar is

import autopar
from autopar import operators
from autopar.core.mesh import DeviceMesh
from autopar.ops.rules import rule_of
from autopar.ops.rules.enumerate import enumerate_strategies
from tests.operators.test_shipped import built, functions_in
from tests.ops import cudnn
from tests.ops.property import MESHES, check_rule

Function = Callable[..., Any]
QUERY, KEY = (2, 8, 8, 4), (2, 8, 4, 4)
KERNELS = ("dot_product_attention_fwd", "dot_product_attention_bwd")
rng = np.random.default_rng(0)
BIAS = rng.normal(size=(1, 8, 8, 8)).astype(np.float32)
MASK = rng.random((2, 1, 8, 8)) < 0.7
LENGTHS = np.array([5, 3], np.int32)
MESH_OF_TWO = {"x": 4, "y": 2}

CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "of a window": {"local_window_size": (2, 1)},
    "causal and of a window": {"is_causal": True, "local_window_size": 2},
    "with a bias": {"bias": BIAS, "scale": 0.3},
    "with a mask": {"mask": MASK, "is_causal": True},
    "with lengths": {"query_seq_lengths": LENGTHS, "key_value_seq_lengths": LENGTHS[::-1]},
    "with lengths of keys": {"key_value_seq_lengths": LENGTHS},
    "with the sums": {"is_causal": True, "return_residual": True},
}


def arrays(query: tuple[int, ...] = QUERY, key: tuple[int, ...] = KEY) -> list[Any]:
    drawn = np.random.default_rng(1)
    return [drawn.normal(size=shape).astype(np.float32) for shape in (query, key, key)]


def attend(options: dict[str, Any], q: Any, k: Any, v: Any) -> Any:
    found = dot_product_attention(q, k, v, **options)
    return sum(found[:1]) if options.get("return_residual") else found


def gradients(options: dict[str, Any], attention: Function = attend) -> Function:
    def loss(q: Any, k: Any, v: Any) -> Any:
        found = attention(options, q, k, v).astype(jnp.float32)
        return (found**2 * jnp.arange(1.0, 1.0 + found.shape[-1])).sum()

    return jax.value_and_grad(loss, (0, 1, 2))


def planned(function: Function, args: Any, mesh: Any, **options: Any) -> autopar.Plan:
    return autopar.plan(
        function,
        *args,
        cluster="8xh100",
        mesh=mesh,
        options=autopar.SearchOptions(operators="kept"),
        **options,
    )


def kinds(plan: autopar.Plan) -> list[str]:
    return [row.kind for row in plan.summary.operators]


def same(found: Any, expected: Any, tolerance: float = 2e-4) -> None:
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        wide = np.asarray(one, np.float32)
        np.testing.assert_allclose(wide, np.asarray(other), rtol=tolerance, atol=tolerance)


@pytest.mark.quick_share(9)
@pytest.mark.parametrize("name", CALLS)
def test_every_strategy_computes_the_same(name: str) -> None:
    """Forwards and backwards, on slices put together as the strategy says."""
    found = built(gradients(CALLS[name]), arrays())
    assert [one.op.kind for one in found] == ["attention", "attention.vjp"]
    for one in found:
        assert check_rule(one, rule_of(one.op), MESHES[0], 16) >= 3


@pytest.mark.quick_share(2)
@pytest.mark.parametrize("name", ["causal", "with a bias"])
def test_heads_on_more_devices_than_there_are_key_heads(name: str) -> None:
    mesh = DeviceMesh.of({"x": 8})
    for one in built(gradients(CALLS[name]), arrays()):
        strategies = enumerate_strategies(rule_of(one.op), mesh)
        assert ("[-, -, x, -]", "[-, -, -, -]") in {
            (str(s.ins[0]), str(s.ins[1])) for s in strategies
        }
        check_rule(one, rule_of(one.op), mesh, 16)


@pytest.mark.slow
def test_every_strategy_gives_the_gradient_of_a_bias() -> None:
    def loss(bias: Any, *qkv: Any) -> Any:
        return (dot_product_attention(*qkv, bias=bias) ** 2).sum()

    for bias in (BIAS, BIAS[:, :1], np.repeat(BIAS, 2, 0)):
        *_, found = built(jax.grad(loss), [bias, *arrays()])
        assert found.op.kind == "attention.vjp"
        assert check_rule(found, rule_of(found.op), MESHES[0], 16) >= 3


def test_what_may_be_split() -> None:
    """Batch, heads with their key heads, and queries, alone or with keys; a causal one knows its place."""
    (found, *_) = functions_in(gradients(CALLS["causal"]), arrays())
    placed = {
        (str(s.ins[0]), str(s.ins[1]), str(s.ins[4]))
        for s in enumerate_strategies(rule_of(found), DeviceMesh.of({"x": 4}))
    }
    whole = "[-, -, -, -]"
    heads = "[-, -, x, -]"
    queries = ("[-, x, -, -]", whole, "[x]")
    ring = ("[-, x, -, -]", "[-, x, -, -]", "[x]")
    own = (heads, whole, "[-]")  # each device takes the key heads of its heads
    assert placed == {(whole, whole, "[-]"), (heads, heads, "[-]"), queries, ring, own}


PINNED = {"batch": "x, -, -, -", "heads": "-, -, x, -", "queries": "-, x, -, -"}


@pytest.mark.quick_share(2)
@pytest.mark.parametrize("where", PINNED)
@pytest.mark.parametrize("implementation", [None, "cudnn"])
def test_plans_have_the_values_of_jax(where: str, implementation: str | None) -> None:
    options = {"is_causal": True, "implementation": implementation}
    function = gradients(options)
    half = [x.astype(np.float16) for x in arrays((4, 8, 8, 8), (4, 8, 4, 8))]
    wide = [x.astype(np.float32) for x in half]
    args = wide if implementation is None else half
    axes = [None if axis == "-" else axis for axis in PINNED[where].split(", ")]
    pins = [autopar.pin("q", jax.sharding.PartitionSpec(*axes))]
    plan = planned(function, args, MESH_OF_TWO, constraints=pins)
    expected = jax.jit(gradients({**options, "implementation": "xla"}))(*wide)
    same(
        plan.compile(devices=jax.devices())(*args),
        expected,
        2e-4 if implementation is None else 2e-2,
    )
    wanted = ("attention", "attention.vjp") if implementation is None else KERNELS
    assert [kind for kind in kinds(plan) if "attention" in kind] == [*wanted]


def test_plain_calls_of_jax_are_left_alone() -> None:
    args = arrays()
    text = str(jax.make_jaxpr(partial(attend, {}))(*args))
    assert "autopar" not in text
    assert "dot_general" in text
    with pytest.raises(RuntimeError, match="cuDNN is not detected"):
        dot_product_attention(*args, implementation="cudnn")


def test_both_names_are_one_operator() -> None:
    def ours(options: dict[str, Any], q: Any, k: Any, v: Any) -> Any:
        return operators.attention(q, k, v, **options)

    wide = arrays()
    half = [jax.ShapeDtypeStruct((4, 8, 8, 8), "bfloat16")] * 3
    kernels = {"implementation": "cudnn", "is_causal": True}
    for options, args in ((CALLS["causal"], wide), (kernels, half)):
        plans = [planned(gradients(options, one), args, {"x": 8}) for one in (ours, attend)]
        assert kinds(plans[0]) == kinds(plans[1])
        assert plans[0].step_time_s == plans[1].step_time_s
    same(operators.attention(*wide, is_causal=True), attend(CALLS["causal"], *wide))


def test_arrays_without_a_batch_and_mapped_calls() -> None:
    args = arrays((8, 8, 4), (8, 4, 4))
    plan = planned(gradients(CALLS["causal"]), args, {"x": 8})
    same(plan.compile(devices=jax.devices())(*args), gradients(CALLS["causal"])(*args))
    mapped = jax.vmap(partial(attend, CALLS["causal"]), in_axes=(0, None, None))
    more = [np.stack([args[0]] * 8), *args[1:]]
    plan = planned(mapped, more, {"x": 8})
    assert "attention" in kinds(plan)
    same(plan.compile(devices=jax.devices())(*more), mapped(*more))


def test_a_scale_may_be_an_array() -> None:
    def scaled(scale: Any, q: Any, k: Any, v: Any) -> Any:
        return dot_product_attention(q, k, v, scale=scale).sum()

    args = [np.float32(0.7), *arrays()]
    plan = planned(jax.grad(scaled), args, {"x": 8})
    same(plan.compile(devices=jax.devices())(*args), jax.grad(scaled)(*args))


def test_kernels_never_hold_the_scores() -> None:
    """What is kept for the backward pass are queries, keys, values, results and the sums of rows."""
    shape = (4, 4096, 16, 64)
    args = [jax.ShapeDtypeStruct(shape, "bfloat16")] * 3

    def step(implementation: str) -> autopar.Plan:
        def loss(q: Any, k: Any, v: Any) -> Any:
            found = dot_product_attention(q, k, v, is_causal=True, implementation=implementation)
            return found.astype("float32").sum()

        return autopar.plan(jax.grad(loss, (0, 1, 2)), *args, cluster="8xh100", mesh={"x": 8})

    flash, written = step("cudnn"), step("xla")
    size = 2 * np.prod(shape) / 8
    scores = 4 * 4 * 16 * 4096**2 / 8
    assert flash.peak_memory_bytes < 16 * size < scores < written.peak_memory_bytes
    assert flash.step_time_s < written.step_time_s / 4


assert cudnn.FORWARD.name == KERNELS[0]  # its lowering for CPU is there
