"""The search knows no overlap: where asked to, it simulates more plans, and the least time of a step wins."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import pytest

import autopar
from autopar.errors import InvalidOption, NoFeasiblePlan
from autopar.search import overlapped
from cost_models import replace_link

SETTING: dict[str, Any] = {"cluster": "8x8xh100", "mesh": {"x": 8, "y": 8}}
COMPARED = autopar.SearchOptions(overlap="compared")


def step(weights: list[jax.Array], x: jax.Array) -> list[jax.Array]:
    """A step of gradient descent of an MLP."""

    def loss(weights: list[jax.Array]) -> jax.Array:
        h = x
        for w in weights:
            h = jax.nn.relu(h @ w)
        return (h * h).mean()

    return [w - 0.1 * g for w, g in zip(weights, jax.grad(loss)(weights), strict=True)]


def args_of(width: int, batch: int, layers: int = 8) -> tuple[Any, ...]:
    """The arguments of so many layers, in shape only."""
    weights = [jax.ShapeDtypeStruct((width, width), jnp.float32)] * layers
    return weights, jax.ShapeDtypeStruct((batch, width), jnp.float32)


SERVER: dict[str, Any] = {"cluster": "8xh100", "mesh": {"x": 2, "y": 4}}
"""On which a plan that communicates more wins for the MLP below: more of it hides."""


def mlp_step(params: list[Any], x: jax.Array) -> list[Any]:
    """A step of gradient descent of pairs of layers."""

    def loss(params: list[Any]) -> jax.Array:
        h = x
        for up, down in params:
            h = h + jax.nn.gelu(h @ up) @ down
        return (h * h).mean()

    grads: Any = jax.grad(loss)(params)
    update: Any = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
    return update


def mlp_args() -> tuple[Any, ...]:
    """The arguments of six pairs of layers, in shape only."""
    up, down, x = (
        jax.ShapeDtypeStruct(shape, jnp.bfloat16)
        for shape in ((1024, 4096), (4096, 1024), (8192, 1024))
    )
    return [(up, down)] * 6, x


@cache
def plans_of(width: int, batch: int) -> tuple[autopar.Plan, autopar.Plan, autopar.Plan]:
    """By the objective, of data parallelism, and with both compared."""
    args = args_of(width, batch)
    return (
        autopar.plan(step, *args, **SETTING),
        autopar.plan(step, *args, **SETTING, mode="data_parallel"),
        autopar.plan(step, *args, **SETTING, options=COMPARED),
    )


@cache
def compared_on_a_server() -> autopar.Plan:
    """The MLP's plan, with lighter communication compared."""
    return autopar.plan(mlp_step, *mlp_args(), **SERVER, options=COMPARED)


@cache
def plans_without_other_weights() -> tuple[autopar.Plan, autopar.Plan, autopar.Plan]:
    """As `plans_of`; no other weights of communicating are tried, which may find data parallelism too."""
    with (
        patch.object(overlapped, "_HIDDEN_WEIGHTS", 0),
        patch.object(overlapped, "_bounding", lambda *_: ()),
    ):
        return plans_of.__wrapped__(2048, 98304)


def test_data_parallelism_is_taken_where_its_step_takes_less_time() -> None:
    searched, data_parallel, compared = plans_without_other_weights()
    assert searched.objective_s < data_parallel.objective_s
    assert data_parallel.step_time_s < searched.step_time_s
    assert compared.strategies == data_parallel.strategies
    assert compared.step_time_s == data_parallel.step_time_s
    assert compared.summary.space.startswith("mode data_parallel")
    assert compared.gap == 0


def test_the_plan_searched_stays_where_its_step_does() -> None:
    searched, data_parallel, compared = plans_of(2048, 512)
    assert searched.step_time_s < data_parallel.step_time_s
    assert compared.strategies == searched.strategies
    assert compared.summary.space == searched.summary.space


