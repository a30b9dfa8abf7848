"""What a window bars no choice within it contains; squeezing a window finds its optimum or proves it empty."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from autopar.solve import (
    Edge,
    Infeasible,
    InvalidSolution,
    Problem,
    SolveOptions,
    proven,
    solve,
    verify,
)
from autopar.solve.certificate.proof import Bar, Eliminate, Prices, Unlimit
from autopar.solve.elimination.bucket_elimination import minimise_exactly, plan_elimination
from autopar.solve.fixing import fixed_point as fixed_point_module
from autopar.solve.fixing import reduced_cost_fixing as bar
from autopar.solve.fixing.fixed_point import fixed_in_window, fixed_in_windows
from autopar.solve.fixing.reduced_cost_fixing import pairs_fixed, sampled, window_of
from autopar.solve.presolve.arc_consistency import drop_forbidden, possible
from autopar.solve.presolve.reduce import merge_parallel
from autopar.solve.problem.incumbent import Best
from autopar.solve.problem.reduction import kept, unchanged
from autopar.solve.problem.rows import memory_rows
from autopar.solve.trws.ascent import Answer
from autopar.solve.trws.dual import Certificate, Dual
from tests.solve.draw import problems
from tests.solve.oracle import choices, cost_of, optimum, peak_of

NARROW = SolveOptions(max_table_entries=220)
TABLES = SolveOptions(max_table_entries=100, max_rounds=0, max_cp_sat_entries=100)
NO_PRICES = Prices(np.zeros(0, dtype=np.intp), np.zeros(0))


def _certified(problem: Problem, price: float = 0.0) -> Certificate | None:
    """A certificate after a sweep, of what is left of the problem without forbidden strategies; None if nothing is."""
    try:
        problem = unchanged(problem).then(merge_parallel).then(drop_forbidden).problem
    except Infeasible:
        return None
    rows = memory_rows(problem)
    dual = Dual(problem, rows)
    dual.set_prices(np.full(rows.count, price))
    dual.sweep()
    return dual.certificate(dual.state())


def _grid(side: int, strategies: int, seed: int) -> Problem:
    """Nodes on a grid, at random costs: messages alone prove no choice of it."""
    rng = np.random.default_rng(seed)
    across = [(v, v + 1) for v in range(side * side) if (v + 1) % side]
    down = [(v, v + side) for v in range(side * (side - 1))]
    edges = tuple(Edge(u, v, rng.random((strategies, strategies))) for u, v in across + down)
    return Problem(tuple(rng.random(strategies) for _ in range(side * side)), edges)


@settings(max_examples=80, deadline=None)
@given(problem=problems(max_nodes=5), price=st.floats(0, 0.5), window=st.floats(0, 3))
def test_what_goes_is_in_no_choice_within_the_window(
    problem: Problem, price: float, window: float
) -> None:
    certificate = _certified(problem, price)
    if certificate is None:
        return
    problem, most = certificate.problem, certificate.bound + window
    limit = np.inf if problem.usage_limit is None else problem.usage_limit
    wanted = {
        c for c in choices(problem) if cost_of(problem, c) <= most and peak_of(problem, c) <= limit
    }
    try:
        reduction = pairs_fixed(certificate, window)
    except Infeasible as error:
        empty = error
    else:
        empty = None
    if empty is not None:
        assert not wanted
        assert proven(problem, empty.witness or ()).bound <= optimum(problem) + 1e-9
        return
    small = reduction.problem
    left = {reduction.lift(c): (cost_of(small, c), peak_of(small, c)) for c in choices(small)}
    assert wanted <= {choice for choice, (cost, _) in left.items() if np.isfinite(cost)}
    for choice, (cost, peak) in left.items():
        if np.isfinite(cost):
            assert cost == pytest.approx(cost_of(problem, choice), rel=1e-9, abs=1e-9)
            assert peak == pytest.approx(peak_of(problem, choice), rel=1e-9)
    order = tuple(range(len(small.node_costs)))
    best, found = (
        optimum(replace(problem, usage_limit=None)),
        proven(problem, (*reduction.steps, Eliminate(order))),
    )
    assert found.bound <= optimum(problem) * (1 + 1e-9) + 1e-9
    assert found.bound >= min(best, most) - 1e-9


BOTH_WAYS = Problem(
    (np.array([0.0, 0.0]), np.array([np.inf, 0.0, 0.0])),
    (
        Edge(1, 0, np.zeros((3, 2))),
        Edge(0, 1, np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])),
        Edge(0, 1, np.array([[0.0, 0.0, np.inf], [0.0, np.inf, 2.0]])),
    ),
)
"""Of whose one table pairs go twice: what those of the second time cost is not what is left after the first."""


@settings(max_examples=80, deadline=None)
@given(problem=problems(), price=st.floats(0, 0.5), seed=st.integers(0, 1000))
@example(problem=BOTH_WAYS, price=0.0, seed=3)
def test_whatever_pairs_go_no_more_is_proven_than_is_true(
    problem: Problem, price: float, seed: int
) -> None:
    rng, rows = np.random.default_rng(seed), memory_rows(problem)
    shapes = {(e.u, e.v): e.cost.shape for e in problem.edges}
    pairs = {ends: np.packbits(rng.random(shape) < 0.4) for ends, shape in shapes.items()}
    step = Bar(pairs, rows.at_times(np.full(rows.count, price)))
    order = tuple(range(len(problem.node_costs)))
    found = proven(problem, (step, Unlimit(), Eliminate(order)))
    assert not found.bound > optimum(problem) * (1 + 1e-9) + 1e-9


@pytest.mark.parametrize("is_best_known", [True, False])
def test_a_window_of_few_pairs_up_to_a_known_cost_is_squeezed_at_once(
    is_best_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All pairs are not looked at for that; the same is proven as by windows that grow."""
    problem = _grid(4, 6, 3)
    choice, best = minimise_exactly(problem, plan_elimination(problem))
    certificate, watch = _certified(problem), Best(problem, None, None)
    assert certificate is not None
    cutoff = best if is_best_known else best * 1.01
    monkeypatch.setattr(
        fixed_point_module, "sampled", lambda *_: pytest.fail("all pairs were looked at")
    )
    found = fixed_in_windows(certificate, cutoff, SolveOptions(), watch)
    assert found.bound == pytest.approx(best, rel=1e-9)
    assert is_best_known or found.choice == choice


