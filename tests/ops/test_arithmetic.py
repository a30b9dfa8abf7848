"""Every strategy of every operator that compute, against the operator run whole."""

from __future__ import annotations

import pytest

from autopar.core.mesh import DeviceMesh
from autopar.ops.rules import rule_of
from tests.ops.build import Case, build
from tests.ops.cases import ELEMENTWISE, PRODUCTS, REDUCTIONS
from tests.ops.property import MESHES, check_rule, name_of
from tests.quick_some import diagonal


def check(case: Case, mesh: DeviceMesh) -> None:
    """Every strategy of one case on one mesh."""
    found = build(case)
    assert found.op.kind == case.kind
    assert check_rule(found, rule_of(found.op), mesh) >= 1


@pytest.mark.quick_share(3)
@pytest.mark.parametrize(("case", "mesh"), diagonal(ELEMENTWISE, MESHES), ids=name_of)
def test_every_strategy_of_what_works_on_each_element_alone(case: Case, mesh: DeviceMesh) -> None:
    check(case, mesh)


@pytest.mark.parametrize(("case", "mesh"), diagonal([*PRODUCTS, *REDUCTIONS], MESHES), ids=name_of)
def test_every_strategy_computes_what_the_operator_computes(case: Case, mesh: DeviceMesh) -> None:
    check(case, mesh)
