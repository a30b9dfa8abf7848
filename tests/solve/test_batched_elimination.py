"""Alike nodes reduced at once: the optimum stays, choices lift, the steps are a proof."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings

from autopar.solve import Edge, Problem, SolveOptions, Usage, solve
from autopar.solve.certificate.check import proven
from autopar.solve.presolve import batched_elimination as alike
from autopar.solve.presolve.batched_elimination import reduce_alike
from autopar.solve.presolve.reduce import is_at_rest, merge_usages, reduce_cheaply, resting
from autopar.solve.problem.problem import objective
from tests.solve.draw import problems
from tests.solve.oracle import optimum

_ROUNDING = 1e-9


def ladder(periods: int, seed: int) -> Problem:
    """Equal rungs of a ladder, of which one node of each hangs on one other and one follows another."""
    rng = np.random.default_rng(seed)
    costs = [rng.integers(0, 9, 3).astype(float) for _ in range(4)]
    across, along, hang = (rng.integers(0, 9, (3, 3)).astype(float) for _ in range(3))
    same = np.where(np.eye(3, dtype=bool), 0.0, np.inf)
    edges: list[Edge] = []
    for i in range(0, 4 * periods, 4):
        edges += [Edge(i, i + 1, across), Edge(i + 1, i + 2, hang), Edge(i + 3, i, same)]
        edges += (
            [Edge(i - 4, i, along), Edge(i - 3, i + 1, along), Edge(i - 4, i + 1, across)]
            if i
            else []
        )
    return Problem(tuple(costs * periods), tuple(edges))


@settings(max_examples=100, deadline=None)
@given(problems(limited=False))
def test_the_optimum_stays_and_lifts(problem: Problem) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alike, "_ALIKE", 0)
        reduction = reduce_alike(problem, SolveOptions())
    best, left = optimum(problem), optimum(reduction.problem) + reduction.offset
    assert left == pytest.approx(best, abs=_ROUNDING) or left == best == math.inf


@pytest.mark.parametrize("seed", range(3))
def test_rungs_are_reduced_once(seed: int) -> None:
    problem, periods = ladder(12, seed), 12
    reduction = reduce_alike(problem, SolveOptions())
    small = reduction.problem
    assert len(small.node_costs) <= 2 * periods
    assert len({id(cost) for cost in small.node_costs}) < periods
    solution = solve(small)
    assert solution.witness is not None
    lifted = reduction.lift(solution.choice)
    assert objective(problem, lifted) == pytest.approx(solution.objective + reduction.offset)
    bound = proven(problem, reduction.steps + solution.witness).bound
    assert bound == pytest.approx(solution.lower_bound + reduction.offset)


def test_few_alike_are_left_alone() -> None:
    problem = ladder(1, 0)
    assert reduce_alike(problem, SolveOptions()).problem is problem


def test_what_is_at_rest_is_reduced_where_it_has_chains_only() -> None:
    chains = reduce_cheaply(ladder(12, 0)).problem
    assert len(reduce_alike(chains, SolveOptions()).problem.node_costs) < len(chains.node_costs)
    cost = np.random.default_rng(0).random((3, 3))
    pairs = [(u, v) for u in range(9) for v in range(u)]
    dense = Problem((np.zeros(3),) * 9, tuple(Edge(u, v, cost) for u, v in pairs))
    resting = reduce_cheaply(dense).problem
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(alike, "joined")
        assert reduce_alike(resting, SolveOptions()).problem is resting


def test_what_changes_usages_alone_leaves_what_is_at_rest_so() -> None:
    cost = np.random.default_rng(0).random((3, 3))
    usages = tuple(Usage(0, t, t + 1, np.array([1.0, 2.0, 3.0])) for t in range(2))
    problem = Problem((np.zeros(3),) * 2, (Edge(0, 1, cost), Edge(1, 0, cost)), usages, 2.0)
    resting_one = reduce_cheaply(problem).problem
    for before, is_resting in ((problem, False), (resting_one, True)):
        after = resting(merge_usages, before).problem
        assert after is not before
        assert is_at_rest(after) is is_resting
