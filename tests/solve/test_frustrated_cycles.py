"""Knots: found where no choice fits, as few nodes as do not; none where there is none; not what sweeps prove anyway."""

from __future__ import annotations

from itertools import combinations, count, product

import numpy as np
import pytest

from autopar.solve.fixing.node_merging import frustrated_cycles
from autopar.solve.problem import stop
from autopar.solve.problem.problem import Edge, Problem
from autopar.solve.problem.rows import memory_rows
from autopar.solve.trws.dual import Certificate, Dual

GAP = 100.0
EQUAL = np.where(np.eye(2, dtype=bool), 0.0, 10.0)  # more than the widest window


def _swept(problem: Problem) -> Certificate:
    dual = Dual(problem, memory_rows(problem))
    for _ in range(50):
        dual.sweep()
    return dual.certificate(dual.state())


def _of(nodes: int, edges: dict[tuple[int, int], bool]) -> Problem:
    """Nodes of two strategies, which have to be equal (True) or different along edges."""
    costs = tuple(
        Edge(u, v, EQUAL if same else EQUAL[::-1].copy()) for (u, v), same in edges.items()
    )
    return Problem((np.zeros(2),) * nodes, costs)


def _fits(edges: dict[tuple[int, int], bool], nodes: frozenset[int]) -> bool:
    """Whether the nodes can take strategies that are equal and different as they have to be: all are tried."""
    inside = {ends: same for ends, same in edges.items() if nodes.issuperset(ends)}
    order = sorted(nodes)
    choices = (
        dict(zip(order, choice, strict=True)) for choice in product(range(2), repeat=len(order))
    )
    return any(
        all((choice[u] == choice[v]) == same for (u, v), same in inside.items())
        for choice in choices
    )


@pytest.mark.parametrize("seed", range(20))
def test_knots_do_not_fit_and_without_any_node_they_do(seed: int) -> None:
    random = np.random.default_rng(seed)
    nodes = int(random.integers(4, 10))
    ends = [pair for pair in combinations(range(nodes), 2) if random.random() < 0.4]
    edges = {pair: bool(random.random() < 0.7) for pair in ends}
    certificate = _swept(_of(nodes, edges))
    assert certificate.bound == pytest.approx(0.0)  # of mixtures all fit
    found = frustrated_cycles(certificate, GAP)
    assert sum(map(len, found)) == len(frozenset[int]().union(*found))
    assert bool(found) != _fits(edges, frozenset(range(nodes)))
    for cycle in found:
        assert not _fits(edges, cycle)
        assert all(_fits(edges, cycle - {v}) for v in cycle)


def test_looking_for_knots_ends_with_the_time() -> None:
    """Wherever it is up, what was found until then is a cycle. A second passes at every look at the clock."""
    rings = [
        {(v, v + 1): True for v in range(first, first + 7)} | {(first, first + 7): False}
        for first in (0, 8)
    ]
    edges = rings[0] | rings[1]
    certificate, found = _swept(_of(16, edges)), list[int]()
    for seconds in range(0, 400, 5):
        ticks = count()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stop, "monotonic", lambda ticks=ticks: float(next(ticks)))
            with stop.ending_at(stop.now() + seconds):
                met = frustrated_cycles(certificate, GAP)
        assert next(ticks) <= seconds + 20
        assert not any(_fits(edges, cycle) for cycle in met)
        found.append(len(met))
    assert sorted(set(found)) == [0, 1, 2]


def test_what_costs_little_is_no_knot() -> None:
    ring = {(v, v + 1): True for v in range(7)} | {(0, 7): False}
    assert frustrated_cycles(_swept(_of(8, ring)), GAP) == [frozenset(range(8))]
    assert not frustrated_cycles(_swept(_of(8, ring)), 1e6 * GAP)


def test_what_no_strategy_is_left_of_on_a_tree_is_no_knot() -> None:
    path = Problem((np.array([0.0, 0.0]), np.array([0.0, 50.0]), np.array([50.0, 0.0])), ())
    tree = Problem(path.node_costs, (Edge(0, 1, EQUAL), Edge(0, 2, EQUAL)))
    unswept = Dual(tree, memory_rows(tree))
    assert not frustrated_cycles(unswept.certificate(unswept.state()), GAP)


def test_nodes_without_a_choice_are_no_axes_of_arrays() -> None:
    """One node between more others than an array has axes, none of which has a choice; and a ring, which is a cycle."""
    ring = {(v, v + 1): True for v in range(1, 4)} | {(1, 4): False}
    problem = _of(5, ring)
    leaves = tuple(range(5, 85))
    edges = (*problem.edges, *(Edge(0, leaf, np.zeros((2, 1))) for leaf in leaves))
    costs = (*problem.node_costs, *(np.zeros(1) for _ in leaves))
    assert frustrated_cycles(_swept(Problem(costs, edges)), GAP) == [frozenset(range(1, 5))]
