"""Every strategy of gather and scatter in the forms that users write, against the operator run whole."""

from __future__ import annotations

import pytest

from autopar.core.mesh import DeviceMesh
from autopar.ops.rules import rule_of
from autopar.ops.rules.enumerate import enumerate_strategies
from tests.ops.build import Case, build, operator_of
from tests.ops.cases_indexing import FORMS
from tests.ops.property import check_rule

MESH = DeviceMesh.of({"x": 2})
BY_NAME = {case.name: case for case in FORMS}


@pytest.mark.quick_share(4)
@pytest.mark.parametrize("case", FORMS, ids=[case.name for case in FORMS])
def test_every_strategy_computes_what_the_operator_computes(case: Case) -> None:
    found = build(case)
    assert found.op.kind == case.kind
    assert check_rule(found, rule_of(found.op), MESH) >= 1


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("gather mapped slice of one row", "[-, -, x] [-, -] -> [-, -, x]"),
        ("gather mapped slice of one row", "[-, x, -] [-, -] -> [-, -, -] sum(x)"),
        ("gather mapped slice of two rows", "[x, -, -] [x, -] -> [x, -, -]"),
        ("gather whole dim fill", "[-, x] [-, -] -> [-, x]"),
        ("scatter mapped write of two rows", "[-, -, x] [-, -] [-, -, x] -> [-, -, x]"),
        ("scatter-add whole dim clip", "[-, x] [-, -] [-, x] -> [-, x]"),
        ("scatter-add segment_sum", "[-, -] sum(x) [x, -] [x, -] -> [-, -] sum(x)"),
        ("scatter x[i, j] set", "[-, x] [-, -] [-] -> [-, x]"),
    ],
)
def test_the_strategy_exists(name: str, wanted: str) -> None:
    strategies = enumerate_strategies(rule_of(operator_of(BY_NAME[name])), MESH)
    assert wanted in {
        f"{' '.join(map(str, s.ins))} -> {' '.join(map(str, s.outs))}" for s in strategies
    }
