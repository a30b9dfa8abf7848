"""Every strategy of every operator that compute, against the operator run whole."""

from __future__ import annotations

import pytest

from autopar.ops.rules import rule_of
from tests.ops.build import Case, build
from tests.ops.cases import ELEMENTWISE, PRODUCTS, REDUCTIONS
from tests.ops.property import MESHES, check_rule

CASES = [*ELEMENTWISE, *PRODUCTS, *REDUCTIONS]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_every_strategy_computes_what_the_operator_computes(case: Case) -> None:
    found = build(case)
    assert found.op.kind == case.kind
    for mesh in MESHES:
        assert check_rule(found, rule_of(found.op), mesh) >= 1
