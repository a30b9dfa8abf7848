"""A sweep shared by two processors: what is found is the same to the last bit as by one, and none waits for ever."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopar._jit import FAST, compiled, exchanged, loaded
from autopar.solve import Problem
from autopar.solve.elimination import min_sum as minplus
from autopar.solve.problem.factored_matrix import whole
from autopar.solve.problem.reduction import Ints
from autopar.solve.problem.rows import memory_rows
from autopar.solve.trws import kernels, sweep
from autopar.solve.trws.arrays import entries_read
from autopar.solve.trws.dual import Dual
from autopar.solve.trws.threads import other_thread, side_by_side
from tests.solve.draw import problems
from tests.solve.test_swing import grid, is_finite

fast_only = pytest.mark.skipif(not FAST, reason="only compiled sweeps are shared")


def swept(problem: Problem, least: int, *, eager: bool, single: bool) -> list[np.ndarray]:
    """Messages, costs of nodes and beliefs after some sweeps, shared where they read at least so many entries."""
    dual = Dual(problem, memory_rows(problem))
    dual.set_prices(np.full(dual.rows.count, 1e-3))
    dual = dual.in_single() if single else dual
    belief = np.zeros(len(dual.flat.cost))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep, "_LEAST", least)
        patch.setattr(sweep, "processors", lambda: 2)
        for _ in range(4):
            sweep.sweep(dual.flat, eager, dual.nodes, dual.messages)
        sweep.sweep(dual.flat, eager, dual.nodes, dual.messages, belief)
    return [dual.messages, dual.nodes, belief]


@settings(max_examples=60, deadline=None)
@given(problems(limited=True).filter(is_finite), st.booleans(), st.booleans())
def test_it_is_the_same_by_two_as_by_one(problem: Problem, eager: bool, single: bool) -> None:
    found = [swept(problem, least, eager=eager, single=single) for least in (0, 10**9)]
    assert all(map(np.array_equal, *found))


@pytest.mark.parametrize("seed", range(5))
def test_large_ones_are_the_same_by_two_as_by_one(seed: int) -> None:
    found = [swept(grid(30, 20, seed), least, eager=False, single=seed % 2 == 0) for least in (0, 10**9)]
    assert all(map(np.array_equal, *found))


@fast_only
def test_small_ones_are_not_shared_nor_is_any_where_there_is_one_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    flat = Dual(grid(4, 3, 0), memory_rows(grid(4, 3, 0))).flat
    monkeypatch.setattr(sweep, "processors", lambda: 2)
    assert not sweep.is_shared(flat)
    monkeypatch.setattr(sweep, "_LEAST", entries_read(flat))
    assert sweep.is_shared(flat)
    monkeypatch.setattr(sweep, "processors", lambda: 1)
    assert not sweep.is_shared(flat)


def test_a_visit_waits_for_all_that_it_reads() -> None:
    """Whatever is done, in whatever order: a visit can begin where, of all before it, those are done that it reads."""
    dual = Dual(grid(5, 3, 0), memory_rows(grid(5, 3, 0)))
    flat, count = dual.flat, len(dual.order)
    ends = dual.rank[dual.problem.ends].tolist()
    near = [{u for pair in ends if v in pair for u in pair if u != v} for v in range(count)]
    rng = np.random.default_rng(0)
    for _ in range(50):
        done = rng.integers(0, 2, 2 * count).astype(np.int64)
        is_up, is_down = done[:count].astype(bool), done[count:][::-1].astype(bool)
        for v in range(count):
            lower, higher = [u for u in near[v] if u < v], [u for u in near[v] if u > v]
            assert bool(kernels.can_begin(flat, v, done)) == all(is_up[u] for u in lower)
            down = all(is_down[u] for u in higher) and is_up[v]
            assert bool(kernels.can_begin(flat, 2 * count - 1 - v, done)) == down


@fast_only
def test_one_takes_all_while_the_other_is_busy() -> None:
    free = threading.Event()
    busy = other_thread().submit(free.wait)
    problem = grid(20, 10, 0)
    try:
        found = swept(problem, 0, eager=False, single=False)
    finally:
        free.set()
        busy.result()
    assert all(map(np.array_equal, found, swept(problem, 10**9, eager=False, single=False)))


@fast_only
def test_it_gives_up_while_another_is_halted_within_a_visit() -> None:
    """The first visit is taken by somebody who never ends it: what reads of it is left."""
    dual = Dual(grid(10, 5, 0), memory_rows(grid(10, 5, 0)))
    taken, done = np.zeros((2, 2 * len(dual.order)), dtype=np.int64)
    taken[0] = 1
    assert not kernels.sweep_shared(dual.flat, False, dual.nodes, dual.messages, np.zeros(0), taken, done)
    assert not done[0]
    assert not done[-1]
    done[0] = 1
    assert kernels.sweep_shared(dual.flat, False, dual.nodes, dual.messages, np.zeros(0), taken, done)
    assert done.all()


@fast_only
@pytest.mark.parametrize("is_interrupted", [False, True])
def test_it_ends_after_the_other_has_ended_its_visit(is_interrupted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody writes afterwards; where it is interrupted the other takes nothing more."""
    dual = Dual(grid(4, 3, 0), memory_rows(grid(4, 3, 0)))
    began, mine = threading.Event(), threading.get_ident()

    def shared(*given: Any) -> bool:
        *_, taken, done = given
        if threading.get_ident() != mine:
            began.set()
            time.sleep(0.1)
            assert taken.all()
            dual.nodes[:], done[:] = 7.0, 1
            return True
        began.wait()
        if is_interrupted:
            raise KeyboardInterrupt
        taken[:] = 1
        return True

    monkeypatch.setattr(sweep, "_LEAST", 0)
    monkeypatch.setattr(sweep, "processors", lambda: 2)
    monkeypatch.setattr(sweep, "sweep_shared", shared)
    with pytest.raises(KeyboardInterrupt) if is_interrupted else nullcontext():
        sweep.sweep(dual.flat, False, dual.nodes, dual.messages)
    assert (dual.nodes == 7.0).all()


