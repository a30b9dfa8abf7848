"""The pricings of Alpa and MindSpore at points computed by hand, and what must hold of them everywhere."""

from __future__ import annotations

from math import inf
from typing import Any

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

import autopar
from autopar.core.graph import OpGraph, OpNode
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.core.strategy import Strategy
from autopar.cost.alpa import Alpa
from autopar.ops.rules.enumerate import enumerate_strategies
from autopar.ops.rules.registry import rule_of
from autopar.redistribute.step import StepKind
from autopar.trace import trace
from tests import small_models as models
from tests.cases.mindspore_pricing import MindSpore

MESH = DeviceMesh.of({"x": 4, "y": 2})
ALPA = Alpa(MESH, (1.0, 3.0), (1.0, 0.5))
KINDS: tuple[StepKind, ...] = (
    "all_gather",
    "all_reduce",
    "reduce_scatter",
    "all_to_all",
    "permute",
    "slice",
    "mask",
)
REDISTRIBUTING = [kind for kind in KINDS if kind not in ("permute", "mask", "slice")]


def graph_of(fn: Any, *shapes: tuple[int, ...], **options: Any) -> OpGraph:
    options = {"carry": None} | options
    return trace(
        fn, tuple(jax.ShapeDtypeStruct(shape, "float32") for shape in shapes), **options
    ).graph


def strategy(op: OpNode, *ins: str) -> Strategy:
    """The strategy of `op` whose operands are split so: "x-" is the first of two dims over x."""
    wanted = tuple(
        Placement(tuple(() if axis == "-" else (axis,) for axis in dims)) for dims in ins
    )
    (found,) = [s for s in enumerate_strategies(rule_of(op), MESH) if s.ins == wanted]
    return found


# Alpa -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("all_gather", 1 + 3 / 4 * 1024 + 0.1),
        ("all_reduce", 1 + 2 * 3 / 4 * 1024 + 0.01),
        ("reduce_scatter", 1 + 3 / 4 * 1024 + 0.001),
        ("all_to_all", 1 + 3 / 16 * 4096 * 2 + 0.001),  # 1024 bytes a device, 4096 in the group
        ("slice", 0.0),
        ("mask", 0.0),
        ("permute", inf),
    ],
)
def test_alpa_on_one_axis(kind: StepKind, expected: float) -> None:
    assert ALPA.step_cost(kind, ("x",), 1024) == pytest.approx(expected)


def test_alpa_takes_axes_one_after_the_other() -> None:
    gather = (1 + 3 / 4 * 1024 + 0.1) + (3 + 0.5 * 1 / 2 * 256 + 0.1)
    assert ALPA.step_cost("all_gather", ("x", "y"), 1024) == pytest.approx(gather)
    reduce = (1 + 2 * 3 / 4 * 1024 + 0.01) + (3 + 0.5 * 1024 + 0.01)
    assert ALPA.step_cost("all_reduce", ("x", "y"), 1024) == pytest.approx(reduce)


def test_alpa_asks_nothing_for_an_axis_of_one_device() -> None:
    alpa = Alpa(DeviceMesh.of({"x": 4, "y": 1}), (1.0, 1.0), (1.0, 1.0))
    assert all(alpa.step_cost(kind, ("y",), 1024) == 0 for kind in REDISTRIBUTING)


def test_alpa_keeps_products_split_and_lists_most_split_first() -> None:
    product, addition = graph_of(lambda x, y: x @ y + 1.0, (8, 8), (8, 8)).ops
    every = enumerate_strategies(rule_of(product), MESH)
    kept = ALPA.keep(product, every)
    assert kept
    assert {s.split for s in kept} == {8}
    assert {s for s in every if s.split == 8} == set(kept)
    every = enumerate_strategies(rule_of(addition), MESH)
    kept = ALPA.keep(addition, every)
    assert set(kept) == set(every)
    assert [s.split for s in kept] == sorted((s.split for s in every), reverse=True)


@given(
    kind=st.sampled_from(REDISTRIBUTING),
    axes=st.permutations("xy"),
    few=st.integers(1, 3),
    size=st.integers(0, 2**30),
)
def test_alpa_is_finite_and_grows_with_bytes(
    kind: StepKind, axes: list[str], few: int, size: int
) -> None:
    price = ALPA.step_cost(kind, tuple(axes[:few]), size)
    assert 0 < price < inf
    assert ALPA.step_cost(kind, tuple(axes[:few]), size + 8) > price


# MindSpore ------------------------------------------------------------------------------------------------------------


def mindspore(graph: OpGraph) -> MindSpore:
    return MindSpore(graph, MESH)


