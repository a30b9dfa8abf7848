"""The tests of these tests: what is broken on purpose is found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autopar.core.graph import OpNode
from autopar.core.placement import Placement
from autopar.core.plan import Stage
from autopar.core.program import Move, ShardedProgram
from autopar.core.space import Space
from autopar.core.strategy import Strategy
from autopar.errors import ProgramError, RuleError
from autopar.inspect.compare import compare
from autopar.ops.rules import registry
from autopar.ops.rules.factor_rule import FactorRule
from autopar.passes.verify import verify
from tests.equivalence.cases import Case, assert_equal, space_of, step_case
from tests.equivalence.check import check, collectives, prove, run
from tests.equivalence.draw import uniform_plan
from tests.passes.build import without

SPLIT_ROWS = Placement((("x",), ()))


@pytest.fixture
def mlp() -> Case:
    return step_case("mlp", "sgd")


@pytest.fixture
def unproven(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves JAX's check of replication out, so that only the values can tell."""
    monkeypatch.setattr(ShardedProgram, "proves_replication", False)


def products_split(case: Case, mesh: str) -> Stage:
    """Everything replicated but for matrix products: these split the dim that they sum over."""
    space = space_of(case, mesh)
    choice = [0] * len(space.counts)
    for op in case.graph.ops:
        if op.kind == "dot_general":
            choice[len(space.inputs) + op.id] = contracted(space, op)
    return space.stage(choice)


def contracted(space: Space, op: OpNode) -> int:
    """The strategy of a matrix product that splits the dim that is summed over, along all axes."""
    names = tuple(sorted(space.mesh.names))
    (found,) = (
        n
        for n, s in enumerate(space.strategies[op.id])
        if s.outs[0].unreduced == names and not any(p.unreduced for p in s.ins)
    )
    return found


def unfused(case: Case, stage: Stage) -> ShardedProgram:
    return case.states(stage)["mark_mirror"]


def reductions(program: ShardedProgram) -> list[Move]:
    return [move for move in program.collectives if move.kind == "all_reduce"]


def test_a_dropped_collective_breaks_the_program(mlp: Case) -> None:
    program = unfused(mlp, uniform_plan(space_of(mlp, "2x4"), 1))
    assert len({move.kind for move in program.collectives}) == 5
    inner = [
        move for move in program.collectives if not set(move.outs).intersection(program.outputs)
    ]
    assert len(inner) > 100
    for move in inner:
        with pytest.raises(ProgramError):
            verify(without(program, move))


def test_jax_finds_a_dropped_reduction(mlp: Case) -> None:
    program = unfused(mlp, products_split(mlp, "8"))
    prove(mlp, program)
    assert len(reductions(program)) > 5
    for move in reductions(program):
        with pytest.raises(ValueError, match="out_specs"):
            prove(mlp, without(program, move))


@pytest.mark.usefixtures("unproven")
@pytest.mark.parametrize("which", [0, -1])
def test_values_tell_of_a_dropped_reduction(mlp: Case, which: int) -> None:
    program = unfused(mlp, products_split(mlp, "8"))
    check(mlp, program)
    found, _ = run(mlp, without(program, reductions(program)[which]))
    with pytest.raises(AssertionError, match="error"):
        assert_equal(mlp.expected, found, mlp.dtype)


@pytest.mark.usefixtures("unproven")
def test_the_hlo_tells_of_a_dropped_collective(mlp: Case) -> None:
    program = unfused(mlp, products_split(mlp, "8"))
    comparison = compare(program, collectives(mlp, without(program, reductions(program)[0])))
    assert [vanished.reason for vanished in comparison.vanished] == ["unknown"]
    assert not comparison.explained


@pytest.mark.usefixtures("unproven")
def test_values_tell_of_two_dims_swapped(mlp: Case) -> None:
    """A product placed [x, y] said to be placed [y, x]: every shape is right, every move as its placements say."""
    space = space_of(mlp, "2x2x2")
    stage = space.stage([0] * len(space.counts))
    product = next(op for op in mlp.graph.ops if op.kind == "dot_general")
    straight = next(s for s in space.strategies[product.id] if s.outs[0].dims == (("x",), ("y",)))
    swapped = replace(straight, outs=(Placement((("y",), ("x",))),))
    check(mlp, mlp.program(with_strategy(stage, product, straight)))
    with pytest.raises(AssertionError, match="error"):
        check(mlp, mlp.program(with_strategy(stage, product, swapped)))


def with_strategy(stage: Stage, op: OpNode, strategy: Strategy) -> Stage:
    return replace(
        stage, strategies=(*stage.strategies[: op.id], strategy, *stage.strategies[op.id + 1 :])
    )


@pytest.fixture
def careless_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """dot_general's rule without its reduction, past the check of rules."""
    rule = registry._RULES["dot_general"]

    def careless(op: OpNode) -> FactorRule:
        right = rule(op)
        return replace(right, reduced={factor: right.reduced[factor] for factor in right.carried})

    monkeypatch.setitem(registry._RULES, "dot_general", careless)


@pytest.mark.usefixtures("careless_products", "unproven")
def test_values_tell_of_a_rule_without_its_reduction(mlp: Case) -> None:
    with pytest.raises(AssertionError, match="error"):
        check(mlp, mlp.program(careless_plan(mlp)))


@pytest.mark.usefixtures("careless_products")
def test_jax_tells_of_a_rule_without_its_reduction(mlp: Case) -> None:
    with pytest.raises(ValueError, match="out_specs"):
        prove(mlp, unfused(mlp, careless_plan(mlp)))


def careless_plan(case: Case) -> Stage:
    """The first product split along the dim that is summed over, all else replicated."""
    space = case.space(space_of(case, "8").mesh)
    stage = space.stage([0] * len(space.counts))
    product = next(op for op in case.graph.ops if op.kind == "dot_general")
    careless = next(s for s in space.strategies[product.id] if s.ins[1] == SPLIT_ROWS)
    assert not careless.outs[0].varying_axes
    return with_strategy(stage, product, careless)


def test_a_rule_refuses_to_lose_its_reduction(mlp: Case) -> None:
    product = next(op for op in mlp.graph.ops if op.kind == "dot_general")
    rule = registry.rule_of(product)
    assert rule.reduced
    with pytest.raises(RuleError, match="missing in a result and not reduced"):
        FactorRule.of(product, ins=rule.ins, outs=rule.outs)


def test_the_comparison_of_values_is_as_strict_as_it_says() -> None:
    wanted: Any = {"loss": np.float64(2.0), "grads": np.array([1.0, 1e-3])}
    for error in (9e-11, 3e-10):
        off = wanted | {"grads": wanted["grads"] + error}
        if error < 1e-10:
            assert_equal(wanted, off, "float64")
        else:
            with pytest.raises(AssertionError, match="result 0"):
                assert_equal(wanted, off, "float64")
    with pytest.raises(AssertionError, match="error nan"):
        assert_equal(wanted, wanted | {"loss": np.float64(np.nan)}, "float64")
    single: Any = {"loss": np.float32(2.0), "grads": np.array([1.0, 1e-3], np.float32)}
    assert_equal(single, single | {"loss": np.float32(2.00001)}, "float32")
    with pytest.raises(AssertionError, match="result 1"):
        assert_equal(single, single | {"loss": np.float32(2.00004)}, "float32")
    with pytest.raises(AssertionError, match="result 0"):
        assert_equal(single, single | {"grads": np.array([1.0, 1.2e-3], np.float32)}, "float32")
