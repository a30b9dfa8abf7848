"""Constraints: the plan under them against the best of all choices that satisfy predicates written down here."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import isfinite
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec as P

from autopar.api.constraints import (
    at,
    data_parallel,
    forbid,
    manual,
    pin,
    replicate,
    semi_auto,
    tie,
)
from autopar.core.dataflow import dataflow
from autopar.core.graph import OpGraph
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.core.plan import Stage
from autopar.cost.pricing import Roofline
from autopar.errors import InvalidConstraint, InvalidOption, NoFeasiblePlan, UnsplitDataWarning
from autopar.search.constraints.modes import constraints_of
from autopar.search.constraints.records import (
    ALL_AXES,
    Complete,
    Constraint,
    Layout,
    Steps,
    step_kinds_of,
)
from autopar.search.constraints.restriction import Restriction, holds, restriction
from autopar.search.mesh_context import MeshContext
from autopar.search.search import search
from autopar.search.task import Planned, Task
from autopar.solve.problem.problem import objective
from autopar.trace import trace
from cost_models import load_cluster

MESH = DeviceMesh.of({"x": 2})
TWO = DeviceMesh.of({"x": 2, "y": 4})
Holds = Callable[[Stage], bool]
APPLY = Restriction.apply


def layer(w: Any, x: Any) -> Any:
    return jnp.tanh(x @ w)


def update(w: Any, m: Any) -> Any:
    return {"w": w - m, "m": m * 0.9}


def pricing(graph: OpGraph, mesh: DeviceMesh) -> Roofline:
    return Roofline(graph, mesh, load_cluster("cpu8"))


def graph_of(fn: Any, *shapes: tuple[int, ...], carry: Any = None) -> OpGraph:
    return trace(
        fn, tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes), carry=carry
    ).graph


def planned(
    graph: OpGraph, *constraints: Constraint, mesh: DeviceMesh = MESH, **options: Any
) -> Planned:
    return search(Task(graph, pricing, constraints=constraints, **options), [mesh])


@dataclass(frozen=True)
class Everything:
    """All choices of a small graph that cost less than infinity, as stages, with what they cost."""

    graph: OpGraph
    costs: tuple[tuple[Stage, float], ...]

    def best(self, *predicates: Holds) -> float:
        return min(
            (cost for stage, cost in self.costs if all(holds(stage) for holds in predicates)),
            default=np.inf,
        )


@lru_cache
def everything(name: str) -> Everything:
    graph = (
        graph_of(layer, (512, 256), (128, 512))
        if name == "layer"
        else graph_of(update, (64, 32), (64, 32))
    )
    ground = MeshContext(graph, dataflow(graph), MESH, pricing)
    problem = ground.problem((), None)
    choices = product(*map(range, problem.counts))
    found = ((choice, objective(problem, choice)) for choice in choices)
    return Everything(
        graph, tuple((ground.space.stage(c), cost) for c, cost in found if isfinite(cost))
    )


def dims(*axes: str) -> Placement:
    return Placement(tuple((axis,) if axis else () for axis in axes))


def uses(stage: Stage, op: int, axis: str) -> bool:
    strategy = stage.strategies[op]
    return any(axis in p.varying_axes for p in (*strategy.ins, *strategy.outs)) or axis in str(
        strategy.factors
    )


# Operators of `layer`: dot_general, tanh. Each constraint, and what it says, in other words.
LAYER: list[tuple[Constraint, Holds]] = [
    (pin("w", P("x")), lambda s: s.inputs[0] == dims("x", "")),
    (pin("w", P(None, "x")), lambda s: s.inputs[0] == dims("", "x")),
    (pin("w", Placement((("x",), ()))), lambda s: s.inputs[0] == dims("x", "")),
    (pin("w", P(P.UNCONSTRAINED, None)), lambda s: s.inputs[0].dims[1] == ()),
    (pin("output[0]", P("x")), lambda s: s.outputs[0] == dims("x", "")),
    (pin("*", P("x")), lambda s: all(p == dims("x", "") for p in (*s.inputs, s.outputs[0]))),
    (replicate("x"), lambda s: s.inputs[1] == dims("", "")),
    (replicate("output*"), lambda s: s.outputs[0] == dims("", "")),
    (forbid("w", P("x")), lambda s: s.inputs[0] != dims("x", "")),
    (forbid("w", "x"), lambda s: s.inputs[0] == dims("", "")),
    (forbid("*", P(None, "x")), lambda s: dims("", "x") not in (*s.inputs, s.outputs[0])),
    (forbid(at(kind="dot_general"), "x"), lambda s: not uses(s, 0, "x")),
    (forbid(at(kind="tanh"), P("x")), lambda s: s.strategies[1].outs[0] != dims("x", "")),
    (pin(at(kind="tanh"), P("x")), lambda s: s.strategies[1].outs[0] == dims("x", "")),
    (
        pin(at(kind="dot_general", operand=1), P("x")),
        lambda s: s.strategies[0].ins[1] == dims("x", ""),
    ),
    (
        pin(at(kind="dot_*"), Placement(((), ()), ("x",))),
        lambda s: s.strategies[0].outs[0] == Placement(((), ()), ("x",)),
    ),
    (tie("w", "x"), lambda s: s.inputs[0] == s.inputs[1]),
    (tie("w", "output[0]"), lambda s: s.inputs[0] == s.outputs[0]),
    (tie("w", at(kind="tanh")), lambda s: s.inputs[0] == s.strategies[1].outs[0]),
    (tie("*"), lambda s: s.inputs[0] == s.inputs[1] == s.outputs[0]),
    (
        tie(at(kind="tanh"), at(kind="tanh", operand=0), "x"),
        lambda s: s.strategies[1].outs[0] == s.strategies[1].ins[0] == s.inputs[1],
    ),
]
numbers = st.lists(st.integers(0, len(LAYER) - 1), min_size=2, max_size=3, unique=True)


@pytest.mark.parametrize("number", range(len(LAYER)))
def test_one_constraint_against_all_choices(number: int) -> None:
    constraint, predicate = LAYER[number]
    every = everything("layer")
    found = planned(every.graph, constraint).plan
    assert (
        found.objective_s == found.lower_bound_s == pytest.approx(every.best(predicate), rel=1e-12)
    )
    assert predicate(found.stage)
    assert f"mode auto, {constraint}, mesh x=2" == found.space


@settings(max_examples=40, deadline=None)
@given(numbers)
def test_several_constraints_against_all_choices(chosen: list[int]) -> None:
    """Where no choice satisfies them they are refused, quoted; and nowhere else."""
    constraints, predicates = zip(*(LAYER[n] for n in chosen), strict=True)
    every = everything("layer")
    best = every.best(*predicates)
    if not isfinite(best):
        with pytest.raises((InvalidConstraint, NoFeasiblePlan)) as refused:
            planned(every.graph, *constraints)
        assert any(str(constraint) in str(refused.value) for constraint in constraints)
        return
    found = planned(every.graph, *constraints).plan
    assert found.objective_s == found.lower_bound_s == pytest.approx(best, rel=1e-12)
    assert all(predicate(found.stage) for predicate in predicates)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, len(LAYER) - 1), st.integers(0, 10**6))
def test_holds_is_what_the_predicate_says(number: int, drawn: int) -> None:
    constraint, predicate = LAYER[number]
    every = everything("layer")
    for stage, _ in every.costs[drawn % len(every.costs) :: max(1, len(every.costs) // 7)]:
        assert holds(every.graph, stage, (constraint,)) == predicate(stage)


def test_a_tie_by_the_same_text() -> None:
    tree = {"params": {"a": (64, 32), "b": (32,)}, "m": {"a": (64, 32), "b": (32,)}}
    shapes = jax.tree.map(
        lambda s: jax.ShapeDtypeStruct(s, jnp.float32), tree, is_leaf=lambda s: isinstance(s, tuple)
    )
    graph = trace(
        lambda p: jax.tree.map(lambda a, b: a.sum() * b, p["params"], p["m"]), (shapes,), carry=None
    ).graph
    found = planned(
        graph,
        tie("p['params']*", "p['m']*"),
        pin("p['m']['a']", P(None, "x")),
        replicate("p['m']['b']"),
    )
    lying = dict(zip([t.name for t in graph.inputs], found.plan.stage.inputs, strict=True))
    assert lying["p['params']['a']"] == dims("", "x")
    assert lying["p['params']['b']"] == dims("")


@pytest.mark.parametrize("bug", ["agrees", "apply", "ties"])
def test_planted_bugs_are_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layout that only looks at the first dim, constraints that are not applied, ties that tie nothing."""
    every, wrong = everything("layer"), 0
    if bug == "agrees":
        monkeypatch.setattr(
            Layout, "agrees", lambda self, p: self.dims[:1] == p.dims[: len(self.dims[:1])]
        )
    elif bug == "apply":
        monkeypatch.setattr(Restriction, "apply", lambda _, problem: problem)
    else:
        monkeypatch.setattr(
            Restriction, "apply", lambda self, problem: APPLY(replace(self, ties=()), problem)
        )
    for constraint, predicate in LAYER:
        try:
            found = planned(every.graph, constraint).plan
        except (InvalidConstraint, NoFeasiblePlan):
            wrong += 1
            continue
        wrong += not predicate(found.stage) or found.objective_s != pytest.approx(
            every.best(predicate), rel=1e-12
        )
    assert wrong


