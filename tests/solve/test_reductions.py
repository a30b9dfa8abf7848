"""Every reduction keeps the optimum, and its lift gives back a choice that costs no more than it says."""

from __future__ import annotations

import weakref
from functools import partial

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from autopar.solve import Edge, Infeasible, Problem, SolveOptions, Usage, solve, verify
from autopar.solve.certificate.check import proven
from autopar.solve.certificate.proof import Eliminate
from autopar.solve.cp_sat.finish import finish
from autopar.solve.elimination.bucket_elimination import (
    minimise_exactly,
    plan_elimination,
    reduced_fully,
)
from autopar.solve.elimination.min_sum import MinSum, min_product
from autopar.solve.pipeline import closing
from autopar.solve.presolve.arc_consistency import drop_forbidden, is_finite
from autopar.solve.presolve.dead_end_elimination import drop_dominated
from autopar.solve.presolve.functional_edges import _functions, contract_functional
from autopar.solve.presolve.knapsack_filtering import drop_oversized
from autopar.solve.presolve.reduce import (
    drop_lone,
    fold_constant,
    merge_parallel,
    reduce_cheaply,
    reduce_fully,
    share_equal,
)
from autopar.solve.presolve.variable_elimination import contract_chains
from autopar.solve.problem.factored_matrix import Thin, thinned
from autopar.solve.problem.incumbent import Best
from autopar.solve.problem.reduction import Reduction, size, unchanged, without_limit
from autopar.solve.problem.rows import drop_slack, memory_rows
from autopar.solve.trws.dual import Dual
from tests.solve.draw import chain_with_skips, problems
from tests.solve.oracle import choices, cost_of, optimum, peak_of, reparametrised

OPTIONS = SolveOptions()
REDUCTIONS = [
    drop_forbidden,
    contract_functional,
    share_equal,
    merge_parallel,
    fold_constant,
    drop_lone,
    drop_dominated,
    drop_oversized,
    drop_slack,
    reduce_cheaply,
    reduce_fully,
    lambda problem: contract_chains(problem, OPTIONS),
]
NAMES = [getattr(step, "__name__", "") for step in REDUCTIONS[:-1]] + ["contract_chains"]


@pytest.mark.quick_share(3)
@pytest.mark.parametrize("step", REDUCTIONS, ids=NAMES)
@settings(max_examples=120, deadline=None)
@given(problem=problems())
def test_optimum_is_kept_and_lifted(step, problem):
    best = optimum(problem)
    try:
        reduction = step(problem)
    except Infeasible:
        assert best == np.inf
        return
    small = reduction.problem
    assert sum(size(small)) <= sum(size(problem))
    kept = optimum(small) + reduction.offset
    assert kept == pytest.approx(best, rel=1e-9, abs=1e-12)
    for choice in choices(small):
        lifted = reduction.lift(choice)
        inside = small.usage_limit is None or peak_of(small, choice) <= small.usage_limit
        if np.isfinite(cost_of(small, choice)) and inside:
            assert cost_of(problem, lifted) <= cost_of(small, choice) + reduction.offset + 1e-9
            limit = np.inf if problem.usage_limit is None else problem.usage_limit
            assert peak_of(problem, lifted) <= limit * (1 + 1e-12)


@settings(max_examples=150, deadline=None)
@given(problem=problems(limited=False))
def test_elimination_is_exact(problem):
    choice, cost = minimise_exactly(problem, plan_elimination(problem))
    assert cost == pytest.approx(optimum(problem), rel=1e-9, abs=1e-12)
    if np.isfinite(cost):
        assert cost_of(problem, choice) == pytest.approx(cost, rel=1e-9, abs=1e-12)


