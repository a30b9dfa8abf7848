"""Mixtures of what sweeps decode on their way: the best of all that can be made of them, or one that is enough."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.solve import Edge, Problem, SolveOptions, Usage, solve
from autopar.solve.fixing import fixed_point
from autopar.solve.pipeline import closing, messages, rounds, stage
from autopar.solve.pipeline.stage import Bracket
from autopar.solve.primal.crossover import annealed, annealed_near, close_to, mixed_exactly
from autopar.solve.problem.incumbent import Best, Inner
from autopar.solve.problem.problem import peak
from autopar.solve.problem.reduction import Ints, unchanged
from autopar.solve.trws.ascent import Answer, Ascent
from autopar.solve.trws.dual import Dual, Single
from tests.solve.draw import problems
from tests.solve.oracle import choices, cost_of
from tests.solve.test_acceleration import grid, is_finite

FEW_SWEEPS = SolveOptions(max_sweeps=10)


def drawn_choices(problem: Problem, seed: int, number: int = 3) -> list[Ints]:
    rng = np.random.default_rng(seed)
    return [
        np.array([rng.integers(n) for n in problem.counts], dtype=np.intp) for _ in range(number)
    ]


def limited(side: int, seed: int, limit: float) -> Problem:
    """A grid whose strategies take bytes all the time, the cheap ones the most."""
    whole, rng = grid(side, 4, seed), np.random.default_rng(seed)
    costs = tuple(np.sort(rng.random(4)) for _ in whole.node_costs)
    usages = tuple(
        Usage(v, 0, 1, np.array([4.0, 3.0, 2.0, 0.0]) + rng.random(4)) for v in range(len(costs))
    )
    return Problem(costs, whole.edges, usages, limit * len(costs))


@settings(max_examples=60, deadline=None)
@given(problem=problems(limited=False), seed=st.integers(0, 99))
def test_no_mixture_is_cheaper(problem: Problem, seed: int) -> None:
    met = drawn_choices(problem, seed)
    made = [c for c in choices(problem) if all(c[v] in {m[v] for m in met} for v in range(len(c)))]
    best = min(cost_of(problem, c) for c in made)
    found = mixed_exactly(problem, met, SolveOptions())
    assert found.objective == pytest.approx(best, rel=1e-12, abs=1e-12)
    assert found.choice is None or found.choice in made
    assert found.bound == -np.inf  # that of a mixture bounds nothing else


def test_what_does_not_fit_is_not_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = grid(6, 6, 0)
    monkeypatch.setattr("autopar.solve.primal.crossover._WORK", 1.0)
    assert mixed_exactly(problem, drawn_choices(problem, 0, 9), SolveOptions()).choice is None
    assert mixed_exactly(problem, [], SolveOptions()).choice is None


@pytest.mark.parametrize("looks", [0, 1, 2, 9])
def test_decoding_looks_at_the_time(looks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than five sweeps go by unseen, and none once the time is up."""
    swept, sweeps, seen = Dual.sweep, list[int](), list[int]()
    ascent = Ascent(limited(4, 0, 2.0), FEW_SWEEPS)
    found, certificate = ascent.sweeps(np.inf, Best(ascent.problem, None, None))
    close = close_to(certificate, found.objective, SolveOptions(max_table_entries=4))
    assert close is not None
    watch = Best(ascent.problem, None)
    monkeypatch.setattr(watch, "left_s", lambda: seen.append(len(sweeps)) or looks - len(seen) + 1)
    monkeypatch.setattr(Dual, "sweep", lambda self: sweeps.append(1) or swept(self))
    decoded = close.decoded(watch)
    unseen = np.diff([*seen, len(sweeps)])
    assert bool(decoded) == bool(looks)
    assert unseen.max() <= 5
    assert not unseen[looks:].any()


@settings(max_examples=30, deadline=None)
@given(problems(limited=False).filter(is_finite))
def test_all_sweeps_tell_what_they_decode(problem: Problem) -> None:
    """In single precision and in double."""
    swept, singly = Single.sweep, list[int]()
    for least in (0, 10**9):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("autopar.solve.trws.dual._LARGE", least)
            patch.setattr(Single, "sweep", lambda self: singly.append(1) or swept(self))
            ascent = Ascent(problem, FEW_SWEEPS, rough=True)
            found, _ = ascent.sweeps(np.inf, Best(problem, None, None))
        costs = [cost_of(problem, tuple(choice.tolist())) for choice in ascent.met]
        assert found.objective in costs
        assert len(costs) > len(singly) or least
        assert mixed_exactly(problem, ascent.met, SolveOptions()).objective <= min(costs) + 1e-12


