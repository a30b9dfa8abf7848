"""Swinging sweeps: lawful, better than as many others, and never behind the best; kernels say what plain arrays say."""

from __future__ import annotations

import gc
from itertools import pairwise
from weakref import ReferenceType, ref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.solve import Edge, Problem, SolveOptions, solve
from autopar.solve.problem.incumbent import Best
from autopar.solve.problem.rows import memory_rows
from autopar.solve.trws import arrays as flat
from autopar.solve.trws import dual as single
from autopar.solve.trws import kernels
from autopar.solve.trws.acceleration import Momentum
from autopar.solve.trws.arrays import Pool
from autopar.solve.trws.ascent import Ascent
from autopar.solve.trws.dual import Dual
from tests.solve.draw import problems
from tests.solve.oracle import optimum
from tests.solve.test_smoothed_ascent import scarce

_ROUNDING = 1e-9


def is_finite(problem: Problem) -> bool:
    return all(
        np.isfinite(cost).all()
        for cost in (*problem.node_costs, *(edge.cost for edge in problem.edges))
    )


def grid(side: int, strategies: int, seed: int) -> Problem:
    rng, count = np.random.default_rng(seed), side * side
    pairs = [(v, v + 1) for v in range(count) if (v + 1) % side] + [
        (v, v + side) for v in range(count - side)
    ]
    costs = tuple(rng.random(strategies) for _ in range(count))
    return Problem(costs, tuple(Edge(u, v, rng.random((strategies, strategies))) for u, v in pairs))


@settings(max_examples=100, deadline=None)
@given(problems(limited=False).filter(is_finite))
def test_no_bound_on_the_way_exceeds_the_optimum_or_its_certificate(problem: Problem) -> None:
    dual, best = Dual(problem, memory_rows(problem)), optimum(problem)
    dual.is_accelerated = True
    tolerance = _ROUNDING * (1 + abs(best))
    for _ in range(8):
        dual.sweep()
        state = dual.swept()
        assert state.bound == pytest.approx(dual.state().bound, abs=tolerance)
        assert state.bound <= best + tolerance
        assert dual.certificate(state).bound == pytest.approx(state.bound, abs=tolerance)


@pytest.mark.parametrize("seed", range(3))
def test_it_proves_more_than_as_many_other_sweeps(seed: int) -> None:
    problem = grid(12, 6, seed)
    bounds: list[float] = []
    for is_accelerated in (True, False):
        dual = Dual(problem, memory_rows(problem))
        dual.is_accelerated = is_accelerated
        for _ in range(20):
            dual.sweep()
        bounds.append(dual.state().bound)
    assert bounds[0] > bounds[1]


def test_a_search_goes_back_where_the_bound_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    """With messages thrown far off, as no step would, what is held is still the best there was."""
    problem, met = grid(8, 5, 0), list[float]()
    swept, push = Dual.swept, kernels.push
    monkeypatch.setattr(
        "autopar.solve.trws.acceleration.push",
        lambda flat, far, *arrays: push(flat, 8 * far, *arrays),
    )
    monkeypatch.setattr(
        Dual, "swept", lambda dual: (found := swept(dual), met.append(found.bound))[0]
    )
    _, certificate = Ascent(problem, SolveOptions(max_sweeps=60)).sweeps(
        np.inf, Best(problem, None, None)
    )
    assert certificate.bound == pytest.approx(max(met))
    assert any(after < before for before, after in pairwise(met))


def test_momentum_grows_while_the_bound_rises_and_is_lost_where_it_falls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The share of the last way is k / (k + 3) after k rises, at most 0.5 here; after a fall k is 0."""
    shares = list[float]()
    monkeypatch.setattr(
        "autopar.solve.trws.acceleration.push", lambda _flat, share, *_arrays: shares.append(share)
    )
    problem = grid(3, 2, 0)
    dual = Dual(problem, memory_rows(problem))
    momentum = Momentum(dual, 0.5)
    for bound in (None, 1.0, 1.0, 2.0, 1.5, 1.6, 1.7):
        momentum.go_on(dual, with_prices=False)
        risen = momentum.rises(bound)
        assert risen == (bound != 1.5)
    momentum.go_on(dual, with_prices=False)
    assert shares == pytest.approx([0, 1 / 4, 2 / 5, 1 / 2, 1 / 2, 0, 1 / 4, 2 / 5])
    momentum.stop_at(dual, 3.0)
    momentum.go_on(dual, with_prices=False)
    assert shares[-1] == 0
    assert not momentum.rises(2.9)


@pytest.mark.quick_share(2)
@pytest.mark.parametrize("limited", [False, True])
def test_nothing_of_a_search_is_left_where_nothing_is_collected(
    limited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Matrices of wide problems are hundreds of MB: those of one search are to be gone when the next begins.

    Loops are compiled first: numba leaves what it compiled for to the garbage collector.
    """
    monkeypatch.setattr(single, "_LARGE", 0)
    monkeypatch.setattr("autopar.solve.pipeline.stage._NARROW", 0)
    made, build = list[ReferenceType[Pool]](), Pool.__init__

    def noted(pool: Pool) -> None:
        build(pool)
        made.append(ref(pool))

    problem = scarce(0) if limited else grid(8, 8, 0)
    options = SolveOptions(max_table_entries=100, anneal_passes=5, max_sweeps=60, cp_sat_work=0.2)
    solve(problem, options=options)
    monkeypatch.setattr(Pool, "__init__", noted)
    gc.collect()
    gc.disable()
    try:
        solve(problem, options=options)
        left = sum(pool() is not None for pool in made)
    finally:
        gc.enable()
    assert made
    assert not left


@settings(max_examples=50, deadline=None)
@given(problems(limited=False).filter(is_finite), st.integers(0, 1000))
def test_pushing_goes_on_in_the_direction_of_before(problem: Problem, seed: int) -> None:
    swept, rng = Dual(problem, memory_rows(problem)).flat, np.random.default_rng(seed)
    given_ = rng.random(swept.size), rng.random(len(swept.cost)), rng.random(swept.size)
    before, nodes, messages = (array.copy() for array in given_)
    kernels.push(swept, 0.7, before, nodes, messages)
    way = 0.7 * (given_[2] - given_[0])
    assert messages == pytest.approx(given_[2] + way)
    sums = np.zeros(len(nodes))
    flat.add_messages(swept, way, sums)
    assert nodes == pytest.approx(given_[1] + sums)
    assert np.array_equal(before, given_[2])  # where messages were


@settings(max_examples=50, deadline=None)
@given(
    problems(limited=False).filter(is_finite),
    st.integers(0, 1000),
    st.sampled_from([np.float32, np.float64]),
)
def test_messages_add_up(problem: Problem, seed: int, kind: type[np.floating]) -> None:
    found_flat, rng = Dual(problem, memory_rows(problem)).flat, np.random.default_rng(seed)
    messages = rng.random(found_flat.size).astype(kind)
    sums = np.zeros(len(found_flat.cost))
    flat.add_messages(found_flat, messages, sums)
    told = flat.per_edge(found_flat, messages.astype(np.float64))
    each = [np.zeros(count) for count in problem.counts]
    for edge, (to_u, to_v) in zip(problem.edges, told, strict=True):
        each[edge.u] += to_u
        each[edge.v] += to_v
    assert sums.sum() == pytest.approx(sum(part.sum() for part in each))
    assert sorted(sums) == pytest.approx(sorted(np.concatenate(each)))
