"""Repeated blocks: shortened and tiled back they are what they were, and nothing is lost by beginning there."""

from __future__ import annotations

import itertools
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.solve import Edge, Problem, SolveOptions, Usage, solve, verify
from autopar.solve.periodic.shortened import Shortened, shortened
from autopar.solve.pipeline.core import by_messages
from autopar.solve.problem.incumbent import Best
from autopar.solve.problem.rows import memory_rows
from autopar.solve.trws.arrays import per_edge
from autopar.solve.trws.dual import Dual
from tests.solve.draw import chain_with_skips
from tests.solve.oracle import cost_of, optimum

BY_MESSAGES = SolveOptions(max_table_entries=1, max_elimination_work=1.0)


@st.composite
def repeating(draw: st.DrawFn, most_blocks: int = 12, most_strategies: int = 3) -> Problem:
    """Blocks of nodes, each the same and joined to the next the same way, between two ends; maybe all to one hub."""
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    blocks, nodes = draw(st.integers(4, most_blocks)), draw(st.integers(1, 3))
    is_whole, hub = draw(st.booleans()), draw(st.booleans())

    def drawn(*shape: int) -> np.ndarray:
        return rng.integers(0, 4, shape).astype(float) if is_whole else rng.random(shape)

    counts = rng.integers(2, most_strategies + 1, nodes).tolist()
    costs, edges = [drawn(2)], list[Edge]()
    own = [drawn(count) for count in counts]
    inner = [(i, j, drawn(counts[i], counts[j])) for i in range(nodes) for j in range(i) if rng.random() < 0.8]
    outer = [(i, j, drawn(counts[i], counts[j])) for i in range(nodes) for j in range(nodes) if rng.random() < 0.6]
    to_hub, ends = drawn(counts[0], 2), (drawn(counts[0], 2), drawn(counts[-1], 3))
    at = [1 + nodes * block for block in range(blocks)]
    for first in at:
        costs += own
        edges += [Edge(first + i, first + j, cost) for i, j, cost in inner]
        edges += [Edge(first, 0, to_hub)] if hub else []
    for first, after in itertools.pairwise(at):
        edges += [Edge(first + i, after + j, cost) for i, j, cost in outer]
    edges += [Edge(at[0], 0, ends[0])] if not hub else []
    edges.append(Edge(at[-1] + nodes - 1, len(costs), ends[1]))
    return Problem((*costs, drawn(3)), tuple(edges))


def shortened_with_dual(problem: Problem, more: int = 0) -> tuple[Shortened | None, Dual]:
    dual = Dual(problem, memory_rows(problem))
    return shortened(problem, dual.flat, dual.order, more), dual


@settings(max_examples=200, deadline=None)
@given(problem=repeating(most_blocks=30), seed=st.integers(0, 1000), more=st.sampled_from((0, 3, 9)))
def test_the_whole_is_made_of_what_is_left(problem: Problem, seed: int, more: int) -> None:
    """Every edge is like the one that it is said to be like, and a choice tiles to nodes of the same costs."""
    short, dual = shortened_with_dual(problem, more)
    if short is None:
        return
    small, rng = short.problem, np.random.default_rng(seed)
    assert len(small.counts) < len(problem.counts)
    assert len({frozenset((edge.u, edge.v)) for edge in small.edges}) == len(small.edges)
    likes: list[int] = short.edges.tolist()
    for edge, like in zip(problem.edges, likes, strict=True):
        assert edge.cost is small.edges[like].cost
        assert problem.node_costs[edge.u] is small.node_costs[small.edges[like].u]
        assert problem.node_costs[edge.v] is small.node_costs[small.edges[like].v]
    sent = [(rng.random(small.counts[edge.u]), rng.random(small.counts[edge.v])) for edge in small.edges]
    tiled = per_edge(dual.flat, short.messages(dual.flat, sent))
    for (to_u, to_v), like in zip(tiled, likes, strict=True):
        assert np.array_equal(to_u, sent[like][0])
        assert np.array_equal(to_v, sent[like][1])


@settings(max_examples=100, deadline=None)
@given(problem=repeating(most_blocks=30), seed=st.integers(0, 1000), more=st.sampled_from((0, 3, 9)))
def test_a_choice_is_tiled_where_that_is_cheapest(problem: Problem, seed: int, more: int) -> None:
    short, _ = shortened_with_dual(problem, more)
    if short is None:
        return
    rng = np.random.default_rng(seed)
    small = tuple(int(rng.integers(n)) for n in short.problem.counts)
    tilings = [short.tiled(small, at) for at in itertools.product(*(stretch.sites for stretch in short.stretches))]
    assert all(s < n for tiling in tilings for s, n in zip(tiling, problem.counts, strict=True))
    assert cost_of(problem, short.choice(small)) == pytest.approx(min(cost_of(problem, t) for t in tilings))


