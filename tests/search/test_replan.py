"""Replan: a plan after a change against one made from scratch, and what constraints cost against plans without them."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import autopar.search.limited_solve as attempt_module
import autopar.search.mesh_context as ground_module
from autopar.api.constraints import data_parallel, forbid, pin, replicate, tie
from autopar.core.mesh import DeviceMesh
from autopar.cost.pricing import MakePricing, Roofline
from autopar.errors import InvalidConstraint, NoFeasiblePlan
from autopar.search.constraints.records import Constraint
from autopar.search.constraints.restriction import holds
from autopar.search.mesh_context import MeshContext
from autopar.search.replan import constraint_prices, replan
from autopar.search.search import search
from autopar.search.task import Planned, SearchOptions, Task
from autopar.solve import Problem, Solution, SolveOptions, solve
from autopar.trace import trace
from cost_models import load_cluster

MESH = DeviceMesh.of({"data": 2, "model": 4})
SHAPES = ({"w1": (512, 1024), "w2": (1024, 512)}, (256, 512), (256, 512))
ONE = (pin("params['w1']", P(None, "model")),)
OTHER = (replicate("x"), forbid("params['w2']", "data"))


def step(params: Any, x: Any, y: Any) -> Any:
    def loss(p: Any) -> Any:
        return ((jnp.tanh(x @ p["w1"]) @ p["w2"] - y) ** 2).mean()

    value, gradient = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda a, b: a - 0.1 * b, params, gradient), value


def pricing_of(cluster: str) -> MakePricing:
    return lambda graph, mesh: Roofline(graph, mesh, load_cluster(cluster))


PRICING = pricing_of("cpu8")
QUICK = SearchOptions(gap_tolerance=0.0, solve=SolveOptions(max_sweeps=40, cp_sat_work=0.5))


@lru_cache
def task_of(*constraints: Constraint, limit: int | None = None, mode: str = "auto") -> Task:
    is_shape = lambda leaf: isinstance(leaf, tuple) and all(isinstance(n, int) for n in leaf)  # noqa: E731
    args = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s, jnp.float32), SHAPES, is_leaf=is_shape)
    graph = trace(step, args).graph
    return Task(graph, PRICING, mode, constraints, limit, options=QUICK)


@lru_cache
def scratch(*constraints: Constraint, limit: int | None = None, mode: str = "auto") -> Planned:
    return search(task_of(*constraints, limit=limit, mode=mode), [MESH])


def changed(planned: Planned, *constraints: Constraint, limit: int | None = None) -> Planned:
    task = replace(planned.task, mode="auto", constraints=constraints, memory_limit_bytes=limit)
    return replan(planned, task)


def assert_same(found: Planned, wanted: Planned) -> None:
    """The same optimum, proven; of plans that cost the same either may be found."""
    assert found.plan.objective_s == pytest.approx(wanted.plan.objective_s, rel=1e-9)
    assert found.plan.lower_bound_s == pytest.approx(wanted.plan.lower_bound_s, rel=1e-9)
    assert found.plan.space == wanted.plan.space
    assert found.task.all_constraints == wanted.task.all_constraints
    assert holds(found.graph, found.plan.stage, found.task.all_constraints)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often spaces are built, problems assembled and solved."""
    counts = dict.fromkeys(("build_space", "assemble", "solve"), 0)

    def count(module: Any, name: str) -> None:
        original = getattr(module, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(module, name, call)

    count(ground_module, "build_space")
    count(ground_module, "assemble")
    count(attempt_module, "solve")
    return counts


@pytest.mark.quick_share(3)
@pytest.mark.parametrize("after", [ONE, OTHER, (*ONE, *OTHER), (tie("params['w1']", "x"),)])
@pytest.mark.parametrize(("before", "stands"), [((), True), (ONE, True), (ONE, False)])
def test_changed_constraints_give_the_plan_made_from_scratch(
    before: tuple[Constraint, ...],
    stands: bool,
    after: tuple[Constraint, ...],
    counted: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By elimination, and by the solver from where it was, as where elimination does not fit."""
    start, wanted = scratch(*before), scratch(*after)
    if not stands:
        monkeypatch.setattr(MeshContext, "standing", lambda *_: None)
    counted.update(dict.fromkeys(counted, 0))
    assert_same(changed(start, *after), wanted)
    assert counted["build_space"] == counted["assemble"] == 0
    assert counted["solve"] <= 1


@pytest.mark.slow
def test_the_solver_starts_from_the_plan_there_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is one of a problem with the same nodes: with a limit, or without."""
    held = (*ONE, replicate("x"))
    started: list[Solution | None] = []

    def noted(problem: Problem, *, warm: Solution | None, **options: Any) -> Solution:
        started.append(warm)
        return solve(problem, warm=warm, **options)

    monkeypatch.setattr(MeshContext, "standing", lambda *_: None)
    monkeypatch.setattr(attempt_module, "solve", noted)
    free = search(task_of(*held), [MESH])
    tight = changed(free, *held, limit=3_300_000)
    assert started[0] is started[1] is None
    assert tight.unlimited is not None
    started.clear()
    changed(tight, *held, limit=3_400_000)
    assert started[0] is tight.solution
    started.clear()
    changed(tight, *held, replicate("y"))
    assert started[0] is tight.unlimited.solution is free.solution


def test_what_the_plan_keeps_to_already_is_not_solved_again(counted: dict[str, int]) -> None:
    start = scratch()
    lying = dict(zip([t.name for t in start.graph.inputs], start.plan.stage.inputs, strict=True))
    kept = pin("params['w2']", lying["params['w2']"])
    counted.update(dict.fromkeys(counted, 0))
    found = changed(start, kept, limit=start.account.peak_memory_bytes)
    assert counted == {"build_space": 0, "assemble": 0, "solve": 0}
    assert (found.plan.stage, found.plan.gap) == (start.plan.stage, 0)
    assert str(kept) in found.plan.space
    assert found.plan.objective_s == scratch(kept).plan.objective_s


def test_a_changed_limit_gives_the_plan_made_from_scratch(counted: dict[str, int]) -> None:
    held = (*ONE, replicate("x"))
    free, limit = scratch(*held), 3_500_000
    wanted = scratch(*held, limit=limit)
    assert free.account.peak_memory_bytes > limit >= wanted.account.peak_memory_bytes
    assert wanted.plan.objective_s > free.plan.objective_s
    counted.update(dict.fromkeys(counted, 0))
    tight = changed(free, *held, limit=limit)
    assert_same(tight, wanted)
    solved = counted["solve"]
    assert_same(changed(tight, *held), free)
    assert counted["build_space"] == 0
    # with all usages, and, where wanted, on tensors alone: once for all limits
    assert 1 <= counted["assemble"] <= 2
    assert counted["solve"] == solved  # the plan without a limit is known
    with pytest.raises(
        NoFeasiblePlan, match=r"fits in the memory limit of 977 KiB \(1,000,000 bytes\)"
    ):
        changed(free, *held, limit=1_000_000)


def test_another_cluster_gives_the_plan_made_from_scratch(counted: dict[str, int]) -> None:
    wanted = search(replace(task_of(*ONE), make_pricing=pricing_of("8xh100")), [MESH])
    start = scratch()
    counted.update(dict.fromkeys(counted, 0))
    found = replan(start, replace(start.task, make_pricing=pricing_of("8xh100"), constraints=ONE))
    assert_same(found, wanted)
    assert counted == {"build_space": 0, "assemble": 1, "solve": 0}


def test_bad_constraints_are_refused_as_from_scratch() -> None:
    with pytest.raises(InvalidConstraint, match="contradicts"):
        changed(scratch(), *ONE, replicate("params"))
    with pytest.raises(InvalidConstraint, match="'v' is no input"):
        changed(scratch(), pin("v", P("data")))


@pytest.mark.parametrize("constraints", [(*ONE, *OTHER), data_parallel()])
def test_prices_are_what_plans_without_the_constraint_save(
    constraints: tuple[Constraint, ...],
) -> None:
    start = scratch(*constraints)
    prices = constraint_prices(start)
    assert [price.constraint for price in prices] == [str(constraint) for constraint in constraints]
    for n, price in enumerate(prices):
        without = scratch(*constraints[:n], *constraints[n + 1 :]).plan
        assert price.at_least_s == pytest.approx(
            start.plan.objective_s - without.objective_s, abs=1e-15
        )
        assert price.at_most_s == pytest.approx(
            start.plan.objective_s - without.lower_bound_s, abs=1e-15
        )
        assert 0 <= price.at_least_s <= price.at_most_s
    assert any(price.at_least_s > 0 for price in prices)


def test_prices_of_a_mode_are_those_of_its_constraints() -> None:
    by_mode, by_hand = scratch(mode="data_parallel"), scratch(*data_parallel())
    assert by_mode.plan.stage == by_hand.plan.stage
    assert constraint_prices(by_mode) == constraint_prices(by_hand)


def test_more_constraints_never_cost_less() -> None:
    """All plans here are proven optimal."""
    chain = [(), ONE, (*ONE, *OTHER), (*ONE, *OTHER, replicate("y"))]
    costs = [scratch(*constraints).plan for constraints in chain]
    assert all(plan.gap == 0 for plan in costs)
    assert sorted(plan.objective_s for plan in costs) == [plan.objective_s for plan in costs]
    assert holds(scratch().graph, costs[-1].stage, chain[1])