# What is named --------------------------------------------------------------------------------------------------------


def nested(state: Any, batch: Any) -> Any:
    hidden = checkpoint_name(batch @ state["params"]["w1"], "hidden")
    return hidden @ state["params"]["w2"]


def nested_graph() -> OpGraph:
    params = {name: jax.ShapeDtypeStruct((64, 64), jnp.float32) for name in ("w1", "w2")}
    return trace(
        nested, ({"params": params}, jax.ShapeDtypeStruct((8, 64), jnp.float32)), carry=None
    ).graph


@pytest.mark.parametrize(
    ("target", "inputs"),
    [
        ("state", (0, 1)),
        ("state['params']", (0, 1)),
        ("state['params']['w1']", (0,)),
        ("state['params'][*]", (0, 1)),
        ("*'w2']", (1,)),
        ("s*", (0, 1)),
        ("*", (0, 1, 2)),
    ],
)
def test_paths_their_beginnings_and_stars(target: str, inputs: tuple[int, ...]) -> None:
    graph = nested_graph()
    space = MeshContext(graph, dataflow(graph), MESH, pricing).space
    assert {v for v in restriction(graph, space, (replicate(target),)).keep if v < 3} == set(inputs)


def test_values_that_checkpoint_name_names_and_source_lines() -> None:
    graph = nested_graph()
    space = MeshContext(graph, dataflow(graph), MESH, pricing).space
    (named,) = [op for op in graph.ops if op.kind == "name"]
    variable = space.operator_variables[named.id]
    assert set(restriction(graph, space, (pin("hidden", P("x")),)).keep) == {variable}
    line = named.source.partition(" (")[0]
    assert variable in restriction(graph, space, (forbid(at(line), "x"),)).keep
    assert variable in restriction(graph, space, (forbid(at("test_constraints.py"), "x"),)).keep