def test_mindspore_product() -> None:
    """slice(A) + slice(B), and slice(C) where the contraction is cut; 1 less where all devices share the rows of A."""
    graph = graph_of(lambda a, b: a @ b, (64, 32), (32, 128))
    (op,) = graph.ops
    price = mindspore(graph).op_cost
    assert price(op, strategy(op, "x-", "-y")) == 4 * (64 * 32 / 4 + 32 * 128 / 2)
    assert price(op, strategy(op, "xy", "y-")) == 4 * (64 * 32 / 8 + 32 * 128 / 2 + 64 * 128 / 4)
    (rows,) = [
        s for s in enumerate_strategies(rule_of(op), MESH) if s.ins[0].dims == (("x", "y"), ())
    ]
    assert price(op, rows) == 4 * (64 * 32 / 8 + 32 * 128) - 1


def test_mindspore_reduces_the_gradient_of_a_parameter() -> None:
    """400 * 0.001 * (slice(B) + 1024), or 3072 where slice(B) <= 2048, unless the parameter is cut over all devices."""

    def step(params: Any, x: Any) -> Any:
        return jax.tree.map(lambda p: p + (x @ p).sum(0), params)

    for width, counted in ((128, 4 * 32 * 128 + 1024), (8, 3072)):
        graph = graph_of(step, (32, width), (64, 32), carry=[(0, 0)])
        op = graph.ops[0]
        price = mindspore(graph).op_cost
        whole = strategy(op, "x-", "--")
        computation = 4 * (64 * 32 / 4 + 32 * width)
        assert price(op, whole) == pytest.approx(computation + 0.4 * counted)
        cut = strategy(op, "-x", "xy")
        computation = 4 * (64 * 32 / 4 + 32 * width / 8 + 64 * width / 2)
        assert price(op, cut) == pytest.approx(computation)


@pytest.mark.parametrize(
    ("kind", "size", "expected"),
    [
        (
            "all_gather",
            16384,
            400 * (0.5 * 16384 + 1024 + 3072),
        ),  # backward: 0.5 * 4096 = 2048 bytes, which is few
        ("all_gather", 65536, 400 * (0.5 * 65536 + 1024 + 0.5 * 16384 + 1024)),
        ("all_to_all", 4096, 400 * 2 * (2 * 4096 + 1024)),
        ("all_to_all", 1024, 400 * 2 * 3072),
        ("all_reduce", 4096, 400 * (4096 + 1024)),
        ("slice", 4096, 0.0),
        ("reduce_scatter", 4096, inf),
        ("permute", 4096, inf),
        ("mask", 4096, inf),
    ],
)
def test_mindspore_steps(kind: StepKind, size: int, expected: float) -> None:
    assert mindspore(graph_of(lambda x: x + 1.0, (8,))).step_cost(
        kind, ("x",), size
    ) == pytest.approx(expected)


def test_mindspore_uses_all_devices_and_knows_no_unreduced_operands() -> None:
    graph = graph_of(lambda a, b: a @ b, (64, 32), (32, 128))
    (op,) = graph.ops
    kept = mindspore(graph).keep(op, enumerate_strategies(rule_of(op), MESH))
    assert kept
    assert all(s.split == 8 and not any(p.unreduced for p in s.ins) for s in kept)


def test_costs_of_equal_operators_are_shared_only_in_equal_contexts() -> None:
    """Two products alike, of which the second alone has a parameter: its gradient is paid for, the other's not."""

    def step(state: Any, x: Any, fixed: Any) -> Any:
        return {"w": state["w"] + 1.0}, x @ fixed, x @ state["w"]

    # 7 is never cut
    x, square = (
        jax.ShapeDtypeStruct((8, 7), "float32"),
        jax.ShapeDtypeStruct((7, 7), "float32"),
    )
    args = ({"w": square}, x, square)
    plan = autopar.plan(
        step, *args, cluster="cpu2", mesh={"x": 2}, carry=[(0, 0)], pricing=MindSpore
    )
    graph = plan.bound.traced.graph
    assert len(graph.carry) == 1
    pricing = MindSpore(graph, plan.mesh)
    recomputed = sum(
        pricing.op_cost(op, s) for op, s in zip(graph.ops, plan.strategies, strict=True)
    )
    first, second = (op for op in graph.ops if op.kind == "dot_general")
    assert first.signature == second.signature
    assert pricing.context(first) != pricing.context(second)
    assert plan.objective_s == pytest.approx(recomputed)


# Both -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_every_strategy_of_a_training_step_has_a_price(model: str) -> None:
    fn, args = getattr(models, model)()
    graph = trace(fn, args).graph
    for pricing in (ALPA, mindspore(graph)):
        seen: set[object] = set()
        for op in graph.ops:
            if (op.signature, pricing.context(op)) in seen:
                continue
            seen.add((op.signature, pricing.context(op)))
            kept = pricing.keep(op, enumerate_strategies(rule_of(op), MESH))
            assert kept
            assert all(0 <= pricing.op_cost(op, s) < inf for s in kept)
