"""Sweeps want a finite partner for every strategy: whoever searches drops the others first, or its bounds are NaN."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from autopar.solve import Edge, Infeasible, Problem, SolveOptions, Unsolved, Usage, proven, solve
from autopar.solve.pipeline import closing, messages, stage
from autopar.solve.primal.crossover import annealed
from autopar.solve.problem.incumbent import Best
from autopar.solve.problem.problem import peak
from autopar.solve.problem.reduction import Ints
from autopar.solve.trws.ascent import Ascent
from autopar.solve.trws.dual import Dual, State
from tests.solve.oracle import cost_of

NARROW = SolveOptions(max_table_entries=1, max_sweeps=15)
LARGE = SolveOptions(max_table_entries=1, max_sweeps=15, max_cp_sat_entries=1, gap_tolerance=1e-9)
NODES = 10


def ring(seed: int) -> Problem:
    """Odd strategies go with odd ones only; all take memory, the cheap ones the most."""
    rng = np.random.default_rng(seed)
    apart = np.where((np.arange(4)[:, None] - np.arange(4)) % 2, np.inf, 0.0)
    ends = [(v, (v + step) % NODES) for v in range(NODES) for step in (1, 3)]
    edges = tuple(Edge(u, v, rng.random((4, 4)) + apart) for u, v in ends)
    usages = tuple(
        Usage(v, 0, 1, np.array([4.0, 3.0, 2.0, 1.0]) + rng.random(4)) for v in range(NODES)
    )
    return Problem(tuple(np.sort(rng.random(4)) for _ in range(NODES)), edges, usages, 2.9 * NODES)


def met() -> list[Ints]:
    """Two choices that are allowed, and one with an odd strategy here and there, which then has no partner."""
    some = np.where(np.arange(NODES) % 3 == 0, 1, 0)
    return [np.full(NODES, 0), np.full(NODES, 2), some]


@pytest.fixture
def bounds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The bounds that sweeps prove from now on."""
    every, swept, state = list[float](), Dual.swept, Dual.state

    def noted(found: State) -> State:
        every.append(found.bound)
        return found

    monkeypatch.setattr(Dual, "swept", lambda self: noted(swept(self)))
    monkeypatch.setattr(Dual, "state", lambda self: noted(state(self)))
    return every


@pytest.mark.quick_share(2)
@pytest.mark.parametrize("options", [NARROW, LARGE])
@pytest.mark.parametrize("is_wide", [False, True])
def test_every_search_drops_them(
    options: SolveOptions, is_wide: bool, bounds: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[int]()
    monkeypatch.setattr(closing, "annealed", lambda *args: asked.append(1) or annealed(*args))
    if is_wide:
        monkeypatch.setattr(stage, "is_narrow", lambda _: False)
        monkeypatch.setattr(messages, "is_narrow", lambda _: False)
    for seed in range(8):
        try:
            solve(ring(seed), options=options)
        except (Infeasible, Unsolved):
            continue
    assert bool(asked) == (is_wide and options is LARGE)
    assert len(bounds) > 100
    assert not np.isnan(bounds).any()


@pytest.mark.parametrize("seed", range(8))
def test_of_what_was_met_what_has_no_partner_is_dropped(seed: int, bounds: list[float]) -> None:
    """The best of the others, or nearly; a mixture of nothing but forbidden choices is none."""
    problem = ring(seed)
    watch = Best(problem, None, None)
    certificate = Ascent(problem, SolveOptions()).sweeps(np.inf, watch)[1]
    found = annealed(certificate, met(), SolveOptions(), watch)
    assert not np.isnan(bounds).any()
    within = [
        c for c in product((0, 2), repeat=NODES) if peak(problem, c) <= (problem.usage_limit or 0.0)
    ]
    assert found.choice in within
    assert found.objective <= 1.1 * min(cost_of(problem, c) for c in within)
    assert annealed(certificate, met()[2:], SolveOptions(), watch).choice is None


def test_what_no_choice_of_is_finite_is_infeasible_when_it_is_taken_out() -> None:
    """Each of three edges leaves every strategy a partner, together they leave none."""
    apart = np.array(
        [
            [np.inf, 0.0, 0.0, 0.0, 0.0],
            *[[np.inf, 0.0, np.inf, 0.0, 0.0]] * 3,
            [0.0, np.inf, 0.0, np.inf, np.inf],
        ]
    )
    alike = np.array(
        [
            [0.0, np.inf, np.inf, np.inf, np.inf],
            *[[np.inf, np.inf, 0.0, np.inf, np.inf]] * 3,
            [np.inf, 0.0, np.inf, 0.0, 0.0],
        ]
    )
    edges = tuple(Edge(0, 1, cost) for cost in (apart, alike, alike))
    problem = Problem((np.zeros(5), np.zeros(5)), edges)
    with pytest.raises(Infeasible) as caught:
        solve(problem)
    assert proven(problem, caught.value.witness or ()).bound == np.inf
