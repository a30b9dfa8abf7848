"""Every strategy of decompositions, solvers, transforms and products of groups, against the operator run whole."""

from __future__ import annotations

import pytest

from autopar.rules import rule_of
from tests.rules.build import Case, build
from tests.rules.cases_linear_algebra import LINEAR_ALGEBRA
from tests.rules.property import MESHES, check_rule


@pytest.mark.parametrize("case", LINEAR_ALGEBRA, ids=[case.name for case in LINEAR_ALGEBRA])
def test_every_strategy_computes_what_the_operator_computes(case: Case) -> None:
    found = build(case)
    assert found.op.kind == case.kind
    for mesh in MESHES:
        assert check_rule(found, rule_of(found.op), mesh) >= 1
