"""MindSpore's fusion of gradients (release 1.0) beside ours: the buckets that it asserts, and what both cost.

A19 and A21: chains of dense layers of 128 x 128 without bias, batch 32, data parallel on 4 devices. Nothing overlaps in
our prices: what its buckets hide behind the backward pass does not count, what they cost is compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autopar
from autopar.core.graph import TensorInfo
from autopar.core.placement import Placement
from autopar.passes.fuse_collectives import FuseCollectives
from cost_models import collective_time_s, group, load_cluster
from tests.passes.build import Builder, price

WIDTH, BATCH, CLUSTER = 128, 32, "4xh100"


@dataclass(frozen=True)
class Node:
    """An operator with a parameter: the backward work done before its gradient is ready, its parameter's elements."""

    work: float
    size: int


def by_time(
    nodes: Sequence[Node],
    *,
    tail_time: float,
    inherent_time: float,
    bandwidth: float,
    computation_time: float,
) -> list[int]:
    """MindSpore's algorithm 2: the bucket of each node.

    From the end of the backward pass on, whole levels of equal work at a time. The first bucket is full when its size
    reaches what can be reduced in the tail, the next ones when it reaches what can be during the work before.
    """
    levels = [
        list(level)
        for _, level in groupby(sorted(nodes, key=lambda n: -n.work), key=lambda n: n.work)
    ]
    capacity, bucket, size, begin = (tail_time - inherent_time) / bandwidth, 1, 0, levels[0][0].work
    found: dict[float, int] = {}
    for level in levels:
        work = level[0].work
        found[work] = bucket
        size += sum(node.size for node in level)
        if size >= capacity:
            capacity = ((begin - work) * computation_time - inherent_time) / bandwidth
            bucket, size, begin = bucket + 1, 0, work
    return [found[node.work] for node in nodes]


def chains(layers: int) -> list[Node]:
    """Two chains, one after the other; a layer's work is the bytes of its operands on one of 4 devices."""
    work = 4 * (BATCH // 4 * WIDTH + WIDTH * WIDTH)
    return [Node(float((layers - n) * work), WIDTH * WIDTH) for n in range(layers)] * 2


def a19() -> list[int]:
    times = {"tail_time": 0.1, "inherent_time": 0.05, "bandwidth": 1e-6, "computation_time": 1.5e-6}
    return by_time(chains(8), **times)


def test_a19_as_mindspore_asserts_it() -> None:
    assert a19() == [1, 1, 2, 2, 3, 3, 3, 3] * 2


def plan(layers: int) -> Any:
    """Two chains of dense layers on one input, trained by gradient descent, data parallel."""

    def step(params: Any, x: Any) -> Any:
        def loss(params: Any) -> Any:
            ends = []
            for chain in params:
                h = x
                for w in chain:
                    h = h @ w
                ends.append(h)
            return jnp.mean((ends[0] + ends[1]) ** 2)

        return jax.tree.map(lambda w, g: w - 0.1 * g, params, jax.grad(loss)(params))

    params = [[np.zeros((WIDTH, WIDTH), "float32")] * layers] * 2
    x = np.zeros((BATCH, WIDTH), "float32")
    return autopar.plan(step, params, x, cluster=CLUSTER, mesh={"x": 4}, mode="data_parallel")


@pytest.mark.parametrize("layers", [4, 8])
def test_a21_by_size_all_gradients_are_in_one_bucket(layers: int) -> None:
    """Two MB at most, where a bucket of 32 MB or 64 MB is full."""
    (bucket,) = [row for row in plan(layers).collectives if row.size_bytes > 4]
    assert (bucket.kind, bucket.role) == ("all_reduce", "mirror")
    assert bucket.size_bytes == 2 * layers * WIDTH * WIDTH * 4


def test_one_bucket_costs_less_than_mindspores_three() -> None:
    (ours,) = [row for row in plan(8).collectives if row.size_bytes > 4]
    members = group(load_cluster(CLUSTER).topology, (4,), (0,))
    theirs = [
        collective_time_s("all_reduce", n * WIDTH * WIDTH * 4, members)
        for n in Counter(a19()).values()
    ]
    assert len(theirs) == 3
    assert ours.time_s < sum(theirs)


@pytest.mark.parametrize(
    ("dtype", "itemsize", "expected"), [("float32", 4, [2, 2, 1]), ("bfloat16", 2, [4, 1])]
)
def test_a_bucket_counts_the_bytes_of_all_that_is_in_it(
    dtype: str, itemsize: int, expected: list[int]
) -> None:
    """MindSpore's later fusion by size takes every element for 4 bytes and leaves out what opens a bucket."""
    build = Builder()
    build.input()
    unreduced = Placement(((),), ("x",))
    gradients = [build.compute([0], unreduced, phase="backward") for _ in range(5)]
    for v in gradients:
        build.values[v] = build.values[v]._replace(tensor=TensorInfo(v, (8,), dtype, itemsize))
    program = build.program([build.all_reduce(v) for v in gradients])
    fused = FuseCollectives(price, bucket_bytes=64).apply(program)
    assert [len(move.ins) for move in fused.collectives] == expected
