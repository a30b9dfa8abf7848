"""Eager sweeps: lawful and never worse from one to the next, and ordinary ones go on where they stall."""

from __future__ import annotations

from itertools import pairwise
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings

from autopar.solve import Problem, SolveOptions
from autopar.solve.pipeline.incremental import Settled
from autopar.solve.problem.incumbent import Best
from autopar.solve.problem.rows import memory_rows
from autopar.solve.trws.ascent import Ascent
from autopar.solve.trws.dual import Dual
from tests.solve.draw import chain_with_skips, problems
from tests.solve.oracle import optimum

_ROUNDING = 1e-9


def is_finite(problem: Problem) -> bool:
    return all(
        np.isfinite(cost).all()
        for cost in (*problem.node_costs, *(edge.cost for edge in problem.edges))
    )


@settings(max_examples=150, deadline=None)
@given(problems(limited=False).filter(is_finite))
def test_the_bound_never_falls_nor_exceeds_the_optimum(problem: Problem) -> None:
    dual, best = Dual(problem, memory_rows(problem)), optimum(problem)
    dual.eager = True
    bounds = [dual.state().bound]
    for _ in range(8):
        dual.sweep()
        bounds.append(dual.state().bound)
    tolerance = _ROUNDING * (1 + abs(best))
    assert all(after >= before - tolerance for before, after in pairwise(bounds))
    assert bounds[-1] <= best + tolerance
    assert dual.certificate(dual.state()).bound == pytest.approx(bounds[-1], abs=tolerance)


@pytest.mark.parametrize("seed", range(3))
def test_ordinary_sweeps_follow_where_the_bound_stalls(seed: int) -> None:
    problem = chain_with_skips(60, 6, 15, seed)
    kinds: list[bool] = []
    sweep = Dual.sweep
    with patch.object(Dual, "sweep", lambda self: (kinds.append(self.eager), sweep(self))[1]):
        ascent = Ascent(problem, SolveOptions(), eager=True)
        found, certificate = ascent.sweeps(np.inf, Best(problem, None, None))
    assert kinds[0]
    assert sorted(kinds, reverse=True) == kinds  # eager ones first
    assert not kinds[-1] or found.objective == pytest.approx(certificate.bound)
    _, ordinary = Ascent(problem, SolveOptions()).sweeps(np.inf, Best(problem, None, None))
    assert certificate.bound == pytest.approx(ordinary.bound, rel=1e-3)


def test_rounding_of_many_layers_does_not_unprove() -> None:
    """96 layers on 8x8: the bound, recomputed, was 1.8e-12 of the cost below it."""
    messages = np.zeros(0)
    assert Settled((), 0.37275707984395423, 0.3727570798432927, (), messages).is_proven
    assert not Settled((), 0.37275707984395423, 0.372757079, (), messages).is_proven
