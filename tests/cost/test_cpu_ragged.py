"""Products of ragged groups on CPUs: one product with the matrices of all groups, and the memory that takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import autopar
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.core.strategy import Strategy
from autopar.cost.pricing import Roofline
from autopar.ops.ragged_products import RAGGED
from autopar.trace import trace
from cost_models import load_cluster

ROWS = jax.ShapeDtypeStruct((4096, 64), jnp.float32)
WIDE = jax.ShapeDtypeStruct((4096, 128), jnp.float32)
UP = jax.ShapeDtypeStruct((8, 64, 128), jnp.float32)
DOWN = jax.ShapeDtypeStruct((8, 128, 64), jnp.float32)
SIZES = jax.ShapeDtypeStruct((8,), jnp.int32)


def of_rows(x: Any, w: Any, sizes: Any, y: Any) -> Any:
    return jax.vjp(lambda x: lax.ragged_dot(x, w, sizes), x)[1](y)


def of_matrices(x: Any, w: Any, sizes: Any, y: Any) -> Any:
    return jax.vjp(lambda w: lax.ragged_dot(x, w, sizes), w)[1](y)


def of_two(x: Any, up: Any, down: Any, sizes: Any) -> Any:
    def loss(x: Any, up: Any, down: Any) -> Any:
        return (lax.ragged_dot(jax.nn.gelu(lax.ragged_dot(x, up, sizes)), down, sizes) ** 2).sum()

    return jax.grad(loss, (0, 1, 2))(x, up, down)


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (lax.ragged_dot, (ROWS, UP, SIZES)),
        (of_rows, (ROWS, UP, SIZES, WIDE)),
        (of_matrices, (ROWS, UP, SIZES, WIDE)),
        (of_two, (ROWS, UP, DOWN, SIZES)),
    ],
)
def test_memory_is_what_the_compiler_sets_aside(function: Callable[..., Any], args: Any) -> None:
    """Never more than 2 % under, where it was a quarter, and up to a fifth above."""
    plan = autopar.plan(function, *args, cluster="cpu8", mesh={"x": 8})
    made = plan.lower().compile().memory_analysis()
    taken = made.argument_size_in_bytes + made.output_size_in_bytes
    taken += made.temp_size_in_bytes - made.alias_size_in_bytes
    assert 0.8 * plan.peak_memory_bytes < taken < 1.02 * plan.peak_memory_bytes


def test_every_group_costs_a_product_of_all_rows() -> None:
    """4096 rows of 256 with 8 matrices: ten times as long as with one."""
    rows = jax.ShapeDtypeStruct((4096, 256), jnp.float32)
    cluster = load_cluster("cpu8")
    mesh = DeviceMesh.of({"x": 1})

    def seconds(groups: int) -> float:
        matrices = jax.ShapeDtypeStruct((groups, 256, 256), jnp.float32)
        sizes = jax.ShapeDtypeStruct((groups,), jnp.int32)
        graph = trace(lax.ragged_dot, (rows, matrices, sizes)).graph
        (op,) = [op for op in graph.ops if op.kind == RAGGED]
        ins = tuple(Placement.replicated(t.ndim) for t in op.ins)
        return Roofline(graph, mesh, cluster).op_cost(op, Strategy(ins, (Placement.replicated(2),)))

    assert seconds(8) / seconds(1) == pytest.approx(8, rel=0.25)
