"""Strategies that find no room, and branch and bound: against every choice, and where prices and messages fail."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from autopar.solve import Edge, Infeasible, Problem, SolveOptions, Usage, proven, solve, verify
from autopar.solve.certificate.proof import Cases, Overflow, Proof
from autopar.solve.elimination.bucket_elimination import reduced_fully
from autopar.solve.pipeline import branch_and_bound
from autopar.solve.pipeline.branch_and_bound import Branches
from autopar.solve.presolve.knapsack_filtering import drop_oversized
from autopar.solve.presolve.reduce import reduce_cheaply
from autopar.solve.problem.incumbent import Best
from autopar.solve.problem.reduction import unchanged
from autopar.solve.trws.ascent import Ascent
from tests.solve.draw import problems
from tests.solve.oracle import cost_of, optimum, peak_of
from tests.solve.paths import outcome

NARROW = SolveOptions(max_table_entries=1, max_cp_sat_entries=0, max_sweeps=10, anneal_passes=20)


def crowded(nodes: int = 9, tied: int = 3) -> Problem:
    """Groups of tied nodes whose large strategies are cheap; there is room for the large ones of one group only.

    By the price of a byte, most of a second group is let in.
    """
    large, small = np.array([3.0, 0.0]), np.array([0.0, 1.0])
    costs = tuple(small + 0.01 * v for v in range(nodes))
    together = np.array([[0.0, 5.0], [5.0, 0.0]])
    edges = tuple(Edge(v, v + 1, together) for v in range(nodes - 1) if (v + 1) % tied)
    ring = tuple(
        Edge(v, (v + tied) % nodes, np.array([[0.0, 0.1], [0.2, 0.0]])) for v in range(nodes)
    )
    usages = tuple(Usage(v, 0, 1, large) for v in range(nodes))
    return Problem(costs, edges + ring, usages, 3.0 * tied + 8.0)


def steps_of(proof: Proof) -> list[object]:
    """All steps, those of cases too."""
    inner = [
        s
        for step in proof
        if isinstance(step, Cases)
        for _, case in step.cases
        for s in steps_of(case)
    ]
    return [*proof, *inner]


@settings(max_examples=150, deadline=None)
@given(problem=problems(limited=True))
def test_what_finds_no_room_is_in_no_choice_within_the_limit(problem: Problem) -> None:
    best = optimum(problem)
    if best == np.inf:
        return
    reduction = drop_oversized(problem)
    assert optimum(reduction.problem) == best
    proven(problem, reduction.steps)


def test_that_nothing_finds_room_is_proven() -> None:
    """One node at one time; and a node none of whose strategies keeps within the limit at all times."""
    alone = Problem((np.zeros(2),), (), (Usage(0, 0, 1, np.array([3.0, 4.0])),), 2.0)
    turns = (Usage(0, 0, 1, np.array([3.0, 1.0])), Usage(0, 1, 2, np.array([1.0, 3.0])))
    for problem in (alone, replace(alone, usages=turns)):
        with pytest.raises(Infeasible, match="none of whose strategies finds room") as caught:
            drop_oversized(problem)
        assert proven(problem, caught.value.witness or ()).bound == np.inf


def test_room_is_made_by_what_goes() -> None:
    """Without the largest strategy of the first there is none for the second's, as the least of the first grows."""
    sizes = np.array([5.0, 1.0]), np.array([4.0, 2.0]), np.array([2.0, 9.0])
    usages = tuple(Usage(v, 0, 1, size) for v, size in enumerate(sizes))
    problem = Problem((np.zeros(2),) * 3, (), usages, 7.0)
    reduction = drop_oversized(problem)
    assert reduction.problem.counts == (1, 2, 1)
    assert all(isinstance(step, Overflow) for step in reduction.steps)


@settings(max_examples=150, deadline=None)
@given(problem=problems(limited=True))
def test_branches_bound_every_choice_and_end_at_the_best(problem: Problem) -> None:
    best = optimum(problem)
    try:
        reduction = unchanged(problem).then(reduce_cheaply).then(lambda p: reduced_fully(p, NARROW))
    except Infeasible:
        assert best == np.inf
        return
    if not reduction.problem.counts:
        return
    small, best = reduction.problem, best - reduction.offset
    watch = Best(small, None, None)
    _, start = Ascent(small, NARROW).sweeps(np.inf, watch)
    branches = Branches(start, NARROW)
    for splits in (0, 1, 2, 100):
        branches.grow(splits, np.inf, watch)
        assert branches.bound <= best + 1e-9 * (1 + abs(best))
        low = proven(small, watch.proof).bound
        assert low == np.inf or low >= min(watch.bound, branches.bound) - 1e-9 * (1 + abs(low))
    found = branches.best
    assert found.objective == pytest.approx(best, rel=1e-9, abs=1e-9)
    assert best == np.inf or branches.bound >= found.objective - 1e-9 * (1 + abs(found.objective))
    if found.choice is not None:
        assert cost_of(small, found.choice) == pytest.approx(found.objective)
        assert small.usage_limit is None or peak_of(small, found.choice) <= small.usage_limit


@settings(max_examples=60, deadline=None)
@given(problem=problems(limited=True))
def test_solutions_are_proven_where_nothing_else_is_exact(problem: Problem) -> None:
    best, found = optimum(problem), outcome(problem, NARROW)
    if isinstance(found, Infeasible):
        assert best == np.inf
    elif not isinstance(found, Exception):
        assert verify(problem, found).bound <= best * (1 + 1e-9) + 1e-12


def test_scarce_memory_is_proven_by_cases() -> None:
    problem = crowded()
    alone = solve(problem, options=replace(NARROW, branch_entries=0))
    assert alone.gap > 0.05
    split = solve(problem, options=NARROW)
    assert split.objective == pytest.approx(optimum(problem))
    assert split.gap == 0
    assert verify(problem, split).stated_by == ()
    steps = steps_of(split.witness or ())
    assert any(isinstance(step, Cases) for step in steps)


def test_a_case_that_is_left_out_is_missed() -> None:
    problem = crowded()
    solution = solve(problem, options=NARROW)

    def without(proof: Proof) -> Proof:
        return tuple(
            replace(step, cases=step.cases[:1]) if isinstance(step, Cases) else step
            for step in proof
        )

    with pytest.raises(ValueError, match="in no case"):
        verify(problem, replace(solution, witness=without(solution.witness or ())))


def test_the_tree_is_the_same_every_time() -> None:
    once, again = (solve(crowded(12, 4), options=NARROW) for _ in range(2))
    assert (once.choice, once.lower_bound) == (again.choice, again.lower_bound)


def test_no_prices_follow_from_where_nothing_is_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step from a bound of minus infinity would be infinite, and so would prices."""
    priced = branch_and_bound._priced  # pyright: ignore[reportPrivateUsage]
    asked: list[np.ndarray] = []

    def nothing(part: Any, prices: np.ndarray, *rest: Any) -> Any:
        asked.append(prices)
        return replace(priced(part, prices, *rest), bound=-np.inf)

    monkeypatch.setattr(branch_and_bound, "_priced", nothing)
    watch = Best(crowded(), None, None)
    _, start = Ascent(crowded(), NARROW).sweeps(np.inf, watch)
    Branches(start, NARROW).grow(3, np.inf, watch)
    assert asked
    assert all(np.isfinite(prices).all() for prices in asked)
