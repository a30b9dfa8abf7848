"""The Problem: every invariant has a violation that `check` must catch; costs are read alike one by one and at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.solve import Edge, Problem, Usage
from autopar.solve.problem.problem import Floats, objective
from tests.solve.draw import chain_with_skips, problems

MATRIX = np.array([[0.0, 1.0], [np.inf, 0.0]])


def ring(*beside: Edge, first: Floats | None = None, usages: tuple[Usage, ...] = ()) -> Problem:
    """Twenty nodes in a ring, one matrix for all edges but those beside."""
    costs = (np.zeros(2) if first is None else first, *[np.zeros(2)] * 19)
    edges = tuple(Edge(v, (v + 1) % 20, MATRIX) for v in range(20))
    return Problem(costs, (*edges, *beside), usages, 1.0 if usages else None)


VIOLATIONS: dict[str, tuple[Callable[[], Problem], str]] = {
    "a cost of NaN": (lambda: ring(first=np.array([0.0, np.nan])), "node 0: costs must be"),
    "a cost of -inf": (lambda: ring(first=np.array([-np.inf, 0.0])), "node 0: costs must be"),
    "no strategies": (lambda: ring(first=np.zeros(0)), "node 0: costs must be"),
    "an edge to itself": (lambda: ring(Edge(3, 3, MATRIX)), "edge from node 3 to itself"),
    "another node's shape": (
        lambda: ring(first=np.zeros(3)),
        r"edge \(0, 1\): matrix \(2, 2\), nodes want \(3, 2\)",
    ),
    "the other way up": (
        lambda: ring(Edge(3, 5, np.zeros((2, 1)))),
        r"edge \(3, 5\): matrix \(2, 1\), nodes want",
    ),
    "no matrix": (
        lambda: ring(Edge(3, 5, np.zeros(4))),
        r"edge \(3, 5\): matrix \(4,\), nodes want \(2, 2\)",
    ),
    "an entry of NaN": (
        lambda: ring(Edge(3, 5, np.array([[0.0, np.nan], [1.0, 0.0]]))),
        "NaN or -inf",
    ),
    "an entry of -inf": (
        lambda: ring(Edge(3, 5, np.array([[0.0, -np.inf], [1.0, 0.0]]))),
        "NaN or -inf",
    ),
    "bytes of another shape": (
        lambda: ring(usages=(Usage(4, 0, 1, np.zeros(3)),)),
        "usage of node 4: shape",
    ),
    "no time": (lambda: ring(usages=(Usage(4, 1, 1, np.zeros(2)),)), "usage of node 4: shape"),
    "bytes below 0": (
        lambda: ring(usages=(Usage(4, 0, 1, np.array([0.0, -1.0])),)),
        "usage of node 4 is negative",
    ),
    "infinite bytes": (
        lambda: ring(usages=(Usage(4, 0, 1, np.array([0.0, np.inf])),)),
        "usage of node 4 is negative",
    ),
}


@pytest.mark.parametrize("name", VIOLATIONS)
def test_each_violation_is_caught(name: str) -> None:
    make, message = VIOLATIONS[name]
    with pytest.raises(ValueError, match=message):
        make()


def test_a_lawful_problem_passes() -> None:
    problem = ring(usages=(Usage(4, 0, 1, np.array([0.0, 2.0])),))
    assert len(problem.matrices[0]) == 1


def one_by_one(problem: Problem, choice: tuple[int, ...]) -> float:
    """What the choice costs, read node by node and edge by edge."""
    nodes = sum(float(cost[s]) for cost, s in zip(problem.node_costs, choice, strict=True))
    return nodes + sum(float(edge.cost[choice[edge.u], choice[edge.v]]) for edge in problem.edges)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_costs_are_read_alike_one_by_one_and_matrix_by_matrix(data: st.DataObject) -> None:
    seed = data.draw(st.integers(0, 2**16))
    repeated = chain_with_skips(nodes=60, strategies=4, period=3, seed=seed)
    problem = data.draw(st.one_of(st.just(repeated), problems()))
    rng = np.random.default_rng(seed)
    choice = tuple(int(rng.integers(count)) for count in problem.counts)
    assert objective(problem, choice) == one_by_one(problem, choice)


def test_what_is_read_of_shared_matrices_covers_both_ways() -> None:
    shared = chain_with_skips(nodes=60, strategies=4, period=3, seed=0)
    assert len(shared.edges) > 8 * len(shared.matrices[0]), "read matrix by matrix"
