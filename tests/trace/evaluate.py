"""Runs an OpGraph whole, operator by operator: what every sharded program must agree with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from autopar._payload import Payload
from autopar.core.graph import OpGraph, TensorInfo
from autopar.trace import Traced


def evaluate(graph: OpGraph, values: list[Any]) -> list[Any]:
    """The graph's outputs for the values of its inputs, constants included. Shapes and dtypes are checked."""
    env = {tensor.id: value for tensor, value in zip(graph.inputs, values, strict=True)}

    def read(tensor: TensorInfo) -> Any:
        if tensor.literal is not None:
            return jnp.asarray(np.asarray(tensor.literal).astype(jnp.dtype(tensor.dtype)))
        value = env[tensor.id]
        assert (value.shape, str(value.dtype)) == (tensor.shape, tensor.dtype), tensor
        return value

    for op in graph.ops:
        assert isinstance(op.payload, Payload)
        primitive = op.payload.primitive
        results = primitive.bind(*map(read, op.ins), **primitive.get_bind_params(op.payload.params))
        results = results if primitive.multiple_results else [results]
        env.update((tensor.id, value) for tensor, value in zip(op.outs, results, strict=True))
    return [read(tensor) for tensor in graph.outputs]


def as_function(traced: Traced) -> Callable[..., Any]:
    """The traced function again, keys wrapped and unwrapped at the border."""
    key_inputs, key_outputs = dict(traced.key_inputs), dict(traced.key_outputs)

    def function(*args: Any, **kwargs: Any) -> Any:
        dynamic = tuple(arg for i, arg in enumerate(args) if i not in traced.static_argnums)
        leaves, tree = jax.tree.flatten((dynamic, kwargs))
        assert tree == traced.in_tree
        values = [jax.random.key_data(leaf) if i in key_inputs else jnp.asarray(leaf) for i, leaf in enumerate(leaves)]
        results = evaluate(traced.graph, [*values, *map(jnp.asarray, traced.constants)])
        wrapped = [
            jax.random.wrap_key_data(value, impl=key_outputs[i]) if i in key_outputs else value
            for i, value in enumerate(results)
        ]
        return jax.tree.unflatten(traced.out_tree, wrapped)

    return function


def assert_same(one: Any, other: Any, tolerance: float = 0.0) -> None:
    """Equal trees, dtypes and values; floating point up to `tolerance`, relative to the largest element."""
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert a.dtype == b.dtype
        a, b = (jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x for x in (a, b))
        a, b = (np.asarray(x) for x in (a, b))
        if tolerance and jnp.issubdtype(a.dtype, jnp.floating):
            a, b = a.astype(np.float64), b.astype(np.float64)
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * max(1.0, float(np.abs(a).max(initial=0))))
        else:
            np.testing.assert_array_equal(a, b)
