"""Layers: every part of a run is like the others, edge by edge, and more of them are found than positions repeat."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from autopar.solve import Edge, Problem
from autopar.solve.periodic.period import Stretch, looks_of, stretches_of
from autopar.solve.periodic.period_matching import Matching
from autopar.solve.periodic.separators import Layers, _repeats, layers_of
from autopar.solve.periodic.shortened import shortened
from autopar.solve.problem.rows import memory_rows
from autopar.solve.trws.dual import Dual
from tests.solve.test_tile import repeating


def found(problem: Problem) -> tuple[Layers | None, tuple[Stretch, ...]]:
    """The layers of a problem, and the stretches of its order of sweeps that they come of."""
    dual = Dual(problem, memory_rows(problem))
    looks = looks_of(problem, dual.flat, dual.order, at_a_glance=False)
    stretches = stretches_of(looks, 0)
    return (layers_of(dual.flat, dual.order, looks, stretches) if stretches else None), stretches


Met = tuple[str, int, int, bool]


def edges_of(problem: Problem, layers: Layers, p: int) -> list[Met]:
    """The edges from a part to itself, to hubs and to the part before, by places there, with their matrices."""
    rank, met = np.argsort(layers.order), list[Met]()
    for edge in problem.edges:
        ends = sorted((int(rank[v]), v == edge.u) for v in (edge.u, edge.v))
        (low, is_u), (high, _) = ends
        if layers.part[high] == p:
            is_hub = bool(layers.hub[low])
            kind = f"{id(edge.cost)} {is_hub}"
            met.append((kind, low - (0 if is_hub else int(layers.bounds[p])), high - int(layers.bounds[p]), is_u))
    return sorted(met)


def check_alike(problem: Problem, layers: Layers) -> None:
    """Edges lead to the part before or to hubs; parts of a run have the same of everything, and are met alike."""
    assert sorted(layers.order.tolist()) == list(range(len(problem.counts)))
    rank = np.argsort(layers.order)
    for edge in problem.edges:
        low, high = sorted((int(rank[edge.u]), int(rank[edge.v])))
        assert layers.hub[low] or layers.part[high] - layers.part[low] <= 1
    for run in layers.runs:
        costs = [[problem.node_costs[layers.order[i]] for i in layers.nodes(p)] for p in range(layers.count)]
        edges = [edges_of(problem, layers, p) for p in range(layers.count)]
        for p in range(run.first + 1, run.first + run.count):
            assert all(a is b for a, b in zip(costs[p], costs[run.first], strict=True))
            assert edges[p] == edges[run.first]
        after = run.first + run.count
        across = [[(kind, low, is_u) for kind, low, _, is_u in edges[p] if low < 0] for p in (run.first, after)]
        assert sorted(across[0]) == sorted(across[1])


@settings(max_examples=100, deadline=None)
@given(problem=repeating(most_blocks=30))
def test_layers_of_a_run_are_alike_and_meet_only_their_neighbours(problem: Problem) -> None:
    layers, _ = found(problem)
    if layers is not None:
        check_alike(problem, layers)


def step(layers: int, odd: int | None = None, *, is_across: bool = False, hub: bool = False) -> Problem:
    """A training step in outline: forward, backward and update of every layer; all may meet one hub.

    Forward and backward nodes of a layer are neighbours, weights and updates hang at them: sweeps wind at the ends. One
    layer may have a matrix of its own, within it or to the next.
    """
    rng = np.random.default_rng(0)
    names = (
        "in",
        "out",
        "loss",
        "grad in",
        "grad out",
        "weight",
        "grad weight",
        "mean",
        "square",
        "new",
        "more",
        "far",
    )
    inner = [("in", "out"), ("grad out", "grad in"), ("in", "weight"), ("weight", "grad in"), ("out", "loss")]
    inner += [("loss", "grad out"), ("in", "grad weight"), ("grad out", "grad weight"), ("grad weight", "mean")]
    inner += [("grad weight", "square"), ("mean", "new"), ("square", "new"), ("new", "weight"), ("mean", "more")]
    inner += [("more", "far")]
    costs = {name: rng.random(3) for name in names}
    matrices = {pair: rng.random((3, 3)) for pair in [*inner, ("out", "in"), ("grad in", "grad out")]}
    at = {(name, n): len(names) * n + i for n in range(layers) for i, name in enumerate(names)}
    edges = [Edge(at[a, n], at[b, n], matrices[a, b]) for n in range(layers) for a, b in inner]
    edges += [Edge(at["out", n], at["in", n + 1], matrices["out", "in"]) for n in range(layers - 1)]
    edges += [Edge(at["grad in", n + 1], at["grad out", n], matrices["grad in", "grad out"]) for n in range(layers - 1)]
    if odd is not None:
        changed = len(inner) * layers + odd if is_across else len(inner) * odd
        edges[changed] = replace(edges[changed], matrix=rng.random((3, 3)))
    to_end, to_hub, end = rng.random((3, 4)), rng.random((4, 3)), len(names) * layers
    edges += [Edge(end, at["in", n], to_hub) for n in range(layers) if hub]
    return Problem(
        (*(costs[name] for _ in range(layers) for name in names), rng.random(4)), (*edges, Edge(1, end, to_end))
    )


@pytest.mark.parametrize(("layers", "hub"), [(16, False), (40, False), (40, True)])
def test_layers_are_found_where_the_order_winds(layers: int, hub: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but those at the ends; without looking node by node, fewer."""
    problem = step(layers, hub=hub)
    (more, _), size = found(problem), len(problem.counts) // layers
    assert more is not None
    assert [run.period for run in more.runs] == [size]
    assert more.runs[0].count >= layers - 4
    monkeypatch.setattr(Matching, "beside", lambda *_: {})
    fewer, _ = found(problem)
    assert fewer is not None
    assert fewer.runs[0].count < more.runs[0].count


