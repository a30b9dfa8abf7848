"""Callbacks, kernels and foreign partitionings: once or whole unless the user says how they split, and then split."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.custom_partitioning import custom_partitioning

import autopar
from autopar.errors import RuleError, UnsupportedPrimitiveWarning
from autopar.ops.rules.registry import unregister
from tests.api.same import assert_same

X = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)
Compiled = autopar.Compiled


def compiled(fn: Any) -> Compiled:
    kept = autopar.SearchOptions(operators="kept")
    return autopar.compile(fn, cluster="cpu8", mode="data_parallel", carry=None, options=kept)


def splits(made: Compiled, kind: str) -> list[int]:
    plan = made.plan(X)
    graph, stage = plan.bound.traced.graph, plan.record.stage
    return [s.split for op, s in zip(graph.ops, stage.strategies, strict=True) if op.kind == kind]


def on_host(x: Any) -> Any:
    return (
        jax.pure_callback(lambda v: np.sort(v, axis=-1), jax.ShapeDtypeStruct(x.shape, x.dtype), x)
        * 2
    )


def kernel(x_ref: Any, out_ref: Any) -> None:
    out_ref[...] = x_ref[...] * 2


def by_kernel(x: Any) -> Any:
    cost = pl.CostEstimate(flops=x.size, transcendentals=0, bytes_accessed=2 * x.nbytes)
    return pl.pallas_call(kernel, out_shape=x, interpret=True, cost_estimate=cost)(x)


@custom_partitioning
def partitioned(x: Any) -> Any:
    return jnp.sin(x) * 2


def _partition(mesh: Any, operands: Any, result: Any) -> Any:
    return mesh, lambda x: jnp.sin(x) * 2, result.sharding, (operands[0].sharding,)


partitioned.def_partition(
    infer_sharding_from_operands=lambda mesh, operands, result: operands[0].sharding,
    partition=_partition,
    sharding_rule="i j -> i j",
)
OPAQUE = {"pallas_call": by_kernel, "custom_partitioning": partitioned}


@pytest.mark.parametrize("kind", OPAQUE)
def test_what_is_opaque_is_whole_with_a_warning(kind: str) -> None:
    def fn(x: Any) -> Any:
        return OPAQUE[kind](x + 1).sum(0)

    made = compiled(fn)
    with pytest.warns(UnsupportedPrimitiveWarning, match=f"no sharding rule for '{kind}'"):
        found = made(X)
    assert splits(made, kind) == [1]
    assert_same(found, jax.jit(fn)(X))


@pytest.fixture
def rule_of_callbacks() -> Iterator[None]:
    autopar.register_rule("pure_callback", "b n -> b n", frozen="n")
    yield
    unregister("pure_callback")


def test_a_callback_is_made_once_without_a_warning() -> None:
    made = compiled(on_host)
    assert splits(made, "pure_callback") == [1]
    assert_same(made(X), jax.jit(on_host)(X))


@pytest.mark.usefixtures("rule_of_callbacks")
def test_a_callback_with_a_rule_is_split() -> None:
    made = compiled(on_host)
    assert splits(made, "pure_callback") == [8]
    assert_same(made(X), jax.jit(on_host)(X))


@pytest.mark.parametrize("kind", ["pallas_call", "custom_partitioning"])
def test_a_function_that_calls_a_kernel_is_split_as_an_operator(kind: str) -> None:
    operator = autopar.operator("b n -> b n", name=f"by {kind}")(OPAQUE[kind])

    def fn(x: Any) -> Any:
        return operator(x + 1).sum(0)

    made = compiled(fn)
    assert splits(made, f"by {kind}") == [8]
    assert_same(made(X), jax.jit(fn)(X))


@pytest.mark.parametrize("kind", ["pallas_call", "custom_partitioning", "shard_map"])
def test_a_rule_for_what_fixes_its_shapes_is_refused(kind: str) -> None:
    with pytest.raises(
        RuleError, match=rf"'{kind}' has all shapes fixed in it.*@autopar.operator\('b n -> b n'\)"
    ):
        autopar.register_rule(kind, "b n -> b n")
