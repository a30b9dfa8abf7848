"""No choice within a window loses a strategy beside those that are left, and what goes is proven to be dear."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.solve import Infeasible, Problem, SolveOptions, solve, verify
from autopar.solve.certificate.proof import Exceed
from autopar.solve.fixing import pairwise as narrow
from autopar.solve.fixing.pairwise import narrowed
from autopar.solve.presolve.arc_consistency import drop_forbidden
from autopar.solve.presolve.merging import merge_parallel
from autopar.solve.problem.reduction import unchanged
from autopar.solve.problem.rows import memory_rows
from autopar.solve.trws.dual import Certificate, Dual
from tests.solve.draw import problems
from tests.solve.oracle import choices, cost_of
from tests.solve.test_swing import grid


def _certified(problem: Problem) -> Certificate | None:
    """A certificate after a sweep; None if there is no choice."""
    try:
        problem = unchanged(problem).then(merge_parallel).then(drop_forbidden).problem
    except Infeasible:
        return None
    dual = Dual(problem, memory_rows(problem))
    dual.sweep()
    return dual.certificate(dual.state())


def _lost(certificate: Certificate, window: float) -> list[tuple[int, ...]]:
    """The choices within a window of the bound that have a strategy which is not left."""
    upper, lost = certificate.bound + window, []
    for keep in narrowed(certificate, window):
        left = [choice for choice in choices(certificate.problem) if cost_of(certificate.problem, choice) <= upper]
        lost += [choice for choice in left if not all(mask[s] for mask, s in zip(keep, choice, strict=True))]
    return lost


@settings(max_examples=80, deadline=None)
@given(problem=problems(max_nodes=5, limited=False), window=st.floats(0, 3))
def test_no_choice_within_the_window_is_lost(problem: Problem, window: float) -> None:
    certificate = _certified(problem)
    if certificate is None:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(narrow, "_LARGE", 0)
        assert not _lost(certificate, window)


def test_every_pass_leaves_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = _certified(grid(6, 8, 1))
    assert certificate is not None
    assert len(list(narrowed(certificate, 1.0))) == 1  # so few pairs are not worth another pass
    monkeypatch.setattr(narrow, "_LARGE", 0)
    passes = list(narrowed(certificate, 1.0))
    left = [sum(int(mask.sum()) for mask in keep) for keep in passes]
    assert len(left) > 1
    assert left[0] > left[-1]
    for before, after in pairwise(passes):
        assert all((b | ~a).all() for b, a in zip(before, after, strict=True))


def test_a_pass_that_takes_too_much_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: strategies seem to cost far more above the bound than they do."""
    certificate = _certified(grid(3, 3, 1))
    assert certificate is not None
    exact = narrow.reparametrise

    def planted(flat: Any, nodes: Any, messages: Any, excess: Any) -> float:
        total = exact(flat, nodes, messages, excess)
        excess *= 50
        return total

    monkeypatch.setattr(narrow, "_LARGE", 0)
    assert not _lost(certificate, 1.0)
    monkeypatch.setattr(narrow, "reparametrise", planted)
    assert _lost(certificate, 1.0)


@pytest.mark.parametrize("seed", range(3))
def test_what_goes_in_passes_is_proven(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = grid(6, 8, seed)
    best = solve(problem).objective
    monkeypatch.setattr(narrow, "_LARGE", 0)
    solution = solve(problem, options=SolveOptions(max_table_entries=100, max_rounds=0, max_cp_sat_entries=100))
    assert (solution.gap, solution.objective) == (0.0, pytest.approx(best))
    assert verify(problem, solution).stated_by == ()
    steps = solution.witness or ()
    assert any(isinstance(a, Exceed) and isinstance(b, Exceed) for a, b in pairwise(steps))


def test_messages_as_arrays_are_those_of_the_certificate() -> None:
    certificate = _certified(grid(4, 3, 0))
    assert certificate is not None
    assert certificate.laid is not None
    nodes = np.concatenate([certificate.node_costs[v] for v in certificate.laid.order.tolist()])
    assert np.array_equal(nodes, certificate.laid.nodes)