def test_more_neighbours_of_one_strategy_than_an_array_has_axes() -> None:
    """Three nodes in a ring, and eighty with one strategy each beside two of them."""
    draw = np.random.default_rng(3)
    counts = (2, 3, 2, *(1,) * 80)
    pairs = [(0, 1), (1, 2), (0, 2), *((u, v) for v in range(3, 83) for u in (0, 1))]
    edges = tuple(
        Edge(u, v, draw.integers(0, 9, (counts[u], counts[v])).astype(float)) for u, v in pairs
    )
    problem = Problem(tuple(draw.integers(0, 9, n).astype(float) for n in counts), edges, (), None)
    choice, cost = minimise_exactly(problem, plan_elimination(problem))
    assert cost == cost_of(problem, choice) == optimum(problem)
    order = (*range(3, 83), 0, 1, 2)
    assert (
        proven(problem, (Eliminate(order),)).bound
        == proven(problem, (Eliminate(order[::-1]),)).bound
        == cost
    )


def _finite(problem: Problem) -> Problem | None:
    try:
        return drop_forbidden(problem).problem
    except Infeasible:
        return None


@settings(max_examples=100, deadline=None)
@given(problem=problems())
def test_dual_bounds_hold_for_every_choice(problem):
    problem = _finite(problem)
    if problem is None:
        return
    rows = memory_rows(problem)
    dual, before = Dual(problem, rows), -np.inf
    for sweep in range(4):
        dual.sweep()
        state = dual.state()
        certificate = dual.certificate(state)
        assert state.bound == pytest.approx(certificate.bound, rel=1e-9, abs=1e-9)
        assert certificate.bound >= before - 1e-9
        bound, excess = reparametrised(
            problem, rows.priced(certificate.prices, problem.node_costs), certificate.messages
        )
        assert certificate.bound == pytest.approx(
            bound - certificate.prices.sum() * min(rows.limit, 1e300), abs=1e-9
        )
        for found, expected in zip(certificate.excess, excess, strict=True):
            assert found == pytest.approx(expected, abs=1e-9)
        before = certificate.bound if sweep != 1 else -np.inf
        if sweep == 1:
            dual.set_prices(np.linspace(0, 0.3, rows.count))
    for choice in choices(problem):
        if rows.count and (rows.used(choice) > rows.limit).any():
            continue
        cost = cost_of(problem, choice)
        for v, s in enumerate(choice):
            assert certificate.bound + certificate.excess[v][s] <= cost + 1e-9


@settings(max_examples=150, deadline=None)
@given(problem=problems())
def test_where_strategies_have_no_finite_partner_messages_rule_out_no_choice(problem):
    """They are not numbers there: what is not known is no reason for anything."""
    rows = memory_rows(problem)
    dual = Dual(problem, rows)
    for _ in range(2):
        dual.sweep()
    certificate = dual.certificate(dual.state())
    for cost, choice in _within(problem):
        if np.isfinite(cost):
            assert certificate.bound <= cost + 1e-9
            keep = certificate.keep(cost - certificate.bound)
            assert all(mask[s] for mask, s in zip(keep, choice, strict=True))


@settings(max_examples=150, deadline=None)
@given(problem=problems(limited=True))
def test_rows_say_what_the_limit_says(problem):
    rows = memory_rows(problem)
    for choice in choices(problem):
        assert problem.usage_limit is not None
        peak = peak_of(problem, choice)
        worst = rows.used(choice).max(initial=-np.inf)
        if abs(peak - problem.usage_limit) > 1e-9:
            assert (worst > problem.usage_limit) == (peak > problem.usage_limit)


@pytest.mark.parametrize("seed", range(30))
def test_dominance_reads_every_column(seed):
    """Matrices wider than the sample that refutes most pairs; kept are exactly the undominated."""
    rng = np.random.default_rng(seed)
    cost, matrix = rng.integers(0, 3, 6).astype(float), np.zeros((6, 40))
    for s in range(6):
        matrix[s, rng.integers(0, 40, 2)] = rng.integers(0, 4, 2)
    small = drop_dominated(Problem((cost, np.zeros(40)), (Edge(0, 1, matrix),))).problem
    replaces = [
        [cost[a] - cost[b] + (matrix[a] - matrix[b]).max() <= 0 for b in range(6)] for a in range(6)
    ]
    kept = [
        b
        for b in range(6)
        if not any(replaces[a][b] and (not replaces[b][a] or a < b) for a in range(6))
    ]
    assert small.node_costs[0].tolist() == cost[kept].tolist()


