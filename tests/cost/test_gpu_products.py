"""Products on GPUs: what is padded before them, what of a function its derivative shares, what either costs.

XLA for GPUs pads operands of bfloat16 and float16 to multiples of 8 elements, those of int8 to 4. By its own times 1024
products of 197 x 64 with 64 x 197 take 64.6 us, 15.5 us for each operand that is padded, and 48.1 for the scores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autopar
from autopar.backends.known import XLA_GPU
from autopar.backends.xla_gpu import regroups
from autopar.core.graph import OpGraph, OpNode
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.core.program import Compute
from autopar.core.repeated import merged, repeated
from autopar.core.strategy import Strategy
from autopar.cost.operators.body import body_time_s
from autopar.cost.pricing import Roofline
from autopar.emit.barriers import anew
from autopar.memory.kept_between import kept_between
from autopar.ops.odd_products import longer, padded_bytes, padding_shares, widens
from autopar.trace import trace
from cost_models import load_cluster
from cost_models.compute import moving_time_s

GPUS = load_cluster("8xh100-xla")
ONE = DeviceMesh.of({"x": 1})
HEADS = (64, 197, 16, 64)
Q = jax.ShapeDtypeStruct(HEADS, jnp.bfloat16)


def graph_of(function: Callable[..., Any], *args: Any, kept: bool = False) -> OpGraph:
    options = autopar.SearchOptions(operators="kept" if kept else "expanded")
    plan = autopar.plan(function, *args, cluster="8xh100-xla", mesh={"x": 8}, options=options)
    return plan.bound.planned.graph


def shapes(*given: tuple[int, ...], dtype: Any = jnp.bfloat16) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(shape, dtype) for shape in given]


def product(*given: tuple[int, ...], dtype: Any = jnp.bfloat16) -> OpNode:
    (op,) = trace(jnp.matmul, tuple(shapes(*given, dtype=dtype))).graph.ops
    return op


def attention(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.dot_product_attention(q, k, v)


def gradients(q: Any, k: Any, v: Any) -> Any:
    return jax.grad(lambda *a: attention(*a).astype(jnp.float32).sum(), (0, 1, 2))(q, k, v)


@pytest.mark.parametrize(
    ("m", "k", "n", "multiple", "expected"),
    [
        (64, 32, 16, 8, (1.0, 1.0)),
        (197, 64, 197, 8, (200 / 197, 200 / 197)),
        (64, 63, 16, 8, (64 / 63, 64 / 63)),
        (61, 64, 16, 8, (64 / 61, 1.0)),
        (61, 64, 16, 4, (64 / 61, 1.0)),
        (1, 63, 16, 8, (0.0, 0.0)),
    ],
)
def test_operands_are_padded_to_multiples(
    m: int, k: int, n: int, multiple: int, expected: tuple[float, float]
) -> None:
    """A product with a vector is none of matrices."""
    batch = 7.0
    elements = batch * m * k, batch * k * n, batch * m * n
    found = longer(elements, 2 * batch * m * n * k, multiple)
    assert [float(one) for one in found] == pytest.approx(expected if m > 1 else (1.0, 1.0))
    whole = longer(tuple(np.array([e, e]) for e in elements), np.full(2, 2 * batch * m * n * k), 8)
    assert all(one.shape == (2,) for one in whole)


def test_padded_operands_take_memory_while_they_are_multiplied() -> None:
    assert padded_bytes(product((61, 64), (64, 16)), [(61, 64), (64, 16)]) == 2 * 64 * 64
    assert padded_bytes(product((61, 63), (63, 16)), [(61, 63), (63, 16)]) == 2 * (
        64 * 64 + 64 * 16
    )
    assert padded_bytes(product((64, 64), (64, 16)), [(32, 64), (64, 12)]) == 2 * 64 * 16
    assert (
        padded_bytes(product((5, 61, 64), (5, 64, 16)), [(5, 61, 64), (5, 64, 16)]) == 10 * 64 * 64
    )
    assert padded_bytes(product((1, 63), (63, 16)), [(1, 63), (63, 16)]) == 0
    wide = product((61, 63), (63, 16), dtype=jnp.float32)
    assert padded_bytes(wide, [(61, 63), (63, 16)]) == 0


def test_what_several_read_is_padded_once_and_what_a_loop_makes_is_made_padded() -> None:
    def read(x: Any, w: Any, v: Any) -> Any:
        return jax.nn.relu(x) @ w, x @ w, x @ v

    (x, w, v) = shapes((61, 64), (64, 16), (64, 24))
    graph = trace(read, (x, w, v)).graph
    products = [op.id for op in graph.ops if op.kind == "dot_general"]
    found = padding_shares(graph, XLA_GPU.fusing)
    assert [found[n] for n in products] == [(0.0, 0.5), (0.5, 0.5), (0.5, 1.0)]


def test_scores_that_a_kernel_of_rows_writes_are_padded_behind_it() -> None:
    def weigh(scores: Any, values: Any) -> Any:
        return jax.nn.softmax(scores) @ values

    graph = trace(weigh, tuple(shapes((8, 61, 61), (8, 61, 16)))).graph
    (op,) = [op for op in graph.ops if op.kind == "dot_general"]
    assert padding_shares(graph, XLA_GPU.fusing)[op.id] == (1.0, 1.0)


def test_padding_is_a_kernel_that_reads_and_writes() -> None:
    graph = trace(jnp.matmul, tuple(shapes((1024, 197, 64), (1024, 64, 197)))).graph
    even = trace(jnp.matmul, tuple(shapes((1024, 200, 64), (1024, 64, 200)))).graph
    padded, plain = (
        Roofline(g, ONE, GPUS).op_cost(op, alone(op)) for g in (graph, even) for op in g.ops
    )
    moved_s = 2 * moving_time_s(1024 * 64 * (197 + 200) * 2.0, GPUS.device)
    expected = plain + moved_s + 2 * GPUS.device.launch_s
    assert padded == pytest.approx(expected, rel=0.03)


def test_products_with_wider_results_are_not_in_the_compilers_table() -> None:
    """128 of 1024 x 64 with 64 x 1024 to float32 take 170 us, as long as they move; to bfloat16 79."""

    def wide(x: Any, w: Any) -> Any:
        return jax.lax.dot_general(
            x, w, (((2,), (1,)), ((0,), (0,))), preferred_element_type=jnp.float32
        )

    args = tuple(shapes((128, 1024, 64), (128, 64, 1024)))
    graph = trace(wide, args).graph
    (op,) = graph.ops
    assert widens(op)
    assert Roofline(graph, ONE, GPUS).op_cost(op, alone(op)) == pytest.approx(170e-6, rel=0.1)
    narrow = trace(jnp.matmul, args).graph
    assert not widens(narrow.ops[0])
    found = Roofline(narrow, ONE, GPUS).op_cost(narrow.ops[0], alone(narrow.ops[0]))
    assert 79e-6 <= found < 100e-6


@pytest.mark.parametrize("function", [attention, gradients])
def test_a_function_kept_as_an_operator_costs_what_it_costs_written_out(
    function: Callable[..., Any],
) -> None:
    total: list[float] = []
    for kept in (True, False):
        graph = graph_of(function, *shapes((64, 192, 16, 64)) * 3, kept=kept)
        priced = Roofline(graph, ONE, GPUS)
        total.append(sum(priced.op_cost(op, alone(op)) for op in graph.ops if op.ins))
    assert total[0] == pytest.approx(total[1], rel=0.1)


def test_dims_of_one_element_put_no_operand_in_another_order() -> None:
    def weigh(scores: Any, values: Any) -> Any:
        return jnp.einsum("gbkts,bskh->bkhgt", scores, values)

    for groups, is_copied in ((1, False), (2, True)):
        scores, values = shapes((groups, 8, 4, 64, 64), (8, 64, 4, 16))
        graph = trace(weigh, (scores, values)).graph
        (op,) = [op for op in graph.ops if op.kind == "dot_general"]
        (operand,) = [n for n, tensor in enumerate(op.ins) if prod(tensor.shape) >= 64 * 64 * 32]
        assert regroups(op, operand) == is_copied

    rows = shapes((1, 8, 64, 16), (1, 8, 64, 16))
    graph = trace(lambda q, k: jnp.einsum("bhqd,bhkd->bhqk", q, k), tuple(rows)).graph
    (op,) = [op for op in graph.ops if op.kind == "dot_general"]
    assert not regroups(op, 0)


def test_a_product_of_ragged_groups_is_one_of_all_groups() -> None:
    """8 groups of 32768 rows of 4096 with 4096 x 1792: 5.09 ms of product, 2.6 of writing and turning rows (XLA's)."""
    shape = shapes((32768, 4096), (8, 4096, 1792))
    sizes = jax.ShapeDtypeStruct((8,), jnp.int32)
    graph = trace(jax.lax.ragged_dot, (*shape, sizes)).graph
    (op,) = [op for op in graph.ops if op.kind == "ragged_dot_general"]
    price = Roofline(graph, ONE, GPUS)
    assert price.op_cost(op, alone(op)) == pytest.approx(5.09e-3 + 2.6e-3, rel=0.1)
    rows = 32768 * 4096 * 2
    held = XLA_GPU.workspace_bytes(
        op, (rows, 8 * 4096 * 1792 * 2, 32), [(32768, 4096), (8, 4096, 1792), (8,)]
    )
    assert held == 4 * 8 * rows

    four = DeviceMesh.of({"x": 4})
    placed = [Placement(((),) * t.ndim) for t in (*op.ins, *op.outs)]
    columns = Placement(((), (), ("x",)))
    last = Placement(((), ("x",)))
    split = Strategy((placed[0], columns, placed[2]), (last,), split=4)
    found = Roofline(graph, four, GPUS).op_cost(op, split)
    assert found == pytest.approx(5.09e-3 / 4 + 2.6e-3, rel=0.1)

    own = Placement((("x",), (), ()))
    experts = Strategy((placed[0], own, placed[2]), (placed[3],), split=4)
    found = Roofline(graph, four, GPUS).op_cost(op, experts)
    assert found == pytest.approx(5.09e-3 / 4 + 2.6e-3 / 4, rel=0.1)


def model(q: Any, k: Any, v: Any, *, block: Callable[..., Any] = attention) -> Any:
    def loss(q: Any, k: Any, v: Any) -> Any:
        return (block(q, k, v).astype(jnp.float32) ** 2).sum()

    return jax.value_and_grad(loss, (0, 1, 2))(q, k, v)


def test_a_derivative_beside_its_function_shares_what_that_computes() -> None:
    """In a rematerialised block; where the function stands in the forward pass it is kept apart by a barrier."""
    block = jax.checkpoint(lambda *a: jnp.sin(attention(*a)))
    inside = graph_of(lambda *a: model(*a, block=block), Q, Q, Q, kept=True)
    outside = graph_of(model, Q, Q, Q, kept=True)
    for graph in (inside, outside):
        (derivative,) = [op for op in graph.ops if op.kind.endswith(".vjp")]
        (number,) = repeated(graph.ops)
        assert number == derivative.id

    (shared,) = merged(inside)
    assert not merged(outside)
    op = inside.ops[shared]
    price = Roofline(inside, ONE, GPUS)
    together_s = price.op_cost(op, alone(op))
    alone_s = body_time_s(op, alone(op), ONE, GPUS.device)
    function = repeated(inside.ops)[shared]
    assert together_s < alone_s < together_s + price.op_cost(function, alone(function))


def test_another_functions_derivative_repeats_nothing() -> None:
    graph = graph_of(model, Q, Q, Q, kept=True)
    (derivative,) = [op for op in graph.ops if op.kind.endswith(".vjp")]
    (function,) = [op for op in graph.ops if op.kind == "attention"]
    other = replace(derivative, region=1)
    assert not repeated([function, other])
    assert not repeated([derivative])


def test_the_derivative_reads_through_a_barrier_what_its_function_read() -> None:
    options = autopar.SearchOptions(operators="kept")
    args = [np.random.default_rng(n).normal(size=(8, 16, 4, 8)).astype("float32") for n in range(3)]
    plan = autopar.plan(model, *args, cluster="cpu8", mesh={"x": 8}, options=options)
    program = plan.program()
    (position,) = anew(program, XLA_GPU)
    one = program.instructions[position]
    assert isinstance(one, Compute)
    assert one.op.kind == "attention.vjp"
    assert anew(program, XLA_GPU)[position].values == frozenset(one.ins[: len(one.ins) - 1])
    assert "optimization_barrier" in plan.lower().as_text()
    found = autopar.compile(model, cluster="cpu8", mesh={"x": 8}, options=options)(*args)
    for mine, wanted in zip(jax.tree.leaves(found), jax.tree.leaves(model(*args)), strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=2e-4, atol=1e-5)


def test_scores_are_held_between_a_function_and_the_derivative_that_shares_them() -> None:
    def block(q: Any, k: Any, v: Any) -> Any:
        return jnp.sin(attention(q, k, v))

    options = autopar.SearchOptions(operators="kept")
    plan = autopar.plan(
        lambda *a: model(*a, block=jax.checkpoint(block)),
        *(Q, Q, Q), cluster="8xh100-xla", mesh={"x": 8}, options=options,
    )  # fmt: skip
    program = plan.program()
    held = kept_between(program, XLA_GPU.counting)
    kinds = [one.op.kind if isinstance(one, Compute) else "" for one in program.instructions]
    last = kinds.index("attention.vjp")
    first = last - 1 - kinds[last - 1 :: -1].index("attention")
    assert not held[: first + 1].any()
    assert not held[last:].any()
    scores = 8 * 16 * 197 * 197
    assert held[first + 1 : last].tolist() == pytest.approx([(4 + 2) * scores] * (last - first - 1))


def alone(op: OpNode) -> Strategy:
    """All of it on one device."""
    whole = [Placement(((),) * tensor.ndim) for tensor in (*op.ins, *op.outs)]
    return Strategy(tuple(whole[: len(op.ins)]), tuple(whole[len(op.ins) :]))
