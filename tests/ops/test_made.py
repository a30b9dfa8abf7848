"""Every strategy of what is made from nothing, from bits, or over a named axis, against the operator run whole."""

from __future__ import annotations

import pytest

from autopar.ops.rules import rule_of
from tests.ops.build import Case, build
from tests.ops.cases_made import MADE
from tests.ops.property import MESHES, check_rule


@pytest.mark.parametrize("case", MADE, ids=[case.name for case in MADE])
def test_every_strategy_computes_what_the_operator_computes(case: Case) -> None:
    found = build(case)
    assert found.op.kind == case.kind
    for mesh in MESHES:
        assert check_rule(found, rule_of(found.op), mesh) >= 1
