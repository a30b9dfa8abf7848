"""Options are stated once: the same keywords wherever a plan is asked for, and none that is not known."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import jax
import pytest

import autopar
from autopar.api.options import Options
from autopar.api.settings import Settings
from autopar.errors import InvalidOption, NoFeasiblePlan, UnknownOption
from tests.api.same import SLOW, W, X, layer


def test_every_option_is_a_setting() -> None:
    assert list(Options.__annotations__) == [field.name for field in fields(Settings)]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mehs", "no option mehs; did you mean mesh"),
        ("memory_limit", "did you mean memory_limit_bytes"),
        ("zzz", "no option zzz; they are cluster, mesh, mode"),
    ],
)
def test_an_unknown_option(name: str, message: str) -> None:
    with pytest.raises(UnknownOption, match=message):
        autopar.compile(layer, **{name: None})
    with pytest.raises(TypeError, match=message):
        autopar.compile(**{name: None})


def test_what_is_no_option_is_an_argument_of_the_function() -> None:
    def fn(x: Any, *, scale: Any) -> Any:
        return (x @ scale).sum()

    assert list(autopar.plan(fn, X, scale=W, cluster=SLOW).placements) == ["x", "scale"]
    assert list(autopar.front(fn, X, scale=W, cluster=SLOW, points=2).fastest.placements) == ["x", "scale"]


def test_devices_that_a_plan_is_for() -> None:
    plan = autopar.plan(layer, W, X, devices=jax.devices()[:4][::-1])
    assert plan.mesh.size == 4
    assert list(plan.compile()(W, X).sharding.mesh.devices.flat) == jax.devices()[:4][::-1]


def test_a_front_writes_no_stages() -> None:
    with pytest.raises(InvalidOption, match=r"dump is an option of autopar\.compile and plan only"):
        autopar.front(layer, W, X, cluster=SLOW, dump="stages")


def test_memory_limits_as_text() -> None:
    plan = autopar.plan(layer, W, X, cluster=SLOW, mesh={"a": 8}, memory_limit_bytes="1MiB")
    assert plan.summary.memory_limit_bytes == 2**20
    assert plan.resolve(memory_limit_bytes="2 MB").summary.memory_limit_bytes == 2_000_000
    front = autopar.front(layer, W, X, cluster=SLOW, points=2, memory_limit_bytes="1GB")
    assert front.within("1GB") is front.fastest
    with pytest.raises(NoFeasiblePlan, match="fits in 100 bytes"):
        front.within("100B")
