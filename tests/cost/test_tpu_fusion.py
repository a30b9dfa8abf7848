"""What XLA fuses on TPUs otherwise than everywhere: the facts of libtpu 0.0.42.1's own programs for v5p.

Each case counts passes: how often an array as large as the first argument is read or written by the loops that the
compiler made of the function. (Of half the rows it computes half; all that is read counts.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import autopar
from autopar.backends.known import XLA_TPU
from autopar.ops.fusion import PLAIN, materialised
from autopar.search.limited_solve import lives_in
from tests.cost.test_gpu_fusion import graph_of, passes

SHAPE = (512, 256)


def padded(x: jax.Array, *dim: int) -> jax.Array:
    return lax.pad(jnp.tanh(x), jnp.zeros((), x.dtype), (dim, (0, 0, 0)))


def rows_after(x: jax.Array, start: int, stride: int) -> jax.Array:
    return lax.slice_in_dim(jnp.tanh(x), start, 512, stride) * 2


MADE: dict[str, tuple[Callable[..., Any], float, float]] = {
    # a loop of tanh, in which nothing else is done; then one that reads it and adds
    "a pad": (lambda x: padded(x, 0, 512, 0) + 1, 3.0, 5.0),
    "a pad of what is given": (lambda x: lax.pad(x, jnp.bfloat16(0), ((0, 512, 0), (0, 0, 0))) + 1, 3.0, 3.0),
    "a pad between elements": (lambda x: padded(x, 0, 1, 1) + 1, 3.0, 9.0),
    "rows in another order": (lambda x: lax.rev(jnp.tanh(x), (0,)) * 2, 2.0, 4.0),
    "every other row": (lambda x: rows_after(x, 0, 2), 1.5, 3.0),
    "half the rows": (lambda x: rows_after(x, 256, 1), 1.5, 1.5),
    "a join": (lambda x: jnp.concatenate([2 * x, jnp.tanh(x)]) * 3, 12.0, 8.0),
    "a sum": (lambda x: jnp.tanh(x).sum(0), 1.0, 1.0),
}  # fmt: skip


@pytest.mark.parametrize("name", MADE)
def test_what_moves_elements_reads_what_is_written(name: str) -> None:
    function, plain, made = MADE[name]
    graph = graph_of(function, SHAPE)
    assert (passes(graph, PLAIN), passes(graph, XLA_TPU.fusing)) == (plain, made)


@pytest.mark.parametrize(("repeats", "written"), [(True, False), (False, True)])
def test_of_what_is_made_before_a_loop_only_what_repeats_is_made_in_it(
    repeats: bool, written: bool
) -> None:
    def stepped(x: jax.Array, y: jax.Array) -> jax.Array:
        made = jnp.broadcast_to(y, SHAPE) if repeats else jnp.tanh(y)
        return lax.scan(lambda x, _: (x * made + 1, None), x, None, length=3)[0]

    graph = graph_of(stepped, SHAPE, SHAPE[1:] if repeats else SHAPE)
    made = {op.outs[0].id for op in graph.ops if op.kind in ("broadcast_in_dim", "tanh")}
    assert bool(made & materialised(graph, XLA_TPU.fusing)) is written


def test_what_two_loops_make_for_themselves_counts_as_written_in_memory() -> None:
    def sums(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        made = 2 * x + 1
        return made.sum(0), (made * made).sum(1)

    graph = graph_of(sums, SHAPE)
    (made,) = (op.outs[0].id for op in graph.ops if op.kind == "add")
    assert made not in materialised(graph, XLA_TPU.fusing)
    x = jax.ShapeDtypeStruct(SHAPE, jnp.bfloat16)
    planned = autopar.plan(sums, x, cluster="tpu-v5p-2x2x2", mesh={"x": 8}).bound.planned
    (made,) = (op.outs[0].id for op in planned.graph.ops if op.kind == "add")
    sizes = lives_in(planned.graph, planned.program, planned.pricing).size
    values = planned.program.values
    assert max(sizes[n] for n in values if values[n].tensor.id == made) > 0
