"""Matrices without their repetitions: found as by a search for the first equal row, and as good as the whole ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from autopar.solve import Infeasible, solve
from autopar.solve.fixing.reduced_cost_fixing import pairs_fixed
from autopar.solve.presolve.arc_consistency import drop_forbidden
from autopar.solve.presolve.reduce import merge_parallel
from autopar.solve.problem import factored_matrix as module
from autopar.solve.problem.factored_matrix import (
    Thin,
    _as_they_come,
    added,
    at,
    finite_entries,
    finite_in,
    in_order,
    number_rows,
    part,
    taken,
    thinned,
    twice,
    whole,
)
from autopar.solve.problem.problem import Edge, Floats, Problem
from autopar.solve.problem.rows import memory_rows
from autopar.solve.problem.verifier import verify
from autopar.solve.trws.arrays import flatten
from autopar.solve.trws.dual import Dual
from autopar.solve.trws.kernels import add_row, entry
from tests.solve.draw import problems
from tests.solve.test_reductions import NAMES, REDUCTIONS

VALUES = np.array([0.0, -0.0, 1.0, 1.5, np.inf])


def repeated(seed: int, rows: int, columns: int, kinds: int) -> Floats:
    """A matrix whose rows, and whose columns, are of so many kinds at most."""
    rng = np.random.default_rng(seed)
    few = rng.choice(VALUES, size=(kinds, kinds))
    return few[rng.integers(kinds, size=rows)][:, rng.integers(kinds, size=columns)]


def slowly(cost: Floats) -> list[int]:
    """For every row which of the distinct ones it is, bit for bit."""
    known: list[bytes] = []
    for row in cost:
        if row.tobytes() not in known:
            known.append(row.tobytes())
    return [known.index(row.tobytes()) for row in cost]


matrices = st.builds(
    repeated, st.integers(0, 999), st.integers(1, 40), st.integers(1, 40), st.integers(1, 12)
)


@settings(deadline=None)
@given(matrices)
def test_a_thin_matrix_says_the_same_and_repeats_nothing(cost: Floats):
    found = thinned(cost)
    rows, columns = found.rows, found.columns
    assert (
        found.entries[rows[:, None], columns].tobytes() == whole(found).tobytes() == cost.tobytes()
    )
    if cost.size >= 256:
        assert rows.tolist() == slowly(cost)
        assert columns.tolist() == slowly(np.ascontiguousarray(cost.T))
        assert found.entries.shape == (rows.max() + 1, columns.max() + 1)


@settings(deadline=None)
@given(matrices)
def test_rows_are_numbered_as_they_come_first(cost: Floats):
    first, classes = np.empty(len(cost), dtype=np.intp), np.empty(len(cost), dtype=np.intp)
    count = number_rows(np.ascontiguousarray(cost).view(np.uint64), first, classes)
    assert classes.tolist() == slowly(cost)
    assert first[:count].tolist() == [classes.tolist().index(n) for n in range(count)]


def entries_of(cost) -> list[tuple[Floats, Floats, Floats]]:
    """Each way up: the matrix as kernels read it by entry, by row, and as it is."""
    problem = Problem(
        (np.zeros(cost.shape[0]), np.zeros(cost.shape[1])), (Edge(0, 1, cost),), (), None
    )
    flat = flatten(problem, memory_rows(problem))
    found = []
    for arc, matrix in zip(flat.arcs[0], (whole(cost).T, whole(cost)), strict=True):
        one = np.array(
            [
                [entry(flat, arc, s, t) for t in range(matrix.shape[1])]
                for s in range(matrix.shape[0])
            ]
        )
        rows = np.zeros(matrix.shape)
        for s in range(len(rows)):
            add_row(flat, arc, s, rows[s])
        found.append((one, rows, matrix))
    return found


@settings(deadline=None)
@given(matrices)
def test_kernels_read_the_whole_matrix(cost: Floats):
    for one, rows, matrix in entries_of(cost):
        np.testing.assert_array_equal(one, matrix)
        np.testing.assert_array_equal(rows, matrix)


def spread(rng: np.random.Generator, cost: Floats) -> Thin:
    """A matrix as a thin one, some of its rows and columns there twice, in any order."""
    classes = [rng.permutation([*range(n), *rng.integers(n, size=2).tolist()]) for n in cost.shape]
    of_each = []
    for n, some in zip(cost.shape, classes, strict=True):
        places = [np.flatnonzero(some == i) for i in range(n)]
        chosen = [int(rng.choice(place)) for place in places]
        left = np.setdiff1d(np.arange(len(some)), chosen)
        of_each.append((np.delete(some, left), np.array([sorted(chosen).index(c) for c in chosen])))
    (rows, row_of), (columns, column_of) = of_each
    (by_row, row_of), (by_column, column_of) = _as_they_come(row_of), _as_they_come(column_of)
    return Thin(cost[rows][:, columns][by_row][:, by_column], row_of, column_of)


@pytest.fixture(autouse=True)
def always_thin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small matrices are thin too, whatever that saves."""
    monkeypatch.setattr(module, "_SMALL", 0)
    monkeypatch.setattr(module, "_WORTH", np.inf)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(matrices, st.integers(0, 999))
