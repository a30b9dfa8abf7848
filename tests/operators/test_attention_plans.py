"""A layer of attention under any feasible plan: values of plain JAX, and the collectives that the plan lists."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

from autopar.core.space import Space
from autopar.operators import KEEP
from tests.equivalence.cases import MESHES, Case
from tests.equivalence.check import check
from tests.equivalence.draw import local_plan, uniform_plan
from tests.operators.test_attention import rng
from tests.ops import cudnn
from tests.quick_some import diagonal

BATCH, TOKENS, WIDTH, HEADS, KEYS = 4, 8, 16, 8, 4
SEEDS = range(8)


def _floats(*shape: int) -> Any:
    return (rng.normal(size=shape) / 2).astype(np.float32)


WEIGHTS = {
    "q": _floats(WIDTH, HEADS, 8),
    "k": _floats(WIDTH, KEYS, 8),
    "v": _floats(WIDTH, KEYS, 8),
    "out": _floats(HEADS, 8, WIDTH),
}


def written_out(q: Any, k: Any, v: Any) -> Any:
    lengths = jnp.array([8, 5, 3, 8], jnp.int32)
    return jax.nn.dot_product_attention(q, k, v, is_causal=True, key_value_seq_lengths=lengths)


def by_cudnn(q: Any, k: Any, v: Any) -> Any:
    """The kernels alone, in float32, which cuDNN itself does not take."""
    unused = [np.zeros((0,), np.float32)] * 7
    params = {**cudnn.PARAMS, "mask_type": cudnn.cudnn.MaskType.CAUSAL}

    @jax.custom_vjp
    def attend(*qkv: Any) -> Any:
        return cudnn.FORWARD.bind(*qkv, *unused, **params, is_training=False)[0]

    def forward(*qkv: Any) -> Any:
        out, sums = cudnn.FORWARD.bind(*qkv, *unused, **params, is_training=True)
        return out, (*qkv, sums, out)

    def backward(known: Any, dy: Any) -> Any:
        *qkv, sums, out = known
        return tuple(cudnn.BACKWARD.bind(*qkv, *unused, sums, out, dy, **params))

    attend.defvjp(forward, backward)
    return attend(q, k, v)


def by_pallas(q: Any, k: Any, v: Any) -> Any:
    """Queries less the mean of the keys of their head, head by head: a kernel whose heads share blocks of keys."""
    block = (1, TOKENS, None, 8)

    def kernel(q_ref: Any, k_ref: Any, out_ref: Any) -> None:
        out_ref[...] = q_ref[...] - k_ref[...].mean(1, keepdims=True)

    call = pl.pallas_call(
        kernel,
        grid=(BATCH, HEADS),
        in_specs=[
            pl.BlockSpec(block, lambda b, n: (b, 0, n, 0)),
            pl.BlockSpec(block, lambda b, n: (b, 0, n // (HEADS // KEYS), 0)),
        ],
        out_specs=pl.BlockSpec(block, lambda b, n: (b, 0, n, 0)),
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        interpret=True,
    )
    return call(*map(jax.lax.stop_gradient, (q, k))) * q + jnp.repeat(v, HEADS // KEYS, 2)


def in_blocks(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.dot_product_attention(q, k, v, is_causal=True)


LAYERS = {"written out": written_out, "by cuDNN": by_cudnn, "by Pallas": by_pallas}
OTHERS = {"in blocks": in_blocks}
KINDS = {
    "written out": "attention",
    "in blocks": "attention",
    "by cuDNN": "dot_product",
    "by Pallas": "pallas_kernel",
}


@cache
def case_of(name: str) -> Case:
    def loss(weights: Any, x: Any) -> Any:
        q, k, v = (jnp.einsum("btm,mnh->btnh", x, weights[part]) for part in "qkv")
        y = jnp.einsum("btnh,nhm->btm", (LAYERS | OTHERS)[name](q, k, v), weights["out"])
        return ((x + y) ** 2).mean()

    case = Case(jax.value_and_grad(loss), (WEIGHTS, _floats(BATCH, TOKENS, WIDTH)), "float32")
    with KEEP(True):
        assert any(op.kind.startswith(KINDS[name]) for op in case.graph.ops)
    return case


def round_a_ring(space: Space) -> Space:
    """The space in which attention is split along the sequence, keys and values too."""
    kept = [
        tuple(s for s in each if any(e.rounds for e in s.exchanges)) for each in space.strategies
    ]
    assert any(kept)
    strategies = [ring or each for ring, each in zip(kept, space.strategies, strict=True)]
    return replace(space, strategies=tuple(strategies))


@pytest.mark.quick_share(2)
@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        ("by cuDNN", "2x4"),
        ("in blocks", "2x4"),
        pytest.param("by cuDNN", "2x2x2", marks=pytest.mark.slow),
        pytest.param("in blocks", "2x2x2", marks=pytest.mark.slow),
    ],
)
def test_keys_and_values_go_round_in_a_ring(name: str, mesh: str) -> None:
    case = case_of(name)
    program = case.program(uniform_plan(round_a_ring(case.space(MESHES[mesh])), 0))
    assert {m.rounds for m in program.collectives} > {0}
    check(case, program)


@pytest.mark.quick_share(2)
@pytest.mark.parametrize(("name", "mesh"), diagonal(LAYERS, MESHES))
@pytest.mark.parametrize(
    "seed",
    [seed if seed in (0, 2) else pytest.param(seed, marks=pytest.mark.slow) for seed in SEEDS],
)
def test_a_random_plan_computes_the_same(name: str, mesh: str, seed: int) -> None:
    case = case_of(name)
    space = case.space(MESHES[mesh])
    check(
        case,
        case.program(uniform_plan(space, seed) if seed % 4 < 2 else local_plan(case, space, seed)),
    )