def test_a_carried_output_is_its_input() -> None:
    graph = graph_of(lambda s, x: (s + x, x.sum()), (8, 8), (8, 8), carry=[(0, 0)])
    found = planned(graph, pin("output[0]", P(None, "x"))).plan.stage
    assert found.inputs[0] == found.outputs[0] == dims("", "x")


def test_a_constraint_inside_a_loop() -> None:
    def scanned(w: Any, x: Any) -> Any:
        return jax.lax.scan(lambda c, _: (jnp.tanh(c @ w), None), x, None, length=3)[0]

    found = planned(graph_of(scanned, (64, 64), (8, 64)), pin(at(kind="carry_out"), P("x")))
    for op, strategy in zip(found.graph.ops, found.plan.stage.strategies, strict=True):
        if op.kind in ("carry_in", "carry_out"):
            assert strategy.outs == (dims("x", ""),)


# Errors ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        (
            (pin("v", P("x")),),
            r"pin\('v', P\('x'\)\): 'v' is no input, output or operator.*for example: w, x, b, output",
        ),
        ((pin("ww", P("x")),), r"pin\('ww', P\('x'\)\): .* Close to it: w"),
        (
            (forbid(at(kind="dot"), "x"),),
            r"forbid\(at\(kind='dot'\), 'x'\): .*Close to it: dot_general",
        ),
        (
            (pin("w", P("z")),),
            r"pin\('w', P\('z'\)\): mesh \(x=2, y=4\) has no axis 'z'; its axes are x, y",
        ),
        ((forbid("w", "z"),), "has no axis 'z'"),
        ((pin("w", P(None, None, "x")),), r"stated are 3 dims, the shape \(16, 6\) has 2"),
        (
            (pin("w", P(None, "y")),),
            r"pin.*w of shape \(16, 6\).*dim 1 of 6 does not divide evenly by 4",
        ),
        (
            (pin(at(kind="add"), P(("y", "x"))),),
            r"pin\(at\(kind='add'\), P\(\('y', 'x'\)\)\): result .*\[x\*y\].*axes on one dim stand in mesh",
        ),
        (
            (pin("w", P("x")), replicate("*")),
            r"replicate\('\*'\) contradicts pin\('w', P\('x'\)\): .*placement for w",
        ),
        ((tie("w"),), r"tie\('w'\) ties nothing"),
        (
            (tie("w", "b"),),
            r"w of shape \(16, 6\) and b of shape \(16,\) have different numbers of dims",
        ),
        (
            (tie("w", "x"), pin("w", P("x")), replicate("x")),
            r"tie\('w', 'x'\): w, x have no placement in common .* under pin\('w'.*; replicate\('x'\)",
        ),
        (
            (Complete(), replicate("w")),
            "wants every input and output pinned; open are x, b, output",
        ),
    ],
)
def test_bad_constraints_are_quoted(constraints: tuple[Constraint, ...], message: str) -> None:
    graph = graph_of(lambda w, x, b: (x @ w).sum() + b, (16, 6), (8, 16), (16,))
    with pytest.raises(InvalidConstraint, match=message):
        planned(graph, *constraints, mesh=TWO)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pin("", P("x")), r"pin\('', \.\.\.\): pass the path"),
        (lambda: pin(3, P("x")), r"pin\(3, \.\.\.\): pass the path"),  # pyright: ignore[reportArgumentType]
        (lambda: pin("w", "x"), r"pin\('w', 'x'\): pass a jax.sharding.PartitionSpec"),  # pyright: ignore[reportArgumentType]
        (lambda: at(), "names every operator"),
        (lambda: at(kind="add", result=0, operand=1), "state one of them"),
        (lambda: tie(), "ties nothing"),
    ],
)
def test_bad_calls_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidConstraint, match=message):
        make()