def test_what_is_done_with_thin_matrices_is_what_is_done_with_whole_ones(cost: Floats, seed: int):
    rng = np.random.default_rng(seed)
    matrix, other = spread(rng, cost), rng.choice(VALUES, size=cost.shape)
    assert whole(matrix).tobytes() == cost.tobytes()
    assert (matrix.shape, matrix.size) == (cost.shape, cost.size)
    assert whole(matrix.T).tobytes() == cost.T.tobytes()
    rows, columns = (rng.integers(n, size=rng.integers(1, 2 * n + 1)) for n in cost.shape)
    for some, others in ((rows, columns), (rows, None), (None, columns), (None, None)):
        expected = cost if some is None else cost[some]
        expected = expected if others is None else expected[:, others]
        assert part(matrix, some, others).tobytes() == expected.tobytes()
        found = taken(matrix, some, others)
        assert isinstance(found, Thin)
        assert whole(found).tobytes() == expected.tobytes()
        assert_in_order(found)
    assert at(matrix, rows, int(columns[0])).tobytes() == cost[rows, columns[0]].tobytes()
    both = added(matrix, spread(rng, other))
    assert whole(both).tobytes() == (cost + other).tobytes()
    assert_in_order(both)
    assert whole(added(matrix, other)).tobytes() == (cost + other).tobytes()
    assert whole(twice(matrix)).tobytes() == np.vstack([cost, cost]).tobytes()
    assert finite_in(matrix).tolist() == np.isfinite(cost).tolist()
    assert finite_entries(matrix) == finite_entries(cost) == np.isfinite(cost).sum()
    one, two = in_order(matrix), in_order(spread(rng, cost))
    assert [a.tobytes() for a in (one.entries, one.rows)] == [
        a.tobytes() for a in (two.entries, two.rows)
    ]
    assert one.rows.tolist() == slowly(cost)
    assert one.columns.tolist() == two.columns.tolist() == slowly(np.ascontiguousarray(cost.T))


def assert_in_order(matrix) -> None:
    """All rows and columns of the entries occur, in the order in which they come first."""
    assert isinstance(matrix, Thin)
    assert list(dict.fromkeys(matrix.rows.tolist())) == list(range(len(matrix.entries)))
    assert list(dict.fromkeys(matrix.columns.tolist())) == list(range(matrix.entries.shape[1]))


def test_columns_that_are_taken_out_of_order_stay_apart():
    """Of three columns the first and the last are equal; the last two are as many as there are strategies then."""
    cost = np.array([[1.0, 5.0, 1.0]] * 4)
    matrix = taken(
        Thin(cost[:1, :2], np.zeros(4, dtype=np.intp), np.array([0, 1, 0])), None, np.array([1, 2])
    )
    for one, rows, expected in entries_of(matrix):
        assert one.tolist() == rows.tolist() == expected.tolist()
    problem = Problem((np.zeros(4), np.array([0.0, 10.0])), (Edge(0, 1, matrix),), (), None)
    dual = Dual(problem, memory_rows(problem))
    dual.sweep()
    assert dual.certificate(dual.state()).bound == 5.0


