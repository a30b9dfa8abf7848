"""Traits stand beside rules: all of them are of primitives that are known, and a typo is no trait."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from autopar.core.graph import OpNode
from autopar.core.regions import AROUND, BOUNDARY
from autopar.ops.rules import registered
from autopar.ops.rules.stated import OPAQUE, TRACED
from autopar.ops.traits import (
    OpTraits,
    declare,
    is_fusible,
    is_rearrangement,
    reads_fused,
    traits_of,
    work_flops,
)
from autopar.trace import trace

WITHOUT_RULES = {"custom_call", "random_bits", "expand_dims"}


def operator(fn: object, *shapes: tuple[int, ...]) -> OpNode:
    (op,) = trace(fn, tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)).graph.ops
    return op


def test_traits_are_of_known_primitives() -> None:
    from autopar.ops.traits import _TRAITS  # pyright: ignore[reportPrivateUsage]

    known = {*registered(), *AROUND, *BOUNDARY, *OPAQUE, *TRACED, *WITHOUT_RULES}
    assert set(_TRAITS) - known == set()


def test_a_name_that_is_no_trait_is_refused() -> None:
    with pytest.raises(TypeError, match="is_fusable"):
        declare("tanh", is_fusable=False)
    assert traits_of("tanh") == OpTraits(is_costly=True, is_dear=True, is_recomputable=True)


def test_an_unknown_operator_works_element_by_element() -> None:
    assert traits_of("somebody's") == OpTraits()


@pytest.mark.parametrize(
    ("fn", "shapes", "fuses", "reads", "flops"),
    [
        (jnp.tanh, [(4, 8)], True, True, 32),
        (lambda x: jnp.reshape(x, (8, 4)), [(4, 8)], True, True, 0),
        (lambda x: x.T, [(4, 8)], True, True, 32),
        (jax.lax.dot, [(4, 8), (8, 2)], False, False, 128),
        (lambda x: jax.lax.reduce_max(x, (0,)), [(4, 8)], False, True, 32),
        (lambda x: jax.lax.cumsum(x), [(4, 8)], False, False, 32),
    ],
)
def test_what_is_computed_and_where(
    fn: object, shapes: list[tuple[int, ...]], fuses: bool, reads: bool, flops: float
) -> None:
    op = operator(fn, *shapes)
    assert (is_fusible(op), reads_fused(op), work_flops(op)) == (fuses, reads, flops)


def test_a_transpose_moves_elements_and_a_sum_does_not() -> None:
    assert is_rearrangement(operator(lambda x: x.T, (4, 8)))
    assert not is_rearrangement(operator(lambda x: x.sum(0), (4, 8)))
