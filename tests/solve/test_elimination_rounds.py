"""Chains: what rounds leave has the optimum of the whole, and its best choice is completed to one of the whole's."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import autopar.solve.presolve.batched_elimination as chains_module
from autopar.solve import Problem
from autopar.solve.presolve.batched_elimination import (
    NOWHERE,
    Chains,
    Eliminated,
    chains_of,
    chosen,
    eliminated,
)
from autopar.solve.presolve.folding import joined
from autopar.solve.problem.hash_consing import Kinds
from autopar.solve.problem.problem import objective
from tests.solve.draw import chain_with_skips, problems
from tests.solve.oracle import optimum

MANY = 10**6


def ends(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    both = np.array([(edge.u, edge.v) for edge in problem.edges], dtype=np.intp).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def done(problem: Problem, most: int = MANY) -> tuple[Chains, Kinds, Eliminated]:
    kinds = Kinds()
    chains = chains_of(np.array(problem.counts, dtype=np.intp), *ends(problem), most)
    between = chains.between(kinds, kinds.of([edge.cost for edge in problem.edges]))
    found = eliminated(chains, kinds, kinds.of(problem.node_costs), between, MANY)
    assert found is not None
    return chains, kinds, found


def cheapest(problem: Problem) -> tuple[int, ...]:
    return min(product(*map(range, problem.counts)), key=lambda choice: objective(problem, choice))


@settings(max_examples=200, deadline=None)
@given(problems(limited=False), st.sampled_from([1, 3, 9, MANY]))
def test_the_optimum_stays_and_its_choice_is_completed(problem: Problem, most: int) -> None:
    chains, kinds, found = done(problem, most)
    left = chains.left_of(kinds, found)
    best = cheapest(left)
    expected = optimum(problem)
    assert objective(left, best) + found.constant == pytest.approx(expected, rel=1e-9, abs=1e-12)
    choice = tuple(chosen(chains, kinds, found, best).tolist())
    assert objective(problem, choice) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@settings(max_examples=100, deadline=None)
@given(problems(limited=False), st.sampled_from([1, 3, MANY]))
def test_rounds_are_of_nodes_apart_that_have_few_neighbours(problem: Problem, most: int) -> None:
    chains, _, _ = done(problem, most)
    near: list[set[int]] = [set() for _ in problem.counts]
    for edge in problem.edges:
        near[edge.u].add(edge.v)
        near[edge.v].add(edge.u)
    gone: set[int] = set()
    for round_ in chains.rounds:
        for v, scope in zip(round_.nodes.tolist(), round_.scope.tolist(), strict=True):
            assert {u for u in scope if u != NOWHERE} == near[v]
            assert near[v].isdisjoint(round_.nodes.tolist())
            assert np.prod([problem.counts[u] for u in near[v]]) <= most
            for u in near[v]:
                near[u] = (near[u] | near[v]) - {u, v}
            gone.add(v)
    assert set(chains.nodes.tolist()) == set(range(len(near))) - gone
    assert all(
        len(near[v]) > 2 or np.prod([problem.counts[u] for u in near[v]]) > most
        for v in chains.nodes.tolist()
    )


def test_equal_layers_share_their_tables() -> None:
    made = [done(chain_with_skips(12 * layers, 4, 12, 0))[1].entries for layers in (10, 40)]
    assert made[1] < 1.5 * made[0]


def test_too_many_entries_end_it() -> None:
    problem = chain_with_skips(24, 4, 12, 0)
    kinds = Kinds()
    chains = chains_of(np.array(problem.counts), *ends(problem), MANY)
    between = chains.between(kinds, kinds.of([edge.cost for edge in problem.edges]))
    assert eliminated(chains, kinds, kinds.of(problem.node_costs), between, 4) is None


@settings(max_examples=150, deadline=None)
@given(problems(limited=False))
def test_followers_and_one_sided_edges_are_joined_at_no_loss(problem: Problem) -> None:
    kinds = Kinds()
    whole = joined(problem, kinds)
    chains = chains_of(whole.counts, whole.edges.u, whole.edges.v, 0)
    assert len(chains.nodes) == len(whole.counts) or not len(whole.edges.u)
    costs, between = whole.costs(kinds, problem.node_costs), chains.between(kinds, whole.edges.kind)
    left = chains_module.derived(
        tuple(kinds.arrays_of(costs)),
        tuple(
            chains_module.Edge(int(u), int(v), cost)
            for u, v, cost in zip(chains.low, chains.high, kinds.arrays_of(between), strict=True)
        ),
    )
    best = cheapest(left)
    expected = optimum(problem)
    assert objective(left, best) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert objective(problem, whole.lift(np.array(best))) == pytest.approx(
        expected, rel=1e-9, abs=1e-12
    )


def test_a_planted_bug_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices that lie the other way up are seen."""
    columns = chains_module._columns
    monkeypatch.setattr(
        chains_module,
        "_columns",
        lambda *args: tuple(c * 0 if n == 2 else c for n, c in enumerate(columns(*args))),
    )
    problem = chain_with_skips(8, 3, 8, 1)
    chains, kinds, found = done(problem)
    choice = tuple(chosen(chains, kinds, found, cheapest(chains.left_of(kinds, found))).tolist())
    assert objective(problem, choice) > optimum(problem) * (1 + 1e-6)
