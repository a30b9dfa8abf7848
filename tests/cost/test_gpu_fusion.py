"""What XLA fuses on GPUs beside what it does everywhere, and copies: the facts of its own programs for H100s.

Each case counts passes: how often an array as large as the first argument is read or written. By the compiler's times a
softmax in rows of up to 16384 takes 2, of longer ones 4 (`backends.xla_gpu.ROW_ELEMENTS`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autopar
from autopar.backends.known import XLA_CPU, XLA_GPU
from autopar.backends.xla_gpu import CUBLAS_BYTES, ROW_ELEMENTS
from autopar.core.graph import OpGraph, OpNode
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.core.program import Compute
from autopar.core.recompute import Recomputed, with_recomputed
from autopar.core.strategy import Strategy, StrategyArrays
from autopar.cost.operators.fused import bounds
from autopar.cost.operators.moved import moved
from autopar.cost.operators.reread import all_moved
from autopar.cost.pricing import Roofline
from autopar.memory.account import Account
from autopar.ops.before_loops import made_before
from autopar.ops.fusion import (
    PLAIN,
    Fusing,
    in_memory,
    in_products,
    loops,
    materialised,
    own_loops,
    rows,
)
from autopar.search.limited_solve import account_of, lives_in
from autopar.trace import trace
from benchmarks.models import max_pool
from cost_models import load_cluster

FUSING = XLA_GPU.fusing
MESH = DeviceMesh.of({"x": 8})
GPUS = load_cluster("8xh100-xla")
ROWS, COLUMNS = 512, 2048
WHOLE = (ROWS, COLUMNS)
"""What is as large as a row or a column counts for next to nothing beside it."""


def graph_of(
    function: Callable[..., Any], *shapes: tuple[int, ...], dtype: Any = jnp.bfloat16
) -> OpGraph:
    return trace(function, tuple(jax.ShapeDtypeStruct(s, dtype) for s in shapes)).graph


def passes(graph: OpGraph, fusing: Fusing) -> float:
    """How often an array of the first input's bytes is read or written."""
    size = sum(
        share * tensor.size_bytes
        for op, shares in zip(graph.ops, moved(graph, fusing), strict=True)
        for tensor, share in zip((*op.ins, *op.outs), shares, strict=True)
    )
    return round(size / graph.inputs[0].size_bytes, 1)


def norm(x: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)


def masked(x: jax.Array) -> jax.Array:
    """Weights of causal attention."""
    return jax.nn.softmax(jnp.where(jnp.tril(jnp.ones(x.shape, bool)), 0.1 * x, -1e9))


@pytest.mark.parametrize("function", [jax.nn.softmax, norm, masked])
def test_rows_are_read_once_and_written_once(function: Callable[..., Any]) -> None:
    graph = graph_of(function, WHOLE)
    assert passes(graph, FUSING) == 2
    assert passes(graph, PLAIN) >= 4
    assert len({*loops(graph, FUSING)}) == 1


def test_backward_reads_both_operands_and_writes_one() -> None:
    graph = graph_of(lambda x, g: jax.vjp(jax.nn.softmax, x)[1](g)[0], WHOLE, WHOLE)
    assert passes(graph, FUSING) == 3


@pytest.mark.parametrize(("columns", "expected"), [(ROW_ELEMENTS, 2), (2 * ROW_ELEMENTS, 4)])
def test_rows_that_do_not_fit_are_read_for_each_reduction(columns: int, expected: int) -> None:
    assert passes(graph_of(jax.nn.softmax, (64, columns)), FUSING) == expected


def test_a_transpose_on_the_way_makes_rows_kernels_of_their_own() -> None:
    graph = graph_of(lambda x: jax.nn.softmax(x.T), WHOLE)
    assert not rows(graph, FUSING)
    assert passes(graph, FUSING) == 4
    same = graph_of(lambda x: jax.nn.softmax(x[None].transpose(1, 0, 2)), WHOLE)
    assert rows(same, FUSING)  # a dim of size 1 changes nothing


