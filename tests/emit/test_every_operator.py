"""Every primitive with a rule, as a program of its own: however it is split JAX can trace it, and it runs."""

from __future__ import annotations

from functools import cache

import jax
import numpy as np
import pytest

from autopar.core.graph import OpNode
from autopar.core.mesh import DeviceMesh
from autopar.core.program import ShardedProgram
from autopar.core.space import Space
from autopar.core.strategy import Strategy
from autopar.emit.wrap import device_mesh, wrap
from tests.equivalence.cases import Case, inputs_of
from tests.equivalence.check import run
from tests.ops.all_cases import CASES
from tests.ops.build import Case as Operator
from tests.ops.build import raw
from tests.ops.property import assert_close

MESH = DeviceMesh.of({"x": 2, "y": 2})
LIMIT = 12
ALONE = frozenset({"mulhi", "philox2x32", "philox4x32"})
"""What XLA on CPU compiles for one device only: a product of words whose upper one is wanted."""
ELSEWHERE = frozenset({"copy", "device_put", "random_unwrap", "random_wrap", "stop_gradient"})
"""What the tracer leaves out, or puts operators on the words of keys in place of."""
QUICK = frozenset({"regularized_incomplete_beta", "ragged_dot_general"})
OPERATORS = [
    pytest.param(
        operator, id=operator.name, marks=[pytest.mark.slow] * (operator.kind not in QUICK)
    )
    for operator in CASES
    if operator.kind not in ELSEWHERE
]


@cache
def case_of(operator: Operator) -> Case:
    rng = np.random.default_rng(0)
    return Case(operator.function, tuple(arg.draw(rng) for arg in operator.args), "float32")


@cache
def space_of(operator: Operator) -> Space:
    return case_of(operator).space(MESH)


def subject(operator: Operator) -> OpNode:
    """The operator itself, among those that make its operands; where it is traced as others, the last of these."""
    graph = case_of(operator).graph
    return next((op for op in graph.ops if op.kind == operator.kind), graph.ops[-1])


def program_with(operator: Operator, strategy: int) -> ShardedProgram:
    """The program in which the operator has the strategy of this number, and everything else its first."""
    space = space_of(operator)
    choice = [0] * len(space.counts)
    choice[len(space.inputs) + subject(operator).id] = strategy
    return case_of(operator).program(space.stage(choice))


def split_ways(strategy: Strategy) -> int:
    """Over how many axes the operator is split."""
    return len({axis for _, axes in strategy.factors for axis in axes})


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_strategy_can_be_traced(operator: Operator) -> None:
    """At most LIMIT of them, drawn."""
    case, count = case_of(operator), len(space_of(operator).strategies[subject(operator).id])
    mesh = device_mesh(MESH, jax.devices())
    for strategy in np.random.default_rng(0).permutation(count)[:LIMIT]:
        program = program_with(operator, int(strategy))
        with case.precision():
            jax.eval_shape(wrap(program, mesh), *inputs_of(case))


@pytest.mark.parametrize("operator", [one for one in OPERATORS if one.values[0].kind not in ALONE])
def test_an_operator_split_as_far_as_may_be_runs(operator: Operator) -> None:
    case = case_of(operator)
    ways = [
        split_ways(strategy) for strategy in space_of(operator).strategies[subject(operator).id]
    ]
    found, _ = run(case, program_with(operator, ways.index(max(ways))))
    for result, whole in zip(jax.tree.leaves(found), jax.tree.leaves(case.expected), strict=True):
        assert_close(raw(result), raw(whole), operator.name)
