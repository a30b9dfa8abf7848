"""Limits one after another: which of the plans within the smallest peak is taken."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from autopar.search.memory_limit import FullSolves
from autopar.solve import Infeasible, Problem, Solution, Usage

PROBLEM = Problem(
    (np.array([1.0, 2.0]), np.array([3.0, 5.0])),
    (),
    (Usage(0, 0, 1, np.array([7.0, 4.0])),),
    usage_limit=4.0,
)
"""Of its choices (1, 0) and (1, 1) are as small."""


class Lowered:
    """An attempt whose programs peak as said: that of what the solver finds, (1, 0), and that of (1, 1)."""

    def __init__(self, found: int, told: int) -> None:
        self.peaks, self.limits = {(1, 0): found, (1, 1): told}, list[float]()

    def solve(self, limit: float, *_: Any) -> Any:
        self.limits.append(limit)
        return self.planned(Solution((1, 0), 5.0, 5.0, 4.0))

    def problem(self, limit: float) -> Problem:
        return Problem(PROBLEM.node_costs, PROBLEM.edges, PROBLEM.usages, limit)

    def planned(self, solution: Solution) -> Any:
        spent = SimpleNamespace(peak_memory_bytes=self.peaks[solution.choice])
        return SimpleNamespace(account=spent, solution=solution)


FREE: Any = SimpleNamespace(plan=SimpleNamespace(lower_bound_s=0.0))
PROOF = Infeasible("", min_peak_bytes=4.0, choice=(1, 1))


@pytest.mark.parametrize(
    ("found", "told", "taken"),
    [(9, 8, (1, 0)), (12, 8, (1, 1)), (12, 11, (1, 1)), (11, 12, (1, 0)), (10, 3, (1, 0))],
)
def test_the_least_is_what_the_solver_finds_unless_that_does_not_fit(
    found: int, told: int, taken: tuple[int, int]
) -> None:
    """Within 10 bytes: else the smaller program of the two, the other being the choice that the proof came with."""
    attempt: Any = Lowered(found, told)
    planned = FullSolves(attempt, 10, FREE)._solve_least(PROOF)
    assert planned is not None
    assert planned.solution is not None
    assert planned.solution.choice == taken
    assert planned.solution.objective == {(1, 0): 5.0, (1, 1): 7.0}[taken]
    assert planned.solution.peak == 4.0
    assert attempt.limits == [4.0]


@pytest.mark.parametrize(
    "proof", [Infeasible("", choice=(1, 1)), Infeasible("", min_peak_bytes=4.0)]
)
def test_there_is_no_least_where_the_proof_tells_of_none(proof: Infeasible) -> None:
    attempt: Any = Lowered(1, 1)
    assert FullSolves(attempt, 10, FREE)._solve_least(proof) is None
    assert attempt.limits == []
