"""More strategies of every operator than every run of the tests tries, against the operator run whole."""

from __future__ import annotations

import pytest

from autopar.ops.rules import rule_of
from tests.ops.all_cases import CASES
from tests.ops.build import Case, build
from tests.ops.property import MESHES, check_rule

MANY = 64


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_many_strategies_compute_what_the_operator_computes(case: Case) -> None:
    found = build(case)
    assert check_rule(found, rule_of(found.op), MESHES[-1], MANY) >= 1
