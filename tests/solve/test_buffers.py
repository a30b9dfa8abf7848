"""Buffers: pages are used again when nothing lies in them any more, and never before."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from autopar.solve import SolveOptions, solve
from autopar.solve.trws import buffers
from autopar.solve.trws import float32 as single
from autopar.solve.trws.buffers import empty, reused
from tests.solve.test_swing import grid

MANY = 1 << 20


def _place(array: np.ndarray) -> int:
    return array.ctypes.data


def test_pages_are_used_again_when_all_that_lay_there_is_gone() -> None:
    with reused():
        first = empty(MANY, np.float64)
        at, part = _place(first), first[10:20].reshape(2, 5)
        part[:] = 7.0
        del first
        second = empty(MANY, np.float64)
        assert _place(second) != at
        second[:] = 1.0
        assert (part == 7.0).all()
        del part
        assert _place(empty(MANY, np.float32)) == at  # there is room for less too


def test_the_smallest_that_is_large_enough_is_taken() -> None:
    with reused():
        kept = [empty(count, np.float64) for count in (4 * MANY, MANY, 2 * MANY)]
        places = [_place(array) for array in kept]
        del kept
        large = empty(2 * MANY, np.float64)
        assert _place(large) == places[2]
        assert len(large) == 2 * MANY
        assert large.dtype == np.float64


def test_nothing_is_kept_after_the_outermost() -> None:
    with reused():
        with reused():
            inner = empty(MANY, np.float64)
            at = _place(inner)
            del inner
        again = empty(MANY, np.float64)
        assert _place(again) == at
        again[:] = 3.0
    assert buffers._SPARE.get() is None
    assert (again == 3.0).all()  # what is still in use stays
    assert isinstance(empty(MANY, np.float64).base, type(None))


def test_small_ones_are_the_allocators() -> None:
    with reused():
        assert empty(10, np.float32).base is None


@pytest.mark.slow
def test_what_is_solved_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    found = list[tuple[object, ...]]()
    monkeypatch.setattr(single, "_LARGE", 0)
    for large in (0, 1 << 60):
        monkeypatch.setattr(buffers, "_LARGE", large)
        for seed in (0, 1):
            solution = solve(grid(14, 6, seed), options=SolveOptions(time_limit_s=None))
            found.append((solution.choice, solution.objective, solution.lower_bound))
        gc.collect()
    assert found[:2] == found[2:]