@settings(max_examples=100, deadline=None)
@given(problem=repeating(most_blocks=30), seed=st.integers(0, 1000), more=st.sampled_from((0, 3, 9)))
def test_a_choice_that_is_the_same_in_all_blocks_stays_so(problem: Problem, seed: int, more: int) -> None:
    """What is left out adds its share: as much for every period, whatever is chosen by the look of nodes alone."""
    short, _ = shortened_with_dual(problem, more)
    if short is None:
        return
    rng, by_cost = np.random.default_rng(seed), dict[int, int]()
    small = tuple(by_cost.setdefault(id(cost), int(rng.integers(len(cost)))) for cost in short.problem.node_costs)
    whole = tuple(by_cost[id(cost)] for cost in problem.node_costs)
    assert short.choice(small) == whole
    missing = sum(problem.node_costs[v][s] for v, s in enumerate(whole)) - sum(
        short.problem.node_costs[v][s] for v, s in enumerate(small)
    )
    kinds = {id(edge.cost): edge for edge in problem.edges}
    for key, edge in kinds.items():
        more = sum(id(e.cost) == key for e in problem.edges) - sum(id(e.cost) == key for e in short.problem.edges)
        missing += more * edge.cost[whole[edge.u], whole[edge.v]]
    assert cost_of(problem, whole) == pytest.approx(cost_of(short.problem, small) + missing)


@settings(max_examples=60, deadline=None)
@given(problem=repeating(most_blocks=5, most_strategies=2))
def test_beginning_at_tiled_messages_gives_bounds_and_choices(problem: Problem) -> None:
    """Compared with trying all: the bound is one, the choice costs what is said; the witness is checked."""
    if np.prod(problem.counts) > 20_000:
        return
    watch = Best(problem, None, None)
    found = by_messages(problem, BY_MESSAGES, watch, np.inf)
    best = optimum(problem)
    assert found.bound <= best + 1e-9
    assert found.choice is None or cost_of(problem, found.choice) >= best - 1e-9
    solution = solve(problem, options=BY_MESSAGES)
    verify(problem, solution)
    assert solution.lower_bound <= best + 1e-9
    assert solution.objective == pytest.approx(best)


@settings(max_examples=30, deadline=None)
@given(problem=repeating(most_blocks=40))
def test_annealing_few_of_the_layers_gives_choices_of_all(problem: Problem) -> None:
    """Where a gap is let be that tiling does not reach: compared with the optimum by elimination."""
    options = replace(
        BY_MESSAGES, max_cp_sat_entries=0, gap_tolerance=1e-9, anneal_passes=10, region_steps=20, max_rounds=0
    )
    found, best = solve(problem, options=options), solve(problem)
    verify(problem, found)
    assert best.objective == best.lower_bound
    assert found.lower_bound <= best.objective * (1 + 1e-9)
    assert found.objective >= best.objective * (1 - 1e-9)


@settings(max_examples=20, deadline=None)
@given(problem=repeating(most_blocks=40))
def test_the_same_again(problem: Problem) -> None:
    options = replace(BY_MESSAGES, max_rounds=0)
    first, again = (solve(problem, options=options) for _ in range(2))
    assert first == again
    verify(problem, first)


def test_what_does_not_repeat_and_what_shares_memory_is_left_whole() -> None:
    rng = np.random.default_rng(0)
    costs = tuple(rng.random(3) for _ in range(60))
    uneven = Problem(costs, tuple(Edge(v, v + 1, rng.random((3, 3))) for v in range(59)))
    assert shortened_with_dual(uneven)[0] is None
    even = chain_with_skips(200, 6, 8, 0)
    assert shortened_with_dual(even)[0] is not None
    limited = replace(even, usages=(Usage(0, 0, 1, np.ones(6)),), usage_limit=0.5)
    assert shortened_with_dual(limited)[0] is None


def test_layers_that_differ_by_rounding_are_alike() -> None:
    even = chain_with_skips(200, 6, 8, 0)
    edges = tuple(Edge(e.u, e.v, e.cost * (1 + 1e-14 * (n % 3))) for n, e in enumerate(even.edges))
    found, same = shortened_with_dual(replace(even, edges=edges))[0], shortened_with_dual(even)[0]
    assert found is not None
    assert same is not None
    assert found.stretches == same.stretches


def test_two_kinds_of_layers_are_two_stretches() -> None:
    first, second = chain_with_skips(240, 5, 8, 0), chain_with_skips(240, 5, 12, 1)
    edges = (*first.edges, *(Edge(e.u + 240, e.v + 240, e.cost) for e in second.edges), Edge(239, 240, np.eye(5)))
    both = Problem(first.node_costs + second.node_costs, edges)
    short, _ = shortened_with_dual(both)
    assert short is not None
    assert sorted(stretch.period for stretch in short.stretches) == [8, 12]
    likes: list[int] = short.edges.tolist()
    for edge, like in zip(both.edges, likes, strict=True):
        assert edge.cost is short.problem.edges[like].cost
    rng = np.random.default_rng(0)
    choice = short.choice(tuple(int(rng.integers(n)) for n in short.problem.counts))
    assert np.isfinite(cost_of(both, choice))


def test_sweeps_do_not_grow_with_the_layers() -> None:
    """Of five times as many layers the sweeps are as many: nearly all of them are of a few layers."""

    def sweeps(blocks: int) -> dict[int, int]:
        problem, counted = chain_with_skips(8 * blocks, 8, 8, 0), dict[int, int]()
        plain = Dual.sweep

        def counting(dual: Dual) -> None:
            nodes = len(dual.flat.start) - 1
            counted[nodes] = counted.get(nodes, 0) + 1
            plain(dual)

        with patch.object(Dual, "sweep", counting):
            by_messages(
                problem, replace(BY_MESSAGES, max_rounds=0, max_total_entries=1), Best(problem, None, None), np.inf
            )
        return counted

    few, many = sweeps(40), sweeps(200)
    assert sorted(few.values()) == sorted(many.values())
    assert few[min(few)] == many[min(few)] >= 10 * few[8 * 40]