def test_meshes_that_lack_an_axis_are_not_tried() -> None:
    graph = graph_of(layer, (16, 8), (8, 16))
    task = Task(graph, pricing, constraints=(pin("w", P("y")),))
    meshes = [DeviceMesh.of({"x": 8}), TWO]
    assert search(task, meshes).plan.space.endswith("mesh (x=2, y=4)")
    with pytest.raises(InvalidConstraint, match="mesh x=8 has no axis 'z'"):
        search(replace(task, constraints=(pin("w", P("z")),)), meshes)


def results(w: Any, x: Any) -> Any:
    return {"w": w + 1, "w2": (w * 2, w * 3)}, x + 1


def test_results_are_named_by_their_path() -> None:
    graph = graph_of(results, (16, 8), (8, 16))
    assert [graph.output_name(n) for n in range(4)] == [
        "output[0]['w']",
        "output[0]['w2'][0]",
        "output[0]['w2'][1]",
        "output[1]",
    ]
    split = dims("x", "")
    for target, lying in {
        "output[0]": (split, split, split, None),
        "output[0]['w2']": (None, split, split, None),
        "output[0]['w2'][*]": (None, split, split, None),
        "output[1]": (None, None, None, split),
    }.items():
        found = planned(graph, pin(target, P("x")), replicate("w"), replicate("x")).plan.stage
        assert all(
            wanted in (None, placed) for wanted, placed in zip(lying, found.outputs, strict=True)
        )


