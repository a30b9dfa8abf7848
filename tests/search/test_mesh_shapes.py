"""Mesh shapes: which are searched, that finer ones contain coarser ones, and that none is ruled out that is better."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from math import inf, prod
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

import autopar
from autopar.core.dataflow import dataflow
from autopar.core.graph import OpGraph
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.cost.pricing import Pricing, Roofline
from autopar.errors import AutoparError, InvalidOption, NoFeasiblePlan, Unsolved
from autopar.redistribute.route import Router
from autopar.search.best_bound_first import Entrant, Progress, race
from autopar.search.mesh_context import MeshContext
from autopar.search.mesh_search import MeshSearch, _Rough
from autopar.search.mesh_shapes import NAMES, mesh_shapes, refines
from autopar.search.search import contained, find_at, find_on, find_plan, places_of
from autopar.search.task import SearchOptions, Task
from autopar.solve import SolveOptions
from autopar.trace import trace
from cost_models import Cluster, Level, Link, Topology, load_cluster, replace_link

# which shapes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("levels", "most", "shapes"),
    [
        ((1,), 2, [(1,)]),
        ((1, 1), 4, [(1,)]),
        ((7,), 4, [(7,)]),
        ((8,), 1, [(8,)]),
        ((8,), 2, [(8,), (2, 4), (4, 2)]),
        ((1, 8), 2, [(8,), (2, 4), (4, 2)]),
        ((8,), 3, [(8,), (2, 4), (4, 2), (2, 2, 2)]),
        ((8,), 4, [(8,), (2, 4), (4, 2), (2, 2, 2)]),
        ((6,), 2, [(6,), (2, 3), (3, 2)]),
        ((12,), 2, [(12,), (2, 6), (3, 4), (4, 3), (6, 2)]),
        ((8, 8), 2, [(64,), (2, 32), (4, 16), (8, 8), (16, 4), (32, 2)]),
        ((4, 6), 2, [(24,), (2, 12), (4, 6), (8, 3), (12, 2)]),
        ((2, 3), 2, [(6,), (2, 3)]),
    ],
)
def test_shapes_by_hand(levels: tuple[int, ...], most: int, shapes: list[tuple[int, ...]]) -> None:
    """(3, 8) and (6, 4) are left out on 4 servers of 6 devices: their inner axis ends within a server."""
    assert [mesh.sizes for mesh in mesh_shapes(levels, most)] == shapes


def factorisations(count: int) -> Iterator[tuple[int, ...]]:
    """All ways to write `count` as an ordered product of numbers above 1, the slow way."""
    if count == 1:
        yield ()
    for first in range(2, count + 1):
        if count % first == 0:
            yield from ((first, *rest) for rest in factorisations(count // first))


def members_on_units(mesh: tuple[int, ...], axis: int, unit: int) -> set[int]:
    """How many members of one group along `axis` lie in a unit of `unit` devices, by listing the devices."""
    inner = prod(mesh[axis + 1 :])
    starts = [d for d in range(prod(mesh)) if d // inner % mesh[axis] == 0]
    found: set[int] = set()
    for start in starts:
        units = [(start + k * inner) // unit for k in range(mesh[axis])]
        found |= {units.count(u) for u in units}
    return found


@settings(deadline=None)
@given(
    levels=st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=2),
    most=st.integers(1, 4),
)
def test_the_shapes_are_those_whose_groups_lie_alike_on_every_unit(
    levels: list[int], most: int
) -> None:
    """Every group of every run of axes has as many members in each unit that it touches."""
    count = prod(levels)
    units = [prod(levels[n:]) for n in range(1, len(levels) + 1)]
    wanted: set[tuple[int, ...]] = {(1,)} if count == 1 else set()
    for sizes in factorisations(count):
        merged = [(prod(sizes[:cut]), prod(sizes[cut:])) for cut in range(1, len(sizes))]
        even = all(
            len(members_on_units(two, axis, unit)) == 1
            for two in merged
            for axis in (0, 1)
            for unit in units
        )
        if 1 <= len(sizes) <= most and even:
            wanted.add(sizes)
    found = mesh_shapes(levels, most)
    assert {mesh.sizes for mesh in found} == wanted
    assert len(found) == len(wanted)
    assert found[0].sizes == (count,)
    assert all(mesh.names == NAMES[: len(mesh.sizes)] for mesh in found)


@given(st.sampled_from([8, 12, 24, 30]), st.data())
def test_a_shape_refines_what_its_neighbouring_axes_merge_to(count: int, data: Any) -> None:
    fine = data.draw(st.sampled_from([sizes for sizes in factorisations(count) if len(sizes) <= 4]))
    coarse = data.draw(
        st.sampled_from([sizes for sizes in factorisations(count) if len(sizes) <= 4])
    )
    cuts = range(len(fine) + 1)
    merges = {
        tuple(prod(fine[a:b]) for a, b in pairwise([0, *inner, len(fine)]))
        for inner in (
            [c for n, c in enumerate(cuts[1:-1]) if bits >> n & 1]
            for bits in range(2 ** (len(fine) - 1))
        )
    }
    assert refines(mesh_of(fine), mesh_of(coarse)) == (coarse in merges)


@pytest.mark.parametrize("axes", [0, 5, -1, 2.0, True, None])
def test_a_number_of_axes_that_cannot_be_is_refused(axes: Any) -> None:
    with pytest.raises(
        InvalidOption,
        match=f"max_mesh_axes is {axes!r}: pass how many axes a mesh may have, 1 to 4",
    ):
        SearchOptions(max_mesh_axes=axes)


# containment ----------------------------------------------------------------------------------------------------------


def mesh_of(sizes: tuple[int, ...]) -> DeviceMesh:
    return DeviceMesh(tuple(zip(NAMES, sizes, strict=False)))


def cluster_of(*sizes: int, kind: str = "switch") -> Cluster:
    """Slow outer links, fast inner ones; a torus where that is the kind."""
    if kind == "torus":
        name = "tpu-v5e-" + "x".join(map(str, sizes))
        return replace_link(
            replace_link(load_cluster(name), "x", latency_s=1e-8), "y", latency_s=1e-8
        )
    device = replace(load_cluster("8xh100").device, launch_s=0.0, memory_bytes=1e9)
    links = [Link(1e-7, 1e11 * 4.0**n) for n in range(len(sizes))]
    levels = tuple(
        Level(f"l{n}", size, link) for n, (size, link) in enumerate(zip(sizes, links, strict=True))
    )
    return Cluster("drawn", device, Topology(levels))


def step(w: Any, v: Any, x: Any, y: Any) -> Any:
    def loss(w: Any, v: Any) -> Any:
        return (((jnp.tanh(x @ w) @ v) - y) ** 2).mean()

    dw, dv = jax.grad(loss, (0, 1))(w, v)
    return w - 0.1 * dw, v - 0.1 * dv


@cache
def graph_of(width: int = 768) -> OpGraph:
    shapes = [(width, 4 * width), (4 * width, width), (384, width), (384, width)]
    return trace(step, tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)).graph


def task_of(graph: OpGraph, cluster: Cluster, limit: int | None = None, **options: Any) -> Task:
    def pricing(graph: OpGraph, mesh: DeviceMesh) -> Pricing:
        return Roofline(graph, mesh, cluster)

    return Task(graph, pricing, memory_limit_bytes=limit, prices_devices=True, **options)


def grounds_of(task: Task, meshes: list[DeviceMesh]) -> list[MeshContext]:
    flow = dataflow(task.graph)
    return [MeshContext(task.graph, flow, mesh, task.make_pricing) for mesh in meshes]


def cut(placement: Placement, axes: dict[str, tuple[str, ...]]) -> Placement:
    """The placement with every axis replaced by those it is cut into."""
    dims = tuple(tuple(part for axis in dim for part in axes[axis]) for dim in placement.dims)
    return Placement(
        dims, tuple(part for axis in placement.unreduced for part in axes[axis]), placement.kind
    )


@pytest.mark.parametrize(
    ("levels", "kind", "fine", "coarse", "axes"),
    [
        ((8,), "switch", (2, 2, 2), (2, 4), {"x": ("x",), "y": ("y", "z")}),
        ((8,), "switch", (2, 4), (8,), {"x": ("x", "y")}),
        ((2, 6), "switch", (2, 3, 2), (6, 2), {"x": ("x", "y"), "y": ("z",)}),
        ((4, 4), "torus", (2, 2, 4), (4, 4), {"x": ("x", "y"), "y": ("z",)}),
    ],
)
def test_a_coarse_shape_lies_within_a_finer_one_at_the_same_prices(
    levels: tuple[int, ...],
    kind: str,
    fine: tuple[int, ...],
    coarse: tuple[int, ...],
    axes: dict[str, tuple[str, ...]],
) -> None:
    """Every strategy is there and costs the same; every route costs no more. So every plan is, and no more."""
    graph, cluster = graph_of(), cluster_of(*levels, kind=kind)
    meshes = [mesh_of(fine), mesh_of(coarse)]
    assert refines(*meshes)
    inner, outer = grounds_of(task_of(graph, cluster), meshes)
    prices, dearer = inner.pricing(()), outer.pricing(())
    for op, many, few in zip(
        graph.ops, inner.space.strategies, outer.space.strategies, strict=True
    ):
        by_placement = {(s.ins, s.outs): s for s in many}
        for strategy in few:
            ins, outs = (
                tuple(cut(p, axes) for p in side) for side in (strategy.ins, strategy.outs)
            )
            same = by_placement[ins, outs]
            assert prices.op_cost(op, same) == pytest.approx(
                dearer.op_cost(op, strategy), rel=1e-12
            )
            assert same.split == strategy.split
    sides = zip(
        inner.space.inputs + inner.space.copies,
        outer.space.inputs + outer.space.copies,
        strict=True,
    )
    for many, few in sides:
        assert {cut(p, axes) for p in few} <= set(many)
    tensor = graph.inputs[0]
    placements = outer.space.inputs[0]
    routes = Router(meshes[1], dearer.step_cost).cost_matrix(
        tensor.shape, 4, placements, placements
    )
    cut_ones = [cut(p, axes) for p in placements]
    finer = Router(meshes[0], prices.step_cost).cost_matrix(tensor.shape, 4, cut_ones, cut_ones)
    assert (finer <= routes * (1 + 1e-12)).all()


def test_containment_is_claimed_only_where_it_holds() -> None:
    task = task_of(graph_of(), cluster_of(8))
    grounds = grounds_of(
        task, [mesh_of((8,)), mesh_of((2, 4)), mesh_of((4, 2)), mesh_of((2, 2, 2))]
    )
    nothing: list[list[int]] = [[], [], [], []]
    assert contained(task, grounds) == [[], [0], [0], [0, 1, 2]]
    assert contained(replace(task, prices_devices=False), grounds) == nothing
    assert contained(replace(task, constraints=(autopar.pin("w", P("x")),)), grounds) == nothing
    assert contained(replace(task, constraints=(autopar.replicate("w"),)), grounds) == [
        [],
        [0],
        [0],
        [0, 1, 2],
    ]
    assert contained(replace(task, mode="data_parallel"), grounds) == nothing


# the race -------------------------------------------------------------------------------------------------------------


def entrant(*steps: Progress[str]) -> Entrant[str]:
    for one in steps:
        _ = yield one


def test_the_most_promising_goes_on_and_the_hopeless_are_ruled_out() -> None:
    taken: list[str] = []

    def watched(name: str, *steps: Progress[str]) -> Entrant[str]:
        for one in steps:
            taken.append(name)
            yield one

    runs = [
        watched("a", Progress(5.0), Progress(7.0, 7.0, "a")),
        watched("b", Progress(3.0), Progress(4.0, 4.0, "b")),
        watched("c", Progress(2.0), Progress(4.5, 4.5, "c")),
    ]
    hopeless: list[int] = []
    finish = race(runs, [[], [], []], ruled_out=hopeless.append)
    assert (finish.winner, finish.found, finish.objective) == (1, "b", 4.0)
    assert taken == ["a", "b", "c", "c", "b"]
    assert hopeless == [0]
    assert finish.bounds == (5.0, 4.0, 4.5)
    assert finish.finished == (False, True, True)


def test_of_equal_bounds_the_first_in_order_goes_on() -> None:
    def race_of(order: Sequence[int]) -> str | None:
        runs = [
            entrant(Progress(3.0, 3.0, "a")),
            entrant(Progress(3.0, 3.0, "b")),
            entrant(Progress(4.0, 4.0, "c")),
        ]
        return race(runs, [[], [], []], order=order).found

    assert [race_of(order) for order in ((), (1, 0, 2), (2, 1, 0))] == ["a", "b", "b"]


def test_what_contains_another_rules_it_out_before_it_starts() -> None:
    def never() -> Entrant[str]:
        raise AssertionError("this one was ruled out")
        yield

    finish = race([entrant(Progress(2.0), Progress(3.0, 3.0, "fine")), never()], [[1], []])
    assert (finish.found, finish.bounds) == ("fine", (3.0, 3.0))
    gap = race(
        [entrant(Progress(2.0, 3.0, "fine")), entrant(Progress(1.0), Progress(2.5, 2.5, "coarse"))],
        [[1], []],
    )
    assert (gap.found, gap.bounds, gap.finished) == ("coarse", (2.0, 2.5), (True, True))


def test_entrants_are_told_what_to_undercut() -> None:
    told: dict[str, list[float]] = {"a": [], "b": []}

    def listening(name: str, *steps: Progress[str]) -> Entrant[str]:
        for one in steps:
            told[name].append((yield one))

    runs = [
        listening("a", Progress(1.0), Progress(4.0, 5.0, "a"), Progress(5.0)),
        listening("b", Progress(2.0), Progress(3.0, 4.5, "b")),
    ]
    finish = race(runs, [[], []], below=9.0)
    assert (finish.found, finish.objective, finish.bounds) == ("b", 4.5, (5.0, 3.0))
    assert told == {"a": [9.0, 4.5], "b": [5.0, 4.5]}


def test_of_equals_the_first_wins_and_a_misfit_is_told() -> None:
    same = [entrant(Progress(1.0, 2.0, "a")), entrant(Progress(1.5, 2.0 - 1e-12, "b"))]
    assert race(same, [[], []]).found == "a"
    misfit = NoFeasiblePlan("too small", 7)
    finish = race(
        [entrant(Progress[str](inf, misfit=misfit)), entrant(Progress(1.0, 2.0, "b"))], [[], []]
    )
    assert (finish.found, finish.misfits, finish.bounds) == ("b", (misfit,), (inf, 1.0))
    assert race([entrant(Progress[str](1.0))], [[]], below=0.5, bounds=[0.5]).found is None


@pytest.mark.parametrize(
    ("nothing", "found", "order"),
    [
        ("", "c", "ac"),
        ("c", "d", "acb"),
        ("a", "c", "abc"),
        ("bc", "d", "acb"),
        ("abc", "d", "abc"),
    ],
)
def test_of_what_takes_long_to_make_the_cheapest_is_made(
    nothing: str, found: str, order: str
) -> None:
    """At once if nothing was found before. Whose is nothing after all goes on."""
    made: list[str] = []

    def making(name: str) -> str | None:
        made.append(name)
        return None if name in nothing else name

    def costing(cost: float, name: str) -> Progress[str]:
        return Progress(cost, cost, make=partial(making, name))

    runs = [
        entrant(costing(9.0, "a"), Progress(9.5)),
        entrant(costing(8.0, "b"), Progress(8.5)),
        entrant(costing(7.0, "c"), Progress(7.5, 7.5, "d")),
    ]
    finish = race(runs, [[], [], []])
    assert (finish.found, "".join(made)) == (found, order)
    assert finish.winner == 2
    assert min(finish.bounds) == finish.objective


def test_a_race_ends_within_the_tolerance() -> None:
    def runs() -> list[Entrant[str]]:
        return [
            entrant(Progress(9.0, 10.0, "a"), Progress(9.9, 9.95, "b")),
            entrant(Progress(9.4), Progress(9.5)),
        ]

    ends = [race(runs(), [[], []], gap_tolerance=gap) for gap in (0.1, 0.05, 0.0)]
    assert [finish.found for finish in ends] == ["a", "b", "b"]
    assert [min(finish.bounds) for finish in ends] == [9.0, 9.5, 9.5]
    assert not race(runs(), [[], []], below=10.0, gap_tolerance=0.1).found


@pytest.mark.parametrize("gap", [-0.1, 1.0, float("nan"), True, "little"])
def test_a_tolerance_that_cannot_be_is_refused(gap: Any) -> None:
    with pytest.raises(InvalidOption, match="gap_tolerance is"):
        autopar.SearchOptions(gap_tolerance=gap)


def test_the_search_tells_the_solver_its_tolerance() -> None:
    assert autopar.SearchOptions(gap_tolerance=0.1).solver.gap_tolerance == 0.1
    with pytest.raises(
        InvalidOption, match=r"solve has gap_tolerance 0\.2: pass it to SearchOptions"
    ):
        autopar.SearchOptions(solve=autopar.SolveOptions(gap_tolerance=0.2))


@given(st.data())
def test_a_race_finds_what_trying_all_finds(data: Any) -> None:
    """Entrants draw bounds that grow towards what they find; containment is drawn so that it is true."""
    ends = data.draw(st.lists(st.integers(1, 20), min_size=1, max_size=5))
    within = [
        [n for n in range(len(ends)) if n > m and ends[n] >= ends[m] and data.draw(st.booleans())]
        for m in range(len(ends))
    ]
    runs = [
        entrant(
            *(
                Progress[str](float(b))
                for b in sorted(data.draw(st.lists(st.integers(0, end), max_size=3)))
            ),
            Progress(float(end), float(end), str(n)),
        )
        for n, end in enumerate(ends)
    ]
    finish = race(runs, within)
    assert finish.objective == min(ends)
    assert min(finish.objective, *finish.bounds) == min(ends)


# nothing better is ruled out ------------------------------------------------------------------------------------------

exactly = MeshSearch.run


def loosely(self: MeshSearch, limit: int | None, **_: Any) -> Entrant[Any]:
    """As a large model is searched: what is known of a shape at first is less than the truth."""
    yield Progress(0.85 * self.free()[1].plan.objective_s)
    yield from exactly(self, limit)


CLUSTERS = [
    ((8,), "switch", 3),
    ((6,), "switch", 2),
    ((2, 6), "switch", 3),
    ((4, 6), "switch", 2),
    ((4, 4), "torus", 3),
    ((7,), "switch", 3),
    ((8, 12), "switch", 2),
]


@pytest.mark.parametrize(("levels", "kind", "most"), CLUSTERS)
def test_no_shape_that_is_ruled_out_would_have_been_better(
    monkeypatch: pytest.MonkeyPatch, levels: tuple[int, ...], kind: str, most: int
) -> None:
    """All shapes are searched one by one to their ends, and compared with the race on rough bounds."""
    task = task_of(graph_of(), cluster_of(*levels, kind=kind))
    grounds = grounds_of(task, list(mesh_shapes(levels, most)))
    alone = [find_on(task, [ground]).plan for ground in grounds]
    assert all(plan.gap == 0 for plan in alone)
    for fine, inside in zip(alone, contained(task, grounds), strict=True):
        assert all(fine.objective_s <= alone[n].objective_s * (1 + 1e-9) for n in inside)
    monkeypatch.setattr(MeshSearch, "run", loosely)
    best = find_on(task, grounds).plan
    least = min(plan.objective_s for plan in alone)
    assert best.objective_s == pytest.approx(least, rel=1e-9)
    assert best.lower_bound_s == pytest.approx(least, rel=1e-9)
    assert all(str(ground.mesh) in best.space for ground in grounds)


@pytest.mark.slow
@pytest.mark.parametrize(("levels", "kind", "most"), [((8,), "switch", 2), ((2, 4), "switch", 2)])
def test_nor_within_a_memory_limit(levels: tuple[int, ...], kind: str, most: int) -> None:
    """Within the smallest peak that an error names: less is not known to fit on any shape."""
    quick = SearchOptions(recompute="never", solve=SolveOptions(anneal_passes=50))
    task = task_of(graph_of(), cluster_of(*levels, kind=kind), options=quick)
    grounds = grounds_of(task, list(mesh_shapes(levels, most)))
    free = find_on(task, grounds)
    with pytest.raises(NoFeasiblePlan) as error:
        find_on(replace(task, memory_limit_bytes=1), grounds)
    least = error.value.min_peak_bytes
    assert least is not None
    assert least < 0.99 * free.account.peak_memory_bytes
    task = replace(task, memory_limit_bytes=least)
    alone: list[float] = []
    for ground in grounds:
        try:
            alone.append(find_on(task, [ground]).plan.objective_s)
        except (NoFeasiblePlan, Unsolved):
            alone.append(inf)
    assert min(alone) < inf
    best = find_on(task, grounds)
    assert best.account.peak_memory_bytes <= (task.memory_limit_bytes or 0)
    assert best.plan.objective_s <= min(alone) * (1 + 1e-9)
    assert free.plan.objective_s <= best.plan.lower_bound_s * (1 + 1e-9)


def test_shapes_are_ruled_out_and_the_plan_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MeshSearch, "run", loosely)
    task = task_of(graph_of(), cluster_of(4, 6))
    planned = find_plan(task, mesh_shapes((4, 6), 2))
    assert planned.plan.gap == 0
    assert planned.plan.space.startswith("mode auto, mesh ")
    assert planned.plan.space.endswith(" ruled out by bounds)")
    again = find_plan(task, mesh_shapes((4, 6), 2))
    assert (again.plan.space, again.plan.stage) == (planned.plan.space, planned.plan.stage)
    single = find_plan(task, [mesh_of((2, 12))])
    assert single.plan.space == "mode auto, mesh (x=2, y=12)"


def test_a_wrong_bound_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: the bound of the best shape is overstated, so it is ruled out."""
    task = task_of(graph_of(), cluster_of(4, 6))
    meshes = mesh_shapes((4, 6), 2)
    best = find_plan(task, meshes)

    def overstated(self: MeshSearch, limit: int | None, **how: Any) -> Entrant[Any]:
        run = exactly(self, limit, **how)
        one, is_best = next(run), self.ground.mesh == best.plan.stage.mesh
        with suppress(StopIteration):
            while True:
                one = run.send((yield Progress(one.bound * 10) if is_best else one))

    monkeypatch.setattr(MeshSearch, "run", overstated)
    assert find_plan(task, meshes).plan.objective_s > best.plan.objective_s * 1.01


