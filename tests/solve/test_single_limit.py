"""Single limits: bounds and choices against every choice of drawn problems, and that every limit comes to an end."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from autopar.solve import Infeasible, Problem, SolveOptions, Usage, verify
from autopar.solve.parametric import dual_curve as curve
from autopar.solve.parametric.archive import Pareto
from autopar.solve.parametric.single_limit import Focus
from tests.solve.draw import chain_with_skips, problems
from tests.solve.oracle import least_peak, optimum

OPTIONS = SolveOptions()


def focus_on(problem: Problem, *limits: float) -> Focus:
    focus = Focus(problem, OPTIONS)
    for limit in limits:
        focus.turn_to(limit)
        focus.mix(limit)
    return focus


@settings(deadline=None, max_examples=60)
@given(problems(limited=True), st.lists(st.integers(0, 15), min_size=1, max_size=3))
def test_bounds_are_below_and_choices_above_the_optimum_of_every_limit(
    problem: Problem, limits: list[int]
) -> None:
    try:
        focus = focus_on(problem, *map(float, limits))
    except Infeasible:
        assert optimum(replace(problem, usage_limit=None)) == np.inf
        return
    for limit in range(15):
        within = replace(problem, usage_limit=float(limit))
        truth = optimum(within)
        assert focus.bound(float(limit)) <= truth + 1e-9 * (1 + abs(truth))
        met = focus.best(float(limit))
        if met is not None:
            bounded = focus.bounded(focus.solved(met), float(limit))
            assert bounded.peak <= limit * (1 + 1e-12)
            assert bounded.objective >= truth - 1e-9 * (1 + truth)
            verify(within, bounded)


def test_where_all_costs_are_nothing_what_prices_leave_by_rounding_is_nothing() -> None:
    """The proof of 0 is a difference of prices times bytes, which is 6e-21 less."""
    sizes = ([2.0, 0.0, 0.0], [3.0, 0.0, 0.0], [4.0, 0.0, 5.0], [5.0, 0.0, 2.0])
    usages = tuple(Usage(0, 0, 1, np.array(size)) for size in sizes)
    problem = Problem((np.array([0.0, np.inf, 0.0]),), (), usages, 8.0)
    focus = focus_on(problem, 8.0)
    for limit in range(15):
        met = focus.best(float(limit))
        if met is not None:
            bounded = focus.bounded(focus.solved(met), float(limit))
            verify(replace(problem, usage_limit=float(limit)), bounded)


@settings(deadline=None, max_examples=100)
@given(problems(limited=True), st.integers(0, 15))
def test_no_choice_peaks_below_what_prices_prove(problem: Problem, limit: int) -> None:
    try:
        focus = focus_on(problem, float(limit))
    except Infeasible:
        return
    assert focus.least_peak <= least_peak(problem) * (1 + 1e-9)


def test_prices_prove_the_least_peak_where_messages_are_tight() -> None:
    """Of a chain they are, so that no choice is looked for below it."""
    tree = replace(chain(20), edges=tuple(edge for edge in chain(20).edges if edge.v == edge.u + 1))
    focus = focus_on(tree, 0.0)
    assert 0.98 * focus.choices()[0].peak <= focus.least_peak <= focus.choices()[0].peak


def chain(layers: int = 60) -> Problem:
    return replace(chain_with_skips(layers, 5, 6, 0, memory=True), usage_limit=0.0)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_choices_come_close_to_the_bound_of_the_limit_asked_for(share: float) -> None:
    ends = focus_on(chain(), 0.0).choices()[0].peak, focus_on(chain(), np.inf).choices()[-1].peak
    limit = ends[0] + share * (ends[1] - ends[0])
    focus = focus_on(chain(), limit)
    met = focus.best(limit)
    assert met is not None
    assert 1 - focus.bound(limit) / met.cost < 0.05


@settings(deadline=None, max_examples=60)
@given(problems(limited=True), problems(limited=True), st.integers(0, 15), st.booleans())
@example(
    Problem((np.zeros(1),), (), (), 0.0),
    Problem((np.array([1.0, 0.0]),), (), (Usage(0, 0, 1, np.array([0.0, 0.37])),), 0.0),
    0,
    True,
)
def test_prices_known_from_whatever_problem_prove_what_holds(
    problem: Problem, other: Problem, limit: int, begins: bool
) -> None:
    try:
        known = focus_on(other, float(limit))
        focus = Focus(problem, OPTIONS, begins=begins)
    except Infeasible:
        return
    focus.prove_like(known, float(limit), np.inf if begins else known.bound(float(limit)))
    truth = optimum(replace(problem, usage_limit=float(limit)))
    assert focus.bound(float(limit)) <= truth + 1e-9 * (1 + abs(truth))


@pytest.mark.parametrize(("layers", "most"), [(60, 4), (15, 100)])
def test_prices_known_from_a_problem_much_alike_prove_as_much_in_few_steps(
    layers: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they prove clearly less, as for the chain of a quarter of the layers, they are looked for as ever."""
    ends = focus_on(chain(), 0.0).choices()[0].peak, focus_on(chain(), np.inf).choices()[-1].peak
    limit = ends[0] + 0.5 * (ends[1] - ends[0])
    known = focus_on(chain(), limit)
    usual = Focus(chain(layers), OPTIONS)
    usual.turn_to(limit)
    steps, step = list[float](), Focus._step  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(
        Focus, "_step", lambda self, price: steps.append(price) or step(self, price)
    )
    focus = Focus(chain(layers), OPTIONS)
    focus.prove_like(known, limit)
    assert focus.bound(limit) >= usual.bound(limit) * (1 - OPTIONS.gap_tolerance)
    assert 0 < len(steps) <= most
    assert (len(set(steps)) == 1) == (layers == 60)


