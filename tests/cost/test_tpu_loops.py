"""What loops take on TPUs for each element: the cycles that libtpu 0.0.42.1 gives to its own over 2^26, for v5p."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from autopar.backends.known import XLA_TPU
from autopar.cost.operators.reread import all_moved
from autopar.trace import trace
from cost_models import load_cluster

SHAPE = (32768, 2048)
CYCLES = 0.00088 * 2**26
"""What moving a byte for each element takes."""

FLOAT, BRAIN = jnp.float32, jnp.bfloat16
MADE: list[tuple[str, Callable[..., Any], tuple[Any, ...], int]] = [
    ("twice and one", lambda a: a * 2 + 1, (FLOAT,), 472_714),
    ("twice and one", lambda a: a * 2 + 1, (BRAIN,), 468_704),
    ("gelu", jax.nn.gelu, (FLOAT,), 475_365),
    ("a sum of two", lambda a, b: (a + b) * 2, (FLOAT,) * 2, 706_770),
    ("a sum of two", lambda a, b: (a + b) * 2, (BRAIN,) * 2, 573_156),
    ("a sum of three", lambda a, b, c: a + b + c, (FLOAT,) * 3, 944_221),
    ("a sum of three", lambda a, b, c: a + b + c, (BRAIN,) * 3, 692_734),
    ("narrower", lambda a: (a * 2).astype(BRAIN), (FLOAT,), 572_674),
    ("wider", lambda a: a.astype(FLOAT) * 2, (BRAIN,), 368_256),
    ("a mask", lambda a: a * 2 > 1, (FLOAT,), 519_680),
    ("a join", lambda a, b: jnp.concatenate([a, b], 1), (BRAIN,) * 2, 468_960),
    ("of products", lambda a, b: (a * b).sum(-1), (FLOAT,) * 2, 696_440),
]


@pytest.mark.parametrize(("name", "function", "dtypes", "cycles"), MADE)
def test_a_loop_takes_what_the_compiler_says(
    name: str, function: Callable[..., Any], dtypes: tuple[Any, ...], cycles: int
) -> None:
    del name
    graph = trace(function, tuple(jax.ShapeDtypeStruct(SHAPE, dtype) for dtype in dtypes)).graph
    size = sum(
        share * tensor.size_bytes
        for op, shares in zip(graph.ops, all_moved(graph, XLA_TPU.fusing, 1), strict=True)
        for tensor, share in zip((*op.ins, *op.outs), shares, strict=True)
    )
    assert size / prod(SHAPE) == pytest.approx(cycles / CYCLES, rel=0.08)


def test_an_all_to_all_is_copied_beside() -> None:
    device = load_cluster("tpu-v5p-2x2x2").device
    turn = XLA_TPU.turn_price(device)
    moved_s = 4 * 2**26 / (0.72 * 2.765e12)
    assert turn("all_to_all", 2**26) == pytest.approx(moved_s + device.launch_s)
    assert turn("all_gather", 2**26) == 0
