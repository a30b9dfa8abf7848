"""A device_put of many arrays: one operator for each, so that the placement of one says nothing of another's."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import autopar
from autopar.trace import trace

HOST, DEVICE = jax.memory.Space.Host, jax.memory.Space.Device
SHAPES = st.lists(
    st.lists(st.sampled_from([1, 3, 4, 8]), max_size=3).map(tuple), min_size=1, max_size=5
)
TARGETS = st.sampled_from([HOST, DEVICE])


@given(SHAPES, TARGETS)
@settings(max_examples=40, deadline=None)
def test_each_array_is_put_by_an_operator_of_its_own(
    shapes: list[tuple[int, ...]], target: object
) -> None:
    """Operators have one operand and one result, of the same shape, in the order of the arrays."""
    graph = trace(
        lambda *xs: jax.device_put([2 * x for x in xs], target),
        tuple(jnp.ones(shape) for shape in shapes),
    ).graph
    puts = [op for op in graph.ops if op.kind == "device_put"]
    assert [[t.shape for t in op.ins] for op in puts] == [[shape] for shape in shapes]
    assert [op.outs[0].shape for op in puts] == shapes
    assert [out.id for out in graph.outputs] == [op.outs[0].id for op in puts]


def test_moments_put_to_the_host_and_back_are_split_as_their_parameters() -> None:
    """Of two weights that are split along different dims, both moments are split; nothing of a step is whole."""

    def step(params, moments, x):
        def loss(p):
            return jnp.mean((jnp.tanh(x @ p["a"]) @ p["b"]) ** 2)

        grads = jax.grad(loss)(params)
        moments = jax.tree.map(lambda m, g: 0.9 * m + g, jax.device_put(moments, DEVICE), grads)
        return jax.tree.map(lambda p, m: p - 0.1 * m, params, moments), jax.device_put(
            moments, HOST
        )

    rng = np.random.default_rng(0)
    params = {
        name: rng.normal(size=shape).astype("float32")
        for name, shape in (("a", (64, 256)), ("b", (256, 64)))
    }
    moments = {name: rng.normal(size=p.shape).astype("float32") for name, p in params.items()}
    x = rng.normal(size=(16, 64)).astype("float32")
    compiled = autopar.compile(step, mesh={"d": 8})
    results = compiled(params, moments, x)
    assert all(not out.sharding.is_fully_replicated for out in jax.tree.leaves(results))
    for ours, plain in zip(
        jax.tree.leaves(results), jax.tree.leaves(jax.jit(step)(params, moments, x)), strict=True
    ):
        np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-5)
