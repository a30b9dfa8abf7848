"""Alpa's solver-only cases under Alpa's pricing: objectives alone, no program is compiled.

Alpa truncates each price to an integer there, so a published figure may be lower than the sum of its own terms.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from autopar.core.mesh import DeviceMesh
from autopar.cost.alpa import Alpa, alpa_pricing
from autopar.cost.pricing import restricted
from autopar.search.constraints.records import Named, Replicate
from autopar.search.search import search
from autopar.search.task import Planned, Task
from autopar.trace import trace
from tests import small_models as models
from tests.cases.alpa import LINES, all_reduce, mlp, plan, state_step

Mesh = dict[str, int]
ALL: tuple[Any, ...] = ()
NO_ALL_GATHER: tuple[Any, ...] = ("all_reduce", "reduce_scatter", "all_to_all", "slice", "mask")


def shapes(*of: tuple[int, ...]) -> tuple[Any, ...]:
    return tuple(jax.ShapeDtypeStruct(shape, "float32") for shape in of)


def to_replicated(fn: Any, args: tuple[Any, ...], mesh: Mesh, steps: tuple[Any, ...]) -> Planned:
    """The plan of `fn` whose results are replicated, made with these redistribution steps."""
    graph = trace(fn, args, carry=None).graph
    ones = (1.0,) * len(mesh)
    whole = (Replicate(Named("output*")),)
    task = Task(graph, lambda _, m: restricted(Alpa(m, ones, ones), steps), constraints=whole)
    return search(task, [DeviceMesh.of(mesh)])


def assert_one(planned: Planned, kind: str, objective: float) -> None:
    assert planned.plan.objective_s == pytest.approx(objective, rel=1e-12)
    assert planned.plan.lower_bound_s == pytest.approx(objective, rel=1e-12)
    assert [move.kind for move in planned.program.collectives] == [kind]


def all_gather(size_bytes: float, n: int = 4) -> float:
    return 1 + (n - 1) / n * size_bytes + 0.1


def test_twelve_layers_on_8_by_4_split_both_ways() -> None:
    """Alpa's 354,900.219 is 12 gradients on one axis and 11 activations on the other, each price truncated."""
    step, args = state_step(mlp(12, 128, 1024, bias=False), "sgd")
    found = plan(step, args, {"x": 8, "y": 4}, alpa_pricing((1.0, 1.0), (1.0, 0.01)))
    gradient = all_reduce(128 * 128 * 4 / 4, 8)
    activation = all_reduce(1024 * 128 * 4 / 8, 4, beta=0.01)
    assert 12 * int(gradient) + 11 * int(activation) == int(354_900.219)
    assert found.objective_s == pytest.approx(12 * gradient + 11 * activation, rel=1e-12)
    assert found.gap == 0
    assert Counter((row.kind, row.axes) for row in found.collectives) == {
        ("all_reduce", ("x",)): 1,
        ("all_reduce", ("y",)): 11,
    }


def test_twelve_layers_on_4_by_8_are_cheaper_in_data_parallel() -> None:
    """Less than Alpa's 172,702.234: the batch is split over all 32 devices, which is outside of Alpa's space, and
    gradients are scattered on the cheap axis, all-reduced in parts on the dear one and gathered."""
    step, args = state_step(mlp(12, 128, 1024, bias=False), "sgd")
    found = plan(step, args, {"x": 4, "y": 8}, alpa_pricing((1.0, 1.0), (1.0, 0.01)))
    gradient = 128 * 128 * 4
    scatter, gather = (1 + 0.01 * 7 / 8 * gradient + extra for extra in (0.001, 0.1))
    assert found.objective_s <= 12 * (scatter + all_reduce(gradient / 8, 4) + gather) < 172_702.234
    assert found.gap == 0


def test_twelve_layers_on_3_by_4_leave_the_odd_axis_alone() -> None:
    """Less than Alpa's 290,994.25, which pads the batch to split it in three. Nothing here divides by 3, and what does
    not divide is not split: the three groups of devices compute the same, which costs nothing in Alpa's unit."""
    step, args = state_step(mlp(12, 128, 1024, bias=False), "sgd")
    found = plan(step, args, {"x": 3, "y": 4}, alpa_pricing((1.0, 1.0), (1.0, 0.01)))
    assert found.objective_s == pytest.approx(
        12 * all_reduce(128 * 128 * 4, 4, beta=0.01), rel=1e-12
    )
    assert found.objective_s < 290_994.25
    assert found.gap == 0
    assert Counter((row.kind, row.axes) for row in found.collectives) == {("all_reduce", ("y",)): 1}


@pytest.mark.parametrize("mesh", LINES, ids=str)
def test_product_of_transposes(mesh: Mesh) -> None:
    """Without all-gathers Alpa's one all-reduce; with them half of that: split a dim of the result and gather it."""
    args = shapes((2048, 128), (128, 2048))
    assert_one(
        to_replicated(lambda x, y: x.T @ y.T, args, mesh, NO_ALL_GATHER),
        "all_reduce",
        all_reduce(65536),
    )
    assert_one(
        to_replicated(lambda x, y: x.T @ y.T, args, mesh, ALL), "all_gather", all_gather(65536)
    )


def test_two_products_are_added_before_they_are_reduced() -> None:
    """Half of Alpa's 196,610.016, which reduces both: unreduced values pass through the addition."""
    args = shapes((128, 2048), (2048, 128), (2048, 128))
    found = to_replicated(lambda x, y, z: x @ y + x @ z, args, {"x": 1, "y": 4}, NO_ALL_GATHER)
    assert_one(found, "all_reduce", all_reduce(65536))


@pytest.mark.parametrize("mesh", LINES, ids=str)
def test_attention_forward(mesh: Mesh) -> None:
    """Alpa's 1,572,871.0 or less without all-gathers: heads split, one all-reduce after the output projection."""

    def attention(x: Any, query: Any, key: Any, value: Any, out: Any) -> Any:
        q, k, v = (models.split_heads(x @ w, 16) for w in (query, key, value))
        return models.attention(q, k, v, jnp.ones((1, 1, 128, 128), bool), None, 0.0) @ out

    args = shapes((4, 128, 512), *[(512, 512)] * 4)
    size = 4 * 128 * 512 * 4
    assert all_reduce(size) <= 1_572_871.0
    assert_one(to_replicated(attention, args, mesh, NO_ALL_GATHER), "all_reduce", all_reduce(size))
    assert_one(to_replicated(attention, args, mesh, ALL), "all_gather", all_gather(size))
