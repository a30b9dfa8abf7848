"""lower, insert_redistribution, sink_all_reduce, mark_mirror on small programs; the pipeline on a traced function."""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from autopar.core.dataflow import dataflow
from autopar.core.graph import OpGraph, OpNode, Phase, TensorInfo
from autopar.core.placement import Placement
from autopar.core.plan import Stage
from autopar.core.program import Compute, Convert, Move, ShardedProgram
from autopar.core.regions import Region
from autopar.core.strategy import Strategy
from autopar.cost.buckets import waiting
from autopar.errors import InvalidOption, ProgramError
from autopar.ops.traits import is_rearrangement
from autopar.passes.fuse_collectives import FuseCollectives
from autopar.passes.insert_redistribution import InsertRedistribution, users_of
from autopar.passes.issue_order import in_issue_order
from autopar.passes.lower import lower
from autopar.passes.mark_mirror import MarkMirror
from autopar.passes.pipeline import program_states, write_dump
from autopar.passes.raise_scalings import RaiseScalings
from autopar.passes.sink_all_reduce import SinkAllReduce, scales
from autopar.passes.verify import verify
from autopar.redistribute.route import Router
from autopar.search.space import build_space
from autopar.trace import trace
from tests.passes.build import MESH, SPLIT, WHOLE, Builder, meaning, price

PARTIAL = Placement(((),), ("x",))


def op(
    number: int, kind: str, ins: Sequence[TensorInfo], out: TensorInfo, phase: Phase = "forward"
) -> OpNode:
    return OpNode(number, kind, tuple(ins), (out,), source=f"line {number}", phase=phase)


def tensor(number: int, shape: tuple[int, ...] = (8,), **rest: Any) -> TensorInfo:
    return TensorInfo(number, shape, "float32", 4, **rest)


def as_is(*placements: Placement) -> Strategy:
    return Strategy(placements[:-1], placements[-1:])


# lower and insert_redistribution --------------------------------------------------------------------------------------


def test_an_input_wanted_twice_alike_is_converted_once() -> None:
    a, b, c = tensor(0), tensor(1), tensor(2)
    graph = OpGraph((op(0, "f", [a], b), op(1, "g", [a], c)), (a,), (b, c))
    strategies = (as_is(SPLIT, SPLIT), as_is(SPLIT, SPLIT))
    program = lower(
        graph, dataflow(graph), Stage(MESH, (WHOLE,), strategies, (SPLIT,), (SPLIT, SPLIT))
    )
    verify(program)
    assert [type(i) for i in program.instructions] == [Convert, Compute, Compute]
    routed = InsertRedistribution(Router(MESH, price)).apply(program)
    verify(routed)
    assert [getattr(i, "kind", "compute") for i in routed.instructions] == [
        "slice",
        "compute",
        "compute",
    ]


def test_a_result_read_twice_is_reduced_once_right_after_it_is_made() -> None:
    a, b, c, d = (tensor(n) for n in range(4))
    graph = OpGraph(
        (op(0, "dot_general", [a], b), op(1, "f", [b], c), op(2, "g", [b, c], d)), (a,), (d,)
    )
    strategies = (as_is(SPLIT, PARTIAL), as_is(WHOLE, WHOLE), as_is(WHOLE, WHOLE, WHOLE))
    stage = Stage(MESH, (SPLIT,), strategies, (WHOLE,), (SPLIT,))
    program = lower(graph, dataflow(graph), stage)
    assert [type(i) for i in program.instructions] == [Compute, Convert, Compute, Compute, Convert]
    routed = InsertRedistribution(Router(MESH, price)).apply(program)
    verify(routed)
    (move,) = routed.collectives
    assert (move.kind, move.axes, move.size_bytes, move.role) == (
        "all_reduce",
        ("x",),
        32,
        "forward",
    )
    assert (move.time_s, move.source, move.reason) == (
        price("all_reduce", ("x",), 32),
        "line 0",
        "[-] sum(x) -> [-]",
    )
    (summed,) = move.outs
    assert len(users_of(routed)[summed]) == 2
    assert routed.outputs[0] not in users_of(routed)
    assert routed.values[routed.outputs[0]].placement == SPLIT


