"""One memory limit on a problem that counts as large: against all plans of small graphs, and what misfits tell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, product
from math import inf

import pytest

from autopar.errors import NoFeasiblePlan, Unsolved
from autopar.search import memory_limit, memory_loop, tried
from autopar.search.hidden_bytes import HiddenBytes
from autopar.search.limited_solve import LimitedSolve
from autopar.search.memory_loop import MemoryLoop
from autopar.search.mesh_search import MeshSearch
from autopar.search.search import find_plan
from autopar.search.task import Planned, SearchOptions
from autopar.solve import NothingCheaper, Problem, Solution, SolveOptions, verify
from autopar.solve.cp_sat.bottleneck import LeastPeak, least_peak
from autopar.solve.parametric import single_limit
from autopar.solve.parametric.single_limit import Focus
from autopar.solve.problem.problem import objective, peak
from tests.messages import bytes_needed
from tests.search.test_front import CASES, FOUR, cluster_of, every_plan, task_of


@pytest.fixture(autouse=True)
def all_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (memory_loop, memory_limit):
        monkeypatch.setattr(module, "FEW_ENTRIES", 0)
    monkeypatch.setattr(memory_loop, "_MOST_PRICED", 0)
    monkeypatch.setattr(memory_loop, "_LEARNT", 0)


def found_within(case: int, limit: int | None, options: SearchOptions | None = None) -> Planned:
    fn, shapes, bandwidth = CASES[case]
    task = task_of(fn, shapes, cluster_of(4, bandwidth))
    return find_plan(
        replace(task, memory_limit_bytes=limit, options=options or SearchOptions()), [FOUR]
    )


def attempt_at(case: int) -> LimitedSolve:
    free = found_within(case, None)
    return MeshSearch(free.task, free.ground).attempt()


def limits_of(case: int) -> list[int]:
    """What some plan needs, and a byte less."""
    peaks = sorted({used for _, used in every_plan(case)})
    return [limit for peak in peaks[:: max(1, len(peaks) // 8)] for limit in (peak - 1, peak)][1:]


def found_about(case: int) -> Iterator[tuple[Planned, float]]:
    """The plans within all limits, and what the best of all plans there costs, between their bounds and their costs."""
    for limit in limits_of(case):
        best = min(cost for cost, used in every_plan(case) if used <= limit)
        try:
            found = found_within(case, limit)
        except Unsolved:
            continue
        assert found.account.peak_memory_bytes <= limit
        assert found.plan.lower_bound_s <= best * (1 + 1e-9)
        assert best <= found.plan.objective_s * (1 + 1e-9)
        yield found, best


@pytest.mark.parametrize("case", range(len(CASES)))
def test_plans_keep_within_the_limit_and_bounds_are_below_the_best_of_all_plans(case: int) -> None:
    for found, best in found_about(case):
        assert found.plan.objective_s <= 1.3 * best


@pytest.mark.parametrize("case", range(len(CASES)))
def test_within_what_the_fastest_needs_it_is_the_fastest(case: int) -> None:
    free = found_within(case, None)
    found = found_within(case, free.account.peak_memory_bytes)
    assert found.plan.objective_s == free.plan.objective_s
    assert found.plan.gap == 0


@pytest.mark.parametrize("case", range(len(CASES)))
def test_more_memory_never_costs_more_where_both_are_proven(case: int) -> None:
    proven: list[float] = []
    for limit in limits_of(case):
        try:
            plan = found_within(case, limit).plan
        except Unsolved:
            continue
        proven.extend([plan.objective_s] if not plan.gap else [])
    assert proven
    assert all(less >= more * (1 - 1e-9) for less, more in pairwise(proven))


@pytest.mark.parametrize("case", range(len(CASES)))
def test_a_limit_below_all_plans_is_never_kept(case: int) -> None:
    """Proven, or said to be unknown; the least peak that is told is one that a plan has, and none needs less."""
    least = min(used for _, used in every_plan(case))
    for limit in (1, least // 2, least - 1):
        with pytest.raises((NoFeasiblePlan, Unsolved)) as refused:
            found_within(case, limit)
        error = refused.value
        assert isinstance(error, NoFeasiblePlan | Unsolved)
        assert error.min_peak_bytes is not None
        assert error.min_peak_bytes >= least
    with pytest.raises(NoFeasiblePlan, match="any plan needs"):
        found_within(case, 1)


@pytest.mark.parametrize(("most", "is_asked"), [(0, False), (300_000, True)])
def test_what_takes_long_is_not_asked_of_cp_sat(
    monkeypatch: pytest.MonkeyPatch, most: int, is_asked: bool
) -> None:
    """What the prices met prove has to do then."""
    asked = list[float]()

    def least(problem: Problem, options: SolveOptions, enough: float) -> LeastPeak:
        asked.append(enough)
        return least_peak(problem, options, enough)

    monkeypatch.setattr(memory_loop, "least_peak", least)
    monkeypatch.setattr(memory_loop, "least_use", lambda _: 0.0)
    monkeypatch.setattr(Focus, "least_peak", 0.0)
    free = found_within(
        0, None, SearchOptions(gap_tolerance=1e-2, solve=SolveOptions(max_cp_sat_entries=most))
    )
    with pytest.raises(NoFeasiblePlan if is_asked else Unsolved):
        memory_limit.plan_within(MeshSearch(free.task, free.ground).attempt(), 1, free)
    assert asked == [1] * is_asked


@pytest.mark.parametrize("case", range(len(CASES)))
def test_prices_alone_prove_that_nothing_fits(monkeypatch: pytest.MonkeyPatch, case: int) -> None:
    """Where neither CP-SAT nor the least use of all strategies says so."""
    monkeypatch.setattr(memory_loop, "least_use", lambda _: 0.0)
    options = SearchOptions(gap_tolerance=1e-2, solve=SolveOptions(max_cp_sat_entries=0))
    least = min(used for _, used in every_plan(case))
    with pytest.raises(NoFeasiblePlan, match="any plan needs") as refused:
        found_within(case, least // 2, options)
    told = bytes_needed(str(refused.value))
    assert least // 2 < told <= least


def test_a_gap_that_may_not_be_left_is_worked_on_by_full_solves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a limit was priced")

    monkeypatch.setattr(MemoryLoop, "plan", refuse)
    limit = limits_of(0)[0]
    with pytest.raises(AssertionError, match="priced"):
        found_within(0, limit)
    assert (
        found_within(0, limit, SearchOptions(gap_tolerance=0.0)).account.peak_memory_bytes <= limit
    )


def test_a_plan_that_is_not_the_best_has_a_bound_below_the_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where only the smallest choices are met, plans cost more than the best, and bounds are still below that."""
    monkeypatch.setattr(Focus, "mix", lambda *_: None)
    monkeypatch.setattr(single_limit, "_FIRST", 16.0)
    monkeypatch.setattr(single_limit, "_HALVES", 0)
    monkeypatch.setattr(Focus, "_is_too_dear", lambda *_: False)
    monkeypatch.setattr(
        Focus,
        "best",
        lambda focus, limit: next((m for m in focus.choices() if m.peak <= limit), None),
    )
    worse = 0
    for case in range(len(CASES)):
        for limit in limits_of(case):
            try:
                found = found_within(case, limit)
            except Unsolved:
                continue
            best = min(cost for cost, used in every_plan(case) if used <= limit)
            assert found.plan.lower_bound_s <= best * (1 + 1e-9)
            assert found.problem is not None
            assert found.solution is not None
            verify(found.problem, found.solution)
            worse += found.plan.objective_s > best * (1 + 1e-6)
    assert worse >= 3