@pytest.mark.parametrize("shape", [(), (7,), (300, 90), (5, 80, 70), (70, 1, 80)])
def test_min_sum_in_pieces(shape):
    """Tables large enough to be made block by block."""
    rng = np.random.default_rng(len(shape))
    tables = [(rng.random(30), (-1,))] + [
        (rng.random((n, 30)), (i, -1)) for i, n in enumerate(shape)
    ]
    tables += [(rng.random((30, *shape)), (-1, *range(len(shape))))]
    total = np.zeros((30, *shape))
    for table, axes in tables:
        total = total + np.moveaxis(table, axes.index(-1), 0).reshape(
            [30] + [n if i in axes else 1 for i, n in enumerate(shape)]
        )
    np.testing.assert_allclose(MinSum().eliminate(shape, tables), total.min(axis=0), rtol=1e-12)


@pytest.mark.parametrize("shape", [(70, 50), (1, 900), (900, 1), (40, 128)])
@pytest.mark.parametrize("count", [0, 1, 67])
def test_min_products_are_those_of_all_entries(shape: tuple[int, int], count: int) -> None:
    """To the last bit; what is forbidden stays so."""
    rng = np.random.default_rng(count)
    cost, a, b = rng.random(count), rng.random((count, shape[0])), rng.random((count, shape[1]))
    for table in (cost, a, b):
        table[rng.random(table.shape) < 0.3] = np.inf
    wanted = (cost[:, None, None] + a[:, :, None] + b[:, None, :]).min(axis=0, initial=np.inf)
    result = np.full(shape, np.nan)
    min_product(cost, np.ascontiguousarray(a.T), b, result)
    np.testing.assert_array_equal(result, wanted)


@pytest.mark.parametrize("kinds", [(3, 200), (200, 3), (7, 11)])
@pytest.mark.parametrize("axes", [((-1, 0), (-1, 1)), ((0, -1), (1, -1)), ((-1, 0), (1, -1))])
def test_products_of_tables_that_repeat_are_those_of_all_entries(
    kinds: tuple[int, int], axes: tuple[tuple[int, int], ...]
) -> None:
    """To the last bit, whichever way up the tables lie."""
    rng, count, shape = np.random.default_rng(kinds[0]), 40, (90, 70)
    cost, repeated = rng.random(count), list[np.ndarray]()
    for kind, n in zip(kinds, shape, strict=True):
        repeated.append(rng.random((count, kind))[:, rng.integers(0, kind, n)])
    wanted = (cost[:, None, None] + repeated[0][:, :, None] + repeated[1][:, None, :]).min(axis=0)
    tables = [
        (np.ascontiguousarray(t if way[0] < 0 else t.T), way)
        for t, way in zip(repeated, axes, strict=True)
    ]
    made = MinSum().eliminate(shape, [(cost, (-1,)), *tables])
    np.testing.assert_array_equal(made, wanted)


def test_a_single_edge_between_two_nodes_stays_as_it_is() -> None:
    """Whichever way up: to turn large matrices takes long. Several are one, rows of the lower node."""
    rng = np.random.default_rng(0)
    alone, one, two = (
        Edge(1, 0, rng.random((3, 2))),
        Edge(2, 1, rng.random((4, 3))),
        Edge(1, 2, rng.random((3, 4))),
    )
    merged = merge_parallel(
        Problem((np.zeros(2), np.zeros(3), np.zeros(4)), (alone, one, two))
    ).problem
    assert merged.edges[0] is alone
    assert [(edge.u, edge.v) for edge in merged.edges] == [(1, 0), (1, 2)]
    np.testing.assert_array_equal(merged.edges[1].cost, one.cost.T + two.cost)