def test_literals_are_values_that_nothing_makes() -> None:
    a, two, b = tensor(0), tensor(1, (), literal=2.0), tensor(2)
    graph = OpGraph((op(0, "mul", [a, two], b),), (a,), (b, two, a))
    strategy = Strategy((SPLIT, Placement(())), (SPLIT,))
    program = lower(
        graph,
        dataflow(graph),
        Stage(MESH, (SPLIT,), (strategy,), (), (SPLIT, Placement(()), WHOLE)),
    )
    verify(program)
    assert program.values[program.outputs[1]].tensor == two
    assert program.values[program.outputs[2]].placement == WHOLE
    assert "mul %0:float32[8][x], 2.0" in str(program)


def test_a_dropped_collective_and_swapped_dims_are_caught() -> None:
    """Planted bugs at the level of programs: each breaks what verify checks."""
    build = Builder()
    total = build.all_reduce(build.compute([build.input(SPLIT)], PARTIAL))
    program = build.program([total])
    without = program.with_instructions(program.instructions[:-1])
    with pytest.raises(ProgramError, match="never made"):
        verify(without)
    unreduced = ShardedProgram(
        program.mesh, program.values, program.inputs, (1,), program.instructions[:-1]
    )
    with pytest.raises(ProgramError, match="left unreduced"):
        verify(unreduced)


# sink_all_reduce ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "sinks"), [("reshape", True), ("transpose", True), ("tanh", False), ("exp", False)]
)
def test_an_all_reduce_sinks_behind_views_only(kind: str, sinks: bool) -> None:
    build = Builder()
    total = build.all_reduce(build.compute([build.input(SPLIT)], PARTIAL))
    out = build.compute([build.compute([total], kind=kind)], kind="tanh")
    program = build.program([out])
    sunk = SinkAllReduce().apply(program)
    verify(sunk)
    assert [type(i) for i in sunk.instructions] == (
        [Compute, Compute, Move, Compute] if sinks else [Compute, Move, Compute, Compute]
    )
    assert meaning(sunk) == meaning(program)
    assert [m.time_s for m in sunk.collectives] == [m.time_s for m in program.collectives]


@pytest.mark.parametrize("why", ["two readers", "an output", "another region"])
def test_an_all_reduce_stays_where_others_see_it(why: str) -> None:
    build = Builder()
    total = build.all_reduce(
        build.compute([build.input(SPLIT)], PARTIAL), region=0 if why == "another region" else None
    )
    view = build.compute([total], kind="reshape")
    outputs = (
        [view, build.compute([total])]
        if why == "two readers"
        else [view, total]
        if why == "an output"
        else [view]
    )
    program = build.program(outputs)
    assert SinkAllReduce().apply(program).instructions == program.instructions


def test_it_sinks_through_a_chain_of_views() -> None:
    build = Builder()
    value = build.all_reduce(build.compute([build.input(SPLIT)], PARTIAL))
    for kind in ("reshape", "transpose", "expand_dims"):
        value = build.compute([value], kind=kind)
    sunk = SinkAllReduce().apply(build.program([value]))
    verify(sunk)
    assert [type(i) for i in sunk.instructions] == [Compute, Compute, Compute, Compute, Move]


ROOT = tensor(0)
SCALED = [
    ("neg", (ROOT,), 0, {}, True),
    ("mul", (ROOT, tensor(1)), 0, {}, True),
    ("mul", (tensor(1), ROOT), 1, {}, True),
    ("mul", (ROOT, tensor(1, literal=2.0)), 0, {}, True),
    ("div", (ROOT, tensor(1)), 0, {}, True),
    ("div", (tensor(1), ROOT), 1, {}, False),
    ("mul", (ROOT, ROOT), 0, {}, False),
    ("mul", (ROOT, tensor(1, multiple_of=0)), 0, {}, False),
    ("mul", (tensor(2, multiple_of=0), tensor(1, multiple_of=0)), 0, {}, False),
    ("mul", (ROOT, tensor(1)), 0, {"phase": "update"}, False),
    ("add", (ROOT, tensor(1)), 0, {}, False),
    ("neg", (tensor(0, (4,)),), 0, {}, False),
]


