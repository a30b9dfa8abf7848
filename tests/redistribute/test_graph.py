"""The graph of all placements against steps listed one by one, and dims that nothing tells apart."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.redistribute import route as route_module
from autopar.redistribute.alike import Alike, alike, dim_classes, turned
from autopar.redistribute.graph import StateGraph, state_graph
from autopar.redistribute.route import Router
from autopar.redistribute.steps import moves_from
from tests.redistribute import oracle, prices

KINDS = (frozenset({"sum"}), frozenset({"sum", "max"}), frozenset({"sum", "max", "min"}))
MESHES = {
    "cube": (2, 2, 2),
    "mixed": (4, 2, 2),
    "odd": (3, 2, 5),
    "ones": (2, 1, 4),
    "line": (8,),
    "one": (1,),
    "refined": (2, 4, 2, 1),
}


def one_by_one(
    mesh: DeviceMesh, rank: int, kinds: frozenset
) -> tuple[list[Placement], list[tuple]]:
    """The placements as they are reached, step by step, and for every step its ends and its quote."""
    placements = [Placement.replicated(rank)]
    index, edges = {placements[0]: 0}, []
    for tail, before in enumerate(placements):
        for step in moves_from(before, mesh, sorted(kinds)):
            head = index.setdefault(step.after, len(placements))
            if head == len(placements):
                placements.append(step.after)
            divisor = min(mesh.product(placement.split_axes) for placement in (before, step.after))
            edges.append((tail, head, (step.kind, step.axes, divisor, step.is_inner)))
    return placements, edges


@pytest.mark.quick_share(4)
@pytest.mark.parametrize("rank", range(5))
@pytest.mark.parametrize("name", MESHES)
def test_the_graph_holds_every_step_of_every_placement(name: str, rank: int) -> None:
    sizes = MESHES[name]
    mesh = DeviceMesh.of(dict(zip("yxwz", sizes, strict=False)))
    for kinds in KINDS[: 1 if len(sizes) * rank > 9 else 3]:
        graph = state_graph(mesh, rank if len(sizes) < 4 else min(rank, 2), kinds)
        placements, edges = one_by_one(mesh, graph.states.rank, kinds)
        assert list(graph.placements) == placements
        found = zip(
            graph.tail.tolist(),
            graph.head.tolist(),
            (graph.quotes[q] for q in graph.quote),
            strict=True,
        )
        assert sorted(found) == sorted(edges)
        ends = np.stack([graph.tail, graph.head])
        assert (np.lexsort(ends[::-1]) == np.arange(len(graph.tail))).all()


def test_states_are_turned_as_their_placements_are() -> None:
    graph = state_graph(DeviceMesh.of({"x": 2, "y": 4}), 3, KINDS[1])
    for order in ((0, 1, 2), (2, 0, 1), (1, 0, 2)):
        for before, state in zip(graph.placements, turned(graph, order).tolist(), strict=True):
            dims = tuple(before.dims[dim] for dim in order)
            assert graph.placements[state] == Placement(dims, before.unreduced, before.kind)


def test_dims_are_of_one_class_where_the_same_parts_divide_them() -> None:
    graph = state_graph(DeviceMesh.of({"x": 2, "y": 4}), 4, KINDS[0])
    a, b, c, d = dim_classes(graph, (8, 4, 16, 2), first_is_apart=False)
    assert a == c
    assert len({a, b, d}) == 3
    a, _, c, _ = dim_classes(graph, (8, 4, 16, 2), first_is_apart=True)
    assert a != c


def turning(kind: str, size_bytes: int) -> float:
    """Every step along a dim other than the first copies."""
    del kind
    return size_bytes * 0.37


SHAPES = [(8, 8, 8), (8, 16, 8), (4, 8, 4), (8, 2, 24), (2, 2, 8), (8, 3, 8)]


@pytest.mark.quick_share(4)
@pytest.mark.parametrize("turn", [None, turning], ids=["alike", "first apart"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_routes_are_those_of_each_placement_on_its_own(
    shape: tuple[int, ...],
    turn: Callable[[str, int], float] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a price that knows which axes a step is over, costs and steps are the same as without any symmetry."""
    mesh = DeviceMesh.of({"x": 2, "y": 4, "z": 1})
    given = (prices.lottery(5),) if turn is None else (prices.lottery(5), turn)
    fitting = [p for p in oracle.all_placements(mesh, 3) if p.fits(shape, mesh)]
    router = Router(mesh, *given)
    costs = router.cost_matrix(shape, 4, fitting, fitting)
    ends = [
        (fitting[i], fitting[j])
        for i, j in np.random.default_rng(0).integers(len(fitting), size=(40, 2))
    ]
    routes = [router.route(shape, 4, *pair) for pair in ends]

    def alone(graph: StateGraph, classes: tuple[int, ...]) -> Alike:
        return alike(graph, tuple(range(len(classes))))

    monkeypatch.setattr(route_module, "alike", alone)
    monkeypatch.setattr(
        route_module, "dim_classes", lambda graph, shape, first_is_apart: tuple(range(len(shape)))
    )
    plain = Router(mesh, *given)
    np.testing.assert_array_equal(costs, plain.cost_matrix(shape, 4, fitting, fitting))
    assert routes == [plain.route(shape, 4, *pair) for pair in ends]


def test_tensors_with_their_dims_in_another_order_share_paths() -> None:
    mesh = DeviceMesh.of({"x": 2, "y": 4})
    asked: list[tuple[str, tuple[str, ...], int]] = []

    def price(kind: str, axes: tuple[str, ...], size_bytes: int) -> float:
        asked.append((kind, axes, size_bytes))
        return float(size_bytes)

    router, every = Router(mesh, price), oracle.all_placements(mesh, 3)
    for shape in ((8, 16, 3), (16, 3, 8), (3, 8, 16)):
        fitting = tuple(p for p in every if p.fits(shape, mesh))
        router.cost_matrix(shape, 4, fitting, fitting)
    assert len(router._paths) == 1
    (paths,) = router._paths.values()
    assert len(paths._rows) < len(fitting)
