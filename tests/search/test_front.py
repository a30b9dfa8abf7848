"""The front: against all plans of small graphs, and that what it says of its points is consistent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise, product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import autopar
from autopar.core.dataflow import dataflow
from autopar.core.graph import OpGraph
from autopar.core.mesh import DeviceMesh
from autopar.core.plan import Stage
from autopar.cost.assemble import placement_choice
from autopar.cost.pricing import Pricing, Roofline
from autopar.errors import InvalidOption, NoFeasiblePlan
from autopar.passes.pipeline import build_program
from autopar.search import front as front_module
from autopar.search.front import Point, find_front, limits, monotone, thinned
from autopar.search.front_curve import FrontCurve, Lane
from autopar.search.limited_solve import account_of
from autopar.search.mesh_context import MeshContext
from autopar.search.mesh_shapes import mesh_shapes
from autopar.search.progress import SearchProgress
from autopar.search.task import SearchOptions, Task
from autopar.solve import SolveOptions, verify
from autopar.solve.parametric.archive import Pareto
from autopar.solve.problem.problem import objective
from autopar.trace import trace
from cost_models import Cluster, load_cluster, replace_link
from tests.quick_some import one_quick

FOUR = DeviceMesh.of({"x": 4})


def cluster_of(count: int, bandwidth: float) -> Cluster:
    return replace_link(
        load_cluster(f"{count}xh100"), "device", latency_s=1e-7, bandwidth_bytes_per_s=bandwidth
    )


def task_of(fn: Any, shapes: list[tuple[int, ...]], cluster: Cluster) -> Task:
    def pricing(graph: OpGraph, mesh: DeviceMesh) -> Pricing:
        return Roofline(graph, mesh, cluster)

    graph = trace(fn, tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)).graph
    return Task(graph, pricing, prices_devices=True)


def one_product(x: Any, w: Any) -> Any:
    return x @ w


def two_products(x: Any, w: Any, v: Any) -> Any:
    return (x @ w) @ v


CASES = [
    (one_product, [(64, 512), (512, 64)], 1e9),
    (one_product, [(512, 512), (512, 64)], 1e10),
    (two_products, [(64, 128), (128, 512), (512, 64)], 1e10),
]


@cache
def every_plan(case: int) -> tuple[tuple[float, int], ...]:
    """The objective and the program's peak of every plan there is, one by one."""
    fn, shapes, bandwidth = CASES[case]
    task = task_of(fn, shapes, cluster_of(4, bandwidth))
    ground = MeshContext(task.graph, dataflow(task.graph), FOUR, task.make_pricing)
    problem, pricing, router = ground.problem((), None), ground.pricing(()), ground.router(())
    found: list[tuple[float, int]] = []
    for choice in product(*map(range, problem.counts)):
        cost = objective(problem, choice)
        if np.isfinite(cost):
            stage: Stage = ground.space.stage(placement_choice(ground.space, choice))
            program = build_program(task.graph, ground.flow, stage, router, pricing.step_cost)
            found.append((cost, account_of(task.graph, program, pricing).peak_memory_bytes))
    return tuple(found)


def check_point(point: Point, plans: tuple[tuple[float, int], ...]) -> float:
    """A point's program keeps within its limit, its bound is below the truth there, its plan is not: the truth."""
    plan, best = point.planned.plan, min(cost for cost, used in plans if used <= point.limit_bytes)
    assert point.planned.account.peak_memory_bytes <= point.limit_bytes
    assert plan.lower_bound_s <= best * (1 + 1e-9)
    assert best <= plan.objective_s * (1 + 1e-9)
    return best


def check_order(found: tuple[Point, ...]) -> None:
    """Every point needs more memory than that before, costs less, and has no higher a bound."""
    for less, more in pairwise(found):
        assert less.limit_bytes < more.limit_bytes
        assert less.planned.plan.objective_s > more.planned.plan.objective_s
        assert less.planned.account.peak_memory_bytes < more.planned.account.peak_memory_bytes
        assert less.planned.plan.lower_bound_s >= more.planned.plan.lower_bound_s


