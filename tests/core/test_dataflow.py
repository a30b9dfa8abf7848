"""Dataflow: which tensors get copies, who reads them, and how long they live."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from autopar.core.dataflow import Use, dataflow, uses_of
from autopar.core.graph import OpGraph, OpNode, Phase, TensorInfo
from autopar.trace import trace

PHASES: tuple[Phase, ...] = ("forward", "backward", "update")


def tensor(number: int, shape: tuple[int, ...] = (4,)) -> TensorInfo:
    return TensorInfo(number, shape, "float32", 4)


def op(number: int, ins: list[TensorInfo], out: TensorInfo, phase: Phase = "forward") -> OpNode:
    return OpNode(number, "add", tuple(ins), (out,), phase=phase)


def test_a_result_read_twice_is_stored_once() -> None:
    a, b, c, d = (tensor(n) for n in range(4))
    flow = dataflow(OpGraph((op(0, [a], b), op(1, [b], c), op(2, [b, c], d)), (a,), (d,)))
    (copy,) = flow.copies
    assert (copy.tensor, copy.source, copy.start, copy.stop, copy.stored) == (b, None, 1, 3, True)
    assert copy.uses == (Use(1, 0, 1), Use(2, 0, 2))
    assert flow.source == {
        Use(0, 0, 0): None,
        Use(1, 0, 1): 0,
        Use(2, 0, 2): 0,
        Use(2, 1, 2): None,
        Use(None, 0, 3): None,
    }


def test_phases_share_a_copy_each_that_is_dropped_between_them() -> None:
    """An input read twice in the forward pass, twice in the backward pass, once in the update."""
    w, *t = (tensor(n) for n in range(6))
    phases: list[Phase] = ["forward", "forward", "backward", "backward", "update"]
    graph = OpGraph(tuple(op(n, [w], t[n], phase) for n, phase in enumerate(phases)), (w,), (t[4],))
    flow = dataflow(graph)
    assert [(c.source, c.start, c.stop, c.stored) for c in flow.copies] == [
        (None, 0, 2, False),
        (None, 2, 4, False),
    ]
    assert [flow.source[Use(n, 0, n)] for n in range(5)] == [0, 0, 1, 1, None]
    assert flow.children == {0: (), 1: ()}


def test_a_copy_in_a_later_phase_is_made_from_the_stored_one() -> None:
    a, b, *t = (tensor(n) for n in range(6))
    ops = (
        op(0, [a], b),
        op(1, [b], t[0]),
        op(2, [b], t[1], "backward"),
        op(3, [b], t[2], "backward"),
    )
    flow = dataflow(OpGraph(ops, (a,), (t[2],)))
    assert [(c.source, c.stored) for c in flow.copies] == [(None, True), (0, False)]
    assert flow.children[0] == (flow.copies[1],)


def test_what_a_loop_slices_has_a_copy_from_its_beginning_to_its_end() -> None:
    """Even if nothing else reads it; with several readers in its phase it is theirs."""

    def step(ws: Any, x: Any) -> Any:
        def layer(h: Any, w: Any) -> Any:
            return jnp.tanh(h @ w), None

        return jax.lax.scan(layer, x, ws)[0], ws.sum(0)

    def gradient(ws: Any, x: Any) -> Any:
        return jax.grad(
            lambda ws: (jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, ws)[0] ** 2).sum()
        )(ws)

    args = np.ones((3, 4, 4), np.float32), np.ones((2, 4), np.float32)
    graph = trace(gradient, args).graph
    flow = dataflow(graph)
    slices = [op for op in graph.ops if op.kind == "scan_slice"]
    assert {op.phase for op in slices} == {"forward", "backward"}
    for op in slices:
        (copy,) = [copy for copy in flow.copies if copy.uses == (Use(op.id, 0, op.id),)]
        assert copy.is_sliced
        assert op.region is not None
        assert (copy.start, copy.stop - 1) == graph.spans[op.region]
        assert flow.by_op[op.id] == {0: copy.id}
    assert [copy.is_sliced for copy in flow.copies].count(True) == len(slices)

    graph = trace(step, args).graph
    (copy,) = [copy for copy in dataflow(graph).copies if copy.tensor == graph.inputs[0]]
    assert not copy.is_sliced
    assert {graph.ops[use.op or 0].kind for use in copy.uses} == {"scan_slice", "reduce_sum"}


def test_scalars_inputs_and_literals_need_no_copies() -> None:
    s, two = tensor(0, ()), TensorInfo(1, (), "float32", 4, literal=2.0)
    graph = OpGraph(
        (op(0, [s, two], tensor(2, ())), op(1, [s, two], tensor(3, ()))), (s,), (s, two)
    )
    flow = dataflow(graph)
    assert flow.copies == ()
    assert two.id not in flow.uses
    assert flow.uses[s.id] == (Use(0, 0, 0), Use(1, 0, 1), Use(None, 0, 2))


@st.composite
def graphs(draw: st.DrawFn) -> OpGraph:
    """Random straight-line programs; phases do not decrease."""
    tensors = [tensor(n) for n in range(draw(st.integers(1, 2)))]
    inputs = tuple(tensors)
    ops: list[OpNode] = []
    phases = sorted(draw(st.lists(st.integers(0, 2), min_size=1, max_size=8)))
    for number, phase in enumerate(phases):
        ins = draw(st.lists(st.sampled_from(tensors), min_size=1, max_size=3))
        out = tensor(len(tensors), draw(st.sampled_from([(), (4,)])))
        ops.append(op(number, ins, out, PHASES[phase]))
        tensors.append(out)
    return OpGraph(tuple(ops), inputs, tuple(draw(st.lists(st.sampled_from(tensors), max_size=3))))


@given(graph=graphs())
def test_every_use_reads_a_copy_that_is_alive(graph: OpGraph) -> None:
    flow = dataflow(graph)
    wanted = [Use(o.id, n, o.id) for o in graph.ops for n in range(len(o.ins))]
    wanted += [Use(None, n, len(graph.ops)) for n in range(len(graph.outputs))]
    assert set(flow.source) == set(wanted)
    for uses in uses_of(graph).values():
        assert [use.time for use in uses] == sorted(use.time for use in uses)
    produced = {t.id: o.id + 1 for o in graph.ops for t in o.outs}
    for use, source in flow.source.items():
        tensor_read = (
            graph.outputs[use.position] if use.op is None else graph.ops[use.op].ins[use.position]
        )
        uses = flow.uses[tensor_read.id]
        assert use in uses
        if source is None:
            continue
        copy = flow.copies[source]
        assert copy.tensor == tensor_read
        assert use in copy.uses
        assert copy.start <= use.time < copy.stop
        assert copy.start >= produced.get(tensor_read.id, 0)
        assert copy.source is None or flow.copies[copy.source].stored
    for copy in flow.copies:
        assert len(copy.uses) > 1
        assert copy.stop == copy.uses[-1].time + 1
        assert copy.stored == (copy.source is None and copy.tensor.id in produced)
        phases = {graph.ops[use.op].phase for use in copy.uses if use.op is not None}
        assert copy.stored or len(phases) == 1
