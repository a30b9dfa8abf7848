"""A model through autopar.compile, against jax.jit; and the share of its work that its plan splits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import jax

import autopar
from autopar.core.graph import OpNode
from autopar.core.mesh import DeviceMesh
from autopar.core.strategy import Strategy
from autopar.ops.traits import work_flops
from cost_models import Cluster, load_cluster
from cost_models.cluster import replace_link
from tests.equivalence.cases import Case, assert_equal, key_data
from tests.equivalence.check import check
from tests.models.table import Entry

ONE_AXIS = {"x": 8}
TWO_AXES = {"x": 2, "y": 4}


@lru_cache
def free_latency() -> Cluster:
    """The cluster "cpu8" with no latency anywhere: where splitting always pays, even for tiny models."""
    cluster = load_cluster("cpu8")
    for level in cluster.topology.levels:
        cluster = replace_link(cluster, level.name, latency_s=0.0)
    return replace(
        cluster, name="cpu8 without latencies", device=replace(cluster.device, launch_s=0.0)
    )


@dataclass(frozen=True)
class Unsplit:
    """An operator whose work is not split over all devices: the work of all such, and on how many devices it is."""

    kind: str
    shapes: str
    source: str
    ways: int
    flops: float


@dataclass(frozen=True)
class Share:
    """The flops of a plan, those that are split over all devices, and what makes up the rest, largest first."""

    flops: float
    split_flops: float
    rest: tuple[Unsplit, ...]

    @property
    def share(self) -> float:
        """1.0 where there is no work at all."""
        return self.split_flops / self.flops if self.flops else 1.0


def share_of(plan: autopar.Plan) -> Share:
    """The share of the work of `plan`, which is bound to its function, that is split over all devices."""
    graph, stage = plan.bound.traced.graph, plan.record.stage
    work = [graph.tree.weight(op.region) * work_flops(op) for op in graph.ops]
    found = zip(graph.ops, stage.strategies, work, strict=True)
    rest = [
        _unsplit(op, n, done)
        for op, s, done in found
        if done and (n := ways(s, stage.mesh)) < stage.mesh.size
    ]
    total = sum(work)
    rest.sort(key=lambda one: -one.flops)
    return Share(total, total - sum(one.flops for one in rest), tuple(rest))


def ways(strategy: Strategy, mesh: DeviceMesh) -> int:
    """Over how many devices the work is split: every axis that splits a dim of an operand or a result."""
    axes = {axis for placement in (*strategy.ins, *strategy.outs) for axis in placement.split_axes}
    return mesh.product(tuple(axes))


def _unsplit(op: OpNode, count: int, flops: float) -> Unsplit:
    shapes = (
        " ".join(f"{list(t.shape)}" for t in op.ins)
        + " -> "
        + " ".join(f"{list(t.shape)}" for t in op.outs)
    )
    return Unsplit(op.kind, shapes, op.source, count, flops)


def compare_with_jit(entry: Entry, mesh: Mapping[str, int]) -> autopar.Plan:
    """Runs the model both ways; raises AssertionError where a value differs. The plan."""
    with precision(entry), quick_compilation():
        fn, args = entry.build()
        expected = jax.tree.map(key_data, jax.jit(fn)(*args))
        compiled = autopar.compile(fn, cluster=free_latency(), mesh=mesh)
        found = jax.tree.map(key_data, compiled(*args))
        assert_equal(expected, found, entry.dtype)
        return compiled.plan(*args)


def check_program(entry: Entry, mesh: Mapping[str, int]) -> None:
    """The values of the model's program, and its collectives beside those of the compiled one."""
    with precision(entry), quick_compilation():
        fn, args = entry.build()
        plan = autopar.plan(fn, *args, cluster=free_latency(), mesh=mesh)
        check(Case(fn, args, entry.dtype), plan.program())


def precision(entry: Entry) -> AbstractContextManager[Any]:
    return jax.enable_x64(entry.dtype == "float64")


@contextmanager
def quick_compilation() -> Iterator[None]:
    """LLVM takes three quarters of the time of compiling, and comes after everything that is looked at here."""
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", False)
