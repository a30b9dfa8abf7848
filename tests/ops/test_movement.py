"""Every strategy of every operator that move, index, window and number elements, against the operator run whole."""

from __future__ import annotations

import pytest

from autopar.core.mesh import DeviceMesh
from autopar.ops.rules import rule_of
from tests.ops.build import Case, build
from tests.ops.cases import INDEXING, RANDOM, SHAPES, WINDOWS
from tests.ops.property import MESHES, check_rule, name_of
from tests.quick_some import diagonal

CASES = [*INDEXING, *RANDOM, *SHAPES, *WINDOWS]


@pytest.mark.parametrize(("case", "mesh"), diagonal(CASES, MESHES), ids=name_of)
def test_every_strategy_computes_what_the_operator_computes(case: Case, mesh: DeviceMesh) -> None:
    found = build(case)
    assert found.op.kind == case.kind
    assert check_rule(found, rule_of(found.op), mesh) >= 1