# Modes ----------------------------------------------------------------------------------------------------------------


def step(w: Any, x: Any, y: Any, rate: Any) -> Any:
    return w - rate * jax.grad(lambda w: (((x @ w) - y) ** 2).mean())(w)


def train(rows: int) -> OpGraph:
    return trace(step, (jnp.ones((16, 8)), jnp.ones((rows, 16)), jnp.ones((rows, 8)), 0.1)).graph


@pytest.mark.parametrize(("rows", "batch"), [(8, Placement((("x", "y"), ()))), (6, dims("", ""))])
def test_data_parallel_splits_data_where_it_divides_and_replicates_the_rest(
    rows: int, batch: Placement
) -> None:
    with (
        nullcontext()
        if rows == 8
        else pytest.warns(UnsplitDataWarning, match=r"dim 0 of x of shape \(6, 16\)")
    ):
        found = planned(train(rows), mesh=TWO, mode="data_parallel").plan
    assert found.stage.inputs == (dims("", ""), batch, batch, Placement(()))
    assert found.step_kinds == ("all_reduce", "slice", "mask")
    assert holds(train(rows), found.stage, data_parallel())
    assert not holds(
        train(8), planned(train(8), pin("w", P("x")), mesh=TWO).plan.stage, data_parallel()
    )


def test_modes_are_tuples_of_constraints() -> None:
    one = pin("w", P("x"))
    assert constraints_of("auto", (one,)) == (one,)
    assert constraints_of("data_parallel", (one,)) == (*data_parallel(), one)
    assert constraints_of("semi_auto", (one,)) == semi_auto({"w": P("x")}) == (one,)
    assert constraints_of("manual", (one,)) == manual({"w": P("x")}) == (one, Complete())
    assert step_kinds_of(()) == ((),)
    assert step_kinds_of((Steps(("slice", "mask")), Steps(("mask",)))) == (("mask",), ())
    assert str(data_parallel()[0]) == f"pin(<inputs that are data>, P({ALL_AXES!r}))"
    with pytest.raises(InvalidOption, match=r"semi_auto.*pass constraints"):
        constraints_of("semi_auto", ())
    with pytest.raises(
        InvalidOption,
        match="unknown mode 'fast'; the modes are auto, data_parallel, semi_auto, man",
    ):
        constraints_of("fast", ())


def test_manual_leaves_nothing_of_inputs_and_outputs_open() -> None:
    graph = graph_of(layer, (16, 8), (8, 16))
    every = {"w": P(None, "x"), "x": P(), "output[0]": P("x")}
    found = planned(graph, *manual(every)).plan.stage
    assert (*found.inputs, *found.outputs) == (dims("", "x"), dims("", ""), dims("x", ""))
    with pytest.raises(InvalidConstraint, match=r"open are output\[0\]\."):
        planned(graph, *manual({"w": P(None, "x"), "x": P()}))
