"""Runs an OpGraph whole, operator by operator: what every sharded program must agree with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from autopar._payload import Payload
from autopar.core.graph import OpGraph, OpNode, TensorInfo
from autopar.trace import Traced

Env = dict[int, Any]


def evaluate(graph: OpGraph, values: list[Any]) -> list[Any]:
    """The graph's outputs for the values of its inputs, constants included. Shapes and dtypes are checked."""
    env = {tensor.id: value for tensor, value in zip(graph.inputs, values, strict=True)}
    _run(graph, graph.ops, None, env)
    return [_read(env, tensor) for tensor in graph.outputs]


def _run(graph: OpGraph, ops: Sequence[OpNode], around: int | None, env: Env) -> None:
    """Runs `ops`, which lie in the region `around`, in order."""
    for region, group in groupby(ops, key=lambda op: graph.tree.child_towards(around, op.region)):
        members = list(group)
        if region is None:
            for op in members:
                _bind(op, env)
        elif graph.tree.kind(region) == "remat":
            _run(graph, members, region, env)
        else:
            _control(graph, members, region, env)


def _bind(op: OpNode, env: Env) -> None:
    assert isinstance(op.payload, Payload)
    primitive = op.payload.primitive
    operands = [_read(env, tensor) for tensor in op.ins]
    results = primitive.bind(*operands, **primitive.get_bind_params(op.payload.params))
    results = results if primitive.multiple_results else [results]
    env.update((tensor.id, value) for tensor, value in zip(op.outs, results, strict=True))


def _control(graph: OpGraph, ops: Sequence[OpNode], region: int, env: Env) -> None:
    """A loop or choice: its inner regions, with what their boundary operators say."""
    boundary: dict[str, list[OpNode]] = {}
    for op in ops:
        if op.region == region or (
            op.kind == "while_test" and graph.tree.parent(op.region) == region
        ):
            boundary.setdefault(op.kind, []).append(op)
    carry_in, slices, carry_out, stacks, results = (
        boundary.get(kind, [])
        for kind in ("carry_in", "scan_slice", "carry_out", "scan_stack", "cond_result")
    )

    def inside(kind: str, number: int, given: Sequence[Any]) -> Env:
        child = [child for child in graph.tree.children(region) if child.kind == kind][number]
        members = [
            op for op in ops if child.id in graph.tree.path(op.region) and op.kind != "while_test"
        ]
        entered = (op.outs[0].id for op in (*carry_in, *slices))
        local = env | dict(zip(entered, given, strict=False))
        _run(graph, members, child.id, local)
        return local

    def body(carry: Sequence[Any], xs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        local = inside("body", 0, [*carry, *xs])
        return [_read(local, op.ins[0]) for op in carry_out], [
            _read(local, op.ins[0]) for op in stacks
        ]

    def branch(number: int) -> list[Any]:
        local = inside("branch", number, ())
        return [_read(local, op.ins[number]) for op in results]

    init = [_read(env, op.ins[0]) for op in carry_in]
    payload: Any = graph.tree[region].payload
    if graph.tree.kind(region) == "cond":
        index = _read(env, boundary["branch_index"][0].ins[0])
        branches = [partial(branch, number) for number in range(len(graph.tree.children(region)))]
        made: Sequence[Any] = lax.switch(index, branches)
    elif graph.tree.kind(region) == "scan":
        carry, ys = lax.scan(body, init, [_read(env, op.ins[0]) for op in slices], **payload)
        made = [*carry, *ys]
    else:
        test = boundary["while_test"][0].ins[0]
        made = lax.while_loop(
            lambda c: _read(inside("test", 0, c), test), lambda c: body(c, ())[0], init
        )
    leaving = (op.outs[0].id for op in (*carry_out, *stacks, *results))
    env.update(zip(leaving, made, strict=True))


def _read(env: Env, tensor: TensorInfo) -> Any:
    if tensor.literal is not None:
        return jnp.asarray(np.asarray(tensor.literal).astype(jnp.dtype(tensor.dtype)))
    value = env[tensor.id]
    assert (value.shape, str(value.dtype)) == (tensor.shape, tensor.dtype), tensor
    return value


def as_function(traced: Traced) -> Callable[..., Any]:
    """The traced function again, keys wrapped and unwrapped at the border."""
    key_inputs, key_outputs = dict(traced.key_inputs), dict(traced.key_outputs)

    def function(*args: Any, **kwargs: Any) -> Any:
        dynamic = tuple(arg for i, arg in enumerate(args) if i not in traced.static_argnums)
        leaves, tree = jax.tree.flatten((dynamic, kwargs))
        assert tree == traced.in_tree
        values = [
            jax.random.key_data(leaf) if i in key_inputs else jnp.asarray(leaf)
            for i, leaf in enumerate(leaves)
        ]
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
        a, b = (
            jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
            for x in (a, b)
        )
        a, b = (np.asarray(x) for x in (a, b))
        if tolerance and jnp.issubdtype(a.dtype, jnp.floating):
            a, b = a.astype(np.float64), b.astype(np.float64)
            np.testing.assert_allclose(
                a, b, rtol=tolerance, atol=tolerance * max(1.0, float(np.abs(a).max(initial=0)))
            )
        else:
            np.testing.assert_array_equal(a, b)
