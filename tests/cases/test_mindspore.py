"""Plans that MindSpore's tests assert, found under its pricing by bytes; cut counts, as it names strategies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import autopar
from autopar.core.graph import OpNode
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.core.strategy import Strategy
from autopar.cost.pricing import MakePricing
from autopar.errors import TraceError
from autopar.operators import KEEP, l2_normalize
from autopar.ops.rules.enumerate import enumerate_strategies
from autopar.ops.rules.registry import rule_of
from autopar.trace import trace
from tests.cases.mindspore_pricing import MindSpore

Cuts = tuple[tuple[int, ...], ...]
Chosen = list[tuple[str, Cuts]]


@dataclass(frozen=True)
class Case:
    """A graph, the shapes of its inputs, the devices, and what MindSpore finds: operators with cuts, and the cost."""

    fn: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    devices: int
    expected: Chosen
    cost: float


def transposed_twice(x: Any, y: Any, b: Any) -> Any:
    return lax.transpose(lax.transpose(x @ y @ b, (1, 0)), (1, 0))


ROWS: Cuts = ((16, 1), (1, 1))
CASES = {
    "A1": Case(
        lambda x, y, b: x @ y @ b,
        ((128, 32), (32, 64), (64, 64)),
        16,
        [("dot_general", ROWS), ("dot_general", ROWS)],
        27_646,
    ),
    "A2": Case(
        lambda x, y, z: lax.div(x @ y, z),
        ((64, 32), (32, 128), (64, 128)),
        8,
        [("dot_general", ((2, 1), (1, 4))), ("div", ((2, 4), (2, 4)))],
        16_384,
    ),
    "A4": Case(
        lambda x, y, z: x @ y / z,
        ((64, 32), (32, 32), (32,)),
        8,
        [("dot_general", ((4, 1), (1, 2))), ("div", ((4, 2), (1, 2)))],
        5_184,
    ),
    "A6": Case(
        transposed_twice,
        ((128, 32), (32, 64), (64, 64)),
        16,
        [
            ("dot_general", ROWS),
            ("dot_general", ROWS),
            ("transpose", ((16, 1),)),
            ("transpose", ((1, 16),)),
        ],
        31_741,
    ),
}
NAMES = sorted(CASES)


def cuts(strategy: Strategy, mesh: DeviceMesh) -> Cuts:
    """MindSpore's strategy: into how many parts each dim of each operand is cut."""
    return tuple(tuple(mesh.product(axes) for axes in placement.dims) for placement in strategy.ins)


def plan(case: Case, devices: int, pricing: MakePricing = MindSpore) -> Any:
    """The plan on a mesh of axes of size 2, so that every cut into a power of two exists."""
    mesh = {f"x{n}": 2 for n in range(devices.bit_length() - 1)} or {"x0": 1}
    args = [jax.ShapeDtypeStruct(shape, "float32") for shape in case.shapes]
    return autopar.plan(
        case.fn, *args, cluster=f"cpu{devices}", mesh=mesh, carry=None, pricing=pricing
    )


def chosen(plan: Any) -> list[tuple[int, str, Cuts]]:
    """The operators that compute, with their cuts; a broadcast is part of the operator that reads it."""
    pairs = zip(plan.bound.traced.graph.ops, plan.strategies, strict=True)
    return [
        (op.id, op.kind, cuts(s, plan.mesh)) for op, s in pairs if op.kind != "broadcast_in_dim"
    ]


@pytest.mark.parametrize("name", NAMES)
def test_search_finds_the_plan_that_mindspore_asserts(name: str) -> None:
    case = CASES[name]
    found = plan(case, case.devices)
    assert [(kind, parts) for _, kind, parts in chosen(found)] == case.expected
    assert found.objective_s == case.cost
    assert found.lower_bound_s == case.cost
    assert found.collectives == ()


@dataclass(frozen=True)
class Without(MindSpore):
    """MindSpore's pricing with one operator kept from one choice of cuts."""

    op: int = -1
    cuts: Cuts = ()

    def keep(self, op: OpNode, strategies: tuple[Strategy, ...]) -> tuple[Strategy, ...]:
        kept = super().keep(op, strategies)
        return (
            tuple(s for s in kept if cuts(s, self.mesh) != self.cuts) if op.id == self.op else kept
        )


@pytest.mark.parametrize("name", ["A1", "A2", "A4"])
def test_the_plan_is_the_only_optimum(name: str) -> None:
    """A plan with other cuts has them in at least one operator: kept from its cuts there, all plans are dearer."""
    case = CASES[name]
    for op, _, parts in chosen(plan(case, case.devices)):
        other = plan(
            case,
            case.devices,
            lambda graph, mesh, op=op, parts=parts: Without(graph, mesh, op, parts),
        )
        assert other.lower_bound_s > case.cost


