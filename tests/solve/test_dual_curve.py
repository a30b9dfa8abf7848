"""The curve of all limits: against every choice of drawn problems, and what its bounds rest on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.solve import Edge, Infeasible, Problem, SolveOptions, Usage, verify
from autopar.solve.parametric.archive import Met, Pareto
from autopar.solve.parametric.dual_curve import DualCurve
from autopar.solve.primal.path_relinking import PathRelinking, spliced_costs, with_few
from autopar.solve.problem.problem import objective, peak
from autopar.solve.problem.reduction import unchanged
from autopar.solve.trws.kernels import cost_of
from tests.solve.draw import chain_with_skips, problems
from tests.solve.oracle import choices, least_peak, optimum

OPTIONS = SolveOptions()


def curve_of(problem: Problem) -> DualCurve | None:
    """Drawn; None if no choice is finite."""
    try:
        curve = DualCurve(problem, OPTIONS)
    except Infeasible:
        return None
    curve.draw()
    return curve


@settings(deadline=None, max_examples=60)
@given(problems(limited=True))
def test_bounds_are_below_and_choices_above_the_optimum_of_every_limit(problem: Problem) -> None:
    curve = curve_of(problem)
    if curve is None:
        assert optimum(replace(problem, usage_limit=None)) == np.inf
        return
    for limit in range(15):
        truth = optimum(replace(problem, usage_limit=float(limit)))
        assert curve.bound(float(limit)) <= truth + 1e-9 * (1 + abs(truth))
        met = curve.best(float(limit))
        if met is not None:
            bounded = curve.bounded(curve.solved(met), float(limit))
            assert bounded.objective == pytest.approx(met.cost, abs=1e-9)
            assert bounded.peak <= limit * (1 + 1e-12)
            assert bounded.objective >= truth - 1e-9 * (1 + truth)
            verify(replace(problem, usage_limit=float(limit)), bounded)


@settings(deadline=None)
@given(problems(limited=True))
def test_what_is_met_costs_less_the_larger_it_is(problem: Problem) -> None:
    curve = curve_of(problem)
    if curve is None or least_peak(problem) == np.inf:
        return
    met = curve.choices()
    assert [choice.peak for choice in met] == sorted({choice.peak for choice in met})
    assert [choice.cost for choice in met] == sorted({choice.cost for choice in met}, reverse=True)
    for choice in met:
        solution = curve.solved(choice)
        assert solution.peak == pytest.approx(choice.peak, abs=1e-9)  # sums in another order
        assert solution.objective == pytest.approx(choice.cost, abs=1e-9)
        assert solution.peak >= least_peak(problem) - 1e-9


def test_more_memory_never_costs_more_and_never_proves_more() -> None:
    problem = replace(chain_with_skips(60, 5, 6, 0, memory=True), usage_limit=0.0)
    curve = curve_of(problem)
    assert curve is not None
    met = curve.choices()
    limits = np.linspace(1.05 * met[0].peak, met[-1].peak, 6).tolist()
    costs = [choice.cost for choice in map(curve.best, limits) if choice is not None]
    bounds = [curve.bound(limit) for limit in limits]
    assert len(costs) == len(limits)
    assert costs == sorted(costs, reverse=True)
    assert bounds == sorted(bounds, reverse=True)
    assert max(1 - bound / cost for bound, cost in zip(bounds, costs, strict=True)) < 0.05


def test_a_bound_of_one_limit_proves_nothing_of_a_looser_one() -> None:
    problem = replace(chain_with_skips(40, 4, 4, 1, memory=True), usage_limit=0.0)
    curve = curve_of(problem)
    assert curve is not None
    tight = 1.1 * curve.choices()[0].peak
    met = curve.best(tight)
    assert met is not None
    bounded = curve.bounded(curve.solved(met), tight)
    verify(replace(problem, usage_limit=tight), bounded)
    with pytest.raises(ValueError, match="its witness proves"):
        verify(
            replace(problem, usage_limit=3 * tight), replace(bounded, lower_bound=bounded.objective)
        )


def test_a_curve_that_is_not_wanted_is_what_the_first_sweeps_gave() -> None:
    problem = replace(chain_with_skips(40, 4, 4, 1, memory=True), usage_limit=0.0)
    curve, whole = DualCurve(problem, OPTIONS, lambda: False), curve_of(problem)
    curve.draw()
    assert whole is not None
    assert 1 <= len(curve.choices()) < len(whole.choices())
    assert curve.bound(whole.choices()[0].peak) <= whole.bound(whole.choices()[0].peak)


def test_the_same_problem_has_the_same_curve() -> None:
    problem = replace(chain_with_skips(40, 4, 4, 1, memory=True), usage_limit=0.0)
    curves = [curve_of(problem), curve_of(problem)]
    first, second = (
        [(met.whole, met.cost) for met in curve.choices()] for curve in curves if curve is not None
    )
    assert first == second


# what is met ----------------------------------------------------------------------------------------------------------


def met_of(peak: float, cost: float) -> Met:
    return Met(np.zeros(0, dtype=np.intp), cost, peak, lambda choice: tuple(choice.tolist()))


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=12))
def test_nothing_kept_is_undercut_and_whatever_went_is(drawn: list[tuple[int, int]]) -> None:
    pareto = Pareto()
    for used, cost in drawn:
        pareto.meet(met_of(used, cost))
    kept = [(met.peak, met.cost) for met in pareto.by_peak()]
    truth = {
        (p, c)
        for p, c in drawn
        if not any(q <= p and d <= c and (q, d) != (p, c) for q, d in drawn)
    }
    assert kept == sorted(truth)
    for limit in range(7):
        best = pareto.best(limit)
        assert (best.cost if best else None) == min(
            (c for p, c in drawn if p <= limit), default=None
        )


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=20))
def test_what_is_met_is_what_no_other_undercuts(drawn: list[tuple[int, int]]) -> None:
    pareto = Pareto()
    for used, cost in drawn:
        wanted = pareto.wants(float(cost), float(used))
        assert wanted == (not any(met.peak <= used and met.cost <= cost for met in pareto.met))
        pareto.meet(met_of(float(used), float(cost)))
    best = {
        (p, c)
        for p, c in drawn
        if not any((q, d) != (p, c) and q <= p and d <= c for q, d in drawn)
    }
    assert [(met.peak, met.cost) for met in pareto.by_peak()] == sorted(best)
    for limit in range(-1, 8):
        found, within = pareto.best(float(limit)), [cost for peak, cost in drawn if peak <= limit]
        assert (None if found is None else found.cost) == min(within, default=None)


@given(st.integers(0, 30), st.integers(2, 12))
def test_a_spread_has_both_ends(count: int, most: int) -> None:
    pareto = Pareto()
    for n in range(count):
        pareto.meet(met_of(float(n * n + 1), float(-n)))
    kept, every = pareto.spread(most), pareto.by_peak()
    assert len(kept) == min(count, most)
    assert kept[:1] == every[:1]
    assert kept[-1:] == every[-1:]


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
        assert cost == pytest.approx(
            cost_of(flat, flat.cost, np.concatenate([a[:cut], b[cut:]])), abs=1e-9
        )


def two_halves(nodes: int = 8) -> Problem:
    """A chain whose first half is cheap in strategy 0, the second in 1, which is larger; to change costs a little."""
    half = nodes // 2
    costs = tuple(np.array([1.0, 3.0] if v < half else [3.0, 1.0]) for v in range(nodes))
    costs = (*costs[:-1], np.array([3.0, 0.5]))
    edges = tuple(Edge(v, v + 1, 0.1 * (1 - np.eye(2))) for v in range(nodes - 1))
    return Problem(
        costs, edges, tuple(Usage(v, 0, 1, np.array([1.0, 1.25])) for v in range(nodes)), 0.0
    )


def blend_of_ends(problem: Problem, pareto: Pareto) -> PathRelinking:
    """It has met the choice of strategy 0 everywhere, and that of 1."""
    every = [np.ones(2, dtype=np.bool_)] * len(problem.counts)
    blend = PathRelinking(with_few(unchanged(problem), every, OPTIONS), OPTIONS, pareto)
    for strategy in (0, 1):
        blend._meet(np.full(len(blend.reduction.problem.counts), strategy, dtype=np.intp))
    return blend


def test_splices_are_met_where_they_undercut_what_was_met() -> None:
    """The smallest choice costs 16, the largest 15.5; half of each 8 - 0.5 + 0.1."""
    problem, pareto = two_halves(), Pareto()
    blend = blend_of_ends(problem, pareto)
    assert [met.peak for met in pareto.by_peak()] == pytest.approx([8.0, 10.0])
    assert [met.cost for met in pareto.by_peak()] == pytest.approx([16.0, 15.5])
    blend.splice(lambda: True)
    first, second = pareto.by_peak()
    assert (first.peak, first.cost) == pytest.approx((8.0, 16.0))
    assert (second.peak, second.cost) == pytest.approx((9.0, 7.6))
    assert second.whole == (0, 0, 0, 0, 1, 1, 1, 1)
    assert (peak(problem, second.whole), objective(problem, second.whole)) == pytest.approx(
        (9.0, 7.6)
    )


@pytest.mark.parametrize(("nodes", "is_listed"), [(8, True), (10, False)])
def test_where_choices_are_few_all_are_met(nodes: int, is_listed: bool) -> None:
    """256 and 1024: no choice met costs more than any other that is as small."""
    problem, pareto = two_halves(nodes), Pareto()
    assert blend_of_ends(problem, pareto).list_all() == is_listed
    if not is_listed:
        assert len(pareto.met) == 2
        return

    every = [(peak(problem, c), objective(problem, c)) for c in choices(problem)]
    for limit, _ in every:
        best = pareto.best(limit)
        assert best is not None
        assert best.cost == pytest.approx(min(cost for used, cost in every if used <= limit))


def test_splices_that_are_not_wanted_are_not_made() -> None:
    pareto = Pareto()
    blend_of_ends(two_halves(), pareto).splice(lambda: False)
    assert len(pareto.met) == 2
