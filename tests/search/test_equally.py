"""Layers alike: they are placed alike, with a memory limit and without one, and what is proven holds for all plans."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product
from math import inf
from typing import Any
from weakref import ref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autopar._compat import untyped_jax
from autopar.cost.pricing import Roofline
from autopar.errors import NoFeasiblePlan
from autopar.search import equal_layers, memory_limit, memory_loop, mesh_search, search
from autopar.search.search import find_plan, places_of
from autopar.search.task import Planned, SearchOptions, Task
from autopar.search.tried import focused
from autopar.solve import Infeasible, NothingCheaper, verify
from autopar.solve.certificate.proof import Prices
from autopar.solve.parametric.relaxation import PricedBound
from autopar.solve.periodic import quotient
from autopar.solve.periodic.layers import with_layers
from autopar.solve.problem.problem import objective, peak
from autopar.trace import trace
from tests.quick_some import diagonal
from tests.search.test_front import FOUR, cluster_of

LAYERS = 4


@pytest.fixture(autouse=True)
def however_little_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotient, "_WORTH", 1.0)


def step(layers: Any, x: Any) -> Any:
    def loss(layers: Any) -> Any:
        y = x
        for p in layers:
            y = y + jnp.tanh(y @ p["up"]) @ p["down"]
        return (y**2).mean()

    grads: Any = untyped_jax.grad(loss)(layers)
    return untyped_jax.tree.map(lambda p, g: p - 0.1 * g, layers, grads)


def task(layers: int = LAYERS) -> Task:
    layer = {
        "up": jax.ShapeDtypeStruct((64, 256), jnp.float32),
        "down": jax.ShapeDtypeStruct((256, 64), jnp.float32),
    }
    graph = trace(step, ([layer] * layers, jax.ShapeDtypeStruct((32, 64), jnp.float32))).graph
    cluster = cluster_of(4, 1e9)
    return Task(graph, lambda graph, mesh: Roofline(graph, mesh, cluster), prices_devices=True)


def placements_of_layers(planned: Planned, layers: int = LAYERS) -> list[tuple[str, ...]]:
    inputs = [str(placement) for placement in planned.plan.stage.inputs]
    return [tuple(inputs[2 * n : 2 * n + 2]) for n in range(layers)]


@pytest.mark.parametrize("gap_tolerance", [0.0, 0.005])
def test_layers_lie_alike_without_a_limit(gap_tolerance: float) -> None:
    found = find_plan(replace(task(), options=SearchOptions(gap_tolerance=gap_tolerance)), [FOUR])
    assert len(set(placements_of_layers(found))) == 1


@pytest.mark.quick_share(2)
@pytest.mark.parametrize(("most_whole", "share"), diagonal([0, 10**9], [0.9, 0.7]))
def test_within_a_limit_they_lie_alike_where_it_costs_little(
    monkeypatch: pytest.MonkeyPatch, most_whole: int, share: float
) -> None:
    monkeypatch.setattr(memory_loop, "FEW_ENTRIES", 0)
    monkeypatch.setattr(memory_limit, "FEW_ENTRIES", 0)
    monkeypatch.setattr(memory_limit, "_MOST_WHOLE", most_whole)
    free = find_plan(task(), [FOUR])
    limit = int(share * free.account.peak_memory_bytes)
    found = find_plan(
        replace(task(), memory_limit_bytes=limit, options=SearchOptions(recompute="never")), [FOUR]
    )
    assert found.account.peak_memory_bytes <= limit
    assert (
        free.plan.lower_bound_s * (1 - 1e-9) <= found.plan.lower_bound_s <= found.plan.objective_s
    )
    assert most_whole or len(set(placements_of_layers(found))) == 1
    assert found.problem is not None
    assert found.solution is not None
    assert verify(found.problem, found.solution, 1.0).bound <= found.plan.objective_s


@pytest.mark.slow
def test_where_nothing_fits_the_least_that_any_plan_needs_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (memory_loop, memory_limit):
        monkeypatch.setattr(module, "FEW_ENTRIES", 0)
    monkeypatch.setattr(memory_limit, "_MOST_WHOLE", 0)
    with pytest.raises(
        NoFeasiblePlan, match=r"any plan needs [\d.]+ KiB. No constraint is to blame"
    ) as refused:
        find_plan(replace(task(), memory_limit_bytes=50_000), [FOUR])
    assert "where the choice of least memory holds" in str(refused.value)
    assert refused.value.min_peak_bytes is not None
    found = find_plan(replace(task(), memory_limit_bytes=refused.value.min_peak_bytes), [FOUR])
    assert found.account.peak_memory_bytes <= refused.value.min_peak_bytes


def test_a_mesh_that_waits_keeps_nothing_of_what_refuted_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever yields where an error is caught keeps all frames that led to it, and what they hold."""

    class Held:
        """As large as the messages of a whole Problem."""

    left = list[ref[Held]]()

    def refuted(*_: object) -> None:
        held = Held()
        left.append(ref(held))
        raise NothingCheaper(2.0, 2.0)

    found = find_plan(task(), [FOUR])
    limit = found.account.peak_memory_bytes - 1
    monkeypatch.setattr(mesh_search, "plan_within", refuted)
    (place,) = places_of(replace(task(), memory_limit_bytes=limit), [FOUR])
    waiting = place.run(limit)
    next(waiting)
    waiting.send(inf)
    assert waiting.send(inf).bound == 2.0
    assert left[0]() is None


