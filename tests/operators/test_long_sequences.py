"""Long sequences: which attention goes round a ring, when a search takes that, and what it takes instead."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import autopar
from autopar.core.mesh import DeviceMesh
from autopar.core.program import Compute
from autopar.ops.rules import rule_of
from autopar.ops.rules.attention import slowest
from autopar.ops.rules.enumerate import enumerate_strategies
from tests.operators.test_attention import CALLS, arrays, gradients, planned, same
from tests.operators.test_shipped import functions_in
from tests.ops.build import operator_of
from tests.ops.cases_attention import ATTENTION
from tests.ops.property import MESHES

CUDNN = {"is_causal": True, "implementation": "cudnn"}
ROUND = {"causal", "causal round a ring", "causal, heads first", "round a ring"}


@pytest.mark.parametrize("case", ATTENTION, ids=lambda case: case.name)
def test_what_may_go_round(case: Any) -> None:
    """As many keys as queries, told by a causal mask or not at all; the work is the same on all devices then."""
    op = operator_of(case)
    mesh = DeviceMesh.of({"x": 2})
    rings = [s for s in enumerate_strategies(rule_of(op), mesh) if s.exchanges]
    assert bool(rings) == (case.name.removeprefix(f"{case.kind} ") in ROUND)
    assert all(slowest(op, s, mesh) == 1 for s in rings)


@pytest.mark.parametrize("name", CALLS)
def test_what_is_written_out_may_go_round_in_blocks(name: str) -> None:
    """Forwards and backwards, without a window, bias, mask, lengths and sums."""
    for op in functions_in(gradients(CALLS[name]), arrays()):
        rings = [s for s in enumerate_strategies(rule_of(op), MESHES[0]) if s.exchanges]
        assert bool(rings) == (name in ("plain", "causal"))


def attention_of(plan: autopar.Plan) -> list[Compute]:
    return [
        one
        for one in plan.program().instructions
        if isinstance(one, Compute) and one.op.kind.startswith("dot_product_attention")
    ]


def test_a_long_sequence_goes_round_a_ring_that_computing_hides() -> None:
    q = jax.ShapeDtypeStruct((1, 131_072, 32, 128), "bfloat16")
    kv = jax.ShapeDtypeStruct((1, 131_072, 8, 128), "bfloat16")
    plan = autopar.plan(gradients(CUDNN), q, kv, kv, cluster="8x8xh100", mesh={"x": 8, "y": 8})
    for one in attention_of(plan):
        keys = one.strategy.ins[1]
        assert keys.dims[1]
        assert keys.dims[2]
        around = [move for move in one.exchanges if move.rounds]
        assert {move.rounds for move in around} == {7}
        alone = sum(7 * move.size_bytes / 450e9 for move in around)
        assert sum(move.time_s for move in around) < alone / 3

    rows = [row for row in plan.summary.collectives if row.runs == 7]
    assert len(rows) == 6  # keys and values, twice, and the gradients of both


def test_sequences_become_heads_by_all_to_alls() -> None:
    """What Ulysses does: where heads are split evenly, a short sequence is cheaper redistributed."""
    spec = jax.sharding.PartitionSpec(None, "x")
    pins = [autopar.pin(name, spec) for name in "qkv"]
    rng = np.random.default_rng(0)
    args = [rng.normal(size=(1, 64, heads, 8)).astype(np.float16) for heads in (16, 8, 8)]
    plan = planned(gradients(CUDNN), args, {"x": 8}, constraints=pins)
    for one in attention_of(plan):
        assert all(placement.dims[2] == ("x",) for placement in one.strategy.ins[:3])
    assert [row.kind for row in plan.summary.collectives].count("all_to_all") >= 3

    wide = [x.astype(np.float32) for x in args]
    expected = jax.jit(gradients({**CUDNN, "implementation": "xla"}))(*wide)
    same(plan.compile(devices=jax.devices())(*args), expected, 3e-2)