def test_no_reduction_joins_what_is_partly_turned() -> None:
    """XLA writes the float32 array that comes through the transpose; where all does, it reduces columns instead.

    Passes in bfloat16: both operands, an array of float32 written and read.
    """

    def weighed(x: jax.Array, y: jax.Array) -> jax.Array:
        return (jnp.exp(x.astype(jnp.float32)) * y.astype(jnp.float32)).sum(-1)

    square = (COLUMNS, COLUMNS)
    for function, expected in (
        (lambda x, y: weighed(x.T, y), 2 + 2 + 2),
        (lambda x, y: weighed(x.T, y.T), 2),
        (weighed, 2),
        (lambda x, y: weighed(x.T, y[:1]), 1),
    ):
        graph = graph_of(function, square, square)
        assert passes(graph, FUSING) == expected
        assert passes(graph, PLAIN) == min(expected, 2)


@pytest.mark.parametrize("written", [True, False])
def test_what_is_turned_and_written_is_read_as_it_lies(written: bool) -> None:
    """As where a sort reads it too: the product is part of its sum then."""

    def both(x: jax.Array, y: jax.Array) -> tuple[jax.Array, ...]:
        turned = x.T * 2
        return (turned * y).sum(-1), *([jnp.sort(turned)] if written else [])

    graph = graph_of(both, (COLUMNS, COLUMNS), (COLUMNS, COLUMNS), dtype=jnp.float32)
    (total,) = [op for op in graph.ops if op.kind == "reduce_sum"]
    assert (total.ins[0].id in materialised(graph, FUSING)) != written


def test_what_runs_once_more_shares_the_loops_of_its_original() -> None:
    """A value that three loops compute, two of them late: the original runs in one, what runs once more in two.

    One that is written runs in a loop of its own each time.
    """

    def late(x: jax.Array) -> tuple[jax.Array, ...]:
        made = 3.0 * x
        return jnp.sin(made), jnp.cos(made), jnp.exp(made)

    graph = graph_of(late, WHOLE)
    assert own_loops(graph, FUSING, FUSING) == (3, 1, 1, 1)
    again = with_recomputed(graph, [Recomputed(0, 2)], residuals=True).graph
    assert [op.kind for op in again.ops] == ["mul", "sin", "mul", "cos", "exp"]
    assert own_loops(again, FUSING, FUSING) == (1, 1, 2, 1, 1)
    assert own_loops(again, FUSING, PLAIN) == (3, 1, 2, 1, 1)  # kept, the original runs in all
    assert own_loops(again, PLAIN, PLAIN) == (1,) * 5


def test_columns_are_no_rows() -> None:
    assert not rows(graph_of(lambda x: jax.nn.softmax(x, axis=0), WHOLE), FUSING)
    assert not rows(graph_of(jax.nn.softmax, WHOLE), PLAIN)


def test_of_a_part_of_each_row_a_reduction_is_a_kernel_of_its_own() -> None:
    """It reads the part once more, one strategy at a time as all at once."""
    graph = graph_of(jax.nn.softmax, WHOLE)
    price = Roofline(graph, MESH, GPUS)
    op = next(op for op in graph.ops if op.kind == "reduce_max")
    split = Placement((("x",), ())), Placement((("x",),))
    parts = Placement(((), ("x",))), Placement(((),), ("x",))
    whole, part = (Strategy((before,), (after,), split=8) for before, after in (split, parts))
    read_s = graph.inputs[0].size_bytes / 8 / GPUS.device.memory_bandwidth_bytes_per_s
    assert price.op_cost(op, part) - price.op_cost(op, whole) == pytest.approx(read_s, rel=0.01)


@pytest.mark.parametrize(
    ("count", "expected"), [(1, 2 * 1 + 2), (2, 2 * 2 + 2), (4, 4 + 1 + 2 + 2)]
)
def test_what_two_loops_read_is_made_in_both_where_that_moves_less(
    count: int, expected: int
) -> None:
    """A sum of one array and of two; not of four, all of which both loops would read: it is written and read twice."""

    def both(*arrays: jax.Array) -> tuple[jax.Array, jax.Array]:
        made = 3.0 * sum(arrays[1:], arrays[0])
        return jnp.sin(made), jnp.cos(made)

    graph = graph_of(both, *[WHOLE] * count)
    assert passes(graph, FUSING) == expected
    assert passes(graph, PLAIN) == count + 1 + 2 + 2


