"""The space: how many placements there are, what modes pin, what is never split."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopar.core.dataflow import dataflow
from autopar.core.graph import OpGraph
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.core.space import Space
from autopar.errors import UnsupportedPrimitive
from autopar.search.space import all_placements, build_space
from autopar.trace import trace

TWO = DeviceMesh.of({"x": 2, "y": 4})


def graph_of(fn: Any, *args: Any, **options: Any) -> OpGraph:
    return trace(fn, args, **options).graph


def space_of(graph: OpGraph, mesh: DeviceMesh = TWO, **options: Any) -> Space:
    return build_space(
        graph, dataflow(graph), mesh, keep=lambda _, strategies: strategies, **options
    )


# all_placements -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "mesh", "count"),
    [
        ((), {"x": 8}, 1),
        ((8,), {"x": 8}, 2),
        ((7,), {"x": 8}, 1),
        ((8, 8), {"x": 8}, 3),
        ((8, 8), {"x": 2, "y": 4}, 9),
        ((8, 4), {"x": 2, "y": 4}, 8),
        ((4, 2), {"x": 2, "y": 4}, 5),
        ((8, 8, 8), {"x": 2, "y": 2, "z": 2}, 64),
        ((8, 8), {"x": 8, "one": 1}, 3),
        ((0, 8), {"x": 8}, 1),
        ((0,), {"x": 2, "y": 4}, 1),
    ],
)
def test_counts_by_hand(shape: tuple[int, ...], mesh: dict[str, int], count: int) -> None:
    """Without divisibility (dims + 1) ** axes; (8, 4) loses both axes on the second dim."""
    found = all_placements(shape, DeviceMesh.of(mesh))
    assert len(found) == len(set(found)) == count
    assert found[0] == Placement.replicated(len(shape))


@given(
    shape=st.lists(st.sampled_from([1, 2, 3, 4, 6, 8, 12]), max_size=3),
    sizes=st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=3),
)
def test_exactly_the_placements_that_divide(shape: list[int], sizes: list[int]) -> None:
    mesh = DeviceMesh(tuple(zip("xyz", sizes, strict=False)))
    axes = [name for name, size in mesh.axes if size > 1]
    wanted = 0
    for dims in product(range(-1, len(shape)), repeat=len(axes)):
        parts = [
            prod(mesh.product((a,)) for a, d in zip(axes, dims, strict=True) if d == n)
            for n in range(len(shape))
        ]
        wanted += all(size % part == 0 for size, part in zip(shape, parts, strict=True))
    found = all_placements(tuple(shape), mesh)
    assert len(found) == len(set(found)) == wanted
    assert all(p.fits(shape, mesh) and not p.unreduced for p in found)


# variables ------------------------------------------------------------------------------------------------------------


def test_a_carried_output_takes_its_inputs_placement() -> None:
    graph = graph_of(
        lambda s, x: (s + x, x.sum()), jnp.ones((8, 8)), jnp.ones((8, 8)), carry=[(0, 0)]
    )
    space = space_of(graph)
    assert space.carry == ((0, 0),)
    assert [len(candidates) for candidates in space.outputs] == [0, 1]
    for choice in range(9):
        stage = space.stage([choice] + [0] * (len(space.counts) - 1))
        assert stage.outputs[0] == stage.inputs[0] == space.inputs[0][choice]


def test_the_last_dim_of_a_key_is_whole() -> None:
    def fn(keys: Any) -> Any:
        return keys, jax.random.key_data(keys)

    keys = jax.random.split(jax.random.key(0), 8)
    space = space_of(graph_of(fn, keys, carry=None))
    assert [len(candidates) for candidates in space.inputs] == [4]
    assert [len(candidates) for candidates in space.outputs] == [4, 6]


def test_a_copy_may_be_wherever_its_tensor_is_made_or_wanted() -> None:
    graph = graph_of(lambda a: (lambda b: b @ b)(a @ a), jnp.ones((8, 8)))
    flow = dataflow(graph)
    space = space_of(graph)
    for copy, candidates in zip(flow.copies, space.copies, strict=True):
        assert len(set(candidates)) == len(candidates)
        for use in copy.uses:
            if use.op is not None:
                assert {s.ins[use.position] for s in space.strategies[use.op]} <= set(candidates)


def test_equal_operators_share_their_strategies() -> None:
    graph = graph_of(lambda a, b: (a @ b) @ b, jnp.ones((8, 8)), jnp.ones((8, 8)))
    first, second = space_of(graph).strategies
    assert first is second


def test_an_operator_without_a_rule_is_whole_or_refused() -> None:
    result = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    graph = graph_of(
        lambda x: jax.ffi.ffi_call("nobody's", result)(x), jnp.ones((8, 8), jnp.float32)
    )
    (strategies,) = space_of(graph).strategies
    (only,) = strategies
    assert (only.ins, only.outs, only.split) == (
        (Placement.replicated(2),),
        (Placement.replicated(2),),
        1,
    )
    with pytest.raises(UnsupportedPrimitive, match="no sharding rule for 'ffi_call'"):
        space_of(graph, strict=True)