@pytest.mark.parametrize(("kind", "ins", "position", "rest", "expected"), SCALED)
def test_what_scales_an_operand(
    kind: str, ins: tuple[TensorInfo, ...], position: int, rest: dict[str, Any], expected: bool
) -> None:
    assert scales(OpNode(0, kind, ins, (tensor(9),), **rest), position) == expected


def test_integers_divided_in_parts_are_not_divided() -> None:
    whole = TensorInfo(0, (8,), "int32", 4)
    assert not scales(OpNode(0, "div", (whole, TensorInfo(1, (8,), "int32", 4)), (whole,)), 0)


@pytest.mark.parametrize("position", [0, 1])
def test_an_all_reduce_sinks_behind_what_scales_its_result(position: int) -> None:
    build = Builder()
    other = build.input(WHOLE)
    total = build.all_reduce(build.compute([build.input(SPLIT)], PARTIAL))
    scaled = build.compute([other, total][:: 1 if position else -1], kind="mul")
    program = build.program([build.compute([scaled], kind="tanh")])
    sunk = SinkAllReduce().apply(program)
    verify(sunk)
    assert [type(i) for i in sunk.instructions] == [Compute, Compute, Move, Compute]
    assert meaning(sunk) == meaning(program)


def test_a_product_of_two_sums_needs_one_of_them_whole() -> None:
    """The first is reduced before, the second behind."""
    build = Builder()
    sums = [build.all_reduce(build.compute([build.input(SPLIT)], PARTIAL)) for _ in range(2)]
    program = build.program([build.compute([build.compute(sums, kind="mul")], kind="tanh")])
    sunk = SinkAllReduce().apply(program)
    verify(sunk)
    assert [type(i) for i in sunk.instructions] == [Compute, Compute, Move, Compute, Move, Compute]
    assert meaning(sunk) == meaning(program)


def means(build: Builder, count: int = 1) -> list[int]:
    """Sums that are scaled before they are reduced."""
    other = build.input(WHOLE)
    scaled = [
        build.compute([build.compute([build.input(SPLIT)], PARTIAL), other], PARTIAL, kind="div")
        for _ in range(count)
    ]
    return [build.all_reduce(value) for value in scaled]


def test_a_scaling_comes_behind_the_all_reduce_again() -> None:
    build = Builder()
    (mean,) = means(build)
    program = build.program([build.compute([mean], kind="tanh")])
    raised = RaiseScalings().apply(program)
    verify(raised)
    assert [type(i) for i in raised.instructions] == [Compute, Move, Compute, Compute]
    assert meaning(raised) == meaning(program)
    assert [m.time_s for m in raised.collectives] == [m.time_s for m in program.collectives]


def test_scalings_come_behind_a_bucket_of_which_each_is_one() -> None:
    """The view in it stays where it is."""
    build = Builder()
    both = means(build, 2)
    view = build.compute([build.compute([build.input(SPLIT)], PARTIAL)], PARTIAL, kind="reshape")
    both.append(build.all_reduce(view))
    program = build.program([build.compute(both, kind="tanh")])
    fused = FuseCollectives(price).apply(program)
    raised = RaiseScalings().apply(fused)
    verify(raised)
    (bucket,) = raised.collectives
    assert len(bucket.ins) == 3
    kinds = [i.op.kind if isinstance(i, Compute) else i.kind for i in raised.instructions]
    assert kinds == [*["dot_general"] * 3, "reshape", "all_reduce", "div", "div", "tanh"]
    assert meaning(raised) == meaning(program)


