"""Joining nodes keeps every choice that is allowed, its cost and its bytes; its step is replayed, and lies are seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.solve import (
    Edge,
    InvalidSolution,
    Problem,
    Solution,
    SolveOptions,
    proven,
    solve,
    verify,
)
from autopar.solve.certificate.proof import Eliminate, Join, Proof
from autopar.solve.fixing import fixed_point
from autopar.solve.fixing.node_merging import cycles_merged, has_few_pairs, joined
from autopar.solve.presolve.reduce import merge_parallel
from autopar.solve.problem import stop
from autopar.solve.problem.reduction import unchanged
from tests.solve.draw import problems
from tests.solve.oracle import choices, cost_of, optimum, peak_of

TABLES = SolveOptions(max_table_entries=30, max_rounds=0, max_cp_sat_entries=30)


def _pairs(problem: Problem, seed: int) -> list[tuple[int, int]]:
    """Some edges, either way round, no two at one node."""
    rng, used = np.random.default_rng(seed), set[int]()
    pairs: list[tuple[int, int]] = []
    for e in rng.permutation(len(problem.edges)).tolist():
        ends = problem.edges[e].u, problem.edges[e].v
        if not used & set(ends):
            used |= set(ends)
            pairs.append(ends if rng.random() < 0.5 else ends[::-1])
    return pairs


def _distances(count: int, strategies: int, seed: int) -> Problem:
    """Nodes that all have edges to one another: messages alone prove little, and windows alone do not end."""
    rng = np.random.default_rng(seed)
    edges = tuple(
        Edge(u, v, rng.random((strategies, strategies))) for v in range(count) for u in range(v)
    )
    return Problem(tuple(rng.random(strategies) for _ in range(count)), edges)


@settings(max_examples=100, deadline=None)
@given(problem=problems(max_nodes=5), seed=st.integers(0, 1000))
def test_every_choice_that_is_allowed_is_left_as_it_was(problem: Problem, seed: int) -> None:
    problem = unchanged(problem).then(merge_parallel).problem
    reduction = joined(problem, _pairs(problem, seed))
    small = reduction.problem
    left = {reduction.lift(c): (cost_of(small, c), peak_of(small, c)) for c in choices(small)}
    assert {c for c in choices(problem) if np.isfinite(cost_of(problem, c))} <= set(left)
    for choice, (cost, peak) in left.items():
        assert cost == pytest.approx(cost_of(problem, choice))
        assert peak == pytest.approx(peak_of(problem, choice))
    order = Eliminate(tuple(range(len(small.node_costs))))
    free = replace(problem, usages=(), usage_limit=None)
    assert proven(free, (*reduction.steps, order)).bound == pytest.approx(optimum(free))


@settings(max_examples=50, deadline=None)
@given(problem=problems(limited=True, max_nodes=5), seed=st.integers(0, 1000))
def test_what_is_solved_after_joining_is_the_optimum_within_the_limit(
    problem: Problem, seed: int
) -> None:
    problem = unchanged(problem).then(merge_parallel).problem
    reduction, best = joined(problem, _pairs(problem, seed)), optimum(problem)
    if not np.isfinite(best):
        return
    found = solve(reduction.problem)
    assert found.objective == pytest.approx(best)
    lifted = Solution(
        reduction.lift(found.choice), best, best, peak_of(problem, reduction.lift(found.choice))
    )
    assert cost_of(problem, lifted.choice) == pytest.approx(best)
    assert lifted.peak <= (problem.usage_limit or 0.0) * (1 + 1e-9)
    assert proven(problem, reduction.steps + (found.witness or ())).bound == pytest.approx(best)


def _ring(count: int, ends: Sequence[tuple[int, int]], forbidden: bool = False) -> Problem:
    """Nodes of as many strategies; edges between these, on which only equal ones fit if others are forbidden."""
    cost = np.where(np.eye(count, dtype=bool), 0.0, np.inf if forbidden else 1.0)
    return Problem(
        (np.zeros(count),) * (1 + max(v for _, v in ends)), tuple(Edge(u, v, cost) for u, v in ends)
    )


def test_untied_knots_have_no_cycle_and_the_rest_is_as_it_was() -> None:
    """A ring of six, with a triangle beside it and a tail on which nothing is joined."""
    ends = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (0, 5), (5, 6), (6, 7), (5, 7), (7, 8), (8, 9)]
    problem = _ring(3, ends)
    untied_ = cycles_merged(problem, [frozenset(range(6))], 100.0)
    assert len(untied_.problem.counts) == len(problem.counts) - 4
    joins = [pair[:2] for step in untied_.steps if isinstance(step, Join) for pair in step.pairs]
    assert len(joins) == 4
    assert solve(untied_.problem).objective == solve(problem).objective == 0.0
    assert cycles_merged(problem, [frozenset({7, 8, 9})], 100.0).problem is problem
    with stop.ending_at(stop.now()):
        assert cycles_merged(problem, [frozenset(range(6))], 100.0).problem is problem


def test_pairs_that_are_too_dear_are_not_joined() -> None:
    problem = _ring(3, [(0, 1), (1, 2), (0, 2)])
    assert max(cycles_merged(problem, [frozenset(range(3))], 0.5).problem.counts) == 3
    assert max(cycles_merged(problem, [frozenset(range(3))], 2.5).problem.counts) > 3


def test_thin_is_where_most_pairs_are_forbidden_and_few_are_left() -> None:
    assert has_few_pairs(_ring(3, [(0, 1), (1, 2), (0, 2)], forbidden=True))
    assert not has_few_pairs(_ring(2, [(0, 1), (1, 2), (0, 2)], forbidden=True))
    assert not has_few_pairs(_ring(3, [(0, 1)]))
    assert not has_few_pairs(_ring(400, [(0, 1)] * 400, forbidden=True))


def test_too_many_pairs_are_not_joined() -> None:
    ends = [(0, 1), (1, 2), (0, 2)]
    cycle = [frozenset(range(3))]
    many = _ring(120, ends)
    assert cycles_merged(many, cycle, 100.0).problem is many
    assert len(cycles_merged(_ring(120, ends, forbidden=True), cycle, 100.0).problem.counts) == 2


@pytest.mark.parametrize("seed", range(4))
def test_windows_that_do_not_end_alone_end_with_it(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = _distances(7, 5, seed)
    solution = solve(problem, options=TABLES)
    assert (solution.gap, solution.objective) == (0.0, pytest.approx(solve(problem).objective))
    assert verify(problem, solution).stated_by == ()
    assert any(isinstance(step, Join) for step in solution.witness or ())
    monkeypatch.setattr(fixed_point, "_to_merge", lambda *_: [])
    assert solve(problem, options=TABLES).gap > 0


def _without_first(steps: Proof) -> Proof:
    ((u, v, s, t), *others) = steps[0].pairs if isinstance(steps[0], Join) else ()
    return (Join(((u, v, s[1:], t[1:]), *others)), *steps[1:])


def test_a_pair_that_is_left_out_is_seen() -> None:
    problem = _distances(4, 3, 0)
    steps = joined(problem, [(0, 1), (3, 2)]).steps
    assert proven(problem, (*steps, Eliminate((0, 1)))).bound == pytest.approx(optimum(problem))
    with pytest.raises(InvalidSolution, match="joined without a pair"):
        proven(problem, _without_first(steps))


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ((0, 0, [0], [0]), "Join"),
        ((0, 9, [0], [0]), "there is no node 9"),
        ((0, 1, [0, 1, 0, 1], [0, 0, 1]), "not two lists as long"),
        ((0, 1, [0, 2], [0, 0]), "out of bounds"),
    ],
)
def test_what_is_no_pair_is_refused(
    pair: tuple[int, int, list[int], list[int]], message: str
) -> None:
    problem = _distances(3, 2, 0)
    u, v, s, t = pair
    step = Join(((u, v, np.array(s, dtype=np.intp), np.array(t, dtype=np.intp)),))
    with pytest.raises(InvalidSolution, match=message):
        proven(problem, (step,))


def test_wrong_costs_of_pairs_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: what is joined costs more than it does."""

    def planted(problem: Problem, pairs: list[tuple[int, int]]) -> object:
        reduction = joined(problem, pairs)
        dear = tuple(cost + 0.3 for cost in reduction.problem.node_costs)
        return replace(reduction, problem=Problem(dear, reduction.problem.edges))

    problem = _distances(7, 5, 0)
    monkeypatch.setattr("autopar.solve.fixing.node_merging.joined", partial(planted))
    solution = solve(problem, options=TABLES)
    with pytest.raises(InvalidSolution, match="its witness proves"):
        verify(problem, solution)
