"""Links: the edges of a Problem, made kind by kind, are those that are made edge by edge."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autopar.core.dataflow import dataflow
from autopar.core.space import Space
from autopar.cost.assemble import Builder
from autopar.cost.buckets import router_of
from autopar.cost.pricing import Roofline
from autopar.cost.tensor_edges import kinds_of, links_of
from autopar.search.space import build_space
from autopar.solve import Edge
from autopar.solve.problem.factored_matrix import whole
from autopar.trace import trace
from cost_models import load_cluster
from tests import small_models
from tests.cost.test_assemble import CASES, MESH, traced


def edge_by_edge(build: Builder) -> list[Edge]:
    """Every edge by itself: from where its tensor is made, or from the copy that it is read from."""
    found: list[Edge] = []
    sources: list[Any] = []
    for copy, candidates in build._copies():
        node, made, region = (
            build._maker(copy.tensor) if copy.source is None else sources[copy.source]
        )
        wanted, mine = build._candidates(candidates), build.first_copy + copy.id
        sources.append((mine, wanted, copy.region))
        cost = build._matrix(copy.tensor, made, wanted, region, copy.region, copy.uses)
        if build._doubled(copy):
            cost = build._aliased(cost, made, wanted, copy.stored)
        found.append(build._widened(Edge(node, mine, cost), copy.source))
    for use, source in build.flow.source.items():
        op, position, _, reader = use
        if op is not None:
            tensor, target = build.graph.ops[op].ins[position], build.op_node[op]
            wanted = build._sides[op][0][position]
        else:
            tensor, target = build.graph.outputs[position], build.output_node[position]
            wanted = build._candidates(build.space.outputs[position] or build.space.inputs[target])
        node, made, region = build._maker(tensor) if source is None else sources[source]
        if node != target:
            cost = build._read(tensor, source, made, wanted, region, reader, (use,))
            found.append(build._widened(Edge(node, target, cost), source))
    return found


def assert_same(build: Builder) -> None:
    """Both ways give the same edges, with the same objects for equal matrices."""
    expected, found = edge_by_edge(build), build.edges().edges
    assert [(edge.u, edge.v) for edge in found] == [(edge.u, edge.v) for edge in expected]
    assert all(mine.matrix is other.matrix for mine, other in zip(found, expected, strict=True))


@pytest.mark.quick_share(4)
@pytest.mark.parametrize(
    "case", [*CASES, *((*make(), (0,)) for make in (small_models.gpt, small_models.tied))]
)
@pytest.mark.parametrize("limited", [False, True])
def test_edges_are_those_made_one_by_one(case: Any, limited: bool) -> None:
    graph, flow = traced(case)
    pricing = Roofline(graph, MESH, load_cluster("cpu8"))
    space = build_space(graph, flow, MESH, keep=pricing.keep)
    for weight in (1.0, 0.5):
        router = router_of(graph, MESH, pricing, weight)
        assert_same(Builder(graph, flow, space, router, limited))


def test_what_hides_is_another_kind_of_edge_than_what_is_like_it() -> None:
    """A product's weight and its rows are of one shape and lie alike; only the weight is gathered ahead of its use."""
    square = jax.ShapeDtypeStruct((64, 64), np.float32)

    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        return w - jax.grad(lambda w: (jnp.sin(x @ w) @ w).sum())(w)

    graph = trace(step, (square, square)).graph
    flow = dataflow(graph)
    pricing = Roofline(graph, MESH, load_cluster("cpu8"))
    space = build_space(graph, flow, MESH, keep=pricing.keep)
    assert_same(Builder(graph, flow, space, router_of(graph, MESH, pricing, 0.5), False))


def test_operators_of_one_signature_may_have_different_candidates() -> None:
    graph, flow = traced(CASES[0])
    pricing = Roofline(graph, MESH, load_cluster("cpu8"))
    space = build_space(graph, flow, MESH, keep=pricing.keep)
    fewer = tuple(s[: max(1, len(s) - op % 2)] for op, s in enumerate(space.strategies))
    left = Space(
        MESH, space.inputs, fewer, space.copies, space.outputs, space.carry, space.loop_carries
    )
    assert_same(Builder(graph, flow, left, router_of(graph, MESH, pricing), False))


def test_a_kind_has_one_matrix_and_another_kind_of_other_placements_another() -> None:
    graph, flow = traced(CASES[0])
    pricing = Roofline(graph, MESH, load_cluster("cpu8"))
    space = build_space(graph, flow, MESH, keep=pricing.keep)
    edges = Builder(graph, flow, space, router_of(graph, MESH, pricing), False).edges().edges
    shapes = {id(edge.matrix): whole(edge.matrix).shape for edge in edges}
    assert len(shapes) < len(edges)
    assert len(set(shapes.values())) > 1


def test_links_are_worked_out_once_for_a_graph_and_its_dataflow() -> None:
    graph, flow = traced(CASES[0])
    assert links_of(graph, flow) is links_of(graph, flow)
    assert links_of(graph, dataflow(graph)) is not links_of(graph, flow)


def test_kinds_are_the_distinct_rows() -> None:
    draw = np.random.default_rng(0)
    keys = tuple(draw.integers(-2, 3, 200) * 10**12 for _ in range(3))
    first, kind = kinds_of(keys)
    rows = np.stack(keys, axis=1)
    assert (rows[first][kind] == rows).all()
    assert len(first) == len(np.unique(rows, axis=0))
    assert all((kind[:n] != kind[n]).all() for n in first.tolist())
