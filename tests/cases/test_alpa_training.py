"""More of Alpa's acceptance tests: optimizer states split, experts, convolutions, accumulated gradients, pins."""

from __future__ import annotations

from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.price.alpa import Alpa
from autopar.price.pricing import restricted
from autopar.search.search import Planned, Task, search
from autopar.search.space import Pins
from autopar.trace import fingerprint, trace
from tests.cases.alpa import (
    LINES,
    all_reduce,
    compiled_kinds,
    is_replicated,
    largest_difference,
    mlp,
    parameters,
    plan,
    planned_kinds,
    state_step,
)
from tests.cases.alpa_models import convolutions, expert_products, mixture_of_experts
from tests.cases.test_alpa import alpa_3, assert_kinds, assert_objective, split_dims

Mesh = dict[str, int]


def reduce_scatter(size_bytes: float, n: int = 4) -> float:
    return 1 + (n - 1) / n * size_bytes + 0.001


def all_gather(size_bytes: float, n: int = 4) -> float:
    return 1 + (n - 1) / n * size_bytes + 0.1


def all_to_all(size_bytes: float, n: int = 4) -> float:
    return 1 + (n - 1) / n**2 * size_bytes * (n / 2) + 0.001


def pinned(fn: Any, args: tuple[Any, ...], mesh: Mesh, pins: Pins, steps: tuple[Any, ...] = ()) -> Planned:
    """The plan of `fn` under Alpa's pricing whose inputs and outputs are placed as `pins` says."""
    graph = trace(fn, args).graph
    ones = (1.0,) * len(mesh)
    task = Task(graph, fingerprint(graph), lambda _, m: restricted(Alpa(m, ones, ones), steps), pins=pins)
    return search(task, [DeviceMesh.of(mesh)])


@pytest.mark.parametrize("mesh", LINES, ids=str)
def test_case_18_mixture_of_experts(mesh: Mesh) -> None:
    """Tokens go to their experts and back, forward and backward; all but the experts is data parallel."""
    step, args = state_step(mixture_of_experts(), "adam")
    found = plan(step, args, mesh)
    width, experts = 64, 16
    replicated = [width * 3 * width, 3 * width, width * width, width, *[width] * 4, width * experts]
    sent = 64 * 16 * width * 2 * 4
    assert_objective(found, 4 * all_to_all(sent) + sum(all_reduce(4 * size) for size in replicated))
    assert_kinds(found, all_to_all=4, all_reduce=1)
    for name, placement in parameters(found).items():
        if name.endswith(("['wi']", "['wo']")):
            assert split_dims(placement) == (0,)
        else:
            assert is_replicated(placement)


def test_case_18_computes_what_the_layer_does() -> None:
    step, args = state_step(mixture_of_experts(batch=8), "adam")
    assert largest_difference(plan(step, args, {"x": 4}), step, args, "'m'") < 1e-4


@pytest.mark.parametrize("mesh", LINES, ids=str)
def test_case_21_convolutions(mesh: Mesh) -> None:
    """Data parallel: per batch norm one all-reduce of both statistics and one of their gradients, one of gradients."""
    step, args = state_step(convolutions(3, 16, 16, 4), "momentum")
    found = plan(step, args, mesh)
    kernel, channels, statistics = 3 * 3 * 4 * 4 * 4, 4 * 4, 3 * 4
    assert_objective(found, 3 * all_reduce(kernel) + (6 + statistics) * all_reduce(channels))
    assert_kinds(found, all_reduce=7)
    assert all(map(is_replicated, parameters(found).values()))
    assert largest_difference(found, step, args) < 1e-3


def test_case_24_expert_products() -> None:
    """All-to-alls and all-reduces only where nothing may be gathered, as Alpa has it; with gathers it costs less."""
    step, args = state_step(expert_products(), "sgd")
    mesh = {"x": 2, "y": 2}
    found = plan(step, args, mesh, alpa_3(steps=("all_reduce", "all_to_all", "slice", "mask")))
    kinds = planned_kinds(found)
    assert set(kinds) == {"all_to_all", "all_reduce"}
    assert compiled_kinds(found) == kinds
    assert found.gap == 0
    assert plan(step, args, mesh, alpa_3()).objective_s <= found.objective_s
    assert largest_difference(found, step, args) < 1e-4
