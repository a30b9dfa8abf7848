"""Problems that reductions do not solve: each way through the core against all choices, and its witness replayed."""

from __future__ import annotations

from collections import Counter
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from autopar.solve import Infeasible, NothingCheaper, Problem, Solution, SolveOptions, solve, verify
from autopar.solve.pipeline import closing, messages, rounds, stage
from autopar.solve.trws.ascent import Ascent
from tests.quick_some import diagonal
from tests.solve.draw import tangled
from tests.solve.oracle import cost_of, optimum, peak_of

WAYS = {
    "default": SolveOptions(),
    "small tables": SolveOptions(max_table_entries=9, max_sweeps=12),
    "rounds": SolveOptions(
        max_table_entries=1, max_sweeps=12, max_cp_sat_entries=1, anneal_passes=30
    ),
    "rounds without annealing": SolveOptions(
        max_table_entries=1, max_sweeps=4, max_cp_sat_entries=1, anneal_passes=0
    ),
    "CP-SAT": SolveOptions(max_table_entries=1, max_sweeps=2, anneal_passes=0),
}
LIMITS = [None, 0.15, 0.35, 0.6]
SEEDS = range(8)


@cache
def drawn(seed: int, limit: float | None) -> tuple[Problem, float]:
    """A problem and its optimum."""
    problem = tangled(seed, limit=limit)
    return problem, optimum(problem)


def check(seed: int, limit: float | None, options: SolveOptions) -> str:
    """What came of it; that it is so."""
    problem, best = drawn(seed, limit)
    try:
        found = solve(problem, options=options)
    except Infeasible:
        assert best == np.inf
        return "infeasible"
    assert cost_of(problem, found.choice) == pytest.approx(found.objective, rel=1e-12)
    assert problem.usage_limit is None or peak_of(problem, found.choice) <= problem.usage_limit
    assert verify(problem, found, search_work=1.0).bound <= best * (1 + 1e-9)
    assert found.lower_bound <= best * (1 + 1e-9)
    if found.gap > 1e-6:
        assert found.objective >= best * (1 - 1e-9)
        return "found"
    assert found.objective == pytest.approx(best, rel=1e-6)
    return "optimal"


@pytest.mark.parametrize(("way", "limit"), diagonal(WAYS, LIMITS))
def test_what_is_said_is_true(way: str, limit: float | None) -> None:
    """And all is proven, but by little work: rounds alone prove less."""
    told = Counter(check(seed, limit, WAYS[way]) for seed in SEEDS)
    assert "rounds" in way or told["found"] == 0


@pytest.mark.quick_share(3)
@pytest.mark.parametrize("limit", [None, 0.35])
@pytest.mark.parametrize("way", WAYS)
def test_a_cutoff_leaves_what_is_cheaper(way: str, limit: float | None) -> None:
    for seed in SEEDS[:4]:
        problem, best = drawn(seed, limit)
        nothing = cheaper_than(best * (1 - 1e-12), problem, WAYS[way])
        assert isinstance(nothing, NothingCheaper)
        assert nothing.lower_bound <= best
        assert nothing.is_proven or "rounds" in way
        found = cheaper_than(best * 1.01, problem, WAYS[way])
        assert found.lower_bound <= best * (1 + 1e-9)
        if isinstance(found, NothingCheaper):
            assert "rounds" in way
            continue
        assert best * (1 - 1e-9) <= found.objective < best * 1.01
        assert verify(problem, found, search_work=1.0).bound <= best * (1 + 1e-9)


