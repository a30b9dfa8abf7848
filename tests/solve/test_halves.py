"""Two halves swept side by side: nothing joins them, and what is found is the same to the last bit as one by one."""

from __future__ import annotations

import subprocess
import sys
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings

from autopar.solve import Edge, Problem, halves, kernels, minplus
from autopar.solve.dual import Dual
from autopar.solve.flat import Flat, flatten, messages_in, per_edge
from autopar.solve.halves import halved, sweep
from autopar.solve.rows import memory_rows
from autopar.solve.single import Single
from autopar.solve.thin import whole
from autopar.solve.threads import side_by_side
from tests.solve.draw import chain_with_skips, problems
from tests.solve.test_swing import grid


def _laid(dual: Dual) -> Flat:
    """The dual's problem in the order of its halves."""
    places, ends = halved(dual.flat)
    return flatten(dual.problem, dual.rows, dual.order[places], dual.pool)._replace(halves=ends)


@pytest.fixture(autouse=True)
def _small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(halves, "_LEAST", 0)
    monkeypatch.setattr(halves, "_AN_ARC", 10)


@settings(max_examples=100, deadline=None)
@given(problems(limited=False))
def test_no_edge_joins_the_halves(problem: Problem) -> None:
    dual = Dual(problem, memory_rows(problem))
    places, (end, stop) = halved(dual.flat)
    assert sorted(places.tolist()) == list(range(len(problem.counts)))
    half = np.full(len(places), 2)
    half[dual.order[places[:end]]], half[dual.order[places[end:stop]]] = 0, 1
    assert not any({half[edge.u], half[edge.v]} == {0, 1} for edge in problem.edges)


def test_halves_take_about_as_long_and_little_is_between() -> None:
    dual = Dual(grid(30, 4, 0), memory_rows(grid(30, 4, 0)))
    end, stop = halved(dual.flat)[1]
    count = len(dual.order)
    assert abs(end - (stop - end)) < 0.1 * count
    assert count - stop < 0.1 * count


def test_what_cannot_be_halved_is_swept_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    edges = tuple(Edge(u, v, np.eye(3)) for u, v in combinations(range(6), 2))
    clique = Problem((np.zeros(3),) * 6, edges)
    places, ends = halved(Dual(clique, memory_rows(clique)).flat)
    assert ends == (0, 0)
    assert places.tolist() == list(range(len(clique.counts)))
    monkeypatch.setattr(halves, "_LEAST", 10**9)
    chain = chain_with_skips(40, 4, 10, 0)
    assert halved(Dual(chain, memory_rows(chain)).flat)[1] == (0, 0)


@pytest.mark.parametrize("eager", [False, True])
def test_side_by_side_is_the_same_as_one_by_one(eager: bool) -> None:
    problem = grid(20, 5, 1)
    flat = _laid(Dual(problem, memory_rows(problem)))
    assert flat.halves[1]
    found = list[tuple[np.ndarray, np.ndarray]]()
    for both in (sweep, kernels.sweep):
        nodes, messages = flat.cost.copy(), np.zeros(flat.size)
        for _ in range(5):
            both(flat, eager, nodes, messages)
        found.append((nodes, messages))
    assert np.array_equal(found[0][0], found[1][0])
    assert np.array_equal(found[0][1], found[1][1])


def test_messages_lie_elsewhere_in_another_order() -> None:
    problem = grid(12, 5, 2)
    dual = Dual(problem, memory_rows(problem))
    flat, messages = _laid(dual), np.random.default_rng(0).standard_normal(dual.flat.size)
    for one, other in zip(
        per_edge(flat, messages[messages_in(flat, dual.flat)]), per_edge(dual.flat, messages), strict=True
    ):
        assert all(map(np.array_equal, one, other))


@pytest.mark.parametrize("seed", range(3))
def test_it_comes_as_far_as_sweeps_from_one_end(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, bounds = grid(20, 6, seed), list[float]()
    for least in (0, 10**9):
        monkeypatch.setattr(halves, "_LEAST", least)
        dual = Dual(problem, memory_rows(problem))
        of_halves = Single(dual)
        assert any(of_halves.flat.halves) == (least == 0)
        dual.start_from(of_halves.settled(200, lambda: True))
        dual.sweep()
        bounds.append(dual.swept().bound)
    assert bounds[0] == pytest.approx(bounds[1], rel=2e-3)


def test_products_are_the_same_by_two(monkeypatch: pytest.MonkeyPatch) -> None:
    random, found = np.random.default_rng(0), list[np.ndarray]()
    cost, a, b = random.random(51), random.random((77, 51)), random.random((40, 51))
    for least in (0, 10**9):
        monkeypatch.setattr(minplus, "_LEAST_BESIDE", least)
        found.append(whole(minplus.least_to_two(cost, a, b)))
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], (cost + a[:, None] + b).min(axis=2))


def test_an_error_of_either_half_is_told() -> None:
    for bad in (0, 3):
        with pytest.raises(ZeroDivisionError):
            side_by_side(lambda first, stop, bad=bad: 1 / (first - bad), 3, 7)


def test_a_forked_process_has_a_thread_of_its_own() -> None:
    script = """
import os, signal
from autopar.solve.threads import side_by_side
assert side_by_side(lambda i, j: j - i, 3, 7) == (3, 4)
if not (child := os.fork()):
    signal.alarm(20)
    os._exit(side_by_side(lambda i, j: j - i, 3, 7) != (3, 4))
assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, timeout=60)
