"""Relaxation: what fixed prices of memory prove, against every choice of drawn problems, and of equal layers."""

from __future__ import annotations

import gc
from dataclasses import replace
from weakref import ref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.solve import Infeasible, Problem, SolveOptions, Usage, proven
from autopar.solve.certificate.proof import Prices
from autopar.solve.parametric import relaxation
from autopar.solve.parametric.relaxation import bounded_at, relaxed
from autopar.solve.parametric.single_limit import Focus
from autopar.solve.problem.problem import objective, usage_over_time
from tests.solve.draw import chain_with_skips, problems
from tests.solve.oracle import optimum

OPTIONS = SolveOptions(gap_tolerance=0.01)


@settings(deadline=None, max_examples=80)
@given(
    problems(limited=True),
    st.integers(0, 15),
    st.lists(st.tuples(st.integers(0, 5), st.floats(1e-3, 2)), min_size=1, max_size=3),
    st.floats(0.1, 20),
)
def test_no_choice_within_the_limit_costs_less_and_the_proof_says_so(
    problem: Problem, limit: int, drawn: list[tuple[int, float]], below: float
) -> None:
    at = dict(drawn)
    prices = Prices(
        np.array(sorted(at), dtype=np.intp), np.array([at[time] for time in sorted(at)])
    )
    within = replace(problem, usage_limit=float(limit))
    truth = optimum(within)
    found = bounded_at(within, prices, float(limit), below, OPTIONS)
    assert found.bound <= truth + 1e-9 * (1 + abs(truth))
    if np.isfinite(found.bound):
        end = max(use.stop for use in problem.usages) if problem.usages else 0
        if all(time < end for time in at):
            assert proven(within, found.proof).bound >= found.bound - 1e-9 * (1 + abs(found.bound))


@settings(deadline=None, max_examples=40)
@given(problems(limited=True), st.data())
def test_a_choice_costs_its_bytes_at_their_prices_more(
    problem: Problem, data: st.DataObject
) -> None:
    end = max((use.stop for use in problem.usages), default=0)
    values = np.array(data.draw(st.lists(st.floats(0, 3), min_size=end, max_size=end)))
    choice = tuple(data.draw(st.integers(0, count - 1)) for count in problem.counts)
    cost = objective(problem, choice)
    free = relaxed(problem, Prices(np.arange(end), values))
    assert free.usage_limit is None
    if np.isfinite(cost):
        paid = float(values @ usage_over_time(problem, choice)) if end else 0.0
        assert objective(free, choice) == pytest.approx(cost + paid)


def test_prices_that_prove_a_limit_prove_it_as_well_at_once() -> None:
    chain = replace(chain_with_skips(60, 5, 6, 0, memory=True), usage_limit=0.0)
    focus = Focus(chain, OPTIONS)
    try:
        focus.turn_to(np.inf)
    except Infeasible:
        pytest.fail("every choice of the chain is one")
    limit = 0.7 * focus.choices()[-1].peak
    focus.turn_to(limit)
    known = focus.bound(limit)
    within = replace(chain, usage_limit=limit)
    found = bounded_at(within, focus.prices_at(limit), limit, 2 * known, OPTIONS)
    assert found.bound >= known * (1 - 0.01)
    assert proven(within, found.proof).bound >= found.bound * (1 - 1e-9)


def test_what_refutes_a_limit_is_let_go_of_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning collects no cycles: an error that is kept keeps the whole search that led to it."""
    chain = replace(chain_with_skips(60, 5, 6, 0, memory=True), usage_limit=10.0)
    made: list[ref[Problem]] = []

    def noted(problem: Problem, prices: Prices) -> Problem:
        found = relaxed(problem, prices)
        made.append(ref(found))
        return found

    monkeypatch.setattr(relaxation, "relaxed", noted)
    gc.disable()
    try:
        found = bounded_at(chain, Prices(np.array([3]), np.array([1e-3])), 10.0, 1e-3, OPTIONS)
        assert found.bound > 0.0
        assert made[0]() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("value", [0.0, 1e-3])
def test_prices_at_very_many_times_are_kept_though_each_is_next_to_nothing(value: float) -> None:
    """As found for 70 layers written out: none was more than a ten-thousandth of all."""
    count = 30_000
    use = Usage(0, 0, count, np.array([1.0, 0.0]))
    problem = Problem((np.array([0.0, 5.0]),), (), (use,), 0.5)
    prices = Prices(np.arange(count, dtype=np.intp), np.full(count, value))
    found = bounded_at(problem, prices, 0.5, 10.0, OPTIONS)
    priced = value * count
    assert found.bound == pytest.approx(min(priced, 5.0) - 0.5 * priced, abs=0.1)
