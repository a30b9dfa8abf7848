"""OpGraph.check: every invariant has a graph that breaks it; the derived views agree with the sequence."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from autopar.core.graph import OpGraph, OpNode, TensorInfo
from autopar.core.regions import Region


def tensor(number: int, **changes: Any) -> TensorInfo:
    return TensorInfo(number, (4,), "float32", 4, **changes)


A, B, C, D = (tensor(n) for n in range(4))
TWO = TensorInfo(9, (), "float32", 4, literal=2.0)


def op(
    number: int,
    ins: tuple[TensorInfo, ...],
    outs: tuple[TensorInfo, ...],
    region: int | None = None,
) -> OpNode:
    return OpNode(number, "add", ins, outs, region=region)


def carry(number: int, way: str, read: TensorInfo, made: TensorInfo, position: int = 0) -> OpNode:
    return OpNode(number, f"carry_{way}", (read,), (made,), {"position": position}, region=0)


SCAN = (Region(0, "scan"), Region(1, "body", 0))
CHOICE = (Region(0, "cond"), Region(1, "branch", 0), Region(2, "branch", 0))


def test_a_valid_graph_and_its_views() -> None:
    graph = OpGraph((op(0, (A, TWO), (B,)), op(1, (B, B), (C,))), (A,), (C, A, TWO, C))
    assert graph.producers == {1: graph.ops[0], 2: graph.ops[1]}
    assert list(graph.view.edges(data=True)) == [
        (0, 1, {"tensor": 1, "operand": 0}),
        (0, 1, {"tensor": 1, "operand": 1}),
    ]
    assert "%1:float32[4] = add %0:float32[4], 2.0" in str(graph)
    assert A.size_bytes == 16
    assert TWO.size_bytes == 4


BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"inputs": (A, A)}, "two inputs share a tensor id"),
    ({"ops": (op(1, (A,), (B,)),)}, r"operator 1 \(add\) stands at position 0"),
    ({"ops": (op(0, (C,), (B,)),)}, r"operator 0 \(add\) reads tensor 2 before it exists"),
    ({"ops": (op(0, (C,), (B,)), op(1, (A,), (C,)))}, "reads tensor 2 before it exists"),
    ({"ops": (op(0, (A,), (B,)), op(1, (A,), (B,)))}, "tensor 1 has two producers"),
    ({"ops": (op(0, (A,), (A,)),)}, "tensor 0 has two producers"),
    ({"outputs": (D,)}, "output tensor 3 is never produced"),
    (
        {
            "ops": (op(0, (A,), (B,), 0), op(1, (B,), (C,)), op(2, (C,), (D,), 0)),
            "regions": (Region(0, "remat"),),
        },
        "the operators of region 0 are not contiguous",
    ),
    (
        {
            "ops": (op(0, (A,), (B,), 1), op(1, (B,), (C,)), op(2, (C,), (D,), 0)),
            "regions": (Region(0, "remat"), Region(1, "remat", 0)),
        },
        "the operators of region 0 are not contiguous",
    ),
    (
        {"ops": (op(0, (A,), (B,), 1), op(1, (B,), (C,))), "regions": SCAN},
        r"operator 1 \(add\) reads tensor 1, which is not seen outside its region",
    ),
    (
        {"ops": (op(0, (A,), (B,), 0), op(1, (B,), (C,))), "regions": SCAN},
        r"operator 1 \(add\) reads tensor 1, which is not seen outside its region",
    ),
    (
        {"ops": (op(0, (A,), (B,), 1), op(1, (B,), (C,), 2)), "regions": CHOICE},
        r"operator 1 \(add\) reads tensor 1, which is not seen outside its region",
    ),
    (
        {"ops": (carry(0, "in", A, B), op(1, (B,), (C,), 1)), "regions": SCAN},
        r"operator 0 \(carry_in\) has no carry_out",
    ),
    (
        {
            "ops": (carry(0, "in", A, B), op(1, (B,), (C,), 1), carry(2, "out", C, D, 1)),
            "regions": SCAN,
        },
        r"operator 0 \(carry_in\) has no carry_out",
    ),
    (
        {"ops": (op(0, (A,), (B,), 1), carry(1, "out", B, C)), "regions": SCAN},
        r"operator 1 \(carry_out\) has no carry_in",
    ),
]


@pytest.mark.parametrize(("parts", "message"), BROKEN)
def test_a_broken_graph_is_refused(parts: dict[str, Any], message: str) -> None:
    valid: dict[str, Any] = {"ops": (op(0, (A,), (B,)),), "inputs": (A,), "outputs": (B,)}
    OpGraph(**valid)
    with pytest.raises(ValueError, match=message):
        OpGraph(**{**valid, "outputs": (), **parts})


def test_nested_regions_are_contiguous_together() -> None:
    regions = (Region(0, "remat"), Region(1, "remat", 0))
    ops = (op(0, (A,), (B,), 0), op(1, (B,), (C,), 1), op(2, (C,), (D,), 0))
    assert len(OpGraph(ops, (A,), (D,), regions=regions).ops) == 3


def test_what_enters_is_seen_inside_and_what_leaves_outside() -> None:
    ops = (carry(0, "in", A, B), op(1, (B, A), (C,), 1), carry(2, "out", C, D))
    assert OpGraph(ops, (A,), (D,), regions=SCAN).loop_carries == {2: 0}


def test_a_rematerialised_block_hides_nothing() -> None:
    ops = (op(0, (A,), (B,), 0), op(1, (B,), (C,)))
    assert len(OpGraph(ops, (A,), (C,), regions=(Region(0, "remat"),)).ops) == 2


def test_alike_are_those_of_one_signature() -> None:
    kinds = [
        TensorInfo(20, (4,), "float32", 4),
        TensorInfo(21, (4,), "int32", 4),
        TensorInfo(22, (), "float32", 4),
    ]
    twice = TensorInfo(23, (4,), "float32", 4, multiple_of=20)
    literals = [
        TensorInfo(30 + n, (), "float32", 4, literal=value)
        for n, value in enumerate((0.0, 2.0, 3.0))
    ]
    operands = (*kinds, twice, *literals)
    params: tuple[dict[str, Any], ...] = (
        {},
        {"axis": 1},
        {"axis": True},
        {"b": 0, "axis": 1},
        {"axis": 1, "b": 0},
    )
    drawn = [
        (kind, ins, params[n % len(params)])
        for kind in ("add", "mul")
        for n, ins in enumerate(
            [
                *product(operands, repeat=2),
                *product(operands, repeat=2),
                *product(operands, repeat=3),
            ]
        )
    ]
    ops = tuple(
        OpNode(n, kind, ins, (TensorInfo(100 + n, (4,), "float32", 4),), given)
        for n, (kind, ins, given) in enumerate(drawn)
    )
    first: dict[object, int] = {}
    expected = tuple(first.setdefault(node.signature, node.id) for node in ops)
    assert OpGraph(ops, (*kinds, twice), (ops[-1].outs[0],)).alike == expected
    assert 1 < len(first) < len(ops)
    given, turned = (OpNode(0, "add", (A,), (B,), params[n]) for n in (-1, -2))
    assert given.signature == turned.signature


def test_a_signature_knows_repeats_and_zeros_but_not_numbers() -> None:
    zero = TensorInfo(8, (), "float32", 4, literal=0.0)
    same, apart = op(0, (A, A), (C,)), op(0, (A, B), (C,))
    assert same.signature != apart.signature
    assert apart.signature == op(5, (C, D), (B,)).signature
    assert op(0, (A, TWO), (C,)).signature != op(0, (A, zero), (C,)).signature
    assert (
        op(0, (A, TWO), (C,)).signature
        == op(0, (A, TensorInfo(7, (), "float32", 4, literal=3.0)), (C,)).signature
    )