def test_scalings_in_a_row_all_come_behind() -> None:
    build = Builder()
    other = build.input(WHOLE)
    value = build.compute([build.input(SPLIT)], PARTIAL)
    for kind in ("div", "neg", "mul"):
        value = build.compute([value] if kind == "neg" else [value, other], PARTIAL, kind=kind)
    program = build.program([build.compute([build.all_reduce(value)], kind="tanh")])
    raised = RaiseScalings().apply(program)
    verify(raised)
    kinds = [i.op.kind if isinstance(i, Compute) else i.kind for i in raised.instructions]
    assert kinds == ["dot_general", "all_reduce", "div", "neg", "mul", "tanh"]
    assert meaning(raised) == meaning(program)


def test_a_scaling_stands_where_it_is_read() -> None:
    """Else the collective would be waited for before that, and sums of what is summed would be lost."""
    build = Builder()
    (mean,) = means(build)
    between = build.compute([build.input()])
    rows = build.compute([mean], Placement(((),), ("y",)), kind="div")
    last = build.compute([build.all_reduce(rows), between], kind="tanh")
    program = build.program([last])
    raised = RaiseScalings().apply(program)
    verify(raised)
    kinds = [i.op.kind if isinstance(i, Compute) else i.kind for i in raised.instructions]
    assert kinds == ["dot_general", "all_reduce", "dot_general", "div", "div", "all_reduce", "tanh"]
    assert meaning(raised) == meaning(program)


@pytest.mark.parametrize(
    "why", ["an output", "a product reads it", "two readers", "in a loop already", "no scaling"]
)
def test_a_scaling_stays_where_it_costs_no_kernel_or_is_seen(why: str) -> None:
    build = Builder()
    other = build.input(WHOLE)
    total = build.compute([build.input(SPLIT)], PARTIAL)
    if why == "in a loop already":
        total = build.compute([total], PARTIAL, kind="convert_element_type")
    kind = "add_any" if why == "no scaling" else "div"
    scaled = build.compute([total, total if why == "no scaling" else other], PARTIAL, kind=kind)
    if why == "two readers":
        build.compute([scaled], PARTIAL, kind="neg")
    mean = build.all_reduce(scaled)
    reader = "dot_general" if why == "a product reads it" else "tanh"
    program = build.program([mean if why == "an output" else build.compute([mean], kind=reader)])
    assert RaiseScalings().apply(program) is program


def test_what_scales_must_be_whole() -> None:
    """Two halves times two halves would be another product."""
    build = Builder()
    total = build.all_reduce(build.compute([build.input(SPLIT)], PARTIAL))
    product = build.compute(
        [total, build.compute([build.input(SPLIT)], PARTIAL)], PARTIAL, kind="mul"
    )
    program = build.program([build.all_reduce(product)])
    assert SinkAllReduce().apply(program).instructions == program.instructions


def test_a_maximum_does_not_pass_a_factor() -> None:
    build = Builder()
    largest = build.compute([build.input(SPLIT)], Placement(((),), ("x",), "max"))
    program = build.program([build.compute([build.all_reduce(largest)], kind="neg")])
    assert SinkAllReduce().apply(program).instructions == program.instructions