def bounds_told(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The limits at which whole Problems are proven, from now on."""
    told = list[float]()
    real = memory_limit.EqualLayers._priced

    def noted(equal: memory_limit.EqualLayers, *args: Any) -> Any:
        told.append(equal.limit)
        return real(equal, *args)

    monkeypatch.setattr(memory_limit.EqualLayers, "_priced", noted)
    monkeypatch.setattr(memory_loop, "FEW_ENTRIES", 0)
    monkeypatch.setattr(memory_limit, "FEW_ENTRIES", 0)
    monkeypatch.setattr(memory_limit, "_MOST_WHOLE", 0)
    return told


@pytest.mark.slow
def test_what_recomputation_proves_is_not_proven_before(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = int(0.6 * find_plan(task(), [FOUR]).account.peak_memory_bytes)
    limited = replace(task(), memory_limit_bytes=limit)
    never = replace(limited, options=SearchOptions(recompute="never"))
    told = bounds_told(monkeypatch)
    kept = find_plan(never, [FOUR])
    assert told == [limit]
    assert kept.plan.objective_s > 1.05 * kept.unlimited.plan.lower_bound_s  # type: ignore[union-attr]

    told.clear()
    found = find_plan(limited, [FOUR])
    assert found.plan.objective_s <= kept.plan.objective_s
    put_off = len(told)
    monkeypatch.setattr(search, "may_recompute", lambda _: False)
    before = find_plan(limited, [FOUR])
    assert len(told) - put_off == put_off + 1
    assert found.plan.objective_s <= before.plan.objective_s * 1.005
    assert found.plan.lower_bound_s <= before.plan.objective_s


@pytest.mark.slow
def test_what_was_put_off_is_proven_where_nothing_is_recomputed_after_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit = int(0.6 * find_plan(task(), [FOUR]).account.peak_memory_bytes)
    limited = replace(task(), memory_limit_bytes=limit)
    told = bounds_told(monkeypatch)
    kept = find_plan(replace(limited, options=SearchOptions(recompute="never")), [FOUR])
    told.clear()
    monkeypatch.setattr(search, "or_recomputed", lambda places, finish, *_: (finish, ()))
    found = find_plan(limited, [FOUR])
    assert told == [limit]
    assert found.plan.objective_s == kept.plan.objective_s
    assert found.plan.lower_bound_s == kept.plan.lower_bound_s


def test_what_prices_of_another_mesh_refute_is_looked_for_at_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (memory_loop, memory_limit):
        monkeypatch.setattr(module, "FEW_ENTRIES", 0)
    free = find_plan(task(), [FOUR])
    limit = int(0.6 * free.account.peak_memory_bytes)
    (place,) = places_of(task(), [FOUR])
    before = place.attempt()
    found = memory_limit.plan_within(before, limit, free)
    assert before.prices

    class Asked(Exception):
        """Prices of this mesh are looked for."""

    def asked(_: object) -> None:
        raise Asked

    monkeypatch.setattr(memory_loop.MemoryLoop, "plan", asked)
    least = found.plan.lower_bound_s
    again = replace(place.attempt(), prices=before.prices)
    with pytest.raises(NothingCheaper) as refuted:
        memory_limit.plan_within(again, limit, free, 0.9 * least)
    assert refuted.value.lower_bound <= found.plan.objective_s
    assert again.bound_within(limit) == refuted.value.lower_bound
    for prices, below in ((before.prices, 1.1 * found.plan.objective_s), ([], 0.9 * least)):
        with pytest.raises(Asked):
            memory_limit.plan_within(replace(place.attempt(), prices=prices), limit, free, below)


@pytest.mark.parametrize("share", [0.9, 0.5])
def test_a_limit_between_two_plans_is_met_by_layers_in_two_groups(
    monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    """Of eight layers as many are placed as in the small plan as have to be, first or last, and they are next to
    one another.
    """
    for module in (memory_loop, memory_limit):
        monkeypatch.setattr(module, "FEW_ENTRIES", 0)
    monkeypatch.setattr(memory_limit, "_MOST_WHOLE", 0)
    eight = task(8)
    limit = int(share * find_plan(eight, [FOUR]).account.peak_memory_bytes)
    options = SearchOptions(recompute="never")
    limited = replace(eight, memory_limit_bytes=limit, options=options)
    found = find_plan(limited, [FOUR])
    assert found.account.peak_memory_bytes <= limit
    lies = placements_of_layers(found, 8)
    assert len(set(lies)) == 2
    assert sum(one != other for one, other in pairwise(lies)) == 1
    assert found.problem is not None
    assert found.solution is not None
    assert verify(found.problem, found.solution, 1.0).bound <= found.plan.objective_s

    monkeypatch.setattr(memory_limit, "mixed", lambda *_: None)
    alike = find_plan(limited, [FOUR])
    assert len(set(placements_of_layers(alike, 8))) == 1
    assert found.plan.objective_s < 0.95 * alike.plan.objective_s


@pytest.mark.parametrize("odd", [0, 7])
def test_of_groups_of_layers_the_cheapest_is_taken_that_any_cut_has(odd: int) -> None:
    """What is small costs more in one layer, the first or the last: so that is not in the small group."""
    place = places_of(task(8), [FOUR])[0]
    problem = place.attempt().problem(0.0)
    layers = with_layers(problem).layers
    assert layers is not None
    equal = equal_layers.equally(place.attempt())
    assert equal is not None
    focus = focused(equal, equal.problem(0.0))
    focus.turn_to(2e6)
    choices = focus.choices()
    most = (choices[0].peak + choices[-1].peak) / 2
    pair = equal_layers.mixed(choices, most, inf)
    assert pair is not None
    small, large = (np.array(equal.small.lift(met.whole)) for met in pair)
    dear = [
        costs + (layer == odd) * 1e-5 * (np.arange(len(costs)) == s) * (s != other)
        for costs, layer, s, other in zip(
            problem.node_costs, layers[:, 1], small, large, strict=True
        )
    ]
    problem = replace(problem, node_costs=tuple(dear))
    costs = list[float]()
    for cut, at_first, outside in product(range(9), (True, False), (small, large)):
        is_small = layers[:, 1] < cut if at_first else layers[:, 1] >= cut
        mixed = np.where(layers[:, 1] < 0, outside, np.where(is_small, small, large))
        choice = tuple(mixed.tolist())
        costs += [objective(problem, choice)] if peak(problem, choice) <= most else []

    found = equal_layers.in_two_groups(problem, tuple(small.tolist()), tuple(large.tolist()), most)
    assert found is not None
    assert peak(problem, found) <= most
    assert objective(problem, found) == min(costs)


def test_little_work_bounds_all_plans_within_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (memory_loop, memory_limit):
        monkeypatch.setattr(module, "FEW_ENTRIES", 0)
    free = find_plan(task(), [FOUR])
    limit = int(0.6 * free.account.peak_memory_bytes)
    (place,) = places_of(task(), [FOUR])
    found = memory_limit.plan_within(place.attempt(), limit, free)

    def bound(below: float, prices: list[Prices]) -> float:
        attempt = replace(place.attempt(), prices=prices)
        return memory_limit.bounded_within(attempt, limit, free, below).bound

    known = list[Prices]()
    most = 1.1 * found.plan.objective_s
    for below in (most, 0.9 * found.plan.lower_bound_s):
        own = bound(below, known)
        assert free.plan.lower_bound_s < own <= found.plan.objective_s
        assert known
        assert bound(below, known) == pytest.approx(own, rel=0.02)

    def none(*_: object, **__: object) -> None:
        raise Infeasible("equal layers leave nothing")

    monkeypatch.setattr(memory_loop, "focused", none)
    assert bound(most, []) == 0.0
    monkeypatch.setattr(memory_limit, "FEW_ENTRIES", inf)
    assert bound(most, known) == 0.0


def test_what_was_proven_before_is_not_proven_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (memory_loop, memory_limit):
        monkeypatch.setattr(module, "FEW_ENTRIES", 0)
    for name in ("_MOST_WHOLE", "_PROGRAMS"):  # nothing but equal layers
        monkeypatch.setattr(memory_limit, name, 0)
    free = find_plan(task(), [FOUR])
    limit = int(0.6 * free.account.peak_memory_bytes)
    (place,) = places_of(task(), [FOUR])
    found = memory_limit.plan_within(place.attempt(), limit, free)
    assert found.solution is not None
    assert found.solution.witness
    proven = found.plan.objective_s, found.solution.witness

    def anew(*_: object) -> PricedBound:
        raise AssertionError("proven again")

    monkeypatch.setattr(memory_limit, "bounded_at", anew)
    for kept in ((), proven[:1]):  # nothing, and what has no proof
        attempt = place.attempt()
        for bound in kept:
            attempt.prove(limit, bound)
        with pytest.raises(AssertionError, match="proven again"):
            memory_limit.plan_within(attempt, limit, free)

    attempt = place.attempt()
    attempt.prove(limit, *proven)
    again = memory_limit.plan_within(attempt, limit, free)
    assert again.plan == replace(found.plan, lower_bound_s=proven[0])
    assert attempt.bound_within(limit) == proven[0]
    assert again.solution is not None
    assert again.solution.witness is proven[1]
