"""Every primitive with a rule, as a program of its own: split as far as may be, it compiles and computes the same."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from autopar.core.mesh import DeviceMesh
from autopar.core.strategy import Strategy
from tests.equivalence.cases import Case
from tests.equivalence.check import run
from tests.rules.all_cases import CASES
from tests.rules.build import Case as Operator
from tests.rules.build import raw
from tests.rules.property import assert_close

MESH = DeviceMesh.of({"x": 2, "y": 2})
ALONE = frozenset({"mulhi", "philox2x32", "philox4x32"})
"""What XLA on CPU compiles for one device only: a product of words whose upper one is wanted."""
QUICK = frozenset({"regularized_incomplete_beta", "cumsum", "eigh"})


def split_ways(strategy: Strategy) -> int:
    """Over how many axes the operator is split."""
    return len({axis for _, axes in strategy.factors for axis in axes})


@pytest.mark.parametrize(
    "operator",
    [
        pytest.param(operator, id=operator.name, marks=[pytest.mark.slow] * (operator.kind not in QUICK))
        for operator in CASES
        if operator.kind not in ALONE
    ],
)
def test_an_operator_split_as_far_as_may_be(operator: Operator) -> None:
    rng = np.random.default_rng(0)
    case = Case(operator.function, tuple(arg.draw(rng) for arg in operator.args), "float32")
    space = case.space(MESH)
    choice = [0] * len(space.counts)
    for op in case.graph.ops:
        ways = [split_ways(strategy) for strategy in space.strategies[op.id]]
        choice[len(space.inputs) + op.id] = ways.index(max(ways))
    found, _ = run(case, case.program(space.stage(choice)))
    for result, whole in zip(jax.tree.leaves(found), jax.tree.leaves(case.expected), strict=True):
        assert_close(raw(result), raw(whole), operator.name)