def test_prices_that_glide_tell_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a few sweeps at prices below and above the last."""
    problem = limited(5, 1, 2.0)
    ascent = Ascent(problem, SolveOptions())
    monkeypatch.setattr("autopar.solve.trws.ascent._SWEEPS_ALONE", 0)
    monkeypatch.setattr(
        Ascent, "_sweeps", lambda self, *_, **__: (Answer(None, np.inf, -np.inf), ())
    )
    ascent.price(np.full(ascent.rows.count, 0.2))
    swept, prices = Dual.sweep, list[float]()
    monkeypatch.setattr(
        Dual, "sweep", lambda self: prices.append(float(self.prices.sum())) or swept(self)
    )
    _, certificate = ascent.settle(np.inf, Best(problem, None, None))
    assert prices == pytest.approx(
        [share * certificate.prices.sum() for share in (0.9, 1.1) for _ in range(3)]
    )
    assert len(ascent.met) >= 9
    assert certificate.prices.any()
    decoded = [tuple(choice.tolist()) for choice in ascent.met]
    assert len(set(decoded[-6:])) > 1  # at prices below and above the last
    used = [
        sum(float(use.size_bytes[choice[use.node]]) for use in problem.usages)
        for choice in decoded[-6:]
    ]
    assert min(used[:3]) > min(used[3:])  # what is dearer is used less


def test_prices_glide_from_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where those of the first sweeps proved less than none do."""
    problem = limited(5, 1, 2.0)
    free = Ascent(replace(problem, usages=(), usage_limit=None), SolveOptions())
    least = free.sweeps(np.inf, Best(problem, None, None))[1].bound
    monkeypatch.setattr(
        Ascent, "_sweeps", lambda self, *_, **__: (Answer(None, np.inf, -np.inf), ())
    )
    _, certificate = Ascent(problem, SolveOptions()).settle(np.inf, Best(problem, None, None))
    assert certificate.prices.any()
    assert certificate.bound > least


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(problems(limited=True).filter(is_finite), st.integers(0, 99))
def test_annealing_makes_choices_of_what_was_met(problem: Problem, seed: int) -> None:
    """That keep the limit, none cheaper than the best of all that can be made; where one fits, one is found."""
    met = drawn_choices(problem, seed)
    made = [c for c in choices(problem) if all(c[v] in {m[v] for m in met} for v in range(len(c)))]
    within = [
        c for c in made if problem.usage_limit is None or peak(problem, c) <= problem.usage_limit
    ]
    certificate = Ascent(problem, FEW_SWEEPS).sweeps(np.inf, Best(problem, None, None))[1]
    found = annealed(certificate, met, FEW_SWEEPS, Best(problem, None, None))
    assert found.bound == -np.inf  # that of a mixture bounds nothing else
    if found.choice is not None:
        assert found.choice in within
        assert found.objective == pytest.approx(
            cost_of(problem, found.choice), rel=1e-12, abs=1e-12
        )


@pytest.mark.slow
def test_annealing_finds_about_the_best_of_few() -> None:
    problem = limited(3, 2, 2.0)
    met, best = drawn_choices(problem, 1, 4), np.inf
    for choice in choices(problem):
        if (
            all(choice[v] in {m[v] for m in met} for v in range(9))
            and peak(problem, choice) <= 18.0
        ):
            best = min(best, cost_of(problem, choice))
    certificate = Ascent(problem, SolveOptions()).sweeps(np.inf, Best(problem, None, None))[1]
    found = annealed(certificate, met, SolveOptions(), Best(problem, None, None))
    assert best * (1 - 1e-9) <= found.objective <= 1.05 * best


