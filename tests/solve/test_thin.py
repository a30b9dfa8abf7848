"""Matrices without their repetitions: against a search for the first equal row; kernels read them as the whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.solve.flat import flatten
from autopar.solve.kernels import add_row, entry
from autopar.solve.problem import Edge, Floats, Problem
from autopar.solve.rows import memory_rows
from autopar.solve.thin import _number_by_bytes, number_rows, thinned

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


matrices = st.builds(repeated, st.integers(0, 999), st.integers(1, 40), st.integers(1, 40), st.integers(1, 12))


@settings(deadline=None)
@given(matrices)
def test_a_thin_matrix_says_the_same_and_repeats_nothing(cost: Floats):
    thin, rows, columns = thinned(cost)
    assert thin[rows[:, None], columns].tobytes() == cost.tobytes()
    if cost.size >= 256:
        assert rows.tolist() == slowly(cost)
        assert columns.tolist() == slowly(np.ascontiguousarray(cost.T))
        assert thin.shape == (rows.max() + 1, columns.max() + 1)


@pytest.mark.parametrize("number", [number_rows, _number_by_bytes])
@settings(deadline=None)
@given(matrices)
def test_rows_are_numbered_as_they_come_first(number, cost: Floats):
    first, classes = np.empty(len(cost), dtype=np.intp), np.empty(len(cost), dtype=np.intp)
    count = number(np.ascontiguousarray(cost).view(np.uint64), first, classes)
    assert classes.tolist() == slowly(cost)
    assert first[:count].tolist() == [classes.tolist().index(n) for n in range(count)]


def entries_of(cost: Floats) -> list[tuple[Floats, Floats, Floats]]:
    """Each way up: the matrix as kernels read it by entry, by row, and as it is."""
    problem = Problem((np.zeros(cost.shape[0]), np.zeros(cost.shape[1])), (Edge(0, 1, cost),), (), None)
    flat = flatten(problem, memory_rows(problem))
    found = []
    for arc, matrix in zip(flat.arcs[0], (cost.T, cost), strict=True):
        one = np.array([[entry(flat, arc, s, t) for t in range(matrix.shape[1])] for s in range(matrix.shape[0])])
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
