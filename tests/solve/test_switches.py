"""Every technique switched off by itself: answers stay right, whatever is left to find them."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings

from autopar.solve import Infeasible, Problem, Solution, SolveOptions, verify
from tests.quick_some import diagonal
from tests.solve.draw import chain_with_skips, problems
from tests.solve.oracle import optimum
from tests.solve.paths import outcome

SWITCHES = tuple(SolveOptions().switches)
CLOSING = SolveOptions(max_table_entries=1, max_sweeps=15, anneal_passes=30, region_steps=120)
"""No elimination: messages, and what closes the rest."""


@pytest.mark.quick_share(3)
@pytest.mark.parametrize("switch", SWITCHES)
@settings(max_examples=12, deadline=None)
@given(problem=problems(max_nodes=5))
def test_answers_stay_right_without(switch: str, problem: Problem) -> None:
    """CP-SAT has the last word on all that is small, and without it everything else together: the optimum is found."""
    best, narrowest = optimum(problem, slack=1e-12), optimum(problem, slack=-1e-9)
    for options in (SolveOptions(), CLOSING):
        found = outcome(problem, options.without(switch))
        if isinstance(found, Infeasible):
            assert narrowest == np.inf
        if not isinstance(found, Solution):
            assert options is CLOSING or narrowest == np.inf
            continue
        proven = verify(problem, found, options.cp_sat_work)
        assert proven.bound <= best + 1e-9 * abs(best)
        assert (
            found.lower_bound <= best + 1e-9 * abs(best) <= found.objective + 2e-9 * (1 + abs(best))
        )
        assert options is CLOSING or found.objective == pytest.approx(best, rel=1e-6, abs=1e-12)


@pytest.mark.quick_share(4)
@pytest.mark.parametrize(("switch", "share"), diagonal(SWITCHES, [None, 0.8]))
def test_training_steps_are_solved_without(switch: str, share: float | None):
    """Repeated blocks, with a memory limit that binds and without."""
    problem = chain_with_skips(40, 6, period=10, seed=2, memory=share is not None)
    if share is not None:
        problem = replace(problem, usage_limit=share * roomy_peak())
    little = SolveOptions(
        max_table_entries=300, gap_tolerance=0.005, anneal_passes=30, region_steps=120
    )
    found = outcome(problem, little.without(switch))
    assert isinstance(found, Solution)
    assert found.gap <= 0.05
    assert verify(problem, found, little.cp_sat_work).bound <= found.objective * (1 + 1e-9)


@cache
def roomy_peak() -> float:
    """Of the best choice without a limit."""
    found = outcome(chain_with_skips(40, 6, period=10, seed=2, memory=True), SolveOptions())
    assert isinstance(found, Solution)
    return found.peak


def test_every_switch_has_a_name_and_is_on():
    assert all(SolveOptions().switches.values())
    rooms = [
        field.name
        for field in fields(SolveOptions)
        if is_dataclass(getattr(SolveOptions(), field.name))
    ]
    assert {switch.partition(".")[0] for switch in SWITCHES} == set(rooms)


@pytest.mark.parametrize("switch", SWITCHES)
def test_one_switch_turns_off_one_technique(switch: str):
    without = SolveOptions().without(switch)
    assert [name for name, is_on in without.switches.items() if not is_on] == [switch]
    assert without != SolveOptions()


def test_a_switch_that_is_not_there_is_named():
    with pytest.raises(
        ValueError, match=r"no switch 'trws\.magic'; there are presolve\.hash_consing"
    ):
        SolveOptions().without("trws.magic")
