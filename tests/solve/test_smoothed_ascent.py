"""Messages and prices that rise together: what they prove is a bound, momentum pays, and prices reach the core."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings

from autopar.solve import Edge, Problem, SolveOptions, solve, verify
from autopar.solve.certificate.proof import Prices
from autopar.solve.problem.incumbent import Best
from autopar.solve.problem.rows import memory_rows
from autopar.solve.trws.acceleration import Momentum
from autopar.solve.trws.ascent import Ascent
from autopar.solve.trws.dual import Dual
from autopar.solve.trws.kernels import bound_after, sweep
from autopar.solve.trws.smoothed_ascent import ascend_smoothly, soft_use
from tests.solve.draw import chain_with_skips, problems
from tests.solve.oracle import optimum

_ROUNDING = 1e-9
_SWEEPS = 60


def is_finite(problem: Problem) -> bool:
    return all(
        np.isfinite(cost).all()
        for cost in (*problem.node_costs, *(edge.cost for edge in problem.edges))
    )


def scarce(seed: int) -> Problem:
    """A hundred and twenty nodes, ten at a time live, in little more memory than they need."""
    problem = chain_with_skips(120, 6, 20, seed, memory=True)
    usages = tuple(replace(use, stop=use.start + 10) for use in problem.usages)
    least, most = (
        float(sum(extreme(use.size_bytes) for use in usages)) for extreme in (np.min, np.max)
    )
    return replace(problem, usages=usages, usage_limit=(least + 0.5 * (most - least)) / 12)


def torus(seed: int, width: int = 8) -> Problem:
    """Many cycles and no pattern: messages settle slowly."""
    random, nodes = np.random.default_rng(seed), width * width
    pairs = [(v, other) for v in range(nodes) for other in ((v + 1) % nodes, (v + width) % nodes)]
    edges = tuple(Edge(u, v, random.random((4, 4))) for u, v in pairs)
    return Problem(tuple(random.random(4) for _ in range(nodes)), edges)


@settings(max_examples=150, deadline=None)
@given(problems(limited=True).filter(is_finite))
def test_what_is_met_on_the_way_is_a_bound(problem: Problem) -> None:
    best, dual = optimum(problem), Dual(problem, memory_rows(problem))
    held = ascend_smoothly(dual, dual.state(), _SWEEPS, best, Best(problem, None, None))
    certificate = dual.certificate(held)
    tolerance = _ROUNDING * (1 + abs(held.bound))
    assert (held.prices >= 0).all()
    # of the messages and prices alone
    assert certificate.bound == pytest.approx(held.bound, abs=tolerance)
    assert certificate.bound <= best + tolerance


@settings(max_examples=100, deadline=None)
@given(problems(limited=True).filter(is_finite))
def test_after_a_sweep_nodes_alone_tell_the_bound(problem: Problem) -> None:
    dual = Dual(problem, memory_rows(problem))
    dual.set_prices(np.full(dual.rows.count, 0.01))
    for _ in range(3):
        dual.sweep()
        assert dual.swept().bound == pytest.approx(dual.state().bound, abs=_ROUNDING)


@settings(max_examples=50, deadline=None)
@given(problems(limited=True).filter(is_finite))
def test_wide_problems_settle_at_a_bound(problem: Problem) -> None:
    best, ascent = optimum(problem), Ascent(problem, SolveOptions(max_sweeps=40))
    found, certificate = ascent.settle(np.inf, Best(problem, None, None))
    assert certificate.bound <= best + _ROUNDING * (1 + abs(certificate.bound))
    assert found.objective >= best * (1 - _ROUNDING) - _ROUNDING


@settings(max_examples=100, deadline=None)
@given(problems(limited=True).filter(is_finite))
def test_a_sweep_with_beliefs_is_a_sweep(problem: Problem) -> None:
    rows = memory_rows(problem)
    plain, other = Dual(problem, rows), Dual(problem, rows)
    belief = np.zeros(len(other.flat.cost))
    for _ in range(3):
        plain.sweep()
        sweep(other.flat, False, other.nodes, other.messages, belief)
        low = bound_after(other.flat, other.nodes)
        np.testing.assert_array_equal(other.messages, plain.messages)
        assert low == pytest.approx(plain.state().bound, abs=_ROUNDING * (1 + abs(low)))


def test_soft_use_is_that_of_the_choice_when_cold_and_of_all_when_hot() -> None:
    problem = scarce(0)
    rows = memory_rows(problem)
    dual, used = Dual(problem, rows), np.zeros(rows.count)
    soft_use(dual.flat, dual.flat.cost, 1e-12, used)
    ties = [np.flatnonzero(cost == cost.min()) for cost in problem.node_costs]
    mean = [segment.size_bytes[ties[segment.node]].mean() for segment in rows.segments]
    assert rows.count
    assert used == pytest.approx(rows.sums(np.array(mean)))
    soft_use(dual.flat, dual.flat.cost, 1e12, used)
    assert used == pytest.approx(
        rows.sums(np.array([segment.size_bytes.mean() for segment in rows.segments]))
    )


@pytest.mark.parametrize("seed", range(3))
def test_momentum_takes_fewer_sweeps(seed: int) -> None:
    """A third of the sweeps, and the bound is higher."""
    problem = torus(seed)
    bounds: list[float] = []
    for is_moved, sweeps in ((False, 60), (True, 20)):
        dual = Dual(problem, memory_rows(problem))
        momentum = Momentum(dual)
        for _ in range(sweeps):
            dual.sweep()
            momentum.rises(dual.state().bound)
            best = dual.state().bound
            if is_moved:
                momentum.go_on(dual, with_prices=False)
        bounds.append(best)
    assert bounds[1] > bounds[0]


@pytest.mark.parametrize("seed", range(2))
def test_the_dual_is_as_its_messages_and_prices_say(seed: int) -> None:
    """Nodes' costs are moved on by themselves, not computed from messages: they must not drift apart."""
    problem = scarce(seed)
    dual = Dual(problem, memory_rows(problem))
    momentum, random = Momentum(dual), np.random.default_rng(seed)
    for step in range(20):
        dual.sweep()
        momentum.rises(float(step))
        momentum.go_on(dual, with_prices=step % 2 == 0)
        dual.set_prices(
            np.maximum(0.0, dual.prices + random.normal(scale=1e-6, size=dual.rows.count))
        )
        assert (dual.prices >= 0).all()
        same = Dual(problem, dual.rows)
        same.restore(dual.state())
        np.testing.assert_allclose(dual.nodes, same.nodes, atol=1e-12)


def test_prices_before_reductions_are_where_the_core_begins() -> None:
    problem, begun = scarce(1), list[np.ndarray]()
    price = Ascent.price
    options = SolveOptions(
        max_table_entries=64,
        max_total_entries=64,
        max_cp_sat_entries=0,
        max_rounds=1,
        max_sweeps=60,
        anneal_passes=5,
        branch_entries=0,
    )
    with patch.object(
        Ascent, "price", lambda self, prices: (begun.append(prices), price(self, prices))[1]
    ):
        solution = solve(problem, options=options)
    assert any(prices.any() for prices in begun)
    assert verify(problem, solution).bound >= solution.lower_bound - _ROUNDING * abs(
        solution.objective
    )


def test_prices_of_times_that_have_no_row_are_left_out() -> None:
    rows = memory_rows(scarce(0))
    gone = int(rows.times.max()) + 5
    times = np.array([*rows.times[:2].tolist(), gone], dtype=np.intp)
    assert rows.by_row(Prices(times, np.array([1.0, 2.0, 3.0]))).tolist() == [
        1.0,
        2.0,
        *np.zeros(rows.count - 2),
    ]
