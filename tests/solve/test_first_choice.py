"""The first choice: within the limit and free of forbidden entries, found wherever there is much to choose from."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings

from autopar.solve import Edge, Problem, Progress, SolveOptions, Usage, solve
from autopar.solve.primal.first_choice import first_choice, relieve
from autopar.solve.problem.incumbent import Best
from autopar.solve.problem.problem import objective, peak
from autopar.solve.problem.rows import least_use, memory_rows
from autopar.solve.trws.dual import Dual
from tests.solve.draw import chain_with_skips, problems
from tests.solve.oracle import optimum


def dual_of(problem: Problem) -> Dual:
    return Dual(problem, memory_rows(problem))


def excess(problem: Problem, used: np.ndarray) -> float:
    assert problem.usage_limit is not None
    return float(np.maximum(used - problem.usage_limit, 0.0).sum())


@settings(max_examples=100, deadline=None)
@given(problem=problems(limited=True))
def test_a_first_choice_keeps_the_limit(problem: Problem) -> None:
    if not memory_rows(problem).count or not all(
        np.isfinite(cost).all() for cost in problem.node_costs
    ):
        return
    assert problem.usage_limit is not None
    dual = dual_of(problem)
    before = dual.state()
    choice = first_choice(dual, SolveOptions(anneal_passes=50), Best(problem, None, None))
    after = dual.state()
    assert np.array_equal(before.messages, after.messages)
    assert before.bound == after.bound
    if choice is None:
        return
    assert optimum(problem) <= objective(problem, choice) < np.inf
    assert peak(problem, choice) <= problem.usage_limit


def test_a_choice_within_the_limit_that_takes_a_forbidden_entry_is_none() -> None:
    """Around an odd cycle two of two strategies must be equal, which no edge allows; bytes are no obstacle."""
    differ = np.array([[np.inf, 0.0], [0.0, np.inf]])
    edges = tuple(Edge(u, v, differ) for u, v in ((0, 1), (0, 2), (1, 2)))
    usages = tuple(Usage(v, 0, 1, np.array([1.0, 2.0])) for v in range(3))
    problem = Problem((np.zeros(2),) * 3, edges, usages, 5.0)
    assert (
        first_choice(dual_of(problem), SolveOptions(anneal_passes=5), Best(problem, None, None))
        is None
    )


@pytest.mark.parametrize("share", [0.0, 0.05, 0.5])
@pytest.mark.parametrize("seed", range(3))
def test_there_is_one_within_a_limit_that_just_fits(share: float, seed: int) -> None:
    """At the least use of all, too: there each node takes the least bytes where it counts."""
    whole = chain_with_skips(200, 6, 200, seed, memory=True)
    least, most = (
        least_use(whole.usages),
        peak(whole, tuple(int(cost.argmin()) for cost in whole.node_costs)),
    )
    problem = replace(whole, usage_limit=least + share * max(0.0, most - least))
    assert problem.usage_limit is not None
    choice = first_choice(dual_of(problem), SolveOptions(), Best(problem, None, None))
    assert choice is not None
    assert peak(problem, choice) <= problem.usage_limit


def test_relief_takes_excess_away_and_pays_no_more_than_it_may() -> None:
    whole = chain_with_skips(60, 6, 60, 1, memory=True)
    problem = replace(whole, usage_limit=1.2 * least_use(whole.usages))
    dual = dual_of(problem)
    flat, order = dual.flat, map(int, dual.order)
    choice = np.array([int(problem.node_costs[v].argmin()) for v in order], dtype=np.intp)
    moments = [excess(problem, dual.used(choice[dual.rank]))]
    for dearest in (0.0, 1e-6, 1e-3, np.inf):
        used, cost = (
            dual.used(choice[dual.rank]),
            objective(problem, tuple(choice[dual.rank].tolist())),
        )
        relieve(flat, dearest, choice, used)
        assert used == pytest.approx(dual.used(choice[dual.rank]))
        moments.append(excess(problem, used))
        paid = objective(problem, tuple(choice[dual.rank].tolist())) - cost
        assert dearest == np.inf or paid <= dearest * (moments[-2] - moments[-1]) + 1e-12
    assert all(after <= before for before, after in pairwise(moments))
    assert moments[-1] == 0 < moments[0]


def test_it_is_told_before_any_bound() -> None:
    whole = chain_with_skips(200, 6, 200, 1, memory=True)
    moments: list[Progress] = []
    options = SolveOptions(
        max_table_entries=1, max_rounds=0, max_cp_sat_entries=1, branch_entries=0
    )
    solve(
        replace(whole, usage_limit=1.1 * least_use(whole.usages)),
        options=options,
        on_progress=moments.append,
    )
    assert moments[0].objective < np.inf
    assert moments[0].bound == -np.inf
    assert moments[0].choice is not None
