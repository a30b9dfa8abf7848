"""Kinds: equal arrays have one number, and sums by number are the sums of the arrays."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar.solve.problem.hash_consing import NONE, Kinds, ascending, distinct, is_among, present

ROWS = st.lists(
    st.tuples(st.integers(-1, 3), st.integers(0, 5), st.integers(0, 1 << 40)), max_size=30
)


@given(ROWS)
def test_distinct_rows_are_numbered_and_found_again(rows: list[tuple[int, ...]]) -> None:
    columns = tuple(np.array(rows, dtype=np.intp).reshape(-1, 3).T)
    first, each = distinct(*columns)
    assert len(first) == len(set(rows))
    assert [rows[first[n]] for n in each] == rows
    assert all(rows.index(rows[n]) == n for n in first)


def test_wide_columns_do_not_overflow() -> None:
    wide = np.array([0, 1 << 61, 0, 1 << 61, 5])
    first, each = distinct(wide, wide[::-1].copy(), wide)
    assert len(first) == len(set(zip(wide, wide[::-1], strict=True)))
    assert [int(wide[first[n]]) for n in each] == wide.tolist()


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=40),
    st.lists(st.booleans(), min_size=5),
)
def test_what_is_added_is_the_sum_of_the_arrays(
    parts: list[tuple[int, int]], given_: list[bool]
) -> None:
    """Onto totals that are there or not, at places that repeat."""
    arrays = [
        np.array([1.0, 2.0]),
        np.array([0.5, np.inf]),
        np.array([0.0, 0.0]),
        np.array([1.0, 2.0]),
    ]
    kinds = Kinds()
    own = kinds.of(arrays)
    assert own[0] == own[3]
    assert len(set(own.tolist())) == 3
    totals = np.array([own[1] if there else NONE for there in given_[:5]])
    expected = {n: arrays[1].copy() for n in range(5) if given_[n]}
    for place, kind in parts:
        expected[place] = expected.get(place, np.zeros(2)) + arrays[kind]
    before = kinds.fork()
    kinds.add(
        totals,
        np.array([place for place, _ in parts], dtype=np.intp),
        own[np.array([kind for _, kind in parts], dtype=np.intp)],
    )
    assert [n for n in range(5) if totals[n] != NONE] == sorted(expected)
    for n, total in expected.items():
        np.testing.assert_allclose(kinds.arrays[totals[n]], total)
    assert len(before.arrays) == 3


@given(st.lists(st.integers(0, 9)), st.lists(st.integers(0, 9)))
def test_sets_of_numbers(some: list[int], others: list[int]) -> None:
    values, ordered = np.array(some, dtype=np.intp), np.array(sorted(others), dtype=np.intp)
    assert ascending(values).tolist() == present(values).tolist() == sorted(set(some))
    assert is_among(values, ordered).tolist() == [value in others for value in some]


def test_kinds_are_numbered_in_order_wherever_arrays_lie() -> None:
    arrays = [np.full(2, float(n)) for n in range(50)]
    mixed = [arrays[(17 * n) % 50] for n in range(50)]
    assert Kinds().of(mixed).tolist() == list(range(50))
    assert Kinds().of([*mixed, *arrays]).tolist()[:50] == list(range(50))


def test_equal_results_have_one_kind_and_are_made_once() -> None:
    kinds, made = Kinds(), list[int]()

    def make() -> np.ndarray:
        made.append(1)
        return np.full(3, 2.0)

    assert kinds.made("one", make) == kinds.made("one", make) == kinds.made("other", make)
    assert len(made) == 2
    assert kinds.of([np.full(3, 2.0)]).tolist() == [kinds.made("one", make)]