@pytest.mark.parametrize("more", [0.004, 0.006])
def test_what_is_proven_within_the_tolerance_of_what_is_known_is_no_news(
    monkeypatch: pytest.MonkeyPatch, more: float
) -> None:
    """What has to be undercut costs as much more than the bound; the tolerance is 0.005."""
    free, limit = found_within(0, None), limits_of(0)[-1]
    monkeypatch.setattr(Focus, "bound", lambda *_: 1.0)
    search = MemoryLoop(MeshSearch(free.task, free.ground).attempt(), limit, free, 1.0 + more)
    if more < free.task.options.gap_tolerance:
        with pytest.raises(NothingCheaper) as caught:
            search.turn_to_limit()
        assert caught.value.lower_bound == 1.0
    else:
        search.turn_to_limit()


def test_as_long_as_no_program_fits_choices_of_lower_peaks_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each time for 3 % less at least, a few times or down to what is proven; once one fits, twice."""
    free, limit = found_within(0, None), limits_of(0)[-1]
    turned: list[float] = []
    turn_to = Focus.turn_to
    monkeypatch.setattr(
        Focus, "turn_to", lambda focus, aim: turned.append(aim) or turn_to(focus, aim)
    )
    monkeypatch.setattr(Focus, "bound", lambda *_: 0.0)
    MemoryLoop(MeshSearch(free.task, free.ground).attempt(), limit, free).search()
    assert len(turned) <= 1 + memory_loop._AIMS
    turned.clear()
    monkeypatch.setattr(MemoryLoop, "fits", lambda *_: False)
    loop = MemoryLoop(MeshSearch(free.task, free.ground).attempt(), limit, free)
    loop.search()
    lowest = turned[-1] * (1 - memory_loop._LOWER)
    assert len(turned) == 1 + memory_loop._MOST_AIMS or lowest < loop._least_peak
    assert len(turned) > 2
    assert all(low <= high * (1 - memory_loop._LOWER) for high, low in pairwise(turned[1:]))


# what programs hold beside the bytes counted --------------------------------------------------------------------------


def hidden(case: int) -> list[Planned]:
    """The plans of all choices whose programs hold more than the Problem counts."""
    free = found_within(case, None)
    attempt = MeshSearch(free.task, free.ground).attempt()
    problem, found = attempt.problem(0.0), list[Planned]()
    for choice in product(*map(range, problem.counts)):
        cost = objective(problem, choice)
        if cost < inf:
            planned = attempt.planned(Solution(choice, cost, 0.0, peak(problem, choice)))
            found += [planned] if planned.account.peak_memory_bytes > planned.counted_bytes else []
    return found


@pytest.mark.quick_share(2)
@pytest.mark.parametrize("case", [1, 2])
def test_what_is_learnt_of_a_program_rules_out_its_choice(case: int) -> None:
    """Its choice then uses what the program holds, at the times at which it does; no choice uses less than before."""
    plans = hidden(case)
    assert plans
    attempt = attempt_at(case)
    for planned in plans[:: max(1, len(plans) // 50)]:
        assert planned.solution is not None
        choice, top = planned.solution.choice, planned.account.peak_memory_bytes
        learnt = HiddenBytes(attempt)
        learnt.learn(planned, top)
        assert not learnt.learnt
        learnt.learn(planned, top - 1)
        assert learnt.problem(top - 1).usage_limit == top - 1
        assert peak(learnt.problem(top - 1), choice) == top
        learnt.learn(planned, top - 1)
        assert peak(learnt.problem(top - 1), choice) == top + 1


@pytest.mark.quick_share(2)
@pytest.mark.parametrize("case", [1, 2])
def test_what_is_learnt_says_nothing_of_strategies_that_want_operands_elsewhere(case: int) -> None:
    """Unless it is guessed, the choice uses what its program holds; those of other kinds what they did."""
    plans, attempt, others = hidden(case), attempt_at(case), 0
    choices = [planned.solution.choice for planned in plans if planned.solution is not None]
    for planned, choice in list(zip(plans, choices, strict=True))[:: max(1, len(plans) // 20)]:
        top = planned.account.peak_memory_bytes
        learnt = HiddenBytes(attempt, guesses=False)
        before = learnt.problem(top - 1)
        learnt.learn(planned, top - 1)
        after = learnt.problem(top - 1)
        assert peak(after, choice) == top
        for other in choices:
            is_like = any(
                other[node] in kind for (_, node), known in learnt.learnt.items() for kind in known
            )
            if not is_like:
                assert peak(after, other) == peak(before, other)
                others += 1
    assert others


def test_other_strategies_are_taken_to_hold_what_some_do() -> None:
    """The least of what is known; nothing once that left no choice."""
    attempt = attempt_at(2)
    learnt = HiddenBytes(attempt)
    time = next(
        time for time in range(len(attempt.ground.graph.ops)) if len(learnt._kinds(time)[1]) > 3
    )
    node, (a, b, *others) = learnt._kinds(time)
    assert not learnt.stop_guessing()
    learnt = HiddenBytes(attempt)
    learnt.learnt[time, node] = {a: 5.0, b: 3.0}
    sizes = learnt.problem(1.0).usages[-1].size_bytes
    assert {float(sizes[s]) for kind in others for s in kind} == {3.0}
    assert [{float(sizes[s]) for s in kind} for kind in (a, b)] == [{5.0}, {3.0}]
    assert learnt.stop_guessing()
    left = learnt.problem(1.0).usages[-1].size_bytes
    assert {float(left[s]) for kind in others for s in kind} == {0.0}
    assert not learnt.stop_guessing()


@pytest.mark.parametrize("is_last", [True, False])
def test_where_nothing_fits_more_programs_are_learnt_from(
    monkeypatch: pytest.MonkeyPatch, is_last: bool
) -> None:
    """Not where recomputation is looked into next, or something fits."""
    monkeypatch.setattr(memory_loop, "_MOST_PRICED", 30_000)
    monkeypatch.setattr(LimitedSolve, "is_last", lambda *_: is_last)
    free, limit = found_within(2, None), limits_of(2)[-1]
    search = MemoryLoop(attempt_at(2), limit, free)
    assert search._lessons == memory_loop._LESSONS + memory_loop._MOST_LESSONS * is_last
    search.search()
    assert search.fitting
    search.bound = 0.0
    assert search._lessons == memory_loop._LESSONS
    monkeypatch.setattr(MemoryLoop, "fits", lambda *_: False)
    with pytest.raises(Unsolved):
        MemoryLoop(attempt_at(2), limit, free).plan()


def test_of_large_problems_few_programs_are_learnt_from_and_only_where_much_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free, limit = found_within(2, None), limits_of(2)[-1]
    search = MemoryLoop(attempt_at(2), limit, free)
    entries = tried.entries_of(search.attempt)
    monkeypatch.setattr(memory_loop, "_MOST_LESSONS", 0)
    for most, lessons in (
        (3 * entries, 3),
        (100 * entries, memory_loop._LESSONS),
        (entries - 1, 0),
    ):
        monkeypatch.setattr(memory_loop, "_LEARNT", most)
        assert search._lessons == lessons
    search.search()
    assert search.fitting
    search.bound = search.cost * (1 - memory_loop._VERY_FAR) * 1.001
    monkeypatch.setattr(memory_loop, "_LEARNT", 3 * entries)
    assert not search._lessons
    monkeypatch.setattr(memory_loop, "_MOST_PRICED", entries)
    assert search._lessons == memory_loop._LESSONS


def test_small_problems_are_solved_within_the_limit_and_proven(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Most plans are proven optimal then; without it fewer, and none costs less."""
    monkeypatch.setattr(memory_loop, "_MOST_PRICED", 30_000)
    limits = limits_of(2)
    solved = [found_within(2, limit).plan for limit in limits]
    monkeypatch.setattr(memory_loop, "_MOST_SOLVED", 0)
    focused = [found_within(2, limit).plan for limit in limits]
    for some, less, limit in zip(solved, focused, limits, strict=True):
        best = min(cost for cost, used in every_plan(2) if used <= limit)
        assert best <= some.objective_s * (1 + 1e-9) <= less.objective_s * (1 + 2e-9)
        assert less.lower_bound_s * (1 - 1e-9) <= some.lower_bound_s <= best * (1 + 1e-9)
    assert sum(not plan.gap for plan in solved) >= sum(not plan.gap for plan in focused)
    assert sum(plan.gap for plan in solved) < sum(plan.gap for plan in focused)


@pytest.mark.slow
def test_larger_ones_are_solved_where_the_gap_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_loop, "_MOST_PRICED", 30_000)
    monkeypatch.setattr(memory_loop, "_FEW_SOLVED", 0)
    gaps = dict[float, list[float]]()
    for far in (inf, 0.0):
        monkeypatch.setattr(memory_loop, "_FAR", far)
        gaps[far] = [found_within(2, limit).plan.gap for limit in limits_of(2)]
    assert sum(gaps[0.0]) < sum(gaps[inf])
    assert all(less <= more + 1e-9 for less, more in zip(gaps[0.0], gaps[inf], strict=True))