@pytest.mark.slow
def test_data_parallelism_that_finds_no_room_is_not_taken() -> None:
    args = args_of(2048, 32768, layers=2)
    within: dict[str, Any] = {**SETTING, "memory_limit_bytes": 100e6}
    kept = replace(COMPARED, recompute="never")
    searched = autopar.plan(step, *args, **within, options=replace(kept, overlap="never"))
    compared = autopar.plan(step, *args, **within, options=kept)
    assert compared.step_time_s <= searched.step_time_s
    assert not compared.summary.space.startswith("mode data_parallel")
    with pytest.raises(NoFeasiblePlan, match="100,000,000 bytes"):
        autopar.plan(step, *args, **within, options=kept, mode="data_parallel")


@pytest.mark.slow
def test_why_there_is_no_room_is_found_by_two_workers() -> None:
    """OR-Tools once ended the process here: it saw that there is no choice as it loaded a model with a hint."""
    options = autopar.SearchOptions(recompute="never")
    with pytest.raises(NoFeasiblePlan, match="250,000,000 bytes"):
        autopar.plan(
            step,
            *args_of(2048, 32768),
            **SETTING,
            options=options,
            mode="data_parallel",
            memory_limit_bytes=250e6,
        )


def test_heavier_communication_finds_data_parallelism() -> None:
    searched, data_parallel, compared = plans_of(2048, 98304)
    assert data_parallel.step_time_s < searched.step_time_s
    assert compared.strategies == data_parallel.strategies
    assert compared.record.communication_weight > 1


def test_a_plan_taken_so_is_solved_anew_in_its_mode() -> None:
    _, data_parallel, compared = plans_without_other_weights()
    assert compared.summary.space.startswith("mode data_parallel")
    pinned = autopar.replicate("x")
    assert compared.resolve(constraints=(pinned,)).objective_s == pytest.approx(
        data_parallel.resolve(constraints=(pinned,)).objective_s
    )


def test_lighter_communication_is_taken_where_its_step_takes_less_time() -> None:
    searched = autopar.plan(mlp_step, *mlp_args(), **SERVER)
    compared = compared_on_a_server()
    assert compared.step_time_s < searched.step_time_s
    assert compared.compute_time_s < searched.compute_time_s
    assert 0 < compared.record.communication_weight < 1
    assert compared.summary.space.count("mesh (x=2, y=4)") == 2
    assert f"communication at {compared.record.communication_weight:.3g}" in " ".join(
        str(compared.report()).split()
    )


def test_a_plan_of_lighter_communication_is_the_same_from_files(tmp_path: Path) -> None:
    setting: Any = {**SERVER, "options": COMPARED, "cache": tmp_path / "kept"}
    first, kept = (autopar.plan(mlp_step, *mlp_args(), **setting) for _ in range(2))
    assert first.record.communication_weight < 1
    assert replace(kept.record, fingerprint="") == first.record
    assert str(kept.report()) == str(first.report())

    first.save(tmp_path / "plan.json")
    assert autopar.Plan.load(tmp_path / "plan.json").record == kept.record


def test_it_is_solved_anew_at_its_weight() -> None:
    plan = compared_on_a_server()
    pinned = plan.resolve(constraints=(autopar.replicate("x"),))
    assert pinned.record.communication_weight == plan.record.communication_weight
    assert plan.record.communication_weight < 1
    assert pinned.objective_s >= plan.objective_s


def test_the_weight_of_what_hides_is_kept_in_files_and_when_solved_anew(tmp_path: Path) -> None:
    options = autopar.SearchOptions(hidden_weight=0.3)
    plan = autopar.plan(step, *args_of(512, 512), **SETTING, options=options)
    assert plan.record.hidden_weight == 0.3
    assert plan.resolve(constraints=(autopar.replicate("x"),)).record.hidden_weight == 0.3
    slower = replace_link(autopar.load_cluster("8x8xh100"), "server", bandwidth_bytes_per_s=1e9)
    assert plan.resolve(cluster=slower).record.hidden_weight == 0.3
    assert "what hides at 0.3 of its time" in " ".join(str(plan.report()).split())
    plan.save(tmp_path / "plan.json")
    assert autopar.Plan.load(tmp_path / "plan.json").record.hidden_weight == 0.3