@pytest.mark.parametrize("case", range(len(CASES)))
def test_the_front_is_that_of_all_plans(case: int) -> None:
    """Every point's bound is below the truth and its plan not; where its gap is 0 it is the truth."""
    fn, shapes, bandwidth = CASES[case]
    plans = every_plan(case)
    smallest, plans_best = min(used for _, used in plans), min(cost for cost, _ in plans)
    found = find_front([task_of(fn, shapes, cluster_of(4, bandwidth))], [FOUR], 6)
    exact = 0
    for point in found:
        plan, best = point.planned.plan, check_point(point, plans)
        assert plan.objective_s == pytest.approx(best, rel=1e-9) or plan.gap
        exact += plan.objective_s <= best * (1 + 1e-9)
    assert found[-1].planned.plan.objective_s == pytest.approx(plans_best, rel=1e-9)
    cheapest = min(cost for cost, used in plans if used == smallest)
    assert (len(found) > 1) == (cheapest > plans_best * (1 + 1e-9))
    assert found[0].planned.account.peak_memory_bytes == smallest
    assert exact >= len(found) - 1
    check_order(found)


@pytest.mark.slow
def test_over_several_shapes_no_point_is_worse_than_on_any_one() -> None:
    fn, shapes, bandwidth = CASES[0]
    quick = SolveOptions(max_sweeps=40, max_rounds=1, anneal_passes=50)
    options = SearchOptions(max_tightenings=3, solve=quick)
    task = replace(task_of(fn, shapes, cluster_of(4, bandwidth)), options=options)
    meshes = mesh_shapes((4,), 2)
    found = find_front([task], meshes, 3)
    again = find_front([task], meshes, 3)
    assert [(p.limit_bytes, p.planned.plan) for p in found] == [
        (p.limit_bytes, p.planned.plan) for p in again
    ]
    for mesh in meshes:
        for point in find_front([task], [mesh], 3):
            peak, cost = point.planned.account.peak_memory_bytes, point.planned.plan.objective_s
            bounds = [p.planned.plan.lower_bound_s for p in found if p.limit_bytes >= peak]
            assert all(bound <= cost * (1 + 1e-9) for bound in bounds)
            assert found[-1].planned.plan.objective_s <= cost * (1 + 1e-9)
    assert all(str(mesh) in point.planned.plan.space for point in found for mesh in meshes)


@given(st.integers(1, 10**12), st.integers(0, 10**12), st.integers(2, 12))
def test_limits_stand_in_equal_ratios(least: int, more: int, points: int) -> None:
    most = least + more
    found = limits(least, most, points)
    assert found[0] == least
    assert found[-1] == most
    assert found == sorted(set(found))
    assert len(found) <= points
    if least > 10**6 and more:
        ratios = [b / a for a, b in pairwise(found)]
        assert len(ratios) < points - 1 or max(ratios) == pytest.approx(min(ratios), rel=1e-4)


def point_of(limit: int, cost: float, bound: float) -> Point:
    """A point of nothing but numbers."""
    planned: Any = autopar.plan(
        lambda x: x + 1, jnp.ones(4), cluster="4xh100", mesh={"x": 4}
    ).bound.planned
    plan = replace(planned.plan, objective_s=cost, lower_bound_s=bound)
    return Point(limit, 0, replace(planned, plan=plan))


def test_more_memory_never_costs_more_and_bounds_go_to_tighter_limits() -> None:
    drawn = [
        point_of(1, 9.0, 1.0),
        point_of(2, 7.0, 3.0),
        point_of(3, 8.0, 2.0),
        point_of(4, 5.0, 5.0),
    ]
    told = monotone(drawn)
    assert [p.planned.plan.objective_s for p in told] == [9.0, 7.0, 7.0, 5.0]
    assert [p.planned.plan.lower_bound_s for p in told] == [5.0, 5.0, 5.0, 5.0]
    assert [p.planned.task.memory_limit_bytes for p in told] == [1, 2, 3, 4]
    assert [p.limit_bytes for p in thinned(told)] == [1, 2, 4]


