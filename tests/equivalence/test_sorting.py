"""Sorts along a split dim, and what is made of them: the very values, of shards that devices sort and deal out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import autopar
from autopar.core.mesh import DeviceMesh
from autopar.ops.rules import rule_of
from autopar.ops.rules.enumerate import enumerate_strategies
from autopar.trace import trace
from tests.equivalence.cases import Case
from tests.equivalence.check import check
from tests.equivalence.test_solver_plans import slow_devices

Function = Callable[..., Any]
_RNG = np.random.default_rng(0)
WILD = np.round(_RNG.normal(size=1600), 1).astype(np.float32)
WILD[_RNG.choice(1600, 90)] = np.nan
WILD[_RNG.choice(1600, 90)] = -0.0


def ranks(x: Any) -> Any:
    return jnp.argsort(jnp.argsort(x))


def middle(x: Any) -> Any:
    return jax.value_and_grad(lambda x: jnp.median(x, axis=0).sum())(x)


def bits(function: Function) -> Function:
    """The results as bits, which tell NaN and both zeros apart."""

    def bit(y: Any) -> Any:
        return lax.bitcast_convert_type(y, jnp.uint32) if y.dtype == jnp.float32 else y

    return lambda x: jax.tree.map(bit, function(x))


FUNCTIONS: dict[str, tuple[Function, Any]] = {
    "sort": (bits(jnp.sort), WILD),
    "sort of bytes": (jnp.sort, _RNG.integers(0, 256, 1000).astype(np.uint8)),
    "uneven shards": (bits(jnp.sort), WILD[:1208]),
    "descending": (bits(lambda x: jnp.sort(x, descending=True)), WILD),
    "order": (jnp.argsort, WILD),
    "ranks": (ranks, WILD),
    "with two values": (bits(lambda x: lax.sort((x, -x, jnp.arange(1600)), num_keys=1)), WILD),
    "by two keys": (lambda x: jnp.lexsort((x, jnp.arange(1600) % 7)), WILD),
    "one dim of two": (bits(lambda x: jnp.sort(x, axis=0)), WILD.reshape(800, 2)),
    "median": (jnp.median, np.abs(WILD[~np.isnan(WILD)][:1200])),
    "median without NaN": (jnp.nanmedian, WILD),
    "quantiles": (
        lambda x: jnp.quantile(x, jnp.array([0.1, 0.5, 0.9])),
        np.abs(WILD[~np.isnan(WILD)][:1200]),
    ),
    "gradient of a median": (middle, np.asarray(_RNG.normal(size=(800, 2)), np.float32)),
    "unique": (bits(lambda x: jnp.unique(x, size=64, return_counts=True)), WILD),
    "top k": (bits(lambda x: lax.top_k(x, 5)), WILD),
}


@pytest.mark.quick_share(3)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_sorted_among_devices_is_sorted(name: str) -> None:
    function, x = FUNCTIONS[name]
    case = Case(function, (x,), "float32")
    plan = autopar.plan(function, x, cluster=slow_devices(), mesh={"x": 8})
    split = {op.kind for op in plan.summary.operators if op.split == 8}
    assert split & {"sort", "top_k"}
    check(case, plan.program())


@pytest.mark.parametrize("parts", [2, 4, 8, 64])
def test_a_sort_sends_three_shards_however_many_devices_there_are(parts: int) -> None:
    """All-to-alls deal out all twice, permutes half of it twice; a sorting network grows with log2(p)^2 / 2."""
    size = 1 << 20
    (op,) = trace(jnp.sort, (jax.ShapeDtypeStruct((size,), jnp.int32),)).graph.ops
    _, split = enumerate_strategies(rule_of(op), DeviceMesh.of({"x": parts}))
    shard = 4 * size // parts
    sent = [(e.kind, e.size_bytes) for e in split.exchanges]
    assert sent == [
        ("all_to_all", shard),
        ("all_to_all", shard),
        ("permute", shard // 2),
        ("permute", shard // 2),
    ]


def test_a_sort_that_fits_only_split_is_split() -> None:
    numbers = jax.ShapeDtypeStruct((1 << 30,), jnp.float32)
    plan = autopar.plan(
        jnp.median, numbers, cluster="8xh100", mesh={"x": 8}, memory_limit_bytes=6 * 10**9
    )
    assert "all_gather" not in {row.kind for row in plan.collectives}
    assert plan.peak_memory_bytes <= 6 * 10**9