@pytest.mark.parametrize("why", ["a product", "no product", "two readers"])
def test_a_scatter_of_a_product_sinks_behind_its_transpose(why: str) -> None:
    """The compiler computes the product the other way round then; else it is in its way."""
    build, (before, part, turned) = Builder(), TURNED
    made = tensor(0, (16, 8))
    product, scattered = (build.value(placed, made) for placed in (before, part))
    out = build.value(turned, tensor(1, (8, 16)))
    kind = "cumsum" if why == "no product" else "dot_general"
    build.instructions.append(
        Compute(op(0, kind, [], made), Strategy((), (before,)), (), (product,))
    )
    build.instructions.append(
        Move("reduce_scatter", ("x",), (product,), (scattered,), 128, 1e-6, "mirror", dim=1)
    )
    strategy = Strategy((part,), (turned,), (("b", ("y", "x")),), 8)
    transpose = OpNode(
        1, "transpose", (made,), (build.values[out].tensor,), params={"permutation": (1, 0)}
    )
    build.instructions.append(Compute(transpose, strategy, (scattered,), (out,)))
    outputs = (
        [out, build.compute([product], Placement(((),)), kind="tanh")]
        if why == "two readers"
        else [out]
    )
    program = build.program(outputs)
    sunk = SinkAllReduce().apply(program)
    if why != "a product":
        assert sunk.instructions == program.instructions
        return
    verify(sunk)
    assert meaning(sunk) == meaning(program)
    _, turn, move = sunk.instructions
    assert isinstance(turn, Compute)
    assert isinstance(move, Move)
    assert turn.strategy.outs == (Placement((("y",), ()), ("x",)),)
    assert (turn.strategy.factors, turn.strategy.split) == ((("b", ("y",)), ("+0", ("x",))), 4)
    assert (move.dim, move.outs) == (0, (out,))


def test_a_scatter_sinks_behind_the_transpose_that_its_all_reduce_has_passed() -> None:
    build = Builder()
    made = tensor(0, (16, 8))
    before, part, whole, turned = (
        Placement(((), ()), ("x", "y")),
        Placement(((), ("y",)), ("x",)),
        Placement(((), ("y",))),
        Placement((("y",), ())),
    )
    product, scattered, reduced = (build.value(placed, made) for placed in (before, part, whole))
    out = build.value(turned, tensor(1, (8, 16)))
    transpose = OpNode(
        1, "transpose", (made,), (build.values[out].tensor,), params={"permutation": (1, 0)}
    )
    build.instructions += [
        Compute(
            op(0, "dot_general", [], made),
            Strategy((), (before,), (("m", ("x", "y")),), 8),
            (),
            (product,),
        ),
        Move("reduce_scatter", ("y",), (product,), (scattered,), 512, 1e-6, "mirror", dim=1),
        Move("all_reduce", ("x",), (scattered,), (reduced,), 128, 1e-6, "mirror"),
        Compute(transpose, Strategy((whole,), (turned,), (("b", ("y",)),), 4), (reduced,), (out,)),
    ]
    program = build.program([out])
    sunk = SinkAllReduce().apply(program)
    verify(sunk)
    assert meaning(sunk) == meaning(program)
    _, turn, scatter, last = sunk.instructions
    assert isinstance(turn, Compute)
    assert isinstance(scatter, Move)
    assert isinstance(last, Move)
    assert turn.strategy.outs == (Placement(((), ()), ("x", "y")),)
    assert (scatter.kind, scatter.dim, last.kind) == ("reduce_scatter", 0, "all_reduce")
    assert SinkAllReduce().apply(sunk) is sunk


TURNED = (
    Placement(((), ("y",)), ("x",)),
    Placement(((), ("y", "x"))),
    Placement((("y", "x"), ())),
)


def test_a_sum_over_ones_is_a_view() -> None:
    assert is_rearrangement(op(0, "reduce_sum", [tensor(0, (1, 8))], tensor(1)))
    assert not is_rearrangement(op(0, "reduce_sum", [tensor(0, (2, 8))], tensor(1)))
    assert not is_rearrangement(op(0, "tanh", [tensor(0)], tensor(1)))


# mark_mirror ----------------------------------------------------------------------------------------------------------