# large problems, along all limits -------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", range(len(CASES)))
def test_along_all_limits_bounds_are_below_all_plans_and_plans_keep_within(
    case: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autopar.search.front_curve._MOST_ANEW", 0)
    fn, shapes, bandwidth = CASES[case]
    plans = every_plan(case)
    found = find_front([task_of(fn, shapes, cluster_of(4, bandwidth))], [FOUR], 6)
    for point in found:
        check_point(point, plans)
        assert point.limit_bytes == point.planned.account.peak_memory_bytes
        assert point.planned.problem is not None
        assert point.planned.solution is not None
        verify(point.planned.problem, point.planned.solution)
    assert found[-1].planned.plan.objective_s == pytest.approx(
        min(cost for cost, _ in plans), rel=1e-9
    )
    check_order(found)


@pytest.mark.parametrize("case", range(len(CASES)))
def test_along_several_meshes_bounds_are_below_all_plans_of_each(
    case: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autopar.search.front_curve._MOST_ANEW", 0)
    fn, shapes, bandwidth = CASES[case]
    meshes = (FOUR, DeviceMesh.of({"x": 2, "y": 2}))
    task = task_of(fn, shapes, cluster_of(4, bandwidth))
    found, again = (find_front([task], meshes, 6) for _ in range(2))
    assert [(p.limit_bytes, p.planned.plan) for p in found] == [
        (p.limit_bytes, p.planned.plan) for p in again
    ]
    check_order(found)
    plans = every_plan(case)
    for point in found:
        assert point.planned.account.peak_memory_bytes <= point.limit_bytes
        within = [cost for cost, used in plans if used <= point.limit_bytes]
        assert point.planned.plan.lower_bound_s <= min(within, default=np.inf) * (1 + 1e-9)
        assert all(str(mesh) in point.planned.plan.space for mesh in meshes)
        assert point.planned.problem is not None
        assert point.planned.solution is not None
        verify(point.planned.problem, point.planned.solution)
        assert point.planned.plan.lower_bound_s <= point.planned.solution.lower_bound * (1 + 1e-9)
    assert found[-1].planned.plan.objective_s <= min(cost for cost, _ in plans) * (1 + 1e-9)


def test_along_several_meshes_one_that_costs_too_much_is_not_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On the mesh whose bound is above all that the other costs, no curve is drawn, and its bound stays."""
    monkeypatch.setattr("autopar.search.front_curve._MOST_ANEW", 0)
    fn, shapes, bandwidth = CASES[2]
    task = task_of(fn, shapes, cluster_of(4, bandwidth))
    sweep = front_module._Sweep(task, (FOUR,))
    sweep.best(None)
    attempt = sweep.places[0].attempt()
    near, far = Lane(attempt, 0.0), Lane(attempt, 1e9)
    along = FrontCurve((far, near))
    assert along.choices.met
    assert (near.drawn, far.drawn) == (True, False)
    assert far.bound_s(1) == 1e9
    most = int(max(met.peak for met in along.choices.met)) * 4
    planned = [*along.peaks_bytes(sweep.met[0], 3)]
    assert planned
    found = along.within(most)
    assert found is not None
    assert found.plan.lower_bound_s <= found.plan.objective_s


@pytest.mark.slow
@pytest.mark.parametrize("case", one_quick([0, 2]))  # limits cost nothing in the other
def test_a_lane_proves_what_its_curve_does_and_what_was_known(case: int) -> None:
    """Of every limit no more than the best plan costs; where nothing is drawn, what was known of all limits."""
    fn, shapes, bandwidth = CASES[case]
    sweep = front_module._Sweep(task_of(fn, shapes, cluster_of(4, bandwidth)), (FOUR,))
    known = sweep.best(None).plan.lower_bound_s
    lane = Lane(sweep.places[0].attempt(), known)
    plans = every_plan(case)
    limits = sorted({used for _, used in plans})
    assert {lane.bound_s(limit) for limit in limits} == {known}
    lane.draw(Pareto(), 0.0)
    proven = [lane.bound_s(limit) for limit in limits]
    for limit, bound in zip(limits, proven, strict=True):
        assert known <= bound <= min(cost for cost, used in plans if used <= limit) * (1 + 1e-9)
        assert bound == max(known, lane._curves[0].bound(float(limit)))
    assert proven == sorted(proven, reverse=True)
    assert proven[0] > known * (1 + 1e-3)
    assert Lane(lane.attempt, 2 * proven[0]).bound_s(limits[0]) == 2 * proven[0]


def test_progress_is_told_of_every_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autopar.search.front_curve._MOST_ANEW", 0)
    fn, shapes, bandwidth = CASES[2]
    told: list[SearchProgress] = []
    options = SearchOptions(on_progress=told.append)
    found = find_front(
        [replace(task_of(fn, shapes, cluster_of(4, bandwidth)), options=options)], [FOUR], 6
    )
    assert len(found) > 2
    limits_told = {progress.memory_limit_bytes for progress in told}
    assert {point.limit_bytes for point in found[:-1]} <= limits_told


# ended early ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most_entries", one_quick([0, 30_000]))
def test_an_interrupted_front_is_the_points_found_so_far(
    most_entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autopar.search.front_curve._MOST_ANEW", most_entries)
    fn, shapes, bandwidth = CASES[2]
    task = task_of(fn, shapes, cluster_of(4, bandwidth))
    whole, calls = find_front([task], [FOUR], 6), 0

    def interrupted(best: Callable[..., Point], *args: Any) -> Point:
        nonlocal calls
        calls += 1
        if calls > 2:
            raise KeyboardInterrupt
        return best(*args)

    for name in ("_best", "_best_along"):
        monkeypatch.setattr(front_module, name, partial(interrupted, getattr(front_module, name)))
    found = find_front([task], [FOUR], 6)
    assert 1 <= len(found) <= 2 < len(whole)
    assert all(point.planned.plan.stopped == "the keyboard" for point in found)
    assert found[-1].planned.plan.objective_s == whole[-1].planned.plan.objective_s
    assert not any(point.planned.plan.stopped for point in whole)


def test_an_interruption_before_any_point_goes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> Point:
        raise KeyboardInterrupt

    monkeypatch.setattr(front_module, "_best", interrupted)
    fn, shapes, bandwidth = CASES[0]
    with pytest.raises(KeyboardInterrupt):
        find_front([task_of(fn, shapes, cluster_of(4, bandwidth))], [FOUR], 6)


def test_a_front_without_time_is_its_fastest_point() -> None:
    fn, shapes, bandwidth = CASES[0]
    task = task_of(fn, shapes, cluster_of(4, bandwidth))
    hurried = replace(task, options=SearchOptions(solve=SolveOptions(time_limit_s=0.0)))
    (point,) = find_front([hurried], [FOUR], 6)
    assert "time limit" in point.planned.plan.stopped


@pytest.mark.parametrize("gap", [-0.1, float("nan"), True, "small"])
def test_a_gap_that_cannot_be_is_refused(gap: Any) -> None:
    with pytest.raises(InvalidOption, match="front_gap is"):
        SearchOptions(front_gap=gap)


# what the user holds --------------------------------------------------------------------------------------------------


@cache
def front() -> autopar.Front:
    x, w, v = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in CASES[2][1])
    return autopar.front(
        two_products, x, w, v, cluster=cluster_of(4, 1e11), mesh={"x": 4}, points=5
    )


def test_every_point_is_a_plan_with_its_own_bound() -> None:
    found = front()
    assert len(found) == len(found.points) >= 2
    assert (found.smallest, found.fastest) == (found.points[0], found.points[-1])
    for plan in found:
        limit = plan.summary.memory_limit_bytes
        assert limit is not None
        assert plan.peak_memory_bytes <= limit
        assert plan.lower_bound_s <= plan.objective_s
        assert found.within(limit).objective_s <= plan.objective_s
    direct = autopar.plan(
        two_products,
        *(jax.ShapeDtypeStruct(s, jnp.float32) for s in CASES[2][1]),
        cluster=cluster_of(4, 1e11),
        mesh={"x": 4},
    )
    assert found.fastest.objective_s == direct.objective_s
    with pytest.raises(NoFeasiblePlan, match="no point of the front fits in 7 B"):
        found.within(7)


def test_the_front_is_printed_and_drawn() -> None:
    found = front()
    text = str(found)
    assert "Time and memory of two_products" in text
    assert sum(line.endswith(" x=4") for line in text.splitlines()) == len(found)
    import matplotlib as mpl

    mpl.use("Agg")
    axes = found.plot()
    assert axes.get_xlabel() == "peak memory of a device (GiB)"
    assert len(axes.lines[0].get_xdata()) == len(found)
    assert found.plot(axes) is axes
    mpl.pyplot.close("all")


@pytest.mark.parametrize("points", [1, 0, -3, 2.5, True, "many"])
def test_a_number_of_points_that_cannot_be_is_refused(points: Any) -> None:
    with pytest.raises(InvalidOption, match="points is"):
        autopar.front(two_products, jnp.ones(3), jnp.ones(3), jnp.ones(3), points=points)


def test_nothing_fits() -> None:
    with pytest.raises(NoFeasiblePlan, match="fits in the memory limit of 100 B"):
        autopar.front(
            lambda x: x + 1,
            jnp.ones((64, 64)),
            cluster="4xh100",
            mesh={"x": 4},
            memory_limit_bytes=100,
        )
