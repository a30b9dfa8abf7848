"""hiding: which tensors' collectives may run beside others' computing, and what counting them less finds."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import autopar
from autopar.core.dataflow import uses_of
from autopar.core.graph import OpGraph
from autopar.cost.hiding import hidden_gradients, may_hide, parameters

LAYERS, WIDTH, ROWS = 4, 1024, 4096


def step(state: Any, x: jax.Array) -> tuple[Any, jax.Array]:
    """A step of layers in a loop, computed in bfloat16, of parameters in float32."""

    def loss(stack: jax.Array) -> jax.Array:
        def layer(h: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
            return jnp.tanh(h @ w.astype(jnp.bfloat16)), None

        h, _ = lax.scan(layer, x, stack)
        return (h.astype(jnp.float32) ** 2).mean()

    value, gradient = jax.value_and_grad(loss)(state)
    return state - 0.1 * gradient, value


ARGS: tuple[Any, ...] = (
    jax.ShapeDtypeStruct((LAYERS, WIDTH, WIDTH), jnp.float32),
    jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.bfloat16),
)


def planned(**options: Any) -> autopar.Plan:
    return autopar.plan(
        step,
        *ARGS,
        cluster="8xh100",
        mesh={"x": 8},
        donate_argnums=0,
        options=autopar.SearchOptions(**options),
    )


def graph_of(plan: autopar.Plan) -> OpGraph:
    return plan.bound.planned.graph


def test_parameters_and_gradients_hide_and_nothing_else_does() -> None:
    graph = graph_of(planned())
    state = graph.inputs[0].id
    slices = [
        op.outs[0].id for op in graph.ops if op.kind == "scan_slice" and op.ins[0].id == state
    ]
    casts = [
        op.outs[0].id
        for op in graph.ops
        if op.kind == "convert_element_type" and op.ins[0].id in slices
    ]
    assert casts
    assert {state, *slices, *casts} <= parameters(graph)
    products = [op for op in graph.ops if op.kind == "dot_general"]
    weights = [op for op in products if op.outs[0].shape[-2:] == (WIDTH, WIDTH)]
    assert {op.outs[0].id for op in weights} <= hidden_gradients(graph)
    rows = {op.outs[0].id for op in products if op not in weights}
    assert rows
    assert rows.isdisjoint(hidden_gradients(graph) | parameters(graph))
    updates = [t.id for op in graph.ops if op.phase == "update" for t in op.outs]
    assert updates
    assert hidden_gradients(graph).isdisjoint(updates)


def test_what_the_update_reads_of_the_state_does_not_hide() -> None:
    graph = graph_of(planned())
    state = graph.inputs[0].id
    uses = uses_of(graph)[state]
    update = [use for use in uses if use.op is not None and graph.ops[use.op].phase == "update"]
    others = [use for use in uses if use not in update]
    assert {graph.ops[use.op or 0].kind for use in others} == {"scan_slice"}
    assert not may_hide(graph, state, others)  # a stack is gathered before the loop
    (sliced,) = {op.outs[0].id for op in graph.ops if op.id == others[0].op}
    assert may_hide(graph, sliced, uses_of(graph)[sliced])
    assert not may_hide(graph, state, update)


def test_where_what_hides_counts_less_parameters_are_split_and_gathered_in_the_loop() -> None:
    plain = planned()
    hiding = planned(hidden_weight=0.3)
    gathered = [row for row in hiding.summary.collectives if row.kind == "all_gather"]
    assert gathered
    assert all(row.runs == LAYERS for row in gathered)
    assert hiding.peak_memory_bytes < plain.peak_memory_bytes
    assert planned(overlap="compared").step_time_s <= hiding.step_time_s