@pytest.mark.parametrize("is_across", [False, True])
@pytest.mark.parametrize("odd", [1, 2, 37])
def test_a_layer_that_differs_is_in_no_run(odd: int, is_across: bool) -> None:
    problem = step(40, odd, is_across=is_across)
    layers, _ = found(problem)
    assert layers is not None
    check_alike(problem, layers)
    assert layers.runs[0].count >= 30


@pytest.mark.parametrize("is_across", [False, True])
@pytest.mark.parametrize("odd", [1, 2, 3, 35, 36, 37])
def test_what_is_found_node_by_node_is_compared_again(
    odd: int, is_across: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where any layer is believed to be whole, those that are not alike are seen."""
    monkeypatch.setattr(Matching, "is_whole", lambda _, found, pattern: len(found) == len(pattern.costs))
    problem = step(40, odd, is_across=is_across)
    layers, _ = found(problem)
    assert layers is not None
    check_alike(problem, layers)


@pytest.mark.parametrize("swapped", [(0, 1), (3, 4), (6, 9)])
def test_layers_that_are_matched_wrongly_are_seen(swapped: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """All nodes cost the same here, so edges tell."""
    plain = Matching.beside

    def wrong(*args: Any) -> dict[int, int]:
        found, (one, other) = plain(*args), swapped
        return found | {one: found[other], other: found[one]} if {one, other} <= found.keys() else found

    monkeypatch.setattr(Matching, "beside", wrong)
    monkeypatch.setattr(Matching, "is_whole", lambda _, found, pattern: len(found) == len(pattern.costs))
    problem = step(40)
    like = np.ones(3)
    problem = replace(problem, node_costs=(*(like for _ in problem.node_costs[1:]), problem.node_costs[-1]))
    layers, _ = found(problem)
    assert layers is not None
    check_alike(problem, layers)


def test_few_are_three_layers_and_what_is_left_at_the_ends() -> None:
    problem = step(40)
    dual = Dual(problem, memory_rows(problem))
    few, more = (shortened(problem, dual.flat, dual.order, n) for n in (0, 30))
    assert few is not None
    assert more is not None
    assert few.layers is not None
    size, run = len(problem.counts) // 40, few.layers.runs[0]
    assert len(few.problem.counts) == len(problem.counts) - (run.count - 1) * size
    assert len(few.problem.counts) <= 6 * size
    assert len(more.problem.counts) == len(few.problem.counts) + 3 * size


def test_what_follows_a_run_meets_it_as_its_parts_meet_each_other() -> None:
    """Else what is moved to the last of them is not what is moved to the others."""
    layers, _ = found(step(40))
    assert layers is not None
    run, costs = layers.runs[0], np.zeros(len(layers.order), dtype=np.intp)
    assert _repeats(layers, run, costs)
    kinds = layers.kinds.copy()
    kinds[layers.across(run.first + run.count)[0]] += 2
    assert not _repeats(replace(layers, kinds=kinds), run, costs)
