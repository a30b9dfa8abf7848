"""bucket_rounds: what rounds of scans gather and reduce together, what stays alone, and that no value changes."""

from __future__ import annotations

from collections import Counter
from functools import partial

import jax
import numpy as np
import pytest

from autopar.core.program import Move, ShardedProgram
from autopar.passes import pipeline
from autopar.passes.bucket_rounds import BucketRounds
from autopar.passes.fuse_collectives import FuseCollectives
from autopar.passes.verify import verify
from tests.equivalence.cases import MESHES, Case
from tests.equivalence.check import check, run
from tests.equivalence.draw import local_plan
from tests.passes.test_double_buffer import (
    LIMIT,
    arguments,
    layers_read_in_many_ways,
    planned,
    step,
)

LATENCY_S = 1e-5


@pytest.fixture(scope="module")
def alone() -> ShardedProgram:
    """Its program with all collectives of its rounds by themselves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "BucketRounds", partial(BucketRounds, most_bytes=1))
        return planned(LIMIT).bound.planned.program


def price(kind: str, _axes: tuple[str, ...], size_bytes: int) -> float:
    """A latency, and next to nothing for bytes."""
    return 0.0 if kind in ("slice", "mask") else LATENCY_S + 1e-12 * size_bytes


def in_rounds(program: ShardedProgram) -> Counter[tuple[str, int]]:
    """How many tensors the collectives in its loops move, by kind."""
    return Counter(
        (one.kind, len(one.ins))
        for one in program.instructions
        if isinstance(one, Move) and one.is_collective and one.region is not None
    )


def test_a_round_gathers_and_reduces_at_once(alone: ShardedProgram) -> None:
    before = in_rounds(alone)
    assert {count for _, count in before} == {1}
    found = BucketRounds(FuseCollectives(price)).apply(alone)
    verify(found)
    assert {kind for kind, _ in before} == {"all_gather", "all_reduce"}
    assert in_rounds(found) == {(kind, 2): count / 2 for (kind, _), count in before.items()}


def test_a_bucket_that_costs_more_is_none(alone: ShardedProgram) -> None:
    def dear(_kind: str, _axes: tuple[str, ...], _sizes: object) -> float:
        return 1.0

    buckets = BucketRounds(FuseCollectives(price, pack=dear))
    assert buckets.apply(alone).instructions == alone.instructions


def test_what_is_emitted_runs_its_buckets_and_changes_no_value(alone: ShardedProgram) -> None:
    program = BucketRounds(FuseCollectives(price)).apply(alone)
    case = Case(step, arguments(), "float32")
    found, comparison = run(case, program)
    assert comparison.explained, str(comparison)
    assert in_rounds(program)["all_gather", 2]
    for got, wanted in zip(*map(jax.tree.leaves, (found, case.expected)), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["8", "2x4"])
@pytest.mark.parametrize("seed", range(6))
def test_values_of_any_plan_stay(mesh: str, seed: int) -> None:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(16, 8))
    args = (draw.normal(size=(3, 8, 8)), draw.integers(0, 9, (3, 16)), x)
    case = Case(layers_read_in_many_ways, args, "float64")
    program = case.program(local_plan(case, case.space(MESHES[mesh]), seed, 0.8))
    buckets = BucketRounds(FuseCollectives(price, bucket_bytes=1, shard_bucket_bytes=1))
    check(case, buckets.apply(program))