@pytest.mark.slow
def test_strategies_of_little_excess_better_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that may be cheaper, where as much of the gap is taken; with none, those of the choice alone."""
    problem = limited(3, 2, 2.0)
    every = [choice for choice in choices(problem) if peak(problem, choice) <= 18.0]
    costs = [cost_of(problem, choice) for choice in every]
    best, start = min(costs), every[int(np.argsort(costs)[len(costs) // 2])]
    watch, cost = Best(problem, None, None), cost_of(problem, start)
    certificate = Ascent(problem, SolveOptions()).sweeps(np.inf, watch)[1]
    for share, most in ((1.0, 1.02 * best), (-1.0, cost * (1 + 1e-12))):
        monkeypatch.setattr("autopar.solve.primal.crossover._NEAR", share)
        found = annealed_near(certificate, start, cost, SolveOptions(), watch)
        assert found.choice in every
        assert best * (1 - 1e-9) <= found.objective <= most
        assert found.bound == -np.inf
    assert found.choice == start


@pytest.mark.parametrize("is_wide", [True, False])
def test_of_wide_problems_only_what_is_near_is_annealed(
    is_wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, asked = limited(4, 2, 2.0), list[str]()
    near, whole = closing.annealed_near, Ascent.anneal
    monkeypatch.setattr(stage, "is_narrow", lambda _: not is_wide)
    monkeypatch.setattr(closing, "annealed_near", lambda *args: asked.append("near") or near(*args))
    monkeypatch.setattr(Ascent, "anneal", lambda *args: asked.append("whole") or whole(*args))
    options = SolveOptions(
        max_table_entries=1, max_rounds=0, max_cp_sat_entries=1, gap_tolerance=1e-9
    )
    found = solve(problem, options=options)
    assert asked == ["near" if is_wide else "whole"]
    assert peak(problem, found.choice) <= 32.0


@pytest.mark.parametrize("is_found", [True, False])
def test_on_wide_problems_any_choice_is_looked_for_only_if_none_is_met(
    is_found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, asked = limited(4, 2, 2.0), list[bool]()
    first = messages.first_choice
    monkeypatch.setattr(stage, "is_narrow", lambda _: False)
    monkeypatch.setattr(messages, "first_choice", lambda *args: asked.append(True) or first(*args))
    if not is_found:
        monkeypatch.setattr(Ascent, "_answer", lambda *_: Answer(None, np.inf, -np.inf))
    options = SolveOptions(max_table_entries=1, max_rounds=0).without("primal.crossover")
    found = solve(problem, options=options)
    assert bool(asked) is not is_found
    assert peak(problem, found.choice) <= 32.0


@pytest.mark.parametrize("share", [1.0, 1.5])
def test_a_search_ends_where_it_is_enough(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """CP-SAT is asked only for what annealing does not find."""
    problem, asked = limited(4, 2, 2.0), list[Bracket]()
    best = solve(problem).objective

    def finished(_certificate: Any, _options: Any, known: Bracket) -> Bracket:
        asked.append(known)
        return known

    monkeypatch.setattr(rounds, "_finished", finished)
    monkeypatch.setattr(rounds, "_narrowed", lambda *args: (args[2], False))
    watch = Inner(Best(problem, None, None), unchanged(problem), most=share * best)
    options = SolveOptions(max_rounds=1, branch_entries=0)
    found = rounds.in_rounds(problem, options, watch, np.inf, 0, closing.FREE)
    assert found.objective >= best * (1 - 1e-9)
    assert bool(asked) == (found.objective > share * best)
    assert share == 1.0 or not asked


def test_cp_sat_ends_where_it_is_enough() -> None:
    problem = limited(4, 2, 2.0)
    best, watch = solve(problem).objective, Best(problem, None, None)
    ascent = Ascent(problem, FEW_SWEEPS)
    _, certificate = ascent.sweeps(np.inf, watch)
    alone = SolveOptions(cp_sat_workers=1)
    proven = rounds.finish(certificate, np.inf, None, alone, watch)
    until = Inner(watch, unchanged(problem), most=1.5 * best)
    some = rounds.finish(certificate, np.inf, None, alone, until)
    assert proven.bound == pytest.approx(best, rel=1e-6)
    assert some.choice is not None
    assert best * (1 - 1e-9) <= cost_of(problem, some.choice) <= 1.5 * best
    assert some.bound < best * (1 - 1e-6)


def test_a_known_choice_saves_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first, one up to its cost; else they grow step by step."""
    problem, windows = grid(7, 5, 3), list[float]()
    best = solve(problem).objective
    _, certificate = Ascent(problem, FEW_SWEEPS).sweeps(np.inf, Best(problem, None, None))

    def counted(certificate: Any, upper: float, *_: Any, **__: Any) -> Answer:
        windows.append(upper)
        return Answer(None, np.inf, upper) if upper < best else Answer((0,), best, best)

    monkeypatch.setattr(fixed_point, "fixed_in_window", counted)
    monkeypatch.setattr(fixed_point, "_KNOWN", 1)
    little = SolveOptions(max_cp_sat_entries=1)
    fixed_point.fixed_in_windows(certificate, np.inf, little, Best(problem, None, None))
    many, _ = len(windows), windows.clear()
    fixed_point.fixed_in_windows(certificate, best, little, Best(problem, None, None))
    assert windows[1:] == [pytest.approx(best)]
    assert many > len(windows)


def test_edges_are_needed() -> None:
    """A mixture may be cheaper than all that it is made of."""
    problem = Problem((np.array([0.0, 1.0]), np.array([1.0, 0.0])), (Edge(0, 1, np.zeros((2, 2))),))
    met = [np.array([0, 0]), np.array([1, 1])]
    assert mixed_exactly(problem, met, SolveOptions()).objective == 0.0