def test_gradients_of_parameters_are_mirrors_and_sums_of_the_forward_pass_are_not() -> None:
    a, w, g, new = (
        tensor(0, (8, 4), name="x"),
        tensor(1, (4,), name="w"),
        tensor(2, (4,)),
        tensor(3, (4,)),
    )
    total, loss = tensor(4, (4,)), tensor(5, (4,))
    ops = (
        op(0, "reduce_sum", [a], total),
        op(1, "mul", [total, w], loss),
        op(2, "reduce_sum", [a], g, "backward"),
        op(3, "sub", [w, g], new, "update"),
    )
    graph = OpGraph(ops, (a, w), (loss, new), carry=((1, 1),), batch_inputs=(0,))
    rows, partial = Placement((("x",), ())), Placement(((),), ("x",))
    strategies = (
        as_is(rows, partial),
        as_is(WHOLE, WHOLE, WHOLE),
        as_is(rows, partial),
        as_is(WHOLE, WHOLE, WHOLE),
    )
    flow = dataflow(graph)
    stage = Stage(MESH, (rows, WHOLE), strategies, (WHOLE,) * len(flow.copies), (WHOLE, WHOLE))
    routed = InsertRedistribution(Router(MESH, price)).apply(lower(graph, flow, stage))
    assert [move.role for move in routed.collectives] == ["forward", "backward"]
    marked = MarkMirror(graph).apply(routed)
    verify(marked)
    assert [move.role for move in marked.collectives] == ["forward", "mirror"]


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_a_gradient_that_is_reduced_in_a_loop_is_a_mirror_too(phase: Phase) -> None:
    """Each round sums a row; the rows leave the loop as one tensor of the parameter's shape, for the update."""
    a, w, g, rows, new = (
        tensor(0, (8, 4)),
        tensor(1, (3, 4)),
        tensor(2, (4,)),
        tensor(3, (3, 4)),
        tensor(4, (3, 4)),
    )
    ops = (
        OpNode(0, "reduce_sum", (a,), (g,), phase=phase, region=1),
        OpNode(1, "scan_stack", (g,), (rows,), {"position": 0}, phase=phase, region=0),
        op(2, "sub", [w, rows], new, "update"),
    )
    regions = (Region(0, "scan"), Region(1, "body", 0, 3.0))
    graph = OpGraph(ops, (a, w), (new,), carry=((0, 1),), batch_inputs=(0,), regions=regions)
    split, both = Placement((("x",), ())), Placement.replicated(2)
    strategies = (as_is(split, PARTIAL), as_is(WHOLE, both), as_is(both, both, both))
    routed = lower(graph, dataflow(graph), Stage(MESH, (split, both), strategies, (), (both,)))
    marked = MarkMirror(graph).apply(InsertRedistribution(Router(MESH, price)).apply(routed))
    verify(marked)
    assert [(move.region, move.role) for move in marked.collectives] == [
        (1, "mirror" if phase == "backward" else "forward")
    ]


# The pipeline ---------------------------------------------------------------------------------------------------------


def step(w: Any, x: Any) -> Any:
    loss, gradient = jax.value_and_grad(lambda w: (jnp.tanh(x @ w) ** 2).sum())(w)
    return w - 0.1 * gradient, loss


@pytest.mark.parametrize("seed", range(10))
def test_every_pass_keeps_the_meaning_of_a_random_plan(seed: int) -> None:
    graph = trace(step, (jnp.ones((8, 8)), jnp.ones((16, 8)))).graph
    flow = dataflow(graph)
    space = build_space(graph, flow, MESH, keep=lambda _, strategies: strategies)
    draw = random.Random(seed)
    stage = space.stage([draw.randrange(count) for count in space.counts])
    states = program_states(graph, flow, stage, Router(MESH, price), price)
    names = [
        "lower",
        "insert_redistribution",
        "price_exchanges",
        "sink_all_reduce",
        "mark_mirror",
        "fuse_collectives",
        "bucket_rounds",
        "raise_scalings",
    ]
    assert [name for name, _ in states] == names
    first = meaning(states[0][1])
    for _, program in states[1:]:
        assert meaning(program) == first
    costs = [sum(move.time_s for move in program.collectives) for _, program in states[2:]]
    assert costs[0] == pytest.approx(costs[1]) == pytest.approx(costs[2])
    assert costs[3] <= costs[2] * (1 + 1e-9)