def test_only_equal_arrays_are_shared() -> None:
    """Those that differ where no sample looks are not; layouts in memory do not matter."""
    base = np.arange(40_000.0).reshape(200, 200)
    other, same, turned = base.copy(), base.copy(), np.asfortranarray(base)
    other[-1, -2] += 1
    arrays = [base, other, same, turned, other.copy(), base.reshape(100, 400)]
    counts = [(np.zeros(200),) * 2] * 5 + [(np.zeros(100), np.zeros(400))]
    nodes = tuple(cost for pair in counts for cost in pair)
    edges = tuple(Edge(2 * n, 2 * n + 1, cost) for n, cost in enumerate(arrays))
    shared = [edge.cost for edge in share_equal(Problem(nodes, edges)).problem.edges]
    assert [next(m for m, first in enumerate(shared) if first is cost) for cost in shared] == [
        0,
        1,
        0,
        0,
        1,
        5,
    ]
    assert all(np.array_equal(a, b) for a, b in zip(shared, arrays, strict=True))


def _within(problem: Problem) -> list[tuple[float, tuple[int, ...]]]:
    """Every choice that keeps the rows, with its cost."""
    rows = memory_rows(problem)
    fits = [
        choice
        for choice in choices(problem)
        if not rows.count or (rows.used(choice) <= rows.limit).all()
    ]
    return [(cost_of(problem, choice), choice) for choice in fits]


LEAST_PRICED = Problem(
    (np.zeros(2), np.zeros(3)),
    (Edge(0, 1, np.zeros((2, 3))),),
    (Usage(0, 0, 1, np.array([0.0, 1.0])),),
    0.0,
)


@settings(max_examples=80, deadline=None)
@given(problem=problems(max_nodes=5), price=st.floats(0, 0.5))
@example(problem=LEAST_PRICED, price=5e-324)
def test_cp_sat_is_exact_at_any_prices(problem, price):
    problem = _finite(problem)
    if problem is None:
        return
    rows = memory_rows(problem)
    dual = Dual(problem, rows)
    dual.set_prices(np.full(rows.count, price))
    dual.sweep()
    best = min((cost for cost, _ in _within(problem)), default=np.inf)
    found = finish(dual.certificate(dual.state()), np.inf, None, OPTIONS, Best(problem, None, None))
    assert found.bound == pytest.approx(best, rel=1e-6, abs=1e-6)
    assert found.bound <= best + 1e-9
    assert (found.choice is None) == (best == np.inf)
    if found.choice is not None:
        assert cost_of(problem, found.choice) == pytest.approx(best, rel=1e-6, abs=1e-6)


def test_what_was_reduced_is_not_kept_with_what_it_became() -> None:
    """Chains of reductions are long: problems of three axes have millions of entries each."""
    matrix = np.array([[0.0, 2.0], [3.0, 0.5]])
    problem = Problem((np.zeros(2),) * 4, tuple(Edge(v, v + 1, matrix) for v in range(3)))
    between = unchanged(problem).then(without_limit)
    met = weakref.ref(between.problem)
    found = between.then(partial(contract_chains, options=OPTIONS))
    del between
    assert met() is None
    assert cost_of(problem, found.lift(())) == found.offset


def test_relaxation_drops_memory_only():
    problem = Problem((np.zeros(2),), (), (), 3.0)
    assert without_limit(problem).problem.usage_limit is None


@settings(deadline=None)
@given(st.data(), st.integers(1, 4), st.integers(1, 4))
def test_which_node_follows_is_seen_in_either_direction(
    data: st.DataObject, rows: int, columns: int
) -> None:
    """Of rows, of columns, and of neither: as every row and column says that is looked at."""
    of_rows = st.lists(st.integers(0, columns - 1), min_size=rows, max_size=rows).map(
        lambda to: np.eye(columns)[to] == 1
    )
    of_columns = st.lists(st.integers(0, rows - 1), min_size=columns, max_size=columns).map(
        lambda to: np.eye(rows)[to].T == 1
    )
    any_ = st.lists(st.booleans(), min_size=rows * columns, max_size=rows * columns).map(
        lambda bits: np.array(bits).reshape(rows, columns)
    )
    mask = data.draw(st.one_of(of_rows, of_columns, any_))
    cost = np.where(mask, 1.0, np.inf)
    by_row = (
        [list(line).index(True) for line in mask] if all(sum(line) == 1 for line in mask) else None
    )
    by_column = (
        [list(line).index(True) for line in mask.T]
        if all(sum(line) == 1 for line in mask.T)
        else None
    )
    found = [None if to is None else to.tolist() for to in _functions(cost)]
    assert found == [by_row, by_column]


