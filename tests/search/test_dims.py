"""Dims: labels of the batch and the sequence, and inputs, followed through operators."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp

import autopar
from autopar.core.graph import OpGraph
from autopar.search.dims import data_labels, follow_labels, origins
from autopar.search.resolve import no_rule

BATCH, SEQUENCE, NOTHING = ("batch",), ("sequence",), ("",)


def step(params: Any, tokens: Any) -> Any:
    def layer(x: Any, w: Any) -> Any:
        return jnp.tanh(x @ w.astype(jnp.bfloat16)), None

    x = params["table"][tokens[:, :-1]].astype(jnp.bfloat16)
    rows = x.reshape(-1, 16) @ params["w"].astype(jnp.bfloat16).T
    return jax.lax.scan(layer, rows.reshape(x.shape), params["stack"])[0].sum(0)


@cache
def graph() -> OpGraph:
    def of(*dims: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(dims, jnp.float32)

    params = {"table": of(32, 16), "w": of(16, 16), "stack": of(3, 16, 16)}
    tokens = jax.ShapeDtypeStruct((8, 5), jnp.int32)
    options: Any = {"cluster": "2xh100", "mesh": {"x": 2}}
    made = autopar.plan(step, params, tokens, **options)
    return made.bound.planned.task.graph


def test_the_batch_and_the_sequence_are_followed() -> None:
    labels = follow_labels(graph(), no_rule, data_labels(graph()))
    products = [op for op in graph().ops if op.kind == "dot_general"]
    flat, layered = (labels[op.outs[0].id] for op in products)
    assert flat == (("batch", "sequence"), NOTHING)
    assert layered == (BATCH, SEQUENCE, NOTHING)
    (total,) = (op for op in graph().ops if op.kind == "reduce_sum")
    assert labels[total.outs[0].id] == (SEQUENCE, NOTHING)


def test_weights_have_no_label() -> None:
    labels = follow_labels(graph(), no_rule, data_labels(graph()))
    assert not {op.ins[1].id for op in graph().ops if op.kind == "dot_general"} & set(labels)


def test_inputs_are_followed_through_casts_transposes_and_loops() -> None:
    known = origins(graph())
    names = [
        graph().inputs[known[op.ins[1].id]].name for op in graph().ops if op.kind == "dot_general"
    ]
    assert names == ["params['w']", "params['stack']"]
    assert not any(op.outs[0].id in known for op in graph().ops if op.kind == "dot_general")