def test_bits_for_another_matrix_are_refused() -> None:
    problem = _grid(2, 3, 0)
    with pytest.raises(InvalidSolution, match=r"edge \(0, 1\): 1 bytes of bits for 9 pairs"):
        proven(problem, (Bar({(0, 1): np.packbits(np.ones(8, dtype=bool))}, NO_PRICES),))


@pytest.mark.parametrize("seed", range(12))
def test_a_window_is_solved_or_proven_empty(seed: int) -> None:
    problem = _grid(4, 6, seed)
    _, best = minimise_exactly(problem, plan_elimination(problem))
    certificate = _certified(problem)
    assert certificate is not None
    for share in (0.5, 0.999999, 1.000001, 1.3):
        upper, watch = (
            certificate.bound + share * (best - certificate.bound),
            Best(problem, None, None),
        )
        found = fixed_in_window(certificate, upper, NARROW, watch)
        assert found.bound <= min(best, upper) + 1e-9
        assert watch.bound == pytest.approx(found.bound, rel=1e-9)
        assert found.bound * (1 - 1e-9) <= proven(problem, watch.proof).bound <= best * (1 + 1e-9)
        if share < 1:
            assert found.bound == upper
        if found.choice is not None:
            assert found.objective == pytest.approx(cost_of(problem, found.choice), rel=1e-12)
        if share == 1.000001:
            assert (found.objective, found.bound) == (pytest.approx(best), pytest.approx(best))


def _different() -> Problem:
    """Nodes that are to differ: messages prove little."""
    different = np.eye(4) + 0.01 * np.random.default_rng(0).random((4, 4))
    return Problem(
        (np.zeros(4),) * 6, tuple(Edge(u, v, different) for v in range(6) for u in range(v))
    )


def test_it_says_where_it_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without tables and joins nothing goes, and the bound is little more than messages prove."""
    monkeypatch.setattr(fixed_point_module, "has_few_pairs", lambda _: False)
    problem = _different()
    certificate = _certified(problem)
    assert certificate is not None
    watch = Best(problem, None, None)
    found = fixed_in_window(
        certificate, certificate.bound + 100.0, SolveOptions(max_table_entries=1), watch
    )
    assert (
        certificate.bound
        <= found.bound
        < minimise_exactly(problem, plan_elimination(problem))[1] - 1e-6
    )
    assert watch.bound == found.bound


def test_knots_that_cannot_be_untied_do_not_keep_it_going(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where what joins leave would be too large, windows become narrower and it ends."""
    problem, asked = _different(), list[int]()
    certificate = _certified(problem)
    assert certificate is not None

    def to_merge(*_: object) -> list[frozenset[int]]:
        asked.append(len(asked))
        assert len(asked) < 20
        return [frozenset((0, 1, 2))]

    monkeypatch.setattr(fixed_point_module, "has_few_pairs", lambda _: False)
    monkeypatch.setattr(fixed_point_module, "frustrated_cycles", to_merge)
    monkeypatch.setattr("autopar.solve.fixing.node_merging._ENTRIES", 0)
    watch, options = Best(problem, None, None), SolveOptions(max_table_entries=1)
    found = fixed_in_window(certificate, certificate.bound + 100.0, options, watch, may_merge=True)
    assert asked
    assert certificate.bound <= found.bound <= found.objective