@fast_only
def test_an_interruption_does_not_wait_for_what_has_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    dual = Dual(grid(4, 3, 0), memory_rows(grid(4, 3, 0)))

    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep, "_LEAST", 0)
    monkeypatch.setattr(sweep, "processors", lambda: 2)
    monkeypatch.setattr(sweep, "sweep_shared", interrupted)
    free = threading.Event()
    busy = other_thread().submit(free.wait, 60)
    try:
        with pytest.raises(KeyboardInterrupt):
            sweep.sweep(dual.flat, False, dual.nodes, dual.messages)
        assert not busy.done()
    finally:
        free.set()


@compiled
def _twice(numbers: Ints) -> int:
    return exchanged(numbers, 2, 7) * 10 + loaded(numbers, 2)


def test_numbers_are_exchanged() -> None:
    numbers = np.arange(4)
    assert _twice(numbers) == 27
    assert numbers.tolist() == [0, 1, 7, 3]


def test_products_are_the_same_by_two(monkeypatch: pytest.MonkeyPatch) -> None:
    random, found = np.random.default_rng(0), list[np.ndarray]()
    cost, a, b = random.random(51), random.random((77, 51)), random.random((40, 51))
    for least in (0, 10**9):
        monkeypatch.setattr(minplus, "_LEAST_BESIDE", least)
        found.append(whole(minplus.least_to_two(cost, a, b)))
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], (cost + a[:, None] + b).min(axis=2))


def test_an_error_of_either_side_is_told() -> None:
    for bad in (0, 3):
        with pytest.raises(ZeroDivisionError):
            side_by_side(lambda number, bad=bad: 1 / (number - bad), 0, 3)


def test_a_forked_process_has_a_thread_of_its_own() -> None:
    script = """
import os, signal
from autopar.solve.trws.threads import side_by_side
assert side_by_side(abs, -3, 7) == (3, 7)
if not (child := os.fork()):
    signal.alarm(20)
    os._exit(side_by_side(abs, -3, 7) != (3, 7))
assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, timeout=60)