def test_even_shapes_of_the_most_axes_come_first_behind_any_shape_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is proven of two axes rules out the one axis of a second graph before it is looked at."""
    looked: list[tuple[int, int]] = []
    tasks = [task_of(graph_of(), cluster_of(16)) for _ in range(2)]
    places = [place for task in tasks for place in places_of(task, mesh_shapes((16,), 2))]
    assert [place.ground.mesh.sizes for place in places[:4]] == [(16,), (2, 8), (4, 4), (8, 2)]

    def noted(place: MeshSearch, below: float) -> Any:
        looked.append((tasks.index(place.task), place.ground.mesh.sizes[0]))
        return rough(place, below)

    rough = MeshSearch._found_roughly
    monkeypatch.setattr(MeshSearch, "_found_roughly", noted)
    find_at(places)
    assert looked[:3] == [(0, 16), (0, 4), (1, 4)]
    assert (1, 16) not in looked


def test_a_bound_that_reaches_the_tolerance_is_enough_however_it_is_rounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """(c - 0.995 c) / c is more than 0.005 for this c, by rounding."""
    cost = 10.601111810529568
    assert (cost - 0.995 * cost) / cost > 0.005
    place = places_of(task_of(graph_of(), cluster_of(8)), mesh_shapes((8,), 1))[0]
    attempt, planned = place.free()
    assert planned.solution is not None
    close = replace(planned.solution, objective=cost, lower_bound=0.995 * cost)
    again = MeshSearch(place.task, place.ground)
    again._rough.append(_Rough(attempt, close))
    monkeypatch.setattr(
        MeshSearch, "_found_fully", lambda *_: pytest.fail("it is proven within the tolerance")
    )
    assert again.free()[1].solution is close


def test_of_shapes_with_the_same_best_plan_that_of_fewest_axes_is_taken() -> None:
    task = task_of(graph_of(), replace_link(cluster_of(8), "l0", bandwidth_bytes_per_s=1e3))
    assert find_plan(task, mesh_shapes((8,), 2)).plan.stage.mesh.sizes == (8,)


def test_a_constraint_that_one_shape_cannot_hold_leaves_the_others() -> None:
    """Only meshes of two axes have an axis y."""
    task = replace(task_of(graph_of(), cluster_of(6)), constraints=(autopar.pin("x", P("y")),))
    planned = find_plan(task, mesh_shapes((6,), 2))
    assert planned.plan.stage.inputs[2].dims == (("y",), ())
    uneven = replace(
        task_of(graph_of(), cluster_of(10)), constraints=(autopar.pin("x", P(None, "x")),)
    )
    assert find_plan(uneven, [mesh_of((5, 2)), mesh_of((2, 5))]).plan.stage.mesh.sizes == (2, 5)
    with pytest.raises(AutoparError, match="nowhere"):
        find_plan(
            replace(task, constraints=(autopar.pin("nowhere", P("x")),)), mesh_shapes((6,), 2)
        )