def test_what_is_computed_in_two_kernels_costs_twice_where_that_is_what_takes_time() -> None:
    """Two exponentials are so slow that they bound both kernels, and nothing that these move counts. In bfloat16 the
    compiler has them as fast as sums.
    """

    def both(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        made = jnp.exp(jnp.exp(x))
        return made * 2, made + 1

    narrow = graph_of(both, WHOLE)
    op, _ = [op for op in narrow.ops if op.kind == "exp"]
    assert bounds(narrow, GPUS.device, 8)[op.id] == 0.0

    graph = graph_of(both, WHOLE, dtype=jnp.float32)
    op, _ = [op for op in graph.ops if op.kind == "exp"]
    assert len(loops(graph, FUSING)[op.id]) == 2
    assert bounds(graph, GPUS.device, 8)[op.id] == 1.0
    split = Placement((("x",), ()))
    cost_s = Roofline(graph, MESH, GPUS).op_cost(op, Strategy((split,), (split,), split=8))
    assert cost_s == pytest.approx(2 * ROWS * COLUMNS / 8 / 0.78e12)


def test_a_tanh_that_two_kernels_read_is_written() -> None:
    """As that of a GELU is for its backward pass; its kernel computes it once. A logistic is computed in both."""

    def both(function: Callable[[jax.Array], jax.Array]) -> Callable[..., Any]:
        return lambda x: (function(x) * 2, function(x) + 1)

    graph = graph_of(both(jnp.tanh), WHOLE)
    (op,) = [op for op in graph.ops if op.kind == "tanh"]
    assert op.outs[0].id in materialised(graph, FUSING)
    assert len(loops(graph, FUSING)[op.id]) == 1
    cheaper = graph_of(both(jax.nn.sigmoid), WHOLE)
    (op,) = [op for op in cheaper.ops if op.kind == "logistic"]
    assert op.outs[0].id not in materialised(cheaper, FUSING)


def moved_s(graph: OpGraph) -> float:
    """Seconds in which all that its kernels move is moved, by one device."""
    size = sum(
        share * tensor.size_bytes
        for op, shares in zip(graph.ops, all_moved(graph, FUSING, 1), strict=True)
        for tensor, share in zip((*op.ins, *op.outs), shares, strict=True)
    )
    return size / GPUS.device.memory_bandwidth_bytes_per_s


@pytest.mark.parametrize(
    ("rows", "expected_us"), [(2**12, 164.2), (2**18, 192.4), (2**20, 192.9), (2**24, 240.2)]
)
def test_what_a_kernel_repeats_is_read_from_a_cache_each_time(
    rows: int, expected_us: float
) -> None:
    """2^26 floats times one for each row, as the compiler says: from the L1 caches, from the L2 cache, from memory."""
    shapes = (rows, 2**26 // rows), (rows,)
    repeated = graph_of(lambda x, s: x * s[:, None], *shapes, dtype=jnp.float32)
    assert moved_s(repeated) == pytest.approx(1e-6 * expected_us, rel=0.01)
    keeping = graph_of(lambda x, s: x * s, (rows, 2**26 // rows), (rows, 1), dtype=jnp.float32)
    assert moved_s(keeping) == pytest.approx(1e-6 * expected_us, rel=0.01)


def test_what_is_repeated_counts_once_in_a_kernel_and_never_where_rows_are_reduced() -> None:
    """Two readers of one column cost what one does; a softmax has its sums in registers, other compilers all."""
    shapes = (2**18, 256), (2**18,)
    one = graph_of(lambda x, s: x * s[:, None], *shapes, dtype=jnp.float32)
    two = graph_of(
        lambda x, s: x * s[:, None] + jnp.maximum(x, s[:, None]), *shapes, dtype=jnp.float32
    )
    assert moved_s(two) == pytest.approx(moved_s(one))
    softmax = graph_of(jax.nn.softmax, WHOLE)
    assert all_moved(softmax, FUSING, 1) == moved(softmax, FUSING)
    assert all_moved(one, PLAIN, 1) == moved(one, PLAIN)


def test_parts_that_are_put_together_are_not_repeated() -> None:
    """An operand smaller than the result is read once by what does not spread it."""
    graph = graph_of(lambda x, y: jnp.concatenate([x, y]) * 2, WHOLE, (8, COLUMNS))
    assert all_moved(graph, FUSING, 1) == moved(graph, FUSING)


def masking(x: jax.Array, *, outside: bool) -> jax.Array:
    """A mask over rows that repeats, made before a loop or in each round."""

    def mask() -> jax.Array:
        return jnp.broadcast_to(jnp.tril(jnp.ones(WHOLE, bool)), (4, *WHOLE))

    made = mask() if outside else None

    def body(x: jax.Array, _: None) -> tuple[jax.Array, None]:
        return jnp.where(mask() if made is None else made, x, 0.0) * 2, None

    return jax.lax.scan(body, x, None, length=3)[0]


def test_what_is_made_outside_of_a_loop_and_read_in_it_is_written() -> None:
    """The compiler fuses nothing across a loop's border: a mask is written, a byte for each element, and read there."""
    costs = []
    for outside in (True, False):
        graph = graph_of(lambda x, outside=outside: masking(x, outside=outside), (4, *WHOLE))
        masks = [
            op for op in graph.ops if op.outs[0].shape == (4, *WHOLE) and op.outs[0].dtype == "bool"
        ]
        written = [op for op in masks if op.outs[0].id in materialised(graph, FUSING)]
        assert bool(written) == outside
        price = Roofline(graph, DeviceMesh.of({"x": 1}), GPUS)
        costs.append(sum(price.op_cost(op, whole(op)) for op in written))

    size = 4 * ROWS * COLUMNS
    assert costs[0] >= size / GPUS.device.memory_bandwidth_bytes_per_s
    assert costs[1] == 0.0


def whole(op: OpNode) -> Strategy:
    """On one device."""
    ins, outs = (tuple(Placement.replicated(t.ndim) for t in side) for side in (op.ins, op.outs))
    return Strategy(ins, outs)


@pytest.mark.parametrize("remat", [True, False])
def test_a_slice_of_a_loop_that_a_rematerialised_block_reads_is_copied(remat: bool) -> None:
    """Its barrier is given arrays; elsewhere a slice is read where it lies by the kernel that reads it."""

    def block(x: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
        return jnp.sin(x * jnp.cos(w)), None

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        body = jax.checkpoint(block) if remat else block
        return jax.lax.scan(body, x, w)[0].astype(jnp.float32).sum()

    graph = graph_of(jax.grad(loss), (4, *WHOLE), WHOLE)
    copied = XLA_GPU.copied(graph)
    slices = [op for op in graph.ops if op.kind == "scan_slice" and op.ins[0].name == "w"]
    assert slices
    assert any(op.id in copied for op in slices) == remat
    forward = slices[0]
    assert forward.id not in copied


PRODUCTS: dict[str, tuple[Callable[..., Any], str]] = {
    "a bias": (lambda x, w, b: jnp.sort(x @ w + b), "add"),
    "an array": (lambda x, w, b: jnp.sort(jnp.sort(x) + x @ w), "add"),
    "a transpose": (lambda x, w, b: jnp.sort((x @ w).T), "transpose"),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_does_it_to_its_result(name: str) -> None:
    """It is no kernel, and costs nothing."""
    function, kind = PRODUCTS[name]
    graph = graph_of(function, WHOLE, (COLUMNS, COLUMNS), (COLUMNS,))
    (op,) = [op for op in graph.ops if op.kind == kind]
    assert in_products(graph, FUSING) == {op.id}
    assert not in_products(graph, PLAIN)
    assert op.outs[0].id in materialised(graph, FUSING)
    split = Placement((("x",), ()))
    given = (split,) if len(op.ins) == 1 else (split, Placement(((), ())))
    cost_s = Roofline(graph, MESH, GPUS).op_cost(op, Strategy(given, (split,), split=8))
    assert cost_s == 0.0
    assert op.outs[0].id in in_memory(graph, FUSING)
    (product,) = [op for op in graph.ops if op.kind == "dot_general"]
    assert product.outs[0].id not in in_memory(graph, FUSING)


NO_PRODUCTS: dict[str, Callable[..., Any]] = {
    "a wider type": lambda x, w, b: jnp.sort((x @ w).astype(jnp.float32)),
    "a column": lambda x, w, b: x @ w + b[:ROWS, None],
    "two readers": lambda x, w, b: (jnp.sin(x @ w + b), jnp.cos(x @ w)),
}


@pytest.mark.parametrize("name", NO_PRODUCTS)
def test_a_product_does_nothing_else_to_its_result(name: str) -> None:
    graph = graph_of(NO_PRODUCTS[name], WHOLE, (COLUMNS, COLUMNS), (COLUMNS,))
    assert not in_products(graph, FUSING)


def test_heads_are_copied_before_a_product_and_gathered_columns_behind() -> None:
    """Once more read and written, by a kernel of its own: operands whose batch dims are not in front, and what a step
    along another dim than the first leaves.
    """
    graph = graph_of(
        lambda q, k: jnp.einsum("bqhd,bkhd->bhqk", q, k), (4, 64, 8, 16), (4, 64, 8, 16)
    )
    (op,) = [op for op in graph.ops if op.kind == "dot_general"]
    device = GPUS.device
    found = XLA_GPU.product_turns_s(op, (1e6, 1e7, 1.0), 1.0, device, turned=False)
    copied_s = 2 * 2 * 1.1e7 / device.memory_bandwidth_bytes_per_s
    assert found == pytest.approx(copied_s + 2 * device.launch_s)
    turn = XLA_GPU.turn_price(device)
    once_s = 2 * 2**24 / device.memory_bandwidth_bytes_per_s + device.launch_s
    assert turn("all_gather", 2**24) == pytest.approx(once_s)
    assert turn("all_reduce", 2**24) == 0.0


def test_a_narrower_operand_of_a_product_is_written_in_the_type_of_the_other() -> None:
    def mixed(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.dot_general(x.astype(jnp.float32), w, (((1,), (0,)), ((), ())))

    _, op = graph_of(mixed, WHOLE, (COLUMNS, 8)).ops
    device = GPUS.device
    found = XLA_GPU.product_turns_s(op, (1e6, 1e7, 1.0), 1.0, device, turned=False)
    widened_s = (2 + 4) * 1e7 / device.memory_bandwidth_bytes_per_s
    assert found == pytest.approx(widened_s + device.launch_s)


def test_gradients_of_weights_wait_for_those_of_activations() -> None:
    """What they read lives until the product after the next begins."""

    def loss(w: Any, x: jax.Array) -> jax.Array:
        for layer in w:
            x = jnp.square(x @ layer)
        return x.sum()

    w = [jax.ShapeDtypeStruct((256, 256), jnp.bfloat16)] * 3
    x = jax.ShapeDtypeStruct((4096, 256), jnp.bfloat16)
    plan = autopar.plan(
        lambda w, x: jax.tree.map(lambda p, g: p - g, w, jax.grad(loss)(w, x)),
        w,
        x,
        cluster=GPUS,
        mesh={"x": 8},
        mode="data_parallel",
    )
    planned = plan.bound.planned
    program = planned.program
    products = [
        position
        for position, one in enumerate(program.instructions)
        if isinstance(one, Compute) and one.op.kind == "dot_general"
    ]
    lives = lives_in(planned.graph, program, planned.pricing)
    stop = dict(zip(lives.values.tolist(), lives.stop.tolist(), strict=True))
    backward = [p for p in products if program.instructions[p].op.phase == "backward"]
    assert len(products) == 3 + len(backward) == 8
    of_weights = program.instructions[backward[0]]
    until = max(stop[value] for value in of_weights.ins)
    assert backward[2] < until <= backward[3]


@pytest.mark.parametrize(("batch", "waits"), [(4096, False), (512, True)])
def test_gradients_of_weights_wait_for_loops_where_they_are_larger(batch: int, waits: bool) -> None:
    """What those of a head read lives through the backward pass of the layers before it; or it is read before that,
    where it takes more than they do.
    """

    def loss(w: Any, x: jax.Array) -> jax.Array:
        layers, head = w
        x, _ = jax.lax.scan(lambda x, layer: (jnp.sin(x @ layer), None), x, layers)
        return jnp.square(x @ head).sum()

    w = tuple(jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((3, 256, 256), (256, 512)))
    x = jax.ShapeDtypeStruct((batch, 256), jnp.bfloat16)
    planned = autopar.plan(
        lambda w, x: jax.tree.map(lambda p, g: p - g, w, jax.grad(loss)(w, x)),
        w,
        x,
        cluster=GPUS,
        mesh={"x": 8},
        mode="data_parallel",
    ).bound.planned

    instructions = planned.program.instructions
    lives = lives_in(planned.graph, planned.program, planned.pricing)
    stop = dict(zip(lives.values.tolist(), lives.stop.tolist(), strict=True))
    backward = [
        n
        for n, one in enumerate(instructions)
        if isinstance(one, Compute) and one.op.kind == "dot_general" and one.op.phase == "backward"
    ]
    of_head = [n for n in backward if instructions[n].region is None]
    in_loop = [n for n in backward if instructions[n].region is not None]
    of_weights = min(of_head, key=lambda n: instructions[n].op.outs[0].size_bytes)
    until = max(stop[value] for value in instructions[of_weights].ins)
    assert until > in_loop[-1] if waits else until <= in_loop[0]
    gradients = [one for loop in made_before(planned.program).values() for one in loop]
    start = dict(zip(lives.values.tolist(), lives.start.tolist(), strict=True))
    assert [start[one.value] == one.since < one.product for one in gradients] == [True] * (
        not waits
    )


def test_programs_with_products_have_the_workspace_of_cublas_once() -> None:
    """It is in what the compiler is expected to set aside, and not in what a limit is held against."""
    x, w = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in (WHOLE, (COLUMNS, COLUMNS)))

    def spent(function: Callable[..., Any]) -> Account:
        plan = autopar.plan(function, x, w, cluster=GPUS, mesh={"x": 8})
        graph = plan.bound.planned.graph
        return account_of(graph, plan.program(), Roofline(graph, plan.mesh, GPUS))

    products = spent(lambda x, w: x @ w @ w[:, :8])
    assert products.set_aside_bytes == products.peak_memory_bytes + CUBLAS_BYTES
    assert spent(lambda x, w: (jnp.sin(x), jnp.cos(w))).set_aside_bytes is None


def test_the_gradient_of_max_pooling_is_three_kernels() -> None:
    """Of an array of 2^22 elements on each device XLA's own times are 22.0 us; for every window it keeps five words."""
    graph = graph_of(jax.grad(lambda x: max_pool(x).sum()), (8 * 512, 32, 32, 8))
    (op,) = [op for op in graph.ops if op.kind == "select_and_scatter_add"]
    split = Placement((("x",), (), (), ()))
    strategy = Strategy((split, split), (split,), split=8)
    price = Roofline(graph, MESH, GPUS)
    own_s = price.op_cost(op, strategy) - 3 * GPUS.device.launch_s
    assert 0.98 < own_s / 22.0e-6 < 1.02
    layout = StrategyArrays(np.full((3, 1), 8), np.array([8]), ())
    assert price.op_costs(op, (strategy,), layout) == pytest.approx(price.op_cost(op, strategy))
    windows = 512 * 16 * 16 * 8
    assert XLA_GPU.workspace_bytes(op, (2 * windows, 8 * windows), ()) == 5 * 4 * windows


def test_parts_are_put_together_in_the_kernel_that_makes_and_reads_them() -> None:
    def joined(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.concatenate([2 * x, jnp.tanh(y)]) * 3

    graph = graph_of(joined, WHOLE, WHOLE)
    assert (passes(graph, PLAIN), passes(graph, FUSING)) == (12.0, 4.0)


def test_cpus_fuse_as_every_backend_does() -> None:
    assert XLA_CPU.fusing == PLAIN


def test_programs_whose_operators_make_nothing_are_planned() -> None:
    """The test of a branch makes no tensor."""
    plan = autopar.plan(
        lambda x: jnp.log(jnp.diag(x)).sum(), np.ones((64, 64), np.float32), cluster="8xh100-xla"
    )
    assert any(not op.outs for op in plan.bound.traced.graph.ops)