@pytest.mark.parametrize("mesh", [{"x": 64}, {"x": 8, "y": 8}], ids=str)
def test_rows_are_cut_where_products_and_additions_take_turns(mesh: dict[str, int]) -> None:
    """A24: on 64 devices the rows of [640, 1280] are cut (sequence parallel), and nothing is communicated."""

    def fn(x: Any, y: Any, b: Any, p: Any, q: Any) -> Any:
        return (x @ y - b) @ p + q

    rows, square = (jax.ShapeDtypeStruct(shape, "float32") for shape in ((640, 1280), (1280, 1280)))
    found = autopar.plan(
        fn,
        rows,
        square,
        rows,
        square,
        rows,
        cluster="8x8xh100",
        mesh=mesh,
        carry=None,
        pricing=MindSpore,
    )
    assert found.gap == 0
    assert [parts for _, kind, parts in chosen(found) if kind == "add"] == [((64, 1), (64, 1))]
    assert found.collectives == ()


@pytest.mark.parametrize("name", NAMES)
def test_one_device_cuts_nothing(name: str) -> None:
    """A12."""
    found = plan(CASES[name], 1)
    assert all(set(parts) == {1} for _, _, operands in chosen(found) for parts in operands)
    assert found.collectives == ()


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        (((64, 32), (64, 32)), 10),
        (((32,), (64, 32)), 10),
        (((64, 1), (1, 32)), 10),
        (((64, 8, 1), (1, 8, 32)), 20),
    ],
    ids=str,
)
def test_number_of_strategies(shapes: tuple[tuple[int, ...], ...], expected: int) -> None:
    """A28: cuts are powers of two that divide the dim, their product is at most the 8 devices."""
    mesh = DeviceMesh.of({"x": 2, "y": 2, "z": 2})
    args = tuple(jax.ShapeDtypeStruct(shape, "float32") for shape in shapes)
    (op,) = [op for op in trace(jnp.multiply, args).graph.ops if op.kind == "mul"]
    found = {cuts(strategy, mesh) for strategy in enumerate_strategies(rule_of(op), mesh)}
    assert len(found) == expected
    assert all(max(prod(parts) for parts in operands) <= 8 for operands in found)


def l2_cuts(sizes: dict[str, int]) -> dict[Cuts, Strategy]:
    """The strategies of L2Normalize on [32, 64, 96] along dim 1, by their cuts."""
    mesh = DeviceMesh.of(sizes)
    with KEEP(True):
        (op,) = trace(
            lambda x: l2_normalize(x, axis=1), (jax.ShapeDtypeStruct((32, 64, 96), "float32"),)
        ).graph.ops
    assert op.kind == "l2_normalize"
    return {cuts(strategy, mesh): strategy for strategy in enumerate_strategies(rule_of(op), mesh)}


def idle_axes(placement: Placement, mesh: dict[str, int]) -> set[str]:
    """The axes over which a tensor is replicated: were it a parameter, its gradient is mirrored over them."""
    return {axis for axis, size in mesh.items() if size > 1} - set(placement.varying_axes)


def test_l2_normalize() -> None:
    """A27, 32 devices: cut (4,1,8) has shards of [8,64,12], needs no communication and no mirror.

    Cut (2,1,8) is replicated over groups of 2, so one mirror over them were it a parameter. Cut (4,2,3) would split the
    normalised dim; a wrong rank and two operands are no cuts of it.
    """
    full, half = {"a": 4, "b": 8}, {"a": 2, "idle": 2, "b": 8}
    strategy = l2_cuts(full)[((4, 1, 8),)]
    assert strategy.ins[0].local_shape((32, 64, 96), DeviceMesh.of(full)) == (8, 64, 12)
    assert strategy.outs == strategy.ins
    assert not strategy.outs[0].unreduced
    assert idle_axes(strategy.ins[0], full) == set()
    replicated = [s for c, s in l2_cuts(half).items() if c == ((2, 1, 8),)]
    assert [idle_axes(s.ins[0], half) for s in replicated] in ([{"a"}], [{"idle"}])
    for sizes in (full, half, {"a": 4, "b": 2, "c": 3}):
        assert all(operand[1] == 1 and len(operand) == 3 for (operand,) in l2_cuts(sizes))
    assert ((4, 2, 3),) not in l2_cuts({"a": 4, "b": 2, "c": 3})
    assert ((4, 1, 3),) in l2_cuts({"a": 4, "b": 2, "c": 3})


def test_l2_normalize_of_two_operands_is_refused() -> None:
    """A27: what is no dim is no axis."""
    x = jax.ShapeDtypeStruct((4, 4), "float32")
    with pytest.raises(TraceError):
        autopar.plan(l2_normalize, x, x, cluster="cpu8")
