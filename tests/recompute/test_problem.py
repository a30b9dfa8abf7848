"""The Problem of keeping or recomputing against every choice of what to recompute, each solved on its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import combinations
from math import inf
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from autopar.core.dataflow import dataflow
from autopar.core.graph import OpGraph
from autopar.core.mesh import DeviceMesh
from autopar.core.recompute import Recomputed, with_recomputed
from autopar.cost.assemble import assemble
from autopar.cost.buckets import router_of
from autopar.cost.pricing import Roofline
from autopar.search.mesh_context import MeshContext
from autopar.search.mesh_search import MeshSearch
from autopar.search.recomputable import recomputable
from autopar.search.recompute_solve import RecomputeSolve, recompute_solve
from autopar.search.space import build_space
from autopar.search.task import SearchOptions, Task
from autopar.solve import Infeasible, Problem, Solution, SolveOptions, solve
from autopar.trace import trace
from cost_models import Cluster, load_cluster
from tests.cost.test_assemble import price_of
from tests.recompute.steps import scanned

MESH = DeviceMesh.of({"x": 2})
CLUSTER = load_cluster("8xh100")


def spec(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def sines(w: Any, x: Any) -> Any:
    """Two layers whose derivatives need what is computed early."""
    return jax.grad(lambda w: (jnp.sin(jnp.sin(x @ w["a"]) @ w["b"]) ** 2).sum())(w)


def gated(w: Any, x: Any) -> Any:
    """A product of two paths, read by several operators late."""

    def loss(w: Any) -> Any:
        h = x @ w["a"]
        gate = jnp.exp(h)
        return (((gate * h) @ w["b"]) * gate).sum()

    return jax.grad(loss)(w)


def chain(w: Any, x: Any) -> Any:
    """A chain in which what is recomputed needs what is recomputed."""

    def loss(w: Any) -> Any:
        h = x
        for name in "ab":
            h = jnp.tanh(h @ w[name])
        return (h**3).sum()

    return jax.grad(loss)(w)


WEIGHTS = {"a": spec(256, 256), "b": spec(256, 256)}
CASES = {
    "sines": (sines, (WEIGHTS, spec(512, 256))),
    "gated": (gated, (WEIGHTS, spec(512, 256))),
    "chain": (chain, (WEIGHTS, spec(512, 256))),
    "scanned": (
        scanned,
        ({"w": spec(2, 256, 256), "b": spec(2, 256)}, spec(512, 256), spec(512, 256)),
    ),
}
MOST = 3
"""How many operators the oracle chooses among: it solves a Problem for each of their subsets."""
PROVEN = SearchOptions(gap_tolerance=0.0)


@dataclass(frozen=True, eq=False)
class Setting:
    """A graph, what may be recomputed, and its Problem."""

    graph: OpGraph
    recomputed: tuple[Recomputed, ...]
    cluster: Cluster = CLUSTER

    @cached_property
    def attempt(self) -> RecomputeSolve:
        task = Task(
            self.graph,
            lambda graph, mesh: Roofline(graph, mesh, self.cluster),
            memory_limit_bytes=10**12,
            options=PROVEN,
        )
        ground = MeshContext(self.graph, dataflow(self.graph), MESH, task.make_pricing)
        attempt, _ = MeshSearch(task, ground).free()
        return recompute_solve(
            task, attempt, with_recomputed(self.graph, self.recomputed, residuals=True)
        )

    @lru_cache  # noqa: B019 - as long as the test runs
    def alone(self, recomputed: tuple[Recomputed, ...]) -> Problem | None:
        """The Problem in which exactly this is recomputed."""
        try:
            graph = with_recomputed(self.graph, recomputed).graph
        except ValueError:
            return None
        flow = dataflow(graph)
        pricing = Roofline(graph, MESH, self.cluster)
        space = build_space(graph, flow, MESH, keep=pricing.keep)
        return assemble(
            graph, flow, space, pricing, router_of(graph, MESH, pricing), 1e12, tensors_only=True
        )

    def best(self, limit: float) -> float | None:
        """The least objective over all choices of what to recompute."""
        found = [solved(self.alone(some), limit) for some in subsets(self.recomputed)]
        return min((solution.objective for solution in found if solution is not None), default=None)


def subsets(recomputed: Sequence[Recomputed]) -> list[tuple[Recomputed, ...]]:
    return [some for n in range(len(recomputed) + 1) for some in combinations(recomputed, n)]


def solved(problem: Problem | None, limit: float) -> Solution | None:
    if problem is None:
        return None
    try:
        return solve(
            Problem(problem.node_costs, problem.edges, problem.usages, limit),
            options=SolveOptions(),
        )
    except Infeasible:
        return None


@lru_cache
def setting(name: str, part: str) -> Setting:
    """What may be recomputed first or last, as far as it can be alone: a scan's body needs what comes before."""
    fn, args = CASES[name]
    graph = trace(fn, args).graph
    recomputed = recomputable(graph)
    return Setting(graph, recomputed[:MOST] if part == "first" else recomputed[-MOST:])