@pytest.mark.quick_share(4)
@pytest.mark.parametrize("limit", LIMITS)
def test_what_is_said_of_wide_problems_is_true(
    limit: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their messages and prices move together soon, and what is close is swept: all small ones taken to be wide."""
    calls: Counter[str] = Counter()

    def settle(ascent: Ascent, *args: Any) -> Any:
        calls["settle"] += 1
        return whole(ascent, *args)

    whole = Ascent.settle
    for room in (messages, rounds, stage):
        monkeypatch.setattr(room, "is_narrow", lambda problem: False)
    monkeypatch.setattr(Ascent, "settle", settle)
    told = Counter(check(seed, limit, WAYS[way]) for way in ("rounds", "CP-SAT") for seed in SEEDS)
    assert told["optimal"] >= 3 or told["infeasible"] >= 3
    assert limit is None or calls["settle"] >= 3


@pytest.mark.slow
@pytest.mark.quick_share(4)
@pytest.mark.parametrize("limit", LIMITS)
def test_what_is_said_after_windows_that_leave_few_pairs_is_true(
    limit: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the optimum lies in them, above them, or they leave nothing; and with CP-SAT all is still proven."""
    guessed: list[float] = []

    def guesses(*args: Any) -> list[float]:
        guessed.extend(found := whole(*args))
        return found

    whole: Any = getattr(rounds, "_guesses")  # noqa: B009
    monkeypatch.setattr(rounds, "_LEAST_SHARE", 0.01)
    monkeypatch.setattr(rounds, "_MOST_SHARE", 0.95)
    monkeypatch.setattr(rounds, "_guesses", guesses)
    for few in (10, 30, 60):
        monkeypatch.setattr(rounds, "_FEW", few)
        for seed in SEEDS:
            check(seed, limit, WAYS["rounds"].without(FIXING))
            assert check(seed, limit, WAYS["CP-SAT"].without(FIXING)) != "found"
    assert len(guessed) >= 3


FIXING = "fixing.fixed_point"
"""Where it is on, it proves what is left for what follows."""


def cheaper_than(
    below: float, problem: Problem, options: SolveOptions
) -> Solution | NothingCheaper:
    try:
        return solve(problem, options=options, below=below)
    except NothingCheaper as nothing:
        return nothing


def room_of(name: str) -> ModuleType:
    """The module that looks a function up by this name."""
    return next(room for room in (closing, rounds) if hasattr(room, name))


@pytest.mark.quick_share(3)
@pytest.mark.parametrize("way", WAYS)
def test_the_same_again(way: str) -> None:
    problem, _ = drawn(1, 0.35)
    assert solve(problem, options=WAYS[way]) == solve(problem, options=WAYS[way])


@pytest.mark.quick_share(4)
@pytest.mark.parametrize(
    ("way", "limit", "functions"),
    [
        ("rounds", None, ["fixed_in_windows"]),
        ("rounds", None, ["in_rounds", "_narrowed", "_inside"]),
        ("rounds", 0.35, ["close_to", "_mixture_of", "in_rounds", "_inside"]),
        ("CP-SAT", 0.35, ["_finished"]),
    ],
)
def test_these_ways_are_taken(
    way: str, limit: float | None, functions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the tests above test nothing."""
    calls: Counter[str] = Counter()

    def counted(name: str) -> Any:
        whole = getattr(room_of(name), name)

        def call(*args: Any, **named: Any) -> Any:
            calls[name] += 1
            return whole(*args, **named)

        return call

    options = WAYS[way] if functions == ["fixed_in_windows"] else WAYS[way].without(FIXING)
    for name in functions:
        monkeypatch.setattr(room_of(name), name, counted(name))
    for seed in SEEDS:
        check(seed, limit, options)
    assert all(calls[name] >= 3 for name in functions), calls


@pytest.mark.parametrize(
    ("way", "then"), [("rounds", "in_rounds"), ("rounds", "_narrowed"), ("CP-SAT", "finish")]
)
def test_what_was_found_before_an_interruption_is_the_answer(
    way: str, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pressed(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(room_of(then), then, pressed)
    problem, best = drawn(1, None)
    try:
        found = solve(problem, options=WAYS[way].without(FIXING))
    except KeyboardInterrupt:  # would end all tests
        pytest.fail("the interruption was let through, and what was found is lost")
    assert found.stopped == "keyboard"
    assert 0 < found.lower_bound <= best * (1 + 1e-9) <= found.objective * (1 + 2e-9)
    verify(problem, found)