def test_where_few_pairs_are_left_all_cycles_are_untied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a look for frustrated cycles, and in the first window: what was open at it ends so."""
    problem = _different()
    certificate = _certified(problem)
    assert certificate is not None
    best, options = solve(problem).objective, SolveOptions(max_table_entries=1)
    monkeypatch.setattr(fixed_point_module, "has_few_pairs", lambda _: True)
    monkeypatch.setattr(
        fixed_point_module,
        "frustrated_cycles",
        lambda *_: pytest.fail("frustrated cycles were looked for"),
    )
    watch = Best(problem, None, None)
    found = fixed_in_window(certificate, best + 0.1, options, watch)
    assert (found.objective, found.bound) == (pytest.approx(best), pytest.approx(best))
    assert proven(problem, watch.proof).bound == pytest.approx(best)


def test_windows_grow_where_the_choice_that_is_known_is_a_poor_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A window up to its cost leaves too much; narrow ones find a good choice, which is then proven."""
    problem, tried = _grid(6, 8, 1), list[float]()
    best = solve(problem).objective
    dual = Dual(problem, memory_rows(problem))
    dual.sweep()
    certificate = dual.certificate(dual.state())

    def open_at_first(*args: Any, **kwargs: Any) -> Answer:
        tried.append(args[1])
        return (
            Answer(None, np.inf, certificate.bound)
            if len(tried) == 1
            else fixed_in_window(*args, **kwargs)
        )

    monkeypatch.setattr(fixed_point_module, "fixed_in_window", open_at_first)
    monkeypatch.setattr(fixed_point_module, "_LEAST_SHARE", 0.003)
    cutoff = best + 0.2 * (best - certificate.bound)
    found = fixed_in_windows(certificate, cutoff, SolveOptions(), Best(problem, None, None))
    assert (found.objective, found.bound) == (pytest.approx(best), pytest.approx(best))
    assert tried[0] == cutoff
    assert certificate.bound < tried[1] < cutoff


@pytest.mark.parametrize("pairs", [0, 100, 400, 10_000])
def test_the_window_that_leaves_so_many_pairs(pairs: int) -> None:
    certificate = _certified(_grid(4, 6, 3))
    assert certificate is not None
    above, each = sampled(certificate)
    window = window_of(above, pairs / each)
    if pairs == 10_000:
        assert window == np.inf
        return
    left = pairs_fixed(certificate, window).problem
    assert (
        0.6 * pairs <= sum(int(np.isfinite(edge.cost).sum()) for edge in left.edges) <= pairs + 30
    )


@settings(max_examples=80, deadline=None)
@given(problem=problems())
def test_arc_consistency_is_the_same_with_and_without_sharing(problem: Problem) -> None:
    found: list[Any] = []
    for unshared in (0.0, 2.0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("autopar.solve.presolve.arc_consistency._UNSHARED", unshared)
            try:
                found.append({v: ids.tolist() for v, ids in kept(possible(problem)).items()})
            except Infeasible:
                found.append(None)
    assert found[0] == found[1]


def test_solving_ends_by_it_without_a_search() -> None:
    """Neither elimination of the whole nor CP-SAT is needed, and the witness is replayed without anyone's word."""
    problem = _grid(6, 8, 1)
    best = solve(problem).objective
    solution = solve(problem, options=TABLES)
    assert (solution.gap, solution.objective) == (0.0, pytest.approx(best))
    assert verify(problem, solution).stated_by == ()
    assert any(isinstance(step, Bar) for step in solution.witness or ())


def _narrowed(function: Callable[..., Any]) -> Callable[..., Any]:
    def planted(costs: Any, edges: Any, pool: Any, most: float) -> Any:
        return function(costs, edges, pool, most / 4)

    return planted


def test_a_window_that_bars_too_much_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = _grid(6, 8, 1)
    monkeypatch.setattr(bar, "_without_dear", _narrowed(bar._without_dear))
    solution = solve(problem, options=TABLES)
    with pytest.raises(InvalidSolution, match="its witness proves"):
        verify(problem, solution)