@pytest.mark.parametrize("share", [0.85, pytest.param(0.6, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("name", "part"),
    [
        pytest.param(
            name, part, marks=[] if (name, part) == ("sines", "last") else pytest.mark.slow
        )
        for part in ("first", "last")
        for name in CASES
        if (name, part) != ("scanned", "last")
    ],
)
def test_its_optimum_is_the_best_of_all_choices(name: str, part: str, share: float) -> None:
    here = setting(name, part)
    free = solved(here.alone(()), 1e12)
    assert free is not None
    limit = share * free.peak
    expected = here.best(limit)
    problem = here.attempt.problem(limit, tensors_only=True)
    found = solved(problem, limit)
    kept = here.attempt.problem(limit)  # which forbids to keep what nobody reads
    lean = solved(replace(problem, edges=kept.edges), limit)
    assert (found is None) == (lean is None) == (expected is None)
    if found is None or lean is None:
        return
    assert found.objective == pytest.approx(expected, rel=1e-9)
    assert lean.objective == pytest.approx(expected, rel=1e-9)
    final, stage = here.attempt.decoded(found.choice)
    if not final.graph.regions:
        pricing = Roofline(final.graph, MESH, CLUSTER)
        router = router_of(final.graph, MESH, pricing)
        spent = price_of(final.graph, dataflow(final.graph), stage, pricing, router)
        assert spent == pytest.approx(found.objective, rel=1e-9)


@pytest.mark.parametrize("name", ["sines", "gated", "chain"])
def test_without_a_limit_nothing_costs_less_than_the_best_of_all_choices(name: str) -> None:
    """And no more than what is asked for is proven."""
    here = setting(name, "first")
    best = here.best(1e12)
    assert best is not None
    assert here.attempt.bound_without_limit(inf) == pytest.approx(best, rel=1e-6)
    assert here.attempt.bound_without_limit(inf) <= best * (1 + 1e-9)
    assert here.attempt.bound_without_limit(0.5 * best) == 0.5 * best


def test_what_is_fused_and_anew_only_later_is_made_where_a_twin_reads_it() -> None:
    """XLA for GPUs writes neither u nor cos(u), so both run once more; of these cos reads u before u itself runs."""

    def waves(w: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            h = x @ w["a"]
            u = jnp.tanh(h) * h
            return ((jnp.sin(u) * u) @ w["b"]).sum()

        return jax.grad(loss)(w)

    graph = trace(waves, (WEIGHTS, spec(512, 256))).graph
    (cos,) = (op for op in graph.ops if op.kind == "cos")
    u = graph.producers[cos.ins[0].id]
    late = [op.id for op in graph.ops if op.phase == "backward" and u.outs[0] in op.ins]
    anew = (Recomputed(u.id, min(late)), Recomputed(cos.id, min(late) - 1))
    here = Setting(graph, anew, load_cluster("8xh100-xla"))
    best = here.best(1e12)
    assert best is not None
    assert here.attempt.bound_without_limit(inf) == pytest.approx(best, rel=1e-6)
    assert here.attempt.bound_without_limit(inf) <= best * (1 + 1e-9)