@settings(deadline=None)
@given(
    st.lists(
        st.lists(st.sampled_from([-1e308, 0.0, 1e308, np.inf]), min_size=3, max_size=3),
        min_size=1,
        max_size=3,
    )
)
def test_what_is_finite_is_seen_at_one_reading(entries: list[list[float]]) -> None:
    cost = np.array(entries)
    assert is_finite(cost) == np.isfinite(cost).all()
    assert is_finite(cost[0]) == np.isfinite(cost[0]).all()
    problem = Problem((np.zeros(len(cost)), np.zeros(3)), (Edge(0, 1, cost),))
    rows, columns = (np.isfinite(cost).any(axis=axis) for axis in (1, 0))
    if rows.any():
        assert drop_forbidden(problem).problem.counts == (rows.sum(), columns.sum())


@pytest.mark.parametrize("seed", [2, 5])
def test_messages_of_what_all_reductions_leave_close_what_those_of_the_whole_do_not(seed: int):
    """Too large for elimination and CP-SAT, so that messages have to prove it, without windows and rounds."""
    problem = chain_with_skips(60, 8, period=5, seed=seed)
    alone = SolveOptions(
        max_table_entries=40, max_rounds=0, max_cp_sat_entries=1, anneal_passes=10
    ).without("fixing.fixed_point")

    found = solve(problem, options=alone)
    assert found.gap == 0
    assert verify(problem, found).bound == pytest.approx(found.objective)
    assert solve(problem, options=alone.without("presolve.dead_end_elimination")).gap > 1e-3


@pytest.mark.parametrize(("period", "is_reduced"), [(5, True), (60, False)])
def test_only_what_many_edges_have_is_reduced_fully_ahead_of_windows(
    period: int, is_reduced: bool, monkeypatch: pytest.MonkeyPatch
):
    """Dominance is asked once of alike nodes; where all differ it takes far longer than a window."""
    called: list[Problem] = []

    def counted(problem: Problem, options: SolveOptions) -> Reduction:
        called.append(problem)
        return reduced_fully(problem, options)

    monkeypatch.setattr(closing, "reduced_fully", counted)
    alone = SolveOptions(max_table_entries=40, max_rounds=0, max_cp_sat_entries=1, anneal_passes=10)
    problem = chain_with_skips(60, 8, period, seed=5)
    swept = alone.without("fixing.fixed_point").without("presolve.dead_end_elimination")

    assert solve(problem, options=swept).gap > 1e-3
    assert not called
    solve(problem, options=alone)
    assert bool(called) == is_reduced


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), is_flipped=st.booleans(), wide=st.sampled_from([5, 40]))
def test_dominance_of_repeated_rows_and_columns_is_that_of_all(
    seed: int, is_flipped: bool, wide: int
):
    """Matrices by their distinct rows and columns, with forbidden pairs; kept are exactly the undominated."""
    rng = np.random.default_rng(seed)
    few = np.tile(rng.integers(0, 4, (6, 1)).astype(float), (1, wide))
    few[np.arange(6), rng.integers(0, wide, 6)] += rng.integers(0, 3, 6)
    few[rng.random(few.shape) < 0.1] = np.inf
    rows, columns = rng.integers(0, 6, 20), rng.integers(0, wide, 50)
    whole = few[np.ix_(rows, columns)]
    thin = thinned(whole)
    assert isinstance(thin, Thin)
    cost = rng.integers(0, 4, 20).astype(float)
    edge = Edge(1, 0, thin.T) if is_flipped else Edge(0, 1, thin)
    small = drop_dominated(Problem((cost, np.zeros(50)), (edge,))).problem

    difference = whole[:, None] - np.where(np.isinf(whole), 0.0, whole)[None]
    worst = np.where(np.isinf(whole)[None], -np.inf, difference).max(axis=2)
    replaces = cost[:, None] - cost + worst <= 0
    kept = [
        b
        for b in range(20)
        if not any(replaces[a, b] and (not replaces[b, a] or a < b) for a in range(20) if a != b)
    ]
    assert small.node_costs[0].tolist() == cost[kept].tolist()
