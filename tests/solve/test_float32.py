"""Sweeps in single precision: what they find is proven in double precision, or it is not said."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.solve import Edge, Problem, proven, solve
from autopar.solve.problem.incumbent import Best
from autopar.solve.problem.options import SolveOptions
from autopar.solve.problem.rows import memory_rows
from autopar.solve.trws import dual as single
from autopar.solve.trws.arrays import Pool
from autopar.solve.trws.ascent import Ascent
from autopar.solve.trws.dual import Dual, Single
from tests.solve.draw import problems
from tests.solve.oracle import optimum
from tests.solve.test_acceleration import grid, is_finite
from tests.solve.test_smoothed_ascent import scarce

OPTIONS = SolveOptions(max_sweeps=60)


@settings(max_examples=40, deadline=None)
@given(problem=problems(limited=False).filter(is_finite))
def test_no_bound_exceeds_the_optimum(problem: Problem) -> None:
    best = optimum(problem)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(single, "_LARGE", 0)
        ascent = Ascent(problem, OPTIONS, rough=True)
        assert ascent._begins_singly()
        found, certificate = ascent.sweeps(np.inf, Best(problem, None, None))
    assert (
        certificate.bound
        <= best + 1e-9 * (1 + abs(best))
        <= found.objective + 2e-9 * (1 + abs(best))
    )
    again = proven(
        problem, certificate.proof()
    ).bound  # of parallel edges it adds up the entries first
    assert certificate.bound - 1e-9 * (1 + abs(best)) <= again <= best + 1e-9 * (1 + abs(best))


@settings(max_examples=20, deadline=None)
@given(problems(limited=False).filter(is_finite), st.integers(0, 99))
def test_whatever_messages_it_finds_only_what_they_prove_is_said(
    problem: Problem, seed: int
) -> None:
    """A planted fault: messages are noise."""
    noise = np.random.default_rng(seed).standard_normal

    def settled(self: Single, *_: object) -> np.ndarray:
        return noise(len(self.dual.messages))

    best = optimum(problem)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(single, "_LARGE", 0)
        patch.setattr(Single, "settled", settled)
        _, certificate = Ascent(problem, OPTIONS, rough=True).sweeps(
            np.inf, Best(problem, None, None)
        )
    assert certificate.bound <= best + 1e-9 * (1 + abs(best))


@pytest.mark.parametrize("seed", range(3))
def test_it_comes_as_far_as_double_precision(seed: int) -> None:
    problem = grid(12, 6, seed)
    dual = Dual(problem, memory_rows(problem))
    dual.start_from(Single(dual).settled(200, lambda: True, lambda _: None))
    dual.sweep()
    other = Dual(problem, memory_rows(problem))
    other.is_accelerated = True
    for _ in range(60):
        other.sweep()
    assert dual.state().bound == pytest.approx(other.state().bound, rel=2e-3)


def test_what_messages_prove_they_still_prove(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain, whose optimum messages prove to the last digit, which single precision does not."""
    rng = np.random.default_rng(0)
    edges = tuple(Edge(v, v + 1, rng.random((5, 5))) for v in range(11))
    chain = Problem(tuple(rng.random(5) for _ in range(12)), edges)
    best = solve(chain).objective
    monkeypatch.setattr(single, "_LARGE", 0)
    found, certificate = Ascent(chain, OPTIONS, rough=True).sweeps(np.inf, Best(chain, None, None))
    assert found.objective == pytest.approx(best, rel=1e-12)
    assert certificate.bound == pytest.approx(best, rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(problems(limited=True).filter(is_finite))
def test_priced_memory_is_swept_singly_and_proven_in_double(problem: Problem) -> None:
    best, kinds, swept = optimum(problem), set[np.dtype[Any]](), Dual.sweep
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(single, "_LARGE", 0)
        patch.setattr(Dual, "sweep", lambda self: kinds.add(self.messages.dtype) or swept(self))
        ascent = Ascent(problem, OPTIONS)
        whole = ascent.dual
        found, certificate = ascent.settle(np.inf, Best(problem, None, None))
    assert kinds == {np.dtype(np.float32), np.dtype(np.float64)}
    assert ascent.dual is whole
    assert whole.messages.dtype == whole.nodes.dtype == ascent.held.messages.dtype == np.float64
    tolerance = 1e-9 * (1 + abs(certificate.bound))
    assert certificate.bound == pytest.approx(ascent.held.bound, abs=tolerance)
    assert certificate.bound <= best + tolerance
    assert proven(problem, certificate.proof()).bound <= best + tolerance
    assert found.objective >= best * (1 - 1e-9) - 1e-9


@pytest.mark.parametrize("seed", range(3))
def test_settling_singly_comes_as_far(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, bounds = scarce(seed), list[float]()
    for least in (0, 10**9):
        monkeypatch.setattr(single, "_LARGE", least)
        _, certificate = Ascent(problem, SolveOptions()).settle(np.inf, Best(problem, None, None))
        bounds.append(certificate.bound)
    assert bounds[0] == pytest.approx(bounds[1], rel=2e-3)


def test_what_is_single_changes_nothing_in_double() -> None:
    problem = scarce(0)
    dual = Dual(problem, memory_rows(problem))
    dual.set_prices(np.full(dual.rows.count, 1e-3))
    dual.sweep()
    before = dual.state()
    other = dual.in_single()
    for _ in range(3):
        other.sweep()
    after = dual.state()
    assert after.bound == before.bound
    assert np.array_equal(after.messages, before.messages)
    assert other.prices is dual.prices
    assert dual.in_single().nodes == pytest.approx(dual.nodes, rel=1e-5, abs=1e-5)


def test_problems_that_share_a_pool_are_swept_as_if_they_did_not() -> None:
    one = grid(5, 20, 0)
    two = Problem(
        one.node_costs[:20], tuple(edge for edge in one.edges if max(edge.u, edge.v) < 20)
    )
    pool = Pool()
    shared = [
        Dual(problem, memory_rows(problem), pool=pool) for problem in (one, two, grid(4, 30, 1))
    ]
    assert len(shared[1].flat.pool) == len(shared[0].flat.pool)  # nothing is there twice
    for dual in shared:
        alone = Dual(dual.problem, dual.rows)
        for _ in range(3):
            dual.sweep()
            alone.sweep()
        assert np.array_equal(dual.messages, alone.messages)
