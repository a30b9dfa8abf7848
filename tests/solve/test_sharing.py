"""Work shared or left out: orders of sweeps, repeated rows, dominance on a budget, gaps that are enough."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.solve import Edge, Infeasible, Problem, SolveOptions, solve
from autopar.solve.certificate.proof import Forbid
from autopar.solve.elimination.bucket_elimination import NOTHING, exactly, plan_elimination, reduced
from autopar.solve.pipeline import stage as known
from autopar.solve.presolve import dead_end_elimination as dominate
from autopar.solve.presolve.arc_consistency import drop_forbidden
from autopar.solve.problem.incumbent import Best
from autopar.solve.problem.reduction import restrict
from autopar.solve.problem.rows import memory_rows
from autopar.solve.trws.arrays import flatten, sweep_order
from autopar.solve.trws.dual import Dual
from autopar.solve.trws.kernels import gain_of
from tests.solve.draw import chain_with_skips, problems
from tests.solve.oracle import optimum


def ladder(steps: int) -> Problem:
    """A forward chain, a backward chain, an edge between the two at every step, and one node tied to all."""
    forward, backward, hub = range(steps), range(steps, 2 * steps), 2 * steps
    pairs = [*itertools.pairwise(forward), *itertools.pairwise(backward)]
    pairs += [(n, 2 * steps - 1 - n) for n in forward] + [(v, hub) for v in range(2 * steps)]
    matrix = np.array([[0.0, 1.0], [1.0, 0.0]])
    return Problem((np.zeros(2),) * (hub + 1), tuple(Edge(u, v, matrix) for u, v in pairs))


@settings(max_examples=100, deadline=None)
@given(problem=problems())
def test_every_node_is_swept_once(problem: Problem) -> None:
    assert sorted(sweep_order(problem).tolist()) == list(range(len(problem.node_costs)))


def test_neighbours_are_swept_side_by_side_and_hubs_first() -> None:
    problem = ladder(40)
    order = sweep_order(problem).tolist()
    rank = {v: n for n, v in enumerate(order)}
    assert order[0] == 80
    spans = [
        abs(rank[edge.u] - rank[edge.v]) for edge in problem.edges if 80 not in (edge.u, edge.v)
    ]
    assert max(spans) <= 4  # in their own order: 79


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    sizes=st.tuples(st.integers(16, 24), st.integers(16, 24)),
    repeated=st.tuples(st.booleans(), st.booleans()),
)
def test_repeated_rows_and_columns_change_no_message(
    seed: int, sizes: tuple[int, int], repeated: tuple[bool, bool]
) -> None:
    rng = np.random.default_rng(seed)
    few = rng.random((4 if repeated[0] else sizes[0], 3 if repeated[1] else sizes[1]))
    # no row and no column is nothing but infinite, so none is another's equal by chance
    inner = few[1:, 1:]
    inner[rng.random(inner.shape) < 0.1] = np.inf
    picked = [
        rng.permutation(np.arange(size) % count)
        for size, count in zip(sizes, few.shape, strict=True)
    ]
    matrix = few[np.ix_(*picked)]
    problem = Problem((rng.random(sizes[0]), rng.random(sizes[1])), (Edge(0, 1, matrix),))
    flat = flatten(problem, memory_rows(problem), np.array([1, 0]))
    messages, gain = rng.random(flat.size), np.empty(3 * flat.widest)
    assert sorted(flat.tall.tolist()) == sorted(few.shape)
    for v, arc, costs in ((1, flat.arcs[0, 0], matrix), (0, flat.arcs[0, 1], matrix.T)):
        begin = flat.mail[flat.back[arc]]
        gain_of(flat, v, int(arc), messages, gain)
        expected = (costs - messages[begin : begin + costs.shape[1]]).min(axis=1)
        assert gain[: len(expected)].tolist() == expected.tolist()


@settings(max_examples=100, deadline=None)
@given(problem=problems())
def test_nodes_that_are_too_dear_to_compare_stay(problem: Problem) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dominate, "_MOST_WORK", 8)
        left = dominate.drop_dominated(problem)
    assert optimum(left.problem) + left.offset == pytest.approx(
        optimum(problem), rel=1e-9, abs=1e-12
    )
    tied = [
        sum(n for e in problem.edges for u, n in _ends(e) if u == v)
        for v in range(len(problem.node_costs))
    ]
    for v, count in enumerate(problem.counts):
        if count**2 * tied[v] > 8:
            assert left.problem.counts[v] == count


def _ends(edge: Edge) -> list[tuple[int, int]]:
    return [(edge.u, edge.cost.shape[1]), (edge.v, edge.cost.shape[0])]


def test_equal_layers_are_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    whole = dominate._undominated

    def counted(*args):
        calls.append(1)
        return whole(*args)

    monkeypatch.setattr(dominate, "_undominated", counted)
    dominate.drop_dominated(chain_with_skips(80, 5, 8, seed=1))
    assert len(calls) < 25


@settings(max_examples=100, deadline=None)
@given(problem=problems(), data=st.data())
def test_restrictions_share_what_was_shared(problem: Problem, data: st.DataObject) -> None:
    keep = [
        np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n))) for n in problem.counts
    ]
    keep = [mask if mask.any() else ~mask for mask in keep]
    small = restrict(problem, keep, Forbid).problem
    for before, after, mask in zip(problem.node_costs, small.node_costs, keep, strict=True):
        assert after.tolist() == before[mask].tolist()
    for before, after in zip(problem.edges, small.edges, strict=True):
        assert after.cost.tolist() == before.cost[np.ix_(keep[before.u], keep[before.v])].tolist()
    twice = Problem(problem.node_costs * 2, ())
    halves = restrict(twice, keep * 2, Forbid).problem.node_costs
    assert all(a is b for a, b in zip(halves[: len(keep)], halves[len(keep) :], strict=True))


@settings(max_examples=100, deadline=None)
@given(problem=problems(limited=False), most=st.integers(1, 30))
def test_plans_end_at_the_first_table_that_is_too_large(problem: Problem, most: int) -> None:
    whole, cut = plan_elimination(problem), plan_elimination(problem, most)
    fitting = len(cut.order) - (cut.largest_entries > most)
    assert cut.order[:fitting] == whole.order[:fitting]
    assert (cut == whole) == (whole.largest_entries <= most)
    assert (cut.largest_entries > most) == (whole.largest_entries > most)


@settings(max_examples=60, deadline=None)
@given(problem=problems(), gap=st.sampled_from([0.0, 0.1, 1.0]))
def test_a_gap_that_is_enough_is_an_honest_one(problem: Problem, gap: float) -> None:
    options = SolveOptions(
        max_table_entries=1, max_cp_sat_entries=0, gap_tolerance=gap, anneal_passes=20
    )
    best = optimum(problem)
    try:
        solution = solve(problem, options=options)
    except Infeasible:
        assert best == np.inf
        return
    assert solution.lower_bound <= best * (1 + 1e-9) <= solution.objective * (1 + 2e-9) + 1e-12


@pytest.mark.parametrize("low", [-2.0, 0.0, 2.0])
@pytest.mark.parametrize("gap", [0.0, 0.5, 1.0, 3.0])
def test_what_is_enough_may_cost_so_much(low: float, gap: float) -> None:
    """By the gap that a plan says: (cost - bound) / |cost|."""
    watch = Best(Problem((np.zeros(2),), ()), None, tolerance=gap)

    def is_left(cost: float) -> bool:
        return known.Bracket(replace(NOTHING, objective=cost), low, np.inf, watch).is_left

    most = known.Bracket(NOTHING, low, np.inf, watch).enough
    assert np.isfinite(most) == (low <= 0 or gap < 1)
    assert not is_left(most - 1e-9 if np.isfinite(most) else 1e9)
    assert gap >= 1 or is_left(most + 1e-9)


def test_a_gap_that_may_be_left_spares_the_rest_of_the_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(0)
    edges = tuple(Edge(u, v, rng.random((4, 4))) for u in range(8) for v in range(u))
    problem = Problem(tuple(np.zeros(4) for _ in range(8)), edges)
    rounds: list[int] = []
    by_all = "autopar.solve.pipeline.rounds.by_all"
    monkeypatch.setattr(by_all, lambda *_: rounds.append(1) or pytest.fail("searched on"))
    options = SolveOptions(max_table_entries=1, max_cp_sat_entries=100, gap_tolerance=1.0)
    # they would prove this before
    options = options.without("fixing.fixed_point").without("primal.crossover")
    assert 0 < solve(problem, options=options).gap < 1
    wanted = replace(options, gap_tolerance=1e-9)
    with pytest.raises(pytest.fail.Exception, match="searched on"):
        solve(problem, options=wanted)
    # too many for rounds to end
    monkeypatch.setattr("autopar.solve.pipeline.closing._MOST_ENTRIES", 0)
    assert wanted.gap_tolerance < solve(problem, options=wanted).gap < 1
    with pytest.raises(
        pytest.fail.Exception, match="searched on"
    ):  # which who gives a time may have tried
        solve(problem, options=replace(wanted, time_limit_s=60.0))


@settings(max_examples=100, deadline=None)
@given(problem=problems(limited=False))
def test_sweeps_in_any_order_prove_what_holds(problem: Problem) -> None:
    try:
        problem = drop_forbidden(problem).problem
    except Infeasible:
        return
    dual = Dual(problem, memory_rows(problem))
    for _ in range(5):
        dual.sweep()
    best = optimum(problem)
    assert math.isinf(best) or dual.state().bound <= best + 1e-9
    assert len(dual.decode()) == len(problem.counts)
    try:
        left = reduced(problem, SolveOptions())
    except Infeasible:
        assert math.isinf(best)
        return
    found = exactly(left.problem, SolveOptions())
    assert found is not None
    assert found.objective + left.offset == pytest.approx(best, rel=1e-9, abs=1e-12)
