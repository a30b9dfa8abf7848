"""What rules must and must not allow; and the check of the check: planted bugs are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from autopar.core.graph import OpNode, TensorInfo
from autopar.core.mesh import DeviceMesh
from autopar.errors import RuleError
from autopar.ops.rules import rule_of
from autopar.ops.rules.enumerate import enumerate_strategies
from autopar.ops.rules.factor_rule import FactorRule, TrafficOf
from tests.ops.all_cases import CASES
from tests.ops.build import Built, build, operator_of
from tests.ops.property import MESHES, check_rule

by_name = {case.name: case for case in CASES}


@cache
def built(name: str) -> Built:
    return build(by_name[name])


# --- planted bugs --------------------------------------------------------------------------------------------------


def without_reductions(rule: FactorRule) -> FactorRule:
    """The rule that forgets that a split index leaves the result unreduced."""
    return replace(rule, reduced={}, carried={})


def without_carrying(rule: FactorRule) -> FactorRule:
    """The rule that takes whole operands where each device may add its part only."""
    return replace(rule, carried={})


def swapped(rule: FactorRule) -> FactorRule:
    """The rule with the first two dims of the result exchanged."""
    first, second, *rest = rule.outs[0]
    return replace(rule, outs=((second, first, *rest),))


def thawed(rule: FactorRule) -> FactorRule:
    """The rule that splits what is frozen."""
    return replace(
        rule, frozen=frozenset(), reduced={**rule.reduced, **dict.fromkeys(rule.frozen, "max")}
    )


def shared(rule: FactorRule) -> FactorRule:
    """The rule that takes a part of a dim for the whole of another: every frozen factor is that of operand 0."""
    names = dict(
        zip(
            (f for dims in rule.outs for dim in dims for f in dim),
            (f for d in rule.ins[0] for f in d),
            strict=False,
        )
    )
    outs = tuple(tuple(tuple(names[f] for f in dim) for dim in dims) for dims in rule.outs)
    return replace(rule, outs=outs, frozen=frozenset())


def maximum_for_sum(rule: FactorRule) -> FactorRule:
    """The rule that takes the largest part where parts should be added."""
    return replace(rule, reduced=dict.fromkeys(rule.reduced, "max"))


def unsaid(rule: FactorRule) -> FactorRule:
    """The rule that forgets to say what is sent."""
    return replace(rule, exchanged={})


def shorter(rule: FactorRule) -> FactorRule:
    """The rule that says that one element less is sent of everything."""

    def less(traffic_of: TrafficOf) -> TrafficOf:
        return lambda parts: tuple(
            replace(t, elements=t.elements - 1) for t in traffic_of(parts) or () if t.elements
        )

    return replace(
        rule, exchanged={factor: less(traffic_of) for factor, traffic_of in rule.exchanged.items()}
    )


PLANTED = [
    ("dot_general square", without_reductions),
    ("dot_general square", maximum_for_sum),
    ("dot_general square", swapped),
    ("transpose square", swapped),
    ("conv_general_dilated", without_reductions),
    ("argmax", unsaid),
    ("conv_general_dilated", unsaid),
    ("conv_general_dilated", shorter),
    ("reduce_window_sum overlapping", shorter),
    ("top_k", shorter),
    ("reduce_prod", thawed),
    ("reduce_sum", without_reductions),
    ("reduce_max", without_reductions),
    ("cumsum", unsaid),
    ("sort alone", unsaid),
    ("sort alone", shorter),
    ("rev", unsaid),
    ("split", thawed),
    ("gather rows", without_reductions),
    ("gather rows", maximum_for_sum),
    ("scatter-add rows None", without_carrying),
    ("scatter-add rows None", without_reductions),
    ("reshape (6, 4) (4, 6)", shared),
    ("pad", without_carrying),
    (
        "add literal",
        lambda rule: replace(
            rule, reduced={"+": "sum"}, carried={"+": (0,)}, sizes={**rule.sizes, "+": 0}
        ),
    ),
]


@pytest.mark.parametrize(
    ("name", "bug"), PLANTED, ids=lambda value: value if isinstance(value, str) else value.__name__
)
def test_a_planted_bug_is_found(name: str, bug: Callable[[FactorRule], FactorRule]) -> None:
    found = built(name)
    right = rule_of(found.op)
    check_rule(found, right, MESHES[0])
    with pytest.raises((AssertionError, TypeError, ValueError)):
        check_rule(found, bug(right), MESHES[0])


# --- what must be possible -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("dot_general square", "[-, x] [x, -] -> [-, -] sum(x)"),
        ("dot_general square", "[-, -] sum(x) [-, -] -> [-, -] sum(x)"),
        ("dot_general batch", "[x, -, -] [x, -, -] -> [x, -, -]"),
        ("add two dims", "[-, -] sum(x) [-, -] sum(x) -> [-, -] sum(x)"),
        ("add literal zero", "[-, -] sum(x) [] -> [-, -] sum(x)"),
        ("broadcast_in_dim literal zero", "[] -> [-, -] sum(x)"),
        ("reduce_max", "[-, x] -> [-] max(x)"),
        ("reduce_and", "[-, x] -> [-] min(x)"),
        ("reshape (4, 8) (32,)", "[x, -] -> [x]"),
        ("reshape (32,) (4, 8)", "[x] -> [x, -]"),
        ("gather rows", "[x, -] [-, -, -] -> [-, -, -] sum(x)"),
        ("gather along axis", "[x, -] [x, -, -] -> [x, -]"),
        ("scatter-add rows None", "[x, -] [-, -, -] [-, -, -] -> [x, -]"),
        ("scatter-add rows None", "[-, -] sum(x) [x, -, -] [x, -, -] -> [-, -] sum(x)"),
        ("scatter-add rows None", "[-, x] [-, -, -] [-, -, x] -> [-, x]"),
        ("conv_general_dilated", "[-, -, -, x] [-, -, x, -] -> [-, -, -, -] sum(x)"),
        ("conv_general_dilated depthwise", "[-, -, -, x] [-, -, -, x] -> [-, -, -, x]"),
        ("select_and_scatter_add", "[-, -, -, x] [-, -, -, x] -> [-, -, -, x]"),
        ("iota_2x32_shape", " -> [-, x] [-, x]"),
        ("conv_general_dilated", "[-, x, -, -] [-, -, -, -] -> [-, x, -, -]"),
        (
            "conv_general_dilated window is the whole dim",
            "[-, x, -, -] [x, -, -, -] -> [-, -, -, -] sum(x)",
        ),
        ("reduce_window_sum overlapping", "[-, x, -, -] -> [-, x, -, -]"),
        ("select_and_scatter_add", "[-, x, -, -] [-, x, -, -] -> [-, x, -, -]"),
        ("cumsum", "[-, x] -> [-, x]"),
        ("argmax", "[-, x] -> [-]"),
        ("top_k", "[-, x] -> [-, -] [-, -]"),
        ("rev", "[-, x] -> [-, x]"),
        ("slice", "[-, x] -> [-, x]"),
        ("pad", "[-, x] [] -> [-, x]"),
        ("dynamic_slice", "[x, -] [] [] -> [-, -] sum(x)"),
        ("dynamic_update_slice", "[x, -] [-, -] [] [] -> [x, -]"),
    ],
)
def test_the_strategy_exists(name: str, wanted: str) -> None:
    strategies = enumerate_strategies(rule_of(operator_of(by_name[name])), DeviceMesh.of({"x": 2}))
    assert wanted in {
        f"{' '.join(map(str, s.ins))} -> {' '.join(map(str, s.outs))}" for s in strategies
    }


@pytest.mark.parametrize(
    ("name", "unwanted"),
    [
        ("add literal", "[-, -] sum(x) [] -> [-, -] sum(x)"),
        ("broadcast_in_dim literal one", "[] -> [-, -] sum(x)"),
        ("gather rows filled", "[-, -] sum(x) [-, -] -> [-, -] sum(x)"),
        ("reshape (4, 8) (32,)", "[-, x] -> [x]"),
        ("argmax", "[-, x] -> [-] max(x)"),
    ],
)
def test_the_strategy_does_not_exist(name: str, unwanted: str) -> None:
    strategies = enumerate_strategies(rule_of(operator_of(by_name[name])), DeviceMesh.of({"x": 2}))
    assert unwanted not in {
        f"{' '.join(map(str, s.ins))} -> {' '.join(map(str, s.outs))}" for s in strategies
    }


def test_strategies_start_with_the_replicated_one_and_differ() -> None:
    for name in ("dot_general square", "conv_general_dilated groups", "reshape (4, 4) (2, 4, 2)"):
        strategies = enumerate_strategies(rule_of(operator_of(by_name[name])), MESHES[1])
        assert not strategies[0].factors
        assert len({(s.ins, s.outs) for s in strategies}) == len(strategies)


def op_of(ins: tuple[int, ...], out: tuple[int, ...]) -> OpNode:
    return OpNode(
        0, "made up", (TensorInfo(0, ins, "float32", 4),), (TensorInfo(1, out, "float32", 4),)
    )


@pytest.mark.parametrize(
    ("rule", "complaint"),
    [
        (
            lambda: FactorRule.of(op_of((4, 8), (4,)), ins=[["a", "b"]], outs=[["a"]]),
            "missing in a result",
        ),
        (
            lambda: FactorRule.of(op_of((4, 8), (8, 4)), ins=[["a", "b"]], outs=[["a", "b"]]),
            "do not make a dim",
        ),
        (
            lambda: FactorRule.of(op_of((4, 4), (4, 4)), ins=[["a", "a"]], outs=[["a", "a"]]),
            "stands twice",
        ),
        (lambda: FactorRule.of(op_of((4,), (4,)), ins=[["a"]], outs=[["a", "b"]]), "does not fit"),
        (lambda: FactorRule.of(op_of((4,), (8,)), ins=[["a"]], outs=[["a", "b"]]), "does not fit"),
        (
            lambda: FactorRule.of(op_of((4,), (8,)), ins=[["a"]], outs=[[["a", "b"]]]),
            "neither given",
        ),
        (
            lambda: FactorRule.of(
                op_of((4,), (4,)), ins=[["a"]], outs=[["a"]], carried={"b": (0,)}
            ),
            "carried but not reduced",
        ),
        (
            lambda: FactorRule.of(
                op_of((4,), ()), ins=[["a"]], outs=[[]], reduced={"a": "sum"}, carried={"a": (0,)}
            ),
            "both holds and carries",
        ),
    ],
)
def test_a_rule_that_contradicts_its_shapes_is_refused(
    rule: Callable[[], FactorRule], complaint: str
) -> None:
    with pytest.raises(RuleError, match=complaint):
        rule()


def test_dims_without_elements_are_not_split() -> None:
    op = op_of((0, 4), (0, 4))
    rule = FactorRule.of(op, ins=[["a", "b"]], outs=[["a", "b"]])
    assert rule.factors == ("b",)