def test_the_less_communication_counts_the_less_is_computed() -> None:
    args = args_of(2048, 2048)
    plans = [
        autopar.plan(
            step, *args, **SETTING, options=autopar.SearchOptions(communication_weight=weight)
        )
        for weight in (0.01, 1.0, 100.0)
    ]
    computed = [plan.compute_time_s for plan in plans]
    communicated = [plan.communication_time_s for plan in plans]
    assert computed == sorted(computed)
    assert computed[0] < computed[-1]
    assert communicated == sorted(communicated, reverse=True)
    assert communicated[-1] < communicated[0]


def test_what_the_user_states_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("compared")

    monkeypatch.setattr(overlapped, "find_on", refuse)
    args = args_of(2048, 8192)
    autopar.plan(step, *args, **SETTING, options=COMPARED, mode="data_parallel")
    with pytest.raises(AssertionError, match="compared"):
        autopar.plan(step, *args, **SETTING, options=COMPARED)


def test_where_nothing_is_communicated_nothing_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("compared")

    monkeypatch.setattr(overlapped, "find_on", refuse)
    autopar.plan(step, *args_of(512, 512), **SETTING, options=COMPARED)
    autopar.plan(step, *args_of(2048, 8192), cluster="cpu8", options=COMPARED)


def test_interrupted_in_the_comparison_it_gives_what_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    searched, *_ = plans_of(2048, 32768)
    monkeypatch.setattr(overlapped, "find_on", interrupt)
    found = autopar.plan(step, *args_of(2048, 32768), **SETTING, options=COMPARED)
    assert found.strategies == searched.strategies


def test_unknown_choices_are_refused() -> None:
    with pytest.raises(InvalidOption, match="'sometimes'"):
        autopar.SearchOptions(overlap="sometimes")  # type: ignore[arg-type]
    for weight in (0, -1.0, float("nan"), True):
        with pytest.raises(InvalidOption, match="communication_weight is"):
            autopar.SearchOptions(communication_weight=weight)


def test_a_step_has_a_bound_that_holds_for_every_plan(tmp_path: Path) -> None:
    """As those of other weights and of data parallelism show, on any mesh."""
    args = args_of(2048, 32768)
    searched, data_parallel, compared = plans_of(2048, 32768)
    lighter = autopar.SearchOptions(communication_weight=0.3)
    others = [
        autopar.plan(step, *args, cluster="8x8xh100", mesh=mesh, options=lighter)
        for mesh in ({"x": 8, "y": 8}, {"x": 64})
    ]
    steps = [plan.step_time_s for plan in (searched, data_parallel, compared, *others)]
    assert 0 < compared.step_bound_s <= min(steps)
    assert compared.step_gap == 1 - compared.step_bound_s / compared.step_time_s < 1
    assert "; its step within" in " ".join(str(compared.report()).split())
    assert (searched.step_bound_s, searched.step_gap) == (0, 1)

    compared.save(tmp_path / "plan.json")
    assert autopar.Plan.load(tmp_path / "plan.json").record.step_bound_s == compared.step_bound_s


def test_what_arguments_take_to_come_is_no_part_of_a_step() -> None:
    """Though the objective counts it: here a step takes less than that, and nothing is claimed."""
    x = jax.ShapeDtypeStruct((8192, 8192), jnp.float32)
    plan = autopar.plan(lambda x: x + 1, x, cluster="8xh100", options=COMPARED)
    assert plan.lower_bound_s > plan.step_time_s
    assert plan.step_bound_s == 0


def test_the_bound_is_over_all_that_was_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan of another mesh than that of the least objective may win, and what bounds it must know of it."""
    given: list[tuple[Any, ...]] = []
    real = overlapped.find_best

    def watched(*args: Any) -> Any:
        given.append(args)
        return real(*args)

    monkeypatch.setattr(overlapped, "find_best", watched)
    plan = autopar.plan(
        step, *args_of(2048, 8192), cluster="8xh100", options=COMPARED, memory_limit_bytes=600e6
    )
    assert all(len(meshes) == 3 for _, meshes in given)
    assert {task.memory_limit_bytes for tasks, _ in given for task in tasks} == {600_000_000}
    assert {task.stop for tasks, _ in given for task in tasks} == {plan.bound.planned.task.stop}
    assert plan.peak_memory_bytes <= 600e6
