"""The curve of all limits: against every choice of drawn problems, and what its bounds rest on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.solve import Infeasible, Problem, SolveOptions, verify
from autopar.solve.curve import Curve, spliced_costs
from autopar.solve.kernels import cost_of
from tests.solve.draw import chain_with_skips, problems
from tests.solve.oracle import least_peak, optimum

OPTIONS = SolveOptions()


def curve_of(problem: Problem) -> Curve | None:
    try:
        return Curve(problem, OPTIONS)
    except Infeasible:
        return None


@settings(deadline=None, max_examples=60)
@given(problems(limited=True), st.lists(st.integers(0, 14), min_size=1, max_size=3))
def test_bounds_are_below_and_choices_above_the_optimum_of_every_limit(problem: Problem, limits: list[int]) -> None:
    curve = curve_of(problem)
    if curve is None:
        assert optimum(replace(problem, usage_limit=None)) == np.inf
        return
    for limit in limits:
        curve.work(float(limit), 0.0)
    for limit in range(15):
        truth = optimum(replace(problem, usage_limit=float(limit)))
        assert curve.bound(float(limit)) <= truth + 1e-9 * (1 + abs(truth))
        met = curve.solution(float(limit))
        if met is not None:
            bounded = curve.bounded(met, float(limit))
            assert bounded.peak <= limit * (1 + 1e-12)
            assert bounded.objective >= truth - 1e-9 * (1 + truth)
            verify(replace(problem, usage_limit=float(limit)), bounded)


@settings(deadline=None)
@given(problems(limited=True))
def test_the_small_peak_is_that_of_a_choice(problem: Problem) -> None:
    curve = curve_of(problem)
    if curve is None or least_peak(problem) == np.inf:
        return
    small = curve.least()
    met = curve.solution(small)
    if met is None:
        assert small == np.inf
        return
    assert met.peak <= small * (1 + 1e-12)  # sums in another order
    assert small >= least_peak(problem) - 1e-9


def test_more_memory_never_costs_more_and_never_proves_more() -> None:
    problem = replace(chain_with_skips(60, 5, 6, 0, memory=True), usage_limit=0.0)
    curve = Curve(problem, OPTIONS)
    least, most = curve.least(), curve.solution(np.inf)
    assert most is not None
    limits = np.linspace(1.05 * least, most.peak, 6).tolist()
    for limit in (limits[0], limits[-1], *limits[1:-1]):
        curve.work(limit, 0.01)
    solutions = [curve.solution(limit) for limit in limits]
    costs = [solution.objective for solution in solutions if solution is not None]
    bounds = [curve.bound(limit) for limit in limits]
    assert len(costs) == len(limits)
    assert costs == sorted(costs, reverse=True)
    assert bounds == sorted(bounds, reverse=True)
    assert max(1 - bound / cost for bound, cost in zip(bounds, costs, strict=True)) < 0.05


def test_a_bound_of_one_limit_proves_nothing_of_a_looser_one() -> None:
    problem = replace(chain_with_skips(40, 4, 4, 1, memory=True), usage_limit=0.0)
    curve = Curve(problem, OPTIONS)
    tight = 1.1 * curve.least()
    curve.work(tight, 0.0)
    met = curve.solution(tight)
    assert met is not None
    bounded = curve.bounded(met, tight)
    verify(replace(problem, usage_limit=tight), bounded)
    with pytest.raises(ValueError, match="its witness proves"):
        verify(replace(problem, usage_limit=3 * tight), replace(bounded, lower_bound=bounded.objective))


@settings(deadline=None)
@given(problems(limited=True), st.data())
def test_a_splice_costs_what_its_choice_costs(problem: Problem, data: st.DataObject) -> None:
    curve = curve_of(problem)
    if curve is None or not curve.reduction.problem.node_costs:
        return
    flat, counts = curve.dual.flat, np.diff(curve.dual.flat.start)
    draw = lambda: np.array([data.draw(st.integers(0, int(n) - 1)) for n in counts], dtype=np.intp)  # noqa: E731
    a, b = draw(), draw()
    if not all(np.isfinite(cost_of(flat, flat.cost, choice)) for choice in (a, b)):
        return
    costs = spliced_costs(flat, a, b)
    assert len(costs) == len(counts) + 1
    for cut, cost in enumerate(costs.tolist()):
        assert cost == pytest.approx(cost_of(flat, flat.cost, np.concatenate([a[:cut], b[cut:]])), abs=1e-9)
