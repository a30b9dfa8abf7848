"""Annealing: forests are forests and solved exactly, what is kept fits, and plain Python gives what numba gives."""

from __future__ import annotations

import os
import subprocess
import sys

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.solve import Infeasible, Problem
from autopar.solve.presolve.arc_consistency import drop_forbidden
from autopar.solve.primal.large_neighbourhood import Walk, search_regions
from autopar.solve.primal.tree_moves import Cooling, anneal, desk_for, grow_forest, solve_forest
from autopar.solve.problem.rows import memory_rows
from autopar.solve.trws.arrays import Flat, flatten, per_edge
from autopar.solve.trws.kernels import cost_of as flat_cost_of
from autopar.solve.trws.kernels import use_of
from tests.solve.draw import chain_with_skips, problems
from tests.solve.oracle import choices, cost_of, optimum, peak_of


def flat_of(problem: Problem) -> Flat:
    return flatten(problem, memory_rows(problem))


def graph_of(problem: Problem) -> nx.Graph:
    graph = nx.Graph()
    graph.add_nodes_from(range(len(problem.node_costs)))
    graph.add_edges_from((edge.u, edge.v) for edge in problem.edges)
    return graph


def merged(problem: Problem) -> Problem | None:
    """Without forbidden strategies, as kernels want it; None if nothing is left."""
    try:
        return drop_forbidden(problem).problem
    except Infeasible:
        return None


@settings(max_examples=150, deadline=None)
@given(problem=problems(), data=st.data())
def test_flat_says_what_the_problem_says(problem: Problem, data: st.DataObject) -> None:
    flat, rows = flat_of(problem), memory_rows(problem)
    choice = tuple(data.draw(st.integers(0, count - 1)) for count in problem.counts)
    assert flat_cost_of(flat, flat.cost, np.array(choice)) == pytest.approx(
        cost_of(problem, choice), rel=1e-12
    )
    used = np.zeros(rows.count)
    use_of(flat.memory, np.array(choice), used)
    assert used == pytest.approx(rows.used(choice))
    messages = per_edge(flat, np.arange(flat.size, dtype=float))
    assert sorted(np.concatenate([*(part for pair in messages for part in pair), []])) == list(
        range(flat.size)
    )
    for edge, (to_u, to_v) in zip(problem.edges, messages, strict=True):
        assert (len(to_u), len(to_v)) == edge.cost.shape


@settings(max_examples=150, deadline=None)
@given(problem=problems(max_nodes=8), seed=st.integers(0, 1000))
def test_forests_are_maximal_and_solved_exactly(problem: Problem, seed: int) -> None:
    """Of some nodes in a drawn order: no cycle, none could be added, and no choice of those inside is cheaper."""
    problem = merged(problem) or problem
    flat, rng, graph = flat_of(problem), np.random.default_rng(seed), graph_of(problem)
    count = len(problem.node_costs)
    order, desk = rng.permutation(count)[: int(rng.integers(1, count + 1))], desk_for(flat)
    grow_forest(flat, order, desk)
    held = set(np.flatnonzero(desk.inside).tolist())
    assert held <= set(order.tolist())
    pairs = [frozenset((edge.u, edge.v)) for edge in problem.edges]
    double = {pair for pair in pairs if pairs.count(pair) > 1}
    assert nx.is_forest(graph.subgraph(held))
    assert not any(pair <= held for pair in double)
    for v in set(order.tolist()) - held:
        closes = not nx.is_forest(graph.subgraph(held | {v}))
        assert closes or any(v in pair and pair <= held | {v} for pair in double)
    start = tuple(int(rng.integers(n)) for n in problem.counts)
    choice = np.array(start)
    solve_forest(flat, order, choice, desk)
    assert all(choice[v] == start[v] for v in range(count) if v not in held)
    others = [
        c for c in choices(problem) if all(c[v] == start[v] for v in range(count) if v not in held)
    ]
    best = min(cost_of(problem, c) for c in others)
    if np.isfinite(best):
        assert cost_of(problem, tuple(choice.tolist())) == pytest.approx(best, rel=1e-12, abs=1e-12)


@settings(max_examples=100, deadline=None)
@given(problem=problems(), each=st.booleans(), heat=st.sampled_from([0.0, 0.1, 3.0]))
def test_what_is_kept_fits_and_costs_what_is_said(
    problem: Problem, each: bool, heat: float
) -> None:
    problem = merged(problem)
    if problem is None:
        return
    flat = flat_of(problem)
    schedule = Cooling(np.zeros(len(problem.node_costs), dtype=np.intp), heat, 30, 0, each)
    choice, cost = anneal(flat, np.zeros(flat.memory.rows), schedule, lambda _: True)
    if choice is None:
        assert cost == np.inf
        return
    found = tuple(choice.tolist())
    assert cost == pytest.approx(cost_of(problem, found))
    assert optimum(problem, slack=1e-9) <= cost + 1e-9
    if problem.usage_limit is not None:
        assert peak_of(problem, found) <= problem.usage_limit * (1 + 1e-9)


