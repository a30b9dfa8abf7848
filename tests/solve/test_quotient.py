"""The quotient: its choices are choices of the whole problem, at the same cost; and of equal ones it is preferred."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from autopar.solve import (
    Edge,
    Infeasible,
    Problem,
    Solution,
    SolveOptions,
    alike,
    solve,
    verify_choice,
)
from autopar.solve.periodic import quotient as module
from autopar.solve.periodic.quotient import Quotient, quotient
from autopar.solve.pipeline import driver
from tests.solve.draw import problems
from tests.solve.oracle import choices, cost_of, optimum, peak_of

OPTIONS = SolveOptions()


@pytest.fixture(autouse=True)
def whatever_it_saves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WORTH", 1.0)


@st.composite
def periodic(draw: st.DrawFn, limited: bool | None = None) -> Problem:
    """A problem some of whose nodes are said to be in one place of what repeats."""
    problem = draw(problems(limited))
    labels = [draw(st.integers(-1, 1)) for _ in problem.counts]
    periods = [
        -1 if label < 0 else 10 * count + label
        for label, count in zip(labels, problem.counts, strict=True)
    ]
    return replace(problem, periods=np.array(periods, dtype=np.intp))


def small(problem: Problem) -> Quotient:
    found = quotient(problem)
    assert found is not None
    return found


@settings(max_examples=200, deadline=None)
@given(problem=periodic())
def test_choices_cost_and_use_what_they_do_in_the_whole_problem(problem: Problem) -> None:
    made = small(problem)
    for choice in choices(made.problem):
        whole = made.lift(choice)
        assert cost_of(made.problem, choice) == pytest.approx(cost_of(problem, whole))
        assert peak_of(made.problem, choice) == pytest.approx(peak_of(problem, whole))
        assert made.most_common(whole) == choice


@settings(max_examples=200, deadline=None)
@given(problem=periodic())
def test_the_optimum_is_found_as_ever_and_chooses_alike_where_that_costs_nothing(
    problem: Problem,
) -> None:
    best = optimum(problem)
    if best == np.inf:
        with pytest.raises(Infeasible):
            solve(problem, options=OPTIONS)
        return
    found, equal = solve(problem, options=OPTIONS), optimum(small(problem).problem)
    assert found.objective == pytest.approx(best)
    assert found.lower_bound == pytest.approx(best)
    if equal <= best:
        assert small(problem).lift(small(problem).most_common(found.choice)) == found.choice


@settings(max_examples=100, deadline=None)
@given(problem=periodic(limited=False))
def test_any_optimum_is_made_to_choose_alike(problem: Problem) -> None:
    best = optimum(problem)
    assume(best < np.inf and optimum(small(problem).problem) <= best)
    for choice in (c for c in choices(problem) if cost_of(problem, c) <= best):
        given_choice = Solution(tuple(choice), cost_of(problem, choice), best, 0.0)
        made = alike(problem, given_choice, OPTIONS)
        verify_choice(problem, made)
        assert made.objective == pytest.approx(best)
        assert problem.periods is not None
        classes = small(problem).classes
        known = {(int(classes[v]), s) for v, s in enumerate(made.choice) if problem.periods[v] >= 0}
        assert len(known) == len({node for node, _ in known})


def test_layers_of_which_each_has_two_best_choices_take_the_same() -> None:
    """A layer is two nodes that differ; what leads to the next costs nothing. Costs begin by pulling layers apart."""
    layers, differ = 12, np.where(np.eye(2, dtype=bool), 1.0, 0.0)
    costs = [np.zeros(2) for _ in range(2 * layers)]
    edges = tuple(Edge(2 * n, 2 * n + 1, differ) for n in range(layers))
    periods = np.tile([0, 1], layers)
    problem = Problem(tuple(costs), edges, periods=periods)
    mixed = tuple(s for n in range(layers) for s in ((0, 1) if n % 3 else (1, 0)))
    assert len(set(zip(mixed[::2], mixed[1::2], strict=True))) == 2
    found = alike(problem, Solution(mixed, 0.0, 0.0, 0.0), OPTIONS)
    assert len(set(zip(found.choice[::2], found.choice[1::2], strict=True))) == 1


def test_the_quotient_is_made_once_where_what_most_choose_costs_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of two nodes of a layer, which have to differ, as many choose the one strategy as the other."""
    made: list[Problem] = []

    def counted(problem: Problem) -> Quotient | None:
        if problem.periods is not None:
            made.append(problem)
        return quotient(problem)

    monkeypatch.setattr(driver, "quotient", counted)
    differ = np.where(np.eye(2, dtype=bool), 1.0, 0.0)
    edges = tuple(Edge(2 * n, 2 * n + 1, differ) for n in range(6))
    problem = Problem((np.zeros(2),) * 12, edges, periods=np.tile([0, 1], 6))
    found = alike(problem, Solution((0, 1, 1, 0) * 3, 0.0, 0.0, 0.0), OPTIONS)

    assert len(set(zip(found.choice[::2], found.choice[1::2], strict=True))) == 1
    assert found.objective == 0
    assert made == [problem]


@pytest.mark.parametrize("periods", [None, np.arange(3)])
def test_where_nothing_repeats_there_is_none(
    monkeypatch: pytest.MonkeyPatch, periods: np.ndarray | None
) -> None:
    monkeypatch.setattr(module, "_WORTH", 0.2)
    assert quotient(Problem((np.zeros(2),) * 3, (), periods=periods)) is None
