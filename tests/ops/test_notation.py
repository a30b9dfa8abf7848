"""Rules as text: what is parsed, what it means for an operator, and what is said where it is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import autopar
from autopar.core.graph import OpNode, TensorInfo
from autopar.core.mesh import DeviceMesh
from autopar.errors import RuleError
from autopar.ops.rules import rule_of
from autopar.ops.rules.enumerate import enumerate_strategies
from autopar.ops.rules.factor_rule import FactorRule
from autopar.ops.rules.notation import show
from autopar.ops.rules.registry import unregister
from autopar.ops.rules.user import as_rule, whole_along
from tests.ops.build import operator_of
from tests.ops.cases import CASES

Shapes = list[tuple[int, ...]]


def op_of(ins: Shapes, outs: Shapes, **params: Any) -> OpNode:
    def tensors(shapes: Shapes, first: int) -> tuple[TensorInfo, ...]:
        return tuple(TensorInfo(first + n, shape, "float32", 4) for n, shape in enumerate(shapes))

    return OpNode(
        0, "mine", tensors(ins, 0), tensors(outs, 100), params, source="model.py:41 (loss)"
    )


def placed(rule: FactorRule) -> set[str]:
    strategies = enumerate_strategies(rule, DeviceMesh.of({"x": 2}))
    return {f"{' '.join(map(str, s.ins))} -> {' '.join(map(str, s.outs))}" for s in strategies}


@pytest.fixture
def name() -> Iterator[str]:
    yield "primitive of this test"
    unregister("primitive of this test")


# --- what it means -------------------------------------------------------------------------------------------------


def test_text_says_what_a_function_would() -> None:
    """The rule of a product, of a reshape and of a maximum, as text."""
    products = as_rule("b m k, b k n -> b m n", reduced="k", linear=(0, 1))
    written = {
        case.name: operator_of(case)
        for case in CASES
        if case.name in ("dot_general batch", "reduce_max")
    }
    op = written["dot_general batch"]
    assert placed(products(op)) == placed(rule_of(op))
    reshape = as_rule("(a b) -> a b")(op_of([(32,)], [(4, 8)]))
    assert placed(reshape) == {"[-] -> [-, -]", "[x] -> [x, -]"}
    maximum = as_rule("d k -> d", reduced={"k": "max"})
    assert placed(maximum(written["reduce_max"])) < placed(rule_of(written["reduce_max"]))
    assert "[-, x] -> [-] max(x)" in placed(maximum(written["reduce_max"]))


def test_dots_stand_for_any_number_of_dims() -> None:
    rule = as_rule("... d, d -> ... d", frozen="d")
    assert placed(rule(op_of([(8,), (8,)], [(8,)]))) == {"[-] [-] -> [-]"}
    assert "[x, -, -] [-] -> [x, -, -]" in placed(rule(op_of([(4, 2, 8), (8,)], [(4, 2, 8)])))
    stretched = as_rule("... d, ... d -> ... d")(op_of([(4, 2, 8), (1, 8)], [(4, 2, 8)]))
    assert placed(stretched) == {
        "[-, -, -] [-, -] -> [-, -, -]",
        "[x, -, -] [-, -] -> [x, -, -]",
        "[-, x, -] [-, -] -> [-, x, -]",
        "[-, -, x] [-, x] -> [-, -, x]",
    }
    two = as_rule("...0 a, ...1 a -> ...0, ...1", frozen="a")
    assert "[x, -] [-, -] -> [x] [-]" not in placed(two(op_of([(4, 8), (2, 8)], [(4,), (2,)])))


def test_what_only_results_hold_is_whole() -> None:
    assert placed(as_rule("b -> b n")(op_of([(4,)], [(4, 8)]))) == {
        "[-] -> [-, -]",
        "[x] -> [x, -]",
    }


def test_scalars_and_no_operands() -> None:
    assert placed(as_rule("a, -> a")(op_of([(4,), ()], [(4,)]))) == {
        "[-] [] -> [-]",
        "[x] [] -> [x]",
    }
    assert placed(as_rule(" -> a")(op_of([], [(4,)]))) == {" -> [-]"}


def test_linear_says_through_which_operands_parts_pass() -> None:
    one_by_one = placed(as_rule("a, a -> a", linear=(0, 1))(op_of([(3,), (3,)], [(3,)])))
    together = placed(as_rule("a, a -> a", linear=[(0, 1)])(op_of([(3,), (3,)], [(3,)])))
    assert one_by_one == {
        "[-] [-] -> [-]",
        "[-] sum(x) [-] -> [-] sum(x)",
        "[-] [-] sum(x) -> [-] sum(x)",
    }
    assert together == {"[-] [-] -> [-]", "[-] sum(x) [-] sum(x) -> [-] sum(x)"}


@given(st.data())
def test_what_is_shown_is_the_rule(data: st.DataObject) -> None:
    """A rule of distinct factors, shown as text and parsed again, has the same strategies."""
    letters = data.draw(st.permutations("abcd"))
    out = data.draw(st.lists(st.sampled_from("abcd"), unique=True))
    sizes = dict(zip("abcd", (2, 4, 6, 8), strict=True))
    frozen = data.draw(st.sets(st.sampled_from("abcd")))
    op = op_of([tuple(sizes[f] for f in letters)], [tuple(sizes[f] for f in out)])
    reduced = dict.fromkeys([f for f in letters if f not in out and f not in frozen], "max")
    rule = FactorRule.of(op, ins=[letters], outs=[out], reduced=reduced, frozen=frozen)
    again = eval(f"as_rule({show(rule)})")  # what the user is told to write
    assert placed(again(op)) == placed(rule)


# --- errors --------------------------------------------------------------------------------------------------------

ILL_FORMED = [
    ("a b", {}, "no '->'", 3),
    ("a -> b -> c", {}, "more than one '->'", 7),
    ("a [b -> a", {}, "'\\[' is no part of the notation", 2),
    ("1a -> a", {}, "'1' is no part", 0),
    ("a .. b -> a", {}, "'.' is no part", 2),
    ("(a (b c)) -> a", {}, "'\\(' cannot stand in a bracket", 3),
    ("a b) -> a", {}, "closed that was not opened", 3),
    ("a (b) -> a", {}, "two factors or more", 2),
    ("c (a b -> a", {}, "not closed", 2),
    ("a ... -> a", {}, "before the other dims", 2),
    ("c, a a -> a", {}, "'a' stands twice", 5),
    ("a, a -> a, b a a", {}, "'a' stands twice", 15),
    ("ab b -> ab", {}, "'b' is missing in a result", 3),
    ("(a b) -> a", {}, "'b' stands in brackets only: give its size, b=", 3),
    ("(a b) -> a b", {"a": 2}, "'a' is a dim of its own", 1),
]


@pytest.mark.parametrize(("text", "sizes", "message", "at"), ILL_FORMED)
def test_what_is_ill_formed_is_quoted_and_pointed_to(
    text: str, sizes: Any, message: str, at: int
) -> None:
    with pytest.raises(RuleError, match=message) as caught:
        as_rule(text, **sizes)
    assert str(caught.value).splitlines()[1:] == [f"  {text}", "  " + " " * at + "^"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"reduced": {"a": "prod"}},
            "'a' is reduced by 'prod' in the rule 'a -> a'; known are sum, max, min",
        ),
        ({"frozen": "q"}, "frozen names 'q', which is no factor of the rule 'a -> a'"),
        ({"reduced": "q"}, "reduced names 'q'"),
        ({"linear": [(0, 1)]}, "linear names operand 1; the rule 'a -> a' has operands 0 to 0"),
        ({"q": 4}, "sizes names 'q'"),
    ],
)
def test_options_that_do_not_fit(options: Any, message: str) -> None:
    with pytest.raises(RuleError, match=message):
        as_rule("a -> a", **options)
    with pytest.raises(RuleError, match="goes with a rule that is text"):
        as_rule(lambda op: rule_of(op), **options)


@pytest.mark.parametrize(
    ("text", "ins", "outs", "message"),
    [
        (
            "a b -> a b",
            [(4,)],
            [(4,)],
            r"says that operand 0 has 2 dims; the operator's is float32\[4\]",
        ),
        ("... a b -> a b", [(4,)], [(4, 4)], "operand 0 has 2 dims or more"),
        ("a, a -> a", [(4,)], [(4,)], "has 2 operands, the operator 1"),
        ("a -> a, a", [(4,)], [(4,)], "has 2 results, the operator 1"),
        ("a b -> b a", [(3, 4)], [(3, 4)], "'b' is 4 in operand 0 and 3 in result 0"),
        ("(a b) -> a b", [(13,)], [(3, 4)], r"'\(a b\)' makes 12, operand 0 has 13"),
        (
            "... a, ... a -> ... a",
            [(3, 4), (5, 4)],
            [(3, 4)],
            r"'\.\.\.' stands for dims of 3 and of 5",
        ),
    ],
)
def test_an_operator_that_the_text_does_not_fit(
    text: str, ins: Shapes, outs: Shapes, message: str
) -> None:
    with pytest.raises(RuleError, match=message) as caught:
        as_rule(text)(op_of(ins, outs))
    assert f"the rule {text!r} of 'mine' (model.py:41 (loss))" in str(caught.value)


# --- the registry --------------------------------------------------------------------------------------------------


def test_a_rule_is_registered_once_unless_it_is_replaced(name: str) -> None:
    op = op_of([(4, 4)], [(4, 4)])
    op = OpNode(0, name, op.ins, op.outs)
    autopar.register_rule(name, "a b -> a b")
    with pytest.raises(RuleError, match=f"'{name}' has a rule already. Pass replace=True"):
        autopar.register_rule(name, "a b -> a b", frozen="a")
    assert "[x, -] -> [x, -]" in placed(rule_of(op))
    autopar.register_rule(name, "a b -> a b", frozen="a", replace=True)
    assert "[x, -] -> [x, -]" not in placed(rule_of(op))
    autopar.register_rule(name, whole_along(0, 1), replace=True)
    assert placed(rule_of(op)) == {"[-, -] -> [-, -]"}
    with pytest.raises(RuleError, match="has a rule already"):
        autopar.register_rule("dot_general", "m k, k n -> m n", reduced="k")


# --- split everywhere but along an axis ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("axes", "params", "split"),
    [
        ((-1,), {}, {0, 1}),
        ((0, 1), {}, {2}),
        (("axis",), {"axis": 1}, {0, 2}),
        (("axis",), {"axis": (0, -1)}, {1}),
        (("axis",), {"axis": None}, set()),
        ((), {}, {0, 1, 2}),
    ],
)
def test_whole_along_axes(axes: Any, params: Any, split: set[int]) -> None:
    op = op_of([(4, 4, 4), (4, 1), ()], [(4, 4, 4), (4, 4, 4)], **params)
    rule = whole_along(*axes)(op)
    assert {factor for factor in rule.factors if rule.sizes[factor]} == {f"d{d}" for d in split}


@pytest.mark.parametrize(
    ("axis", "shape", "message"),
    [
        (2, (4, 4), r"2 of 'mine' \(model.py:41 \(loss\)\) is 2: not a dim"),
        ("axis", (4, 4), "'axis' of 'mine' .* is 'no such argument'"),
        (0, (3, 4), r"operand 1 of 'mine' .* has shape \(3, 4\), which cannot be broadcast"),
        (0, (1, 4, 4), "cannot be broadcast"),
    ],
)
def test_whole_along_what_is_not_there(axis: Any, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(RuleError, match=message):
        whole_along(axis)(op_of([(4, 4), shape], [(4, 4)]))