def test_what_is_known_to_be_refuted_is_so_in_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is settled without prices first, unless the steps do not prove as much as is wanted."""
    ends = focus_on(chain(), 0.0).choices()[0].peak, focus_on(chain(), np.inf).choices()[-1].peak
    limit = ends[0] + 0.5 * (ends[1] - ends[0])
    known = focus_on(chain(), limit)
    settled = list[Focus]()
    begin = Focus._begin  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(Focus, "_begin", lambda self: settled.append(self) or begin(self))
    for share, is_refuted in ((0.9, True), (1.1, False)):
        settled.clear()
        focus = Focus(chain(), OPTIONS, begins=False)
        focus.prove_like(known, limit, share * known.bound(limit))
        assert (focus.bound(limit) >= share * known.bound(limit)) == is_refuted
        assert bool(settled) != is_refuted


def test_turning_to_another_limit_forgets_nothing() -> None:
    ends = focus_on(chain(), 0.0).choices()[0].peak, focus_on(chain(), np.inf).choices()[-1].peak
    low, high = (ends[0] + share * (ends[1] - ends[0]) for share in (0.3, 0.7))
    focus = focus_on(chain(), high)
    before, bound = focus.best(high), focus.bound(high)
    focus.turn_to(low)
    focus.mix(low)
    after = focus.best(high)
    assert before is not None
    assert after is not None
    assert after.cost <= before.cost
    assert focus.bound(high) >= bound


@pytest.mark.parametrize("limit", [0.0, 1e30, np.inf])
def test_a_limit_that_nothing_or_everything_keeps_ends(limit: float) -> None:
    focus = focus_on(chain(20), limit)
    assert focus.choices()
    assert (focus.best(limit) is None) == (limit == 0.0)


def test_without_memory_there_is_nothing_to_turn_to() -> None:
    problem = replace(chain_with_skips(20, 4, 4, 1), usage_limit=0.0)
    focus = focus_on(problem, 1.0)
    assert focus.bound(1.0) <= focus.choices()[0].cost


def test_one_that_is_not_wanted_stops_after_a_step() -> None:
    focus = Focus(chain(), OPTIONS, lambda: False)
    focus.turn_to(1.0)
    assert 1 <= len(focus.choices()) <= 3


def test_where_there_is_little_room_few_lines_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    choices = focus_on(chain(), 0.0, np.inf).choices()
    limit = (choices[0].peak + choices[-1].peak) / 2
    usual = focus_on(chain(), limit)
    monkeypatch.setattr(curve, "_MOST_NUMBERS", 1)
    focus = focus_on(chain(), limit)
    assert len(focus._lines) <= 8 < len(usual._lines)
    best, other = focus.best(limit), usual.best(limit)
    assert best is not None
    assert other is not None
    assert focus.bound(limit) <= best.cost <= 1.3 * other.cost
    assert focus.bound(limit) >= 0.95 * usual.bound(limit)


def test_the_same_problem_gives_the_same() -> None:
    first, second = (
        [(met.whole, met.cost) for met in focus_on(chain(), 60.0).choices()] for _ in range(2)
    )
    assert first == second


def test_prices_do_not_rise_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no choice is met, they rise only as long as that proves more, or did a moment before."""
    least = focus_on(chain(), 0.0).choices()[0].peak
    monkeypatch.setattr(Pareto, "meet", lambda *_: None)
    assert 3 <= rises(monkeypatch, 1.2 * least) < rises(monkeypatch, 0.5 * least)


def rises(monkeypatch: pytest.MonkeyPatch, limit: float) -> int:
    """How often prices rise, if choices are taken to exceed the limit."""
    focus, steps = Focus(chain(), OPTIONS), list[float]()
    step = focus._step  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(focus, "_step", lambda price: (steps.append(price), step(price)))
    monkeypatch.setattr(focus, "_is_above", lambda _: True)
    focus.turn_to(limit)
    return sum(later > price for price, later in pairwise(steps))


@pytest.mark.parametrize("share", [0.7, 0.9])
def test_prices_begin_low_and_prove_no_less_than_none_do(share: float) -> None:
    """Memory that costs something costs no less. Where prices jump, messages lose their way, and prove little."""
    problem = chain(200)
    focus = focus_on(problem, share * focus_on(problem, 0.0).choices()[-1].peak)
    free, first, *others = focus._lines
    assert 0 < first.slope * focus._most < 0.01 * free.state.bound
    assert min(line.state.bound for line in (first, *others)) >= free.state.bound * (1 - 1e-3)
