"""Operators that repeat another one on the same operands are computed once; others are left as they are."""

from __future__ import annotations

from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

from autopar.core.graph import OpGraph
from autopar.trace import merge, trace
from tests.trace.evaluate import as_function, assert_same

X = np.linspace(-1, 2, 32, dtype=np.float32).reshape(4, 8)


def graph_of(fn: Any, *args: Any) -> OpGraph:
    """The graph, which computes what the function does."""
    traced = trace(fn, args)
    assert_same(as_function(traced)(*args), fn(*args), 1e-6)
    return traced.graph


def count(graph: OpGraph, kind: str) -> int:
    return Counter(op.kind for op in graph.ops)[kind]


def centred(x: Any) -> Any:
    return (x - x.mean()) * (x - x.mean())


def twice(x: Any) -> Any:
    return [jnp.tanh(y) for y in (x, x)]


def ignored(_: Any) -> None:
    """A callback."""


def test_an_expression_written_twice_is_computed_once() -> None:
    graph = graph_of(centred, X)
    assert [op.kind for op in graph.ops] == ["reduce_sum", "div", "sub", "mul"]
    (product,) = (op for op in graph.ops if op.kind == "mul")
    assert product.ins[0] is product.ins[1]


def test_chains_of_repeats_go_and_results_may_repeat() -> None:
    def chains(x: Any) -> Any:
        return [jnp.sin(y) + 1 for y in twice(x)]

    graph = graph_of(chains, X)
    assert [op.kind for op in graph.ops] == ["tanh", "sin", "add"]
    assert graph.outputs[0] is graph.outputs[1]


def test_derivatives_share_what_they_are_of() -> None:
    """JAX computes x - m anew for the power's derivative."""

    def loss(x: Any) -> Any:
        return ((x - x.mean(0)) ** 2).sum()

    graph = graph_of(jax.grad(loss), X)
    assert count(graph, "sub") == 1


def test_other_operands_or_parameters_are_others() -> None:
    def parts(x: Any, y: Any) -> Any:
        return [jnp.sum(z, axis) for z in (x, y) for axis in (0, 1, 0)], [
            x[i : i + 1] for i in (0, 1, 0)
        ]

    graph = graph_of(parts, X, X + 1)
    assert (count(graph, "reduce_sum"), count(graph, "slice")) == (4, 2)


def test_what_is_written_on_another_line_is_another() -> None:
    """Constraints name operators by their lines."""

    def lines(x: Any) -> Any:
        a = jnp.tanh(x)
        b = jnp.tanh(x)
        return a + 2 * b

    assert count(graph_of(lines, X), "tanh") == 2


def test_what_is_in_another_scope_is_another() -> None:
    def scopes(x: Any) -> Any:
        found = []
        for name in ("a", "b", "b"):
            with jax.named_scope(name):
                found.append(jnp.tanh(x))
        return found

    assert [op.scope for op in graph_of(scopes, X).ops] == ["a", "b"]


def test_regions_do_not_share() -> None:
    """A rematerialised block computes anew, and what a branch computes another may not."""

    def blocks(x: Any) -> Any:
        return [f(x) for f in (jax.checkpoint(twice), jax.checkpoint(twice))]

    assert count(graph_of(blocks, X), "tanh") == 2

    def branches(x: Any) -> Any:
        return jax.lax.cond(x.sum() > 0, twice, lambda y: [2 * part for part in twice(y)], x)

    assert count(graph_of(branches, X), "tanh") == 2


def test_bodies_of_loops_have_repeats_too() -> None:
    """A carry that begins with a number is not one."""

    def summed(x: Any) -> Any:
        def body(total: Any, row: Any) -> Any:
            return total + sum(twice(row)[i].sum() * y for i, y in enumerate(twice(total))), None

        return jax.lax.scan(body, jnp.float32(0), x)[0]

    assert count(graph_of(summed, X), "tanh") == 2


def test_what_depends_on_numbers_alone_is_made_where_it_is_read() -> None:
    def masked(x: Any) -> Any:
        columns = jnp.arange(8)
        for _ in range(2):
            x = jnp.where(columns < 4, x, jnp.sin(x) + jnp.arange(8))
        return x

    graph = graph_of(masked, X)
    assert (count(graph, "iota"), count(graph, "lt")) == (3, 2)


def test_barriers_and_effects_are_kept() -> None:
    def apart(x: Any) -> Any:
        for y in (x, x):
            jax.debug.callback(ignored, y)
        drawn = [io_callback(np.sum, jax.ShapeDtypeStruct((), jnp.float32), y) for y in (x, x)]
        return [jnp.sin(jax.lax.optimization_barrier(y)) for y in (x, x)], drawn

    graph = trace(apart, (X,)).graph
    kinds = ("debug_callback", "io_callback", "optimization_barrier", "sin")
    assert [count(graph, kind) for kind in kinds] == [2, 2, 2, 2]


def test_what_is_no_plain_data_is_compared_too() -> None:
    """Two functions make two reductions, though their plain parameters are the same."""

    def reduced(x: Any) -> Any:
        smallest, product = (lambda a, b: jnp.minimum(a, b)), (lambda a, b: a * b)
        return [jax.lax.reduce(x, np.float32(1), f, (0,)) for f in (smallest, product)]

    graph_of(reduced, X)

    def answered(x: Any) -> Any:
        spec = jax.ShapeDtypeStruct((), jnp.float32)
        return [jax.pure_callback(f, spec, x) for f in (lambda z: z.min(), lambda z: z.max())]

    graph = trace(answered, (X,)).graph
    assert count(graph, "pure_callback") == 2


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (np.zeros(2), np.zeros(2), False),
        ((1, "a", None), (1, "a", None), True),
        ((1, np.zeros(2)), (1, np.zeros(2)), False),
        ((1,), (1, 2), False),
        (1, 1.0, False),
        (X, X, True),
        ([1], [1], False),
    ],
)
def test_parameters_are_equal_only_where_that_is_known(
    one: object, other: object, same: bool
) -> None:
    assert merge._is_equal(one, other) is same  # pyright: ignore[reportPrivateUsage]