def repeating(problem: Problem, rng: np.random.Generator) -> tuple[Problem, Problem]:
    """The problem with some strategies twice, its matrices whole and thin; equal ones are one object."""
    index = [rng.integers(n, size=n + 2) for n in problem.counts]
    wholes = [edge.cost[index[edge.u]][:, index[edge.v]] for edge in problem.edges]
    thins = [thinned_by(edge.cost, index[edge.u], index[edge.v]) for edge in problem.edges]
    costs = tuple(cost[ids] for cost, ids in zip(problem.node_costs, index, strict=True))
    usages = tuple(
        replace(use, size_bytes=use.size_bytes[index[use.node]]) for use in problem.usages
    )

    def of(found: list) -> Problem:
        edges = tuple(
            edge._replace(matrix=matrix) for edge, matrix in zip(problem.edges, found, strict=True)
        )
        return Problem(costs, edges, usages, problem.usage_limit)

    return of(wholes), of(thins)


def thinned_by(cost: Floats, rows: np.ndarray, columns: np.ndarray) -> Thin:
    return taken(Thin(cost, np.arange(len(cost)), np.arange(len(cost.T))), rows, columns)


def contradicting() -> Problem:
    """Two edges that leave the first strategies of their nodes no finite partner together, though each does alone."""
    first = np.array([[np.inf, 0.0], [0.0, 0.0]])
    second = np.array([[0.0, np.inf], [np.inf, 0.0]])
    return Problem((np.zeros(2), np.zeros(2)), (Edge(0, 1, first), Edge(0, 1, second)))


def left_of(step, problem: Problem) -> tuple | None:
    """What a reduction leaves, as numbers."""
    try:
        found = step(problem)
    except Infeasible:
        return None
    small = found.problem
    costs = [cost.tobytes() for cost in small.node_costs]
    edges = [(edge.u, edge.v, edge.cost.shape, edge.cost.tobytes()) for edge in small.edges]
    lifted = found.lift(tuple(0 for _ in small.node_costs))
    return found.offset, costs, edges, lifted, len(found.steps)


@pytest.mark.quick_share(3)
@pytest.mark.parametrize("step", REDUCTIONS, ids=NAMES)
@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(problem=problems(), seed=st.integers(0, 999))
def test_reductions_leave_of_thin_matrices_what_they_leave_of_whole_ones(
    step, problem: Problem, seed: int
):
    plain, thin = repeating(problem, np.random.default_rng(seed))
    assert left_of(step, thin) == left_of(step, plain)


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(problem=problems(), seed=st.integers(0, 999), share=st.floats(0, 1))
@example(problem=contradicting(), seed=1, share=0.0)
def test_a_window_leaves_of_thin_matrices_what_it_leaves_of_whole_ones(
    problem: Problem, seed: int, share: float
):
    def barred_of(problem: Problem):
        problem = drop_forbidden(problem).then(merge_parallel).problem
        dual = Dual(problem, memory_rows(problem))
        dual.sweep()
        certificate = dual.certificate(dual.state())
        return pairs_fixed(certificate, share * abs(certificate.bound))

    plain, thin = repeating(problem, np.random.default_rng(seed))
    assert left_of(barred_of, thin) == left_of(barred_of, plain)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(problem=problems(), seed=st.integers(0, 999))
def test_thin_problems_have_the_solutions_of_whole_ones(problem: Problem, seed: int):
    plain, thin = repeating(problem, np.random.default_rng(seed))
    try:
        expected = solve(plain)
    except Infeasible:
        with pytest.raises(Infeasible):
            solve(thin)
        return
    found = solve(thin)
    assert (found.objective, found.lower_bound, found.choice) == (
        expected.objective,
        expected.lower_bound,
        expected.choice,
    )
    verify(plain, found)
    verify(thin, expected)
