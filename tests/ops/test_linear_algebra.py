"""Every strategy of decompositions, solvers, transforms and products of groups, against the operator run whole."""

from __future__ import annotations

import pytest

from autopar.core.mesh import DeviceMesh
from autopar.ops.rules import rule_of
from autopar.ops.rules.enumerate import enumerate_strategies
from tests.ops.build import Case, build, operator_of
from tests.ops.cases_linear_algebra import LINEAR_ALGEBRA
from tests.ops.property import MESHES, check_rule, name_of
from tests.quick_some import diagonal


@pytest.mark.quick_share(3)
@pytest.mark.parametrize(("case", "mesh"), diagonal(LINEAR_ALGEBRA, MESHES), ids=name_of)
def test_every_strategy_computes_what_the_operator_computes(case: Case, mesh: DeviceMesh) -> None:
    found = build(case)
    assert found.op.kind == case.kind
    assert check_rule(found, rule_of(found.op), mesh) >= 1


BY_NAME = {case.name: case for case in LINEAR_ALGEBRA}


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("ragged_dot_general", "[x, -] [-, -, -] [-] -> [x, -]"),
        ("ragged_dot_general", "[-, -] [x, -, -] [-] -> [-, -] sum(x)"),
        ("ragged_dot_general", "[-, x] [-, x, -] [-] -> [-, -] sum(x)"),
        ("ragged_dot_general", "[-, -] sum(x) [-, -, -] [-] -> [-, -] sum(x)"),
        ("ragged_dot_general rows summed up", "[x, -] [x, -] [-] -> [-, -, -] sum(x)"),
        ("ragged_dot_general rows summed up", "[-, -] [-, -] [-] -> [x, -, -]"),
        (
            "ragged_dot_general sizes for each of a batch",
            "[x, -, -] [-, x, -, -] [x, -] -> [x, -, -]",
        ),
        ("scaled_dot", "[-, x] [-, x] [-, x] [-, x] -> [-, -] sum(x)"),
        ("svd", "[-, x, -, -] -> [-, x, -] [-, x, -, -] [-, x, -, -]"),
        ("triangular_solve", "[-, -, -] [-, -, x] -> [-, -, x]"),
        ("triangular_solve right", "[-, -] [x, -] -> [x, -]"),
        ("tridiagonal_solve", "[x, -] [x, -] [x, -] [x, -, -] -> [x, -, -]"),
        ("symmetric_product one", "[-, x] [-, -] sum(x) -> [-, -] sum(x)"),
        ("symmetric_product", "[x, -, -, -] [x, -, -, -] -> [x, -, -, -]"),
        ("fft real, two dims", "[x, -, -, -] -> [x, -, -, -]"),
        ("fft", "[-, -] sum(x) -> [-, -] sum(x)"),
        ("fft two dims", "[-, x, -] -> [-, -, x]"),
        ("fft two dims", "[-, -, x] -> [-, x, -]"),
        ("fft two dims", "[-, x, -] -> [-, x, -]"),
        ("fft real, three dims, uneven one", "[x, -, -] -> [-, x, -]"),
        ("fft real, three dims, uneven one", "[-, x, -] -> [-, x, -]"),
        ("fft to real, three dims", "[-, -, x] -> [x, -, -]"),
        ("fft to real, two dims", "[-, x, -] -> [-, x, -]"),
        ("approx_top_k", "[x, -] -> [x, -] [x, -]"),
    ],
)
def test_the_strategy_exists(name: str, wanted: str) -> None:
    strategies = enumerate_strategies(rule_of(operator_of(BY_NAME[name])), DeviceMesh.of({"x": 2}))
    assert wanted in {
        f"{' '.join(map(str, s.ins))} -> {' '.join(map(str, s.outs))}" for s in strategies
    }