def limit_of(problem: Problem) -> float:
    """inf if there is none."""
    return np.inf if problem.usage_limit is None else problem.usage_limit


def with_scarce_memory(rng: np.random.Generator) -> Problem:
    """7 nodes of 4 strategies, whose cheapest choice needs 1 / 0.6 of the limit."""
    free = chain_with_skips(7, 4, 7, int(rng.integers(100)), memory=True)
    limit = 0.6 * peak_of(free, min(choices(free), key=lambda c: cost_of(free, c)))
    return Problem(free.node_costs, free.edges, free.usages, limit)


@pytest.mark.quick_share(6)
@pytest.mark.parametrize("seed", range(5))
def test_annealing_finds_the_optimum_within_a_limit(seed: int) -> None:
    """Where the cheapest choice does not fit; all are tried."""
    problem = with_scarce_memory(np.random.default_rng(seed))
    flat, best = flat_of(problem), optimum(problem)
    heat, start = 0.3 * best / 7, np.zeros(7, dtype=np.intp)
    found = [
        anneal(
            flat, np.zeros(flat.memory.rows), Cooling(start, heat, 400, 0, each), lambda _: True
        )[1]
        for each in (False, True)
    ]
    assert min(found) == pytest.approx(best)


@settings(max_examples=100, deadline=None)
@given(
    problem=problems(max_nodes=8), heat=st.sampled_from([0.0, 0.1, 3.0]), seed=st.integers(0, 1000)
)
def test_walks_never_leave_the_limit_and_cost_what_is_said(
    problem: Problem, heat: float, seed: int
) -> None:
    problem = merged(problem)
    if problem is None:
        return
    flat, rng = flat_of(problem), np.random.default_rng(seed)
    start = tuple(int(rng.integers(n)) for n in problem.counts)
    limit = limit_of(problem)
    good = peak_of(problem, start) <= limit and cost_of(problem, start) < np.inf
    choice, cost = search_regions(
        flat, np.zeros(flat.memory.rows), Walk(np.array(start), heat, 250, seed), lambda _: True
    )
    assert (choice is not None) == good
    if choice is not None:
        found = tuple(choice.tolist())
        assert cost == pytest.approx(cost_of(problem, found))
        assert cost <= cost_of(problem, start) * (1 + 1e-9)
        assert peak_of(problem, found) <= limit * (1 + 1e-9)


@pytest.mark.quick_share(6)
@pytest.mark.parametrize("seed", range(5))
def test_walks_find_the_optimum_within_a_limit(seed: int) -> None:
    """The best of a few walks from any choice that fits, where re-solves without prices would exceed the limit."""
    problem = with_scarce_memory(np.random.default_rng(seed))
    flat, best = flat_of(problem), optimum(problem)
    start = next(
        c
        for c in choices(problem)
        if peak_of(problem, c) <= limit_of(problem) and cost_of(problem, c) < np.inf
    )
    found = [
        search_regions(
            flat,
            np.zeros(flat.memory.rows),
            Walk(np.array(start), heat, 2000, seed),
            lambda _: True,
        )[1]
        for heat in (0.1 * best, 3 * best)
        for seed in range(3)
    ]
    assert min(found) == pytest.approx(best)


def test_a_walk_ends_when_told() -> None:
    problem = chain_with_skips(30, 4, 7, 1, memory=True)
    told = list[float]()
    flat, start = flat_of(problem), np.zeros(30, dtype=np.intp)

    def wanted(cost: float) -> bool:
        told.append(cost)
        return len(told) < 3

    search_regions(flat, np.zeros(flat.memory.rows), Walk(start, 1.0, 10**6, 0), wanted)
    assert len(told) == 3
    assert told == sorted(told, reverse=True)


PROGRAM = """
from dataclasses import replace
from autopar.solve import SolveOptions, solve
from tests.solve.draw import chain_with_skips
problem = chain_with_skips(24, 4, 6, 1, memory=True)
problem = replace(problem, usage_limit=60.0)
options = SolveOptions(max_table_entries=4, anneal_passes=30, region_steps=120, max_sweeps=20, max_cp_sat_entries=1)
solution = solve(problem, options=options)
print(solution.choice, solution.objective.hex(), solution.lower_bound.hex())
"""


def test_plain_python_gives_what_numba_gives() -> None:
    pytest.importorskip("numba")
    found = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "NUMBA_DISABLE_JIT": off},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for off in ("0", "1")
    ]
    assert found[0] == found[1] != ""
