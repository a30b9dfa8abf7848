"""Windows above a bound: what is known after them, whatever the search inside them finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from autopar.solve import Problem, SolveOptions
from autopar.solve.pipeline import rounds
from autopar.solve.pipeline.stage import Bracket
from autopar.solve.problem.incumbent import Best
from autopar.solve.problem.problem import objective
from autopar.solve.problem.rows import memory_rows
from autopar.solve.trws.ascent import Answer
from autopar.solve.trws.dual import Dual
from tests.solve.draw import tangled
from tests.solve.oracle import choices, optimum

NARROWED: Any = getattr(rounds, "_narrowed")  # noqa: B009
GUESSES: Any = getattr(rounds, "_guesses")  # noqa: B009


def cheapest(problem: Problem, *_: Any) -> Answer:
    """The cheapest choice of what a window leaves, though it may cost more than the window's upper end."""
    cost, choice = min((objective(problem, choice), choice) for choice in choices(problem))
    return Answer(choice, cost, cost) if np.isfinite(cost) else Answer(None, np.inf, np.inf)


def dearest(problem: Problem, _options: Any, _watch: Any, upper: float, _depth: int) -> Answer:
    """The dearest choice below the upper end, and no bound."""
    found = [(cost, c) for c in choices(problem) if (cost := objective(problem, c)) < upper]
    cost, choice = max(found, default=(np.inf, None))
    return Answer(choice, cost, -np.inf)


def nothing(*_: Any) -> Answer:
    """Neither a choice nor a bound: the work was too much."""
    return Answer(None, np.inf, -np.inf)


@pytest.mark.parametrize("within", [cheapest, dearest, nothing])
def test_what_is_known_after_windows_is_true(within: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "_LEAST_SHARE", 1e-3)
    monkeypatch.setattr(rounds, "_MOST_SHARE", 1.0)
    monkeypatch.setattr(rounds, "_SHRUNK", 2.0)
    monkeypatch.setattr(rounds, "minimise", within)
    guessed = 0
    for seed in range(12):
        problem = tangled(seed, nodes=5)
        best, dual = optimum(problem), Dual(problem, memory_rows(problem))
        for _ in range(seed % 3):
            dual.sweep()
        certificate = dual.certificate(dual.state())
        known = Bracket(
            Answer((), 1.5 * best + 1.0, -np.inf), certificate.bound, np.inf, Best(problem, None)
        )
        for few in (8, 20, 40):
            monkeypatch.setattr(rounds, "_FEW", few)
            guessed += len(GUESSES(certificate, known, 0))
            after, is_all = NARROWED(certificate, SolveOptions(), known, 0)
            assert certificate.bound <= after.low <= best * (1 + 1e-9)
            assert is_all  # the last window takes in all that is of use
            if within is cheapest:
                assert after.best.objective == pytest.approx(best, rel=1e-12)
                assert objective(problem, after.best.choice) == pytest.approx(best, rel=1e-12)
    assert guessed >= 8
