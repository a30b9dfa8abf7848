"""What a loop adds up of updates over zeros is added where the sum lies, with the same values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from autopar._compat import untyped_jax
from autopar.core.in_place import updates
from autopar.trace import trace
from tests.trace.evaluate import as_function, assert_same

jax = untyped_jax
jnp = jax.numpy
lax = jax.lax

TABLE: Any = untyped_jax.numpy.linspace(-1, 2, 24).reshape(6, 4)
ROWS = np.array([[0, 1], [5, 1], [3, 3]], np.int32)


def loss(table: Any, rows: Any) -> Any:
    """A loop that picks rows of a table in each round, in part the same ones."""
    return lax.scan(lambda total, n: (total + jnp.sin(table[n]).sum(), None), 0.0, rows)[0]


def kept(table: Any, rows: Any) -> Any:
    """Each round's gradient is read by itself, too."""

    def one(total: Any, n: Any) -> Any:
        mine = jnp.zeros_like(table).at[n].add(jnp.sin(table[n]))
        return total + mine, mine.max()

    return lax.scan(one, jnp.zeros_like(table), rows)


@pytest.mark.parametrize(("fn", "in_place"), [(jax.grad(loss), True), (kept, False)])
def test_a_loop_adds_to_its_sum_where_nothing_else_reads_an_update(fn: Any, in_place: bool) -> None:
    traced = trace(fn, (TABLE, ROWS))
    assert_same(as_function(traced)(TABLE, ROWS), fn(TABLE, ROWS), 1e-6)
    graph = traced.graph
    (scatter,) = [op for op in graph.ops if op.kind == "scatter-add"]
    maker = graph.producers[scatter.ins[0].id]
    assert (maker.kind == "carry_in") == in_place
    assert (scatter.id in updates(graph)) or not in_place
    sums = [op.outs[0].shape for op in graph.ops if op.kind in ("add", "add_any")]
    assert (TABLE.shape in sums) != in_place
