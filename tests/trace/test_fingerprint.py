"""Fingerprints against the sha256 of the graph written out as nested tuples."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import autopar
from autopar._payload import Payload
from autopar.core.graph import OpGraph, OpNode, TensorInfo
from autopar.operators import KEEP
from autopar.trace import fingerprint, trace


def nested(graph: OpGraph) -> tuple[object, ...]:
    """The structure of a graph whose operators hold no jaxprs among their parameters."""
    return (
        tuple(map(nested_tensor, graph.inputs)),
        tuple(map(nested_operator, graph.ops)),
        tuple(map(nested_tensor, graph.outputs)),
        graph.carry,
        tuple(
            (region.id, region.kind, region.parent, written(region.payload))
            for region in graph.regions
        ),
        graph.donated,
        (graph.key_inputs, graph.key_outputs),
    )


def nested_tensor(tensor: TensorInfo) -> tuple[object, ...]:
    return (tensor.id, tensor.shape, tensor.dtype, repr(tensor.literal))


def nested_operator(op: OpNode) -> tuple[object, ...]:
    ins, outs = (tuple(map(nested_tensor, side)) for side in (op.ins, op.outs))
    assert not isinstance(op.payload, Payload) or not any(
        hasattr(v, "eqns") for v in op.payload.params.values()
    )
    body = nested(op.body) if op.body else ()
    return (op.kind, ins, outs, written(op.params), op.phase, op.region, (), body)


def written(params: Any) -> tuple[tuple[str, str], ...]:
    return tuple((name, repr(params[name])) for name in sorted(params or {}))


@autopar.operator("... d -> ... d", frozen="d")
def swish(x: Any) -> Any:
    return x / (1 + jnp.exp(-x))


FUNCTIONS = {
    "views and literals": lambda x: (x.T.reshape(4, 16) * 2 + 1, x, 3.0),
    "backward": jax.grad(lambda x: (jnp.tanh(x @ x) ** 2).sum()),
    "an operator kept": lambda x: swish(x) + 1,
    "a single one": lambda x: lax.sort(x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_it_is_that_of_nested_tuples(name: str) -> None:
    with KEEP(True):
        graph = trace(FUNCTIONS[name], (np.zeros((8, 8), np.float32),)).graph
    assert fingerprint(graph) == sha256(repr(nested(graph)).encode()).hexdigest()
