"""Options are stated once: the same keywords wherever a plan is asked for, and none that is not known."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from typing import Any

import jax
import pytest

import autopar
from autopar.api.options import PlanOptions, Settings
from autopar.errors import InvalidOption, NoFeasiblePlan, UnknownOption
from tests.api.same import SLOW, W, X, layer


def test_every_option_is_a_setting() -> None:
    assert list(PlanOptions.__annotations__) == [field.name for field in fields(Settings)]


def test_every_option_is_documented() -> None:
    meanings = (inspect.getdoc(PlanOptions) or "").partition("Attributes:\n")[2]
    assert re.findall(r"^  (\w+): ", meanings, re.MULTILINE) == list(PlanOptions.__annotations__)


@pytest.mark.parametrize(
    "function", [autopar.compile, autopar.plan, autopar.front], ids=lambda one: one.__name__
)
def test_signatures_and_help_show_the_options(function: Any) -> None:
    parameters = inspect.signature(function).parameters
    options = {name: one for name, one in parameters.items() if name in PlanOptions.__annotations__}
    assert list(options) == list(PlanOptions.__annotations__)
    assert all(
        one.kind is one.KEYWORD_ONLY and one.default is not one.empty for one in options.values()
    )
    assert options["mode"].default == "auto"
    assert options["cluster"].annotation == "ClusterLike"
    assert "memory_limit_bytes: what a device may use" in function.__doc__
    assert not any(one.kind is one.VAR_KEYWORD for one in parameters.values())


@pytest.mark.parametrize(
    "name", ["options", "follow", "devices", "pricing", "mesh", "cluster", "dump"]
)
def test_an_option_that_is_none_is_its_default(name: str) -> None:
    assert Settings.of({name: None}) == Settings.of({})


@pytest.mark.parametrize("ask", [autopar.plan, autopar.front], ids=lambda one: one.__name__)
def test_what_is_nearly_an_option_and_no_argument(ask: Any) -> None:
    message = r"memory_limit is no option of autopar\.plan, and layer has no such argument; did you mean memory_limit_b"
    with pytest.raises(UnknownOption, match=message):
        ask(layer, W, X, cluster=SLOW, memory_limit="1GB")


def test_what_is_nearly_an_option_and_an_argument() -> None:
    def fn(x: Any, *, meshes: Any) -> Any:
        return x @ meshes

    def takes_all(x: Any, **keywords: Any) -> Any:
        return fn(x, **keywords)

    for function in (fn, takes_all):
        assert list(autopar.plan(function, X, meshes=W, cluster=SLOW).placements) == ["x", "meshes"]


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

    plan = autopar.plan(fn, X, scale=W, cluster=SLOW, mesh={"a": 8})
    front = autopar.front(fn, X, scale=W, cluster=SLOW, mesh={"a": 8}, points=2)
    assert list(plan.placements) == list(front.fastest.placements) == ["x", "scale"]


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
    front = autopar.front(
        layer, W, X, cluster=SLOW, mesh={"a": 8}, points=2, memory_limit_bytes="1GB"
    )
    assert front.within("1GB") is front.fastest
    with pytest.raises(NoFeasiblePlan, match="fits in 100 B a device"):
        front.within("100B")
