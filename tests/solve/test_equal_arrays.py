"""Equal arrays get equal numbers, others do not, and most are not read whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.solve.problem import hash_consing
from autopar.solve.problem.factored_matrix import Thin
from autopar.solve.problem.hash_consing import HashConsing
from autopar.solve.problem.problem import Floats


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 299), st.booleans()), max_size=12))
def test_numbers_are_those_of_comparing_all_with_all(drawn: list[tuple[int, int, bool]]) -> None:
    arrays = list[Floats]()
    for value, place, is_flat in drawn:
        array = np.zeros((20, 15))
        array.reshape(-1)[place] = value
        arrays.append(array.reshape(300) if is_flat else array)
    same = HashConsing()
    numbers = [same.number(array) for array in arrays]
    for one, i in zip(arrays, numbers, strict=True):
        assert np.array_equal(same.arrays[i], one)
        for other, j in zip(arrays, numbers, strict=True):
            assert (i == j) == (one.shape == other.shape and bool((one == other).all()))
    assert sorted(set(numbers)) == list(range(len(same.arrays)))


def test_arrays_are_read_whole_only_where_samples_are_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read, digest = list[int](), getattr(hash_consing, "_digest")  # noqa: B009

    def reading(array: Floats) -> bytes:
        read.append(array.size)
        return digest(array)

    monkeypatch.setattr(hash_consing, "_digest", reading)
    same, arrays = HashConsing(), [np.full((100, 100), float(n)) for n in range(5)]
    assert [same.number(array) for array in arrays] == [0, 1, 2, 3, 4]
    assert max(read) < 200
    assert same.number(arrays[3].copy()) == 3
    assert read.count(10_000) == 2
    assert same.number(arrays[3].copy()) == 3
    assert read.count(10_000) == 3


def test_what_a_copy_learns_the_first_does_not() -> None:
    same, array = HashConsing(), np.arange(1000.0)
    same.number(array)
    other, changed = same.copy(), array.copy()
    changed[1] = 7
    assert other.number(changed) == 1
    assert (len(same.arrays), same.number(np.zeros(3))) == (1, 1)
    assert (other.number(array.copy()), other.number(changed.copy())) == (0, 1)


def test_thin_matrices_are_the_same_where_their_entries_are() -> None:
    entries, rows, columns = np.arange(12.0).reshape(3, 4), np.arange(90) % 3, np.arange(80) % 4
    turned = Thin(entries[::-1], 2 - rows, columns)
    twice = Thin(
        np.vstack([entries, entries]), np.where(np.arange(90) < 45, rows, rows + 3), columns
    )
    other = entries.copy()
    other[2, 3] = 12
    same = HashConsing()
    found = [
        Thin(entries, rows, columns),
        turned,
        twice,
        Thin(other, rows, columns),
        Thin(entries, rows, 3 - columns),
    ]
    assert [same.number(matrix) for matrix in found] == [0, 0, 0, 1, 2]
