"""What planners are known to get wrong, each as something that must hold of a plan."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from math import inf
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import autopar
from autopar.core.dataflow import dataflow
from autopar.core.graph import OpGraph, OpNode
from autopar.core.mesh import DeviceMesh
from autopar.core.strategy import Strategy
from autopar.cost.alpa import alpa_pricing
from autopar.cost.assemble import assemble
from autopar.cost.buckets import router_of
from autopar.cost.pricing import Roofline, cost_of
from autopar.errors import NoFeasiblePlan
from autopar.search.search import Planned, Task, search
from autopar.search.space import build_space
from autopar.search.task import SearchOptions
from autopar.solve import Edge, Infeasible, Problem, Solution, solve
from autopar.trace import trace
from cost_models import load_cluster
from tests import small_models as models
from tests.cases.alpa import mlp, plan, state_step
from tests.cost.test_assemble import price_of
from tests.solve.draw import problems

MESH = DeviceMesh.of({"x": 2, "y": 4})
CLUSTER = "8xh100"


def spec(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def train(params: Any, x: Any) -> Any:
    """One step of two residual blocks; down[out, in] is stored the other way round than up[in, out]."""

    def block(p: Any, h: Any) -> Any:
        return jnp.einsum("bi,oi->bo", jnp.tanh(h @ p["up"]), p["down"])

    def loss(p: Any) -> Any:
        return jnp.mean(block(p, x + block(p, x)).astype(jnp.float32) ** 2)

    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))


SQUARE = ({"up": spec(4096, 4096), "down": spec(4096, 4096)}, spec(4096, 4096))
LONG = ({"up": spec(1024, 4096), "down": spec(1024, 4096)}, spec(32768, 1024))
BLOCKS = {"square": SQUARE, "long": LONG}


@lru_cache
def graph_of(model: str) -> OpGraph:
    if model in BLOCKS:
        return trace(train, BLOCKS[model]).graph
    step, args = getattr(models, model)()
    return trace(step, args).graph


PROVEN = SearchOptions(gap_tolerance=0.0)


def planned(
    graph: OpGraph, limit: int | None = None, keep_less: float = 0.0, seed: int = 0
) -> Planned:
    """The plan on MESH; with `keep_less`, of operators that have lost that share of their strategies."""
    cluster = load_cluster(CLUSTER)

    def make(graph: OpGraph, mesh: DeviceMesh) -> Roofline:
        return (
            Fewer(graph, mesh, cluster, keep_less, seed)
            if keep_less
            else Roofline(graph, mesh, cluster)
        )

    return search(Task(graph, make, memory_limit_bytes=limit, options=PROVEN), [MESH])


@dataclass(frozen=True)
class Fewer(Roofline):
    """A roofline that knows only some strategies; with less `share` it knows those and more."""

    share: float = 0.0
    seed: int = 0

    def keep(self, op: OpNode, strategies: tuple[Strategy, ...]) -> tuple[Strategy, ...]:
        draw = random.Random(f"{self.seed} {op.id}")
        kept = tuple(s for s in strategies if draw.random() >= self.share or s.split == 1)
        return kept or strategies[:1]

    def context(self, op: OpNode) -> Any:
        return op.id


def test_mesh_axes_are_solved_together() -> None:
    """Each axis by itself is best spent on the batch; together, one of them splits the layers."""
    step, args = state_step(mlp(12, 128, 1024, bias=False), "sgd")

    def kernels(mesh: dict[str, int], beta: tuple[float, ...]) -> tuple[float, list[set[str]]]:
        found = plan(step, args, mesh, alpa_pricing((1.0,) * len(mesh), beta))
        assert found.gap == 0
        return found.objective_s, [
            set(p.split_axes) for name, p in found.placements.items() if "kernel" in name
        ]

    for mesh, beta in (({"x": 8}, (1.0,)), ({"y": 4}, (0.01,))):
        assert not any(kernels(mesh, beta)[1])
    together, split = kernels({"x": 8, "y": 4}, (1.0, 0.01))
    assert split == [{"y"}] * 12
    batch = autopar.plan(
        step, *args, cluster="4x8xh100", mesh={"x": 8, "y": 4}, mode="data_parallel",
        pricing=alpa_pricing((1.0, 1.0), (1.0, 0.01)),
    )  # fmt: skip
    assert together < batch.objective_s


def test_forward_and_backward_of_a_layer_are_not_confused() -> None:
    """Where batch and width are equal, products forward and backward have one signature.

    The objective is what the plan costs operator by operator, and nothing that is shared by equal operators, or found
    to be a repetition, changes the optimum: the same numbers without any shared arrays have it too.
    """
    graph = graph_of("square")
    found = planned(graph)
    assert found.plan.gap == 0
    phases: dict[object, set[str]] = {}
    for op in graph.ops:
        if op.kind == "dot_general":
            phases.setdefault(op.signature, set()).add(op.phase)
    assert {"forward", "backward"} in phases.values()
    pricing, stage = Roofline(graph, MESH, load_cluster(CLUSTER)), found.plan.stage
    anew = price_of(graph, dataflow(graph), stage, pricing, router_of(graph, MESH, pricing))
    assert found.plan.objective_s == pytest.approx(anew, rel=1e-9)
    unshared = solve(_unshared(_problem(graph)))
    assert unshared.lower_bound == pytest.approx(unshared.objective, rel=1e-9)
    assert found.plan.objective_s == pytest.approx(unshared.objective, rel=1e-9)


def _problem(graph: OpGraph, limit: float | None = None) -> Problem:
    flow, pricing = dataflow(graph), Roofline(graph, MESH, load_cluster(CLUSTER))
    space = build_space(graph, flow, MESH, keep=pricing.keep)
    return assemble(graph, flow, space, pricing, router_of(graph, MESH, pricing), limit)


def _unshared(problem: Problem) -> Problem:
    """The same numbers, no two arrays of which are one, every node in other words: candidates in another order."""
    draw = np.random.default_rng(0)
    order = [draw.permutation(len(costs)) for costs in problem.node_costs]
    costs = tuple(c[o] for c, o in zip(problem.node_costs, order, strict=True))
    edges = tuple(Edge(e.u, e.v, e.cost[np.ix_(order[e.u], order[e.v])]) for e in problem.edges)
    return replace(problem, node_costs=costs, edges=edges)


@pytest.mark.quick_share(4)
@pytest.mark.parametrize("limit", [None, 1e15])
@pytest.mark.parametrize("model", ["mlp", "cnn", "gpt", "square"])
def test_nothing_is_forbidden_by_a_huge_cost(model: str, limit: float | None) -> None:
    """Every finite entry is the price of something that can be done; what cannot be done has no entry, or inf."""
    graph = graph_of(model)
    pricing, problem = Roofline(graph, MESH, load_cluster(CLUSTER)), _problem(graph, limit)
    space = build_space(graph, dataflow(graph), MESH, keep=pricing.keep)
    dearest = max(
        cost_of(pricing, op, s)
        for op, all_ in zip(graph.ops, space.strategies, strict=True)
        for s in all_
    )
    assert max(costs.max() for costs in problem.node_costs) <= dearest
    whole = max(t.size_bytes for t in (*graph.inputs, *(t for op in graph.ops for t in op.outs)))
    kinds = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all", "permute", "slice", "mask")
    step = max(p for k in kinds if (p := pricing.step_cost(k, ("x", "y"), whole)) < inf)
    finite = [e.cost[np.isfinite(e.cost)] for e in problem.edges]
    assert max(costs.max() for costs in finite if costs.size) <= 6 * step


@pytest.mark.parametrize("cluster", ["8xh100", "6xh100", "5xh100", "3x4xh100"])
def test_all_devices_are_used(cluster: str) -> None:
    """Dims divide by 2, 3, 4 and 5: every product is split over all devices, however many there are."""
    args = ({"up": spec(3840, 7680), "down": spec(3840, 7680)}, spec(15360, 3840))
    found = autopar.plan(train, *args, cluster=cluster)
    count = load_cluster(cluster).topology.device_count
    assert found.mesh.size == count
    pairs = zip(found.bound.traced.graph.ops, found.strategies, strict=True)
    assert {s.split for op, s in pairs if op.kind == "dot_general"} == {count}


@pytest.mark.slow
def test_more_memory_never_costs_more() -> None:
    """What fits in less memory fits in more; no bound is above what is found with less, no proven best above either."""
    graph = graph_of("long")
    free = planned(graph)
    peak = free.account.peak_memory_bytes
    found: list[Planned] = []
    for share in (0.5, 0.92, 0.95, 0.99, 1.0):
        try:
            found.append(planned(graph, int(share * peak)))
        except NoFeasiblePlan:
            assert not found, "a plan fits in less memory, and none in more"
    assert len(found) > 1
    for tight, loose in pairwise(found):
        assert loose.plan.lower_bound_s <= tight.plan.objective_s * (1 + 1e-9)
    costs = [p.plan.objective_s for p in found if p.plan.gap == 0]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == pytest.approx(free.plan.objective_s)


@settings(deadline=None)
@given(problem=problems(limited=True), more=st.integers(0, 6))
def test_a_looser_limit_never_costs_more(problem: Problem, more: int) -> None:
    """Of the solver alone: it finds no less, and what it proves best is no dearer."""
    assert problem.usage_limit is not None
    tight, loose = (
        _solved(p) for p in (problem, replace(problem, usage_limit=problem.usage_limit + more))
    )
    if tight is not None:
        assert loose is not None
        assert loose.lower_bound <= tight.objective + 1e-9
        assert loose.objective <= tight.objective + 1e-9


@settings(deadline=None)
@given(problem=problems(limited=False), data=st.data())
def test_one_more_candidate_never_costs_more(problem: Problem, data: st.DataObject) -> None:
    """Of the solver alone: a node loses a candidate."""
    nodes = [v for v, costs in enumerate(problem.node_costs) if len(costs) > 1]
    assume(nodes)
    v = data.draw(st.sampled_from(nodes))
    kept = np.delete(
        np.arange(len(problem.node_costs[v])),
        data.draw(st.integers(0, len(problem.node_costs[v]) - 1)),
    )
    costs = tuple(c[kept] if n == v else c for n, c in enumerate(problem.node_costs))
    edges = tuple(
        Edge(e.u, e.v, e.cost[kept] if e.u == v else e.cost[:, kept] if e.v == v else e.cost)
        for e in problem.edges
    )
    fewer, every = _solved(Problem(costs, edges)), _solved(problem)
    if fewer is not None:
        assert every is not None
        assert every.objective <= fewer.objective + 1e-9


@settings(deadline=None)
@given(problem=problems(), data=st.data())
def test_numbers_of_nodes_change_nothing(problem: Problem, data: st.DataObject) -> None:
    """Of the solver alone: nodes in another order, edges the other way round."""
    number = data.draw(st.permutations(range(len(problem.node_costs))))
    costs = tuple(problem.node_costs[number.index(n)] for n in range(len(number)))
    edges = tuple(Edge(number[e.v], number[e.u], e.cost.T.copy()) for e in reversed(problem.edges))
    usages = tuple(replace(u, node=number[u.node]) for u in problem.usages)
    one, two = _solved(problem), _solved(Problem(costs, edges, usages, problem.usage_limit))
    assert (one is None) == (two is None)
    if one is not None and two is not None:
        assert two.objective == pytest.approx(one.objective, abs=1e-9)


def _solved(problem: Problem) -> Solution | None:
    try:
        return solve(problem)
    except Infeasible:
        return None


@pytest.mark.quick_share(3)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("model", BLOCKS)
def test_one_more_strategy_never_costs_more(model: str, seed: int) -> None:
    graph = graph_of(model)
    found = [planned(graph, keep_less=share, seed=seed).plan for share in (0.9, 0.6, 0.3, 0.1, 0.0)]
    assert all(p.gap == 0 for p in found)
    costs = [p.objective_s for p in found]
    assert all(more <= few * (1 + 1e-9) for few, more in pairwise(costs))
    assert costs[-1] < costs[0]


def test_other_names_change_nothing() -> None:
    """Of arguments, leaves, functions and their order in a dict."""

    def other(weights: Any, tokens: Any) -> Any:
        return {
            "zz": (new := train({"up": weights["zz"], "down": weights["aa"]}, tokens))["up"],
            "aa": new["down"],
        }

    (params, x), kwargs = SQUARE, {"cluster": CLUSTER, "mesh": dict(MESH.axes)}
    one, two = (
        autopar.plan(train, params, x, **kwargs),
        autopar.plan(other, {"aa": params["down"], "zz": params["up"]}, x, **kwargs),
    )
    assert one.strategies == two.strategies
    assert one.objective_s == two.objective_s
    assert [p for _, p in one.placements.items()] == [p for _, p in two.placements.items()]

    def swapped(weights: Any, tokens: Any) -> Any:
        return {
            "b": (new := train({"up": weights["b"], "down": weights["c"]}, tokens))["up"],
            "c": new["down"],
        }

    three = autopar.plan(swapped, {"b": params["up"], "c": params["down"]}, x, **kwargs)
    assert three.objective_s == pytest.approx(one.objective_s, rel=1e-12)
    assert three.gap == 0