def test_a_dump_is_numbered_and_a_bad_directory_is_named(tmp_path: Path) -> None:
    write_dump(tmp_path / "new", [("graph", "text"), ("plan", 3)])
    assert [(f.name, f.read_text()) for f in sorted((tmp_path / "new").iterdir())] == [
        ("00_graph.txt", "text\n"),
        ("01_plan.txt", "3\n"),
    ]
    with pytest.raises(InvalidOption, match=r"the dump cannot be written to .*00_graph\.txt"):
        write_dump(tmp_path / "new" / "00_graph.txt", [])


@pytest.mark.parametrize("rounds", [1.0, 3.0])
def test_what_waits_takes_the_routes_of_what_is_shared_but_not_in_loops(rounds: float) -> None:
    """There it is priced alone. All-reduces in buckets are forbidden here, so what waits is reduced in two steps."""
    a, g, rows = tensor(0, (8, 4)), tensor(1, (4,)), tensor(2, (3, 4))
    ops = (
        OpNode(0, "reduce_sum", (a,), (g,), phase="backward", region=1),
        OpNode(1, "scan_stack", (g,), (rows,), {"position": 0}, phase="backward", region=0),
    )
    graph = OpGraph(
        ops,
        (a,),
        (rows,),
        batch_inputs=(0,),
        regions=(Region(0, "scan"), Region(1, "body", 0, rounds)),
    )
    split, both = Placement((("x",), ())), Placement.replicated(2)
    strategies = as_is(split, PARTIAL), as_is(WHOLE, both)
    lowered = lower(graph, dataflow(graph), Stage(MESH, (split,), strategies, (), (both,)))
    router = Router(
        MESH, price, shared=lambda kind, axes, size: inf if kind == "all_reduce" else 1.0
    )
    kinds = [
        move.kind
        for move in InsertRedistribution(router, frozenset({g.id})).apply(lowered).collectives
    ]
    assert kinds == (["all_reduce"] if rounds > 1 else ["reduce_scatter", "all_gather"])


def test_gradients_are_reduced_in_their_own_type_and_wait_for_each_other() -> None:
    """Of parameters of float32 that compute in bfloat16: behind a bucket of both they are widened."""

    def narrow(w: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            made = x
            for one in w:
                made = jnp.tanh(made @ one.astype(jnp.bfloat16))
            return made.astype(jnp.float32).sum()

        return jax.tree.map(lambda p, g: p - g, w, jax.grad(loss)(w))

    w = [jax.ShapeDtypeStruct((8, 8), jnp.float32)] * 2
    graph = trace(narrow, (w, jax.ShapeDtypeStruct((16, 8), jnp.bfloat16))).graph
    narrowed = [
        op
        for op in graph.ops
        if op.kind == "convert_element_type"
        and op.phase == "backward"
        and op.outs[0].shape == (8, 8)
    ]
    assert len(narrowed) == 2
    assert {op.ins[0].id for op in narrowed} <= waiting(graph)

    build = Builder()
    wide: list[int] = []
    for _ in range(2):
        partial = build.compute([build.input(SPLIT)], PARTIAL, phase="backward")
        total = build.all_reduce(partial, role="mirror")
        wide.append(build.compute([total], kind="convert_element_type", phase="backward"))
    program = build.program([build.compute(wide, phase="update", kind="add")])
    fused = FuseCollectives(price).apply(program)
    verify(fused)
    (bucket,) = fused.collectives
    assert len(bucket.ins) == 2
    assert meaning(fused) == meaning(program)


def test_what_scales_a_sum_is_done_when_that_is_read() -> None:
    build = Builder()
    total = build.all_reduce(build.compute([build.input(SPLIT)], PARTIAL))
    mean = build.compute([total, build.input(WHOLE)], kind="div")
    between = build.compute([build.input(WHOLE)])
    program = build.program([build.compute([mean, between], kind="add")])
    ordered, _ = in_issue_order(program, [1000, 0, 0, 0, 0])  # so there is room for what waits
    kinds = [i.op.kind if isinstance(i, Compute) else i.kind for i in ordered.instructions]
    assert kinds == ["dot_general", "all_reduce", "dot_general", "div", "add"]
