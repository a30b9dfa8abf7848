"""The search knows no overlap: where asked to, it lets data parallelism win by the time of a step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autopar
from autopar.api import make
from autopar.errors import InvalidOption, NoFeasiblePlan

SETTING: dict[str, Any] = {"cluster": "8x8xh100", "mesh": {"x": 8, "y": 8}}
COMPARED = autopar.SearchOptions(data_parallel="compared")


def step(weights: list[jax.Array], x: jax.Array) -> list[jax.Array]:
    """A step of gradient descent of an MLP."""

    def loss(weights: list[jax.Array]) -> jax.Array:
        h = x
        for w in weights:
            h = jax.nn.relu(h @ w)
        return (h * h).mean()

    return [w - 0.1 * g for w, g in zip(weights, jax.grad(loss)(weights), strict=True)]


def args_of(width: int, batch: int) -> tuple[Any, ...]:
    """The arguments of eight layers, in shape only."""
    return [jax.ShapeDtypeStruct((width, width), jnp.float32)] * 8, jax.ShapeDtypeStruct(
        (batch, width), jnp.float32
    )


def plans_of(args: tuple[Any, ...], **more: Any) -> tuple[autopar.Plan, autopar.Plan, autopar.Plan]:
    """By the objective, of data parallelism, and with both compared."""
    setting = {**SETTING, **more}
    return (
        autopar.plan(step, *args, **setting),
        autopar.plan(step, *args, **setting, mode="data_parallel"),
        autopar.plan(step, *args, **setting, options=COMPARED),
    )


def test_data_parallelism_is_taken_where_its_step_takes_less_time() -> None:
    searched, data_parallel, compared = plans_of(args_of(2048, 32768))
    assert searched.objective_s < data_parallel.objective_s
    assert data_parallel.step_time_s < searched.step_time_s
    assert compared.strategies == data_parallel.strategies
    assert compared.step_time_s == data_parallel.step_time_s
    assert compared.summary.space.startswith("mode data_parallel")
    assert compared.gap == 0


def test_the_plan_searched_stays_where_its_step_does() -> None:
    searched, data_parallel, compared = plans_of(args_of(2048, 512))
    assert searched.step_time_s < data_parallel.step_time_s
    assert compared.strategies == searched.strategies
    assert compared.summary.space == searched.summary.space


def test_data_parallelism_that_finds_no_room_is_not_taken() -> None:
    args = args_of(2048, 32768)
    within: dict[str, Any] = {**SETTING, "memory_limit_bytes": 400e6}
    kept = replace(COMPARED, recompute="never")
    searched = autopar.plan(step, *args, **within, options=replace(kept, data_parallel="never"))
    assert autopar.plan(step, *args, **within, options=kept).strategies == searched.strategies
    with pytest.raises(NoFeasiblePlan, match="400,000,000 bytes"):
        autopar.plan(step, *args, **within, options=kept, mode="data_parallel")


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


def test_a_plan_taken_so_is_solved_anew_in_its_mode() -> None:
    _, data_parallel, compared = plans_of(args_of(2048, 32768))
    pinned = autopar.replicate("x")
    assert compared.resolve(constraints=(pinned,)).objective_s == pytest.approx(
        data_parallel.resolve(constraints=(pinned,)).objective_s
    )


def test_what_the_user_states_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise AssertionError("compared")

    monkeypatch.setattr(make, "_or_data_parallel", refuse)
    args = args_of(256, 512)
    autopar.plan(step, *args, **SETTING, options=COMPARED, mode="data_parallel")
    autopar.plan(step, *args, **SETTING, options=COMPARED, constraints=(autopar.replicate("x"),))
    with pytest.raises(AssertionError, match="compared"):
        autopar.plan(step, *args, **SETTING, options=COMPARED)


def test_interrupted_in_the_comparison_it_gives_what_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    args = args_of(2048, 32768)
    searched = autopar.plan(step, *args, **SETTING)
    monkeypatch.setattr(make, "find_on", interrupt)
    assert autopar.plan(step, *args, **SETTING, options=COMPARED).strategies == searched.strategies


def test_unknown_choices_are_refused() -> None:
    with pytest.raises(InvalidOption, match="'sometimes'"):
        autopar.SearchOptions(data_parallel="sometimes")  # type: ignore[arg-type]
