"""Planted bugs: a reduction dropped from a rule, a collective from a program, two dims of a placement swapped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import pytest

from autopar.core.dataflow import dataflow
from autopar.core.graph import OpGraph
from autopar.core.placement import Placement
from autopar.core.plan import Stage
from autopar.core.program import Move, ShardedProgram
from autopar.core.strategy import Strategy
from autopar.errors import PlanFileError, ProgramError, RuleError
from autopar.ops.rules.factor_rule import FactorRule
from autopar.passes.pipeline import build_program
from autopar.passes.sink_all_reduce import SinkAllReduce
from autopar.passes.verify import verify
from autopar.redistribute.route import Router
from autopar.search.space import build_space, check_strategies
from autopar.trace import trace
from tests.passes.build import MESH, price


def product() -> tuple[OpGraph, Stage]:
    """tanh(x @ w) with the contraction split: every result of the product must be summed."""
    graph = trace(lambda x, w: jnp.tanh(x @ w), (jnp.ones((8, 16)), jnp.ones((16, 8)))).graph
    space = build_space(graph, dataflow(graph), MESH, keep=lambda _, strategies: strategies)
    (split,) = [
        s for s in space.strategies[0] if s.split == 8 and s.outs[0].unreduced == ("x", "y")
    ]
    whole = space.strategies[1][0]
    replicated = Placement.replicated(2)
    return graph, Stage(MESH, split.ins, (split, whole), (), (replicated,))


def program_of(graph: OpGraph, stage: Stage) -> ShardedProgram:
    return build_program(graph, dataflow(graph), stage, Router(MESH, price), price)


def test_without_bugs_all_is_well() -> None:
    graph, stage = product()
    program = program_of(graph, stage)
    verify(program)
    check_strategies(graph, stage)
    assert [move.kind for move in program.collectives] == ["all_reduce"]


@pytest.mark.parametrize("reduced", [None, {"m": "sum"}])
def test_a_rule_without_its_reduction_is_refused(reduced: Mapping[str, Any] | None) -> None:
    graph, _ = product()
    factors = {"ins": (("m", "k"), ("k", "n")), "outs": (("m", "n"),)}
    FactorRule.of(graph.ops[0], **factors, reduced={"k": "sum"})
    with pytest.raises(RuleError, match="factor 'k' is missing in a result and not reduced"):
        FactorRule.of(graph.ops[0], **factors, reduced=reduced)


def test_a_program_without_its_collective_is_refused() -> None:
    program = program_of(*product())
    (move,) = program.collectives
    kept = tuple(i for i in program.instructions if i is not move)
    with pytest.raises(ProgramError, match=f"reads value {move.outs[0]} before it is made"):
        verify(program.with_instructions(kept))
    # reading what was to be reduced instead is caught too
    skipped = tuple(i._replace(ins=move.ins) if move.outs[0] in i.ins else i for i in kept)
    with pytest.raises(ProgramError, match=r"\(tanh\) is not placed as its strategy says"):
        verify(program.with_instructions(skipped))
    assert isinstance(move, Move)


def test_the_pass_that_breaks_a_program_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(_: SinkAllReduce, program: ShardedProgram) -> ShardedProgram:
        return program.with_instructions(program.instructions[:-1])

    monkeypatch.setattr(SinkAllReduce, "apply", forgetful)
    with pytest.raises(ProgramError, match=r"after the pass sink_all_reduce: output value \d+ is"):
        program_of(*product())


@pytest.mark.parametrize("side", ["ins", "outs"])
def test_two_dims_swapped_in_a_strategy_are_refused(side: str) -> None:
    graph, stage = product()
    rows = next(s for s in build(graph) if s.outs[0] == Placement((("x", "y"), ())))
    good = replace(stage, strategies=(rows, stage.strategies[1]))
    check_strategies(graph, good)
    swapped = tuple(Placement(p.dims[::-1], p.unreduced, p.kind) for p in getattr(rows, side))
    bad = replace(good, strategies=(replace(rows, **{side: swapped}), stage.strategies[1]))
    with pytest.raises(
        PlanFileError, match=r"the plan runs 'dot_general' \(.*\) as .*, which is no strategy of it"
    ):
        check_strategies(graph, bad)
    with pytest.raises(PlanFileError, match="the plan has 1 operators, the function 2"):
        check_strategies(graph, replace(good, strategies=(rows,)))


def build(graph: OpGraph) -> tuple[Strategy, ...]:
    return build_space(
        graph, dataflow(graph), MESH, keep=lambda _, strategies: strategies
    ).strategies[0]


def test_two_dims_swapped_in_a_value_are_refused() -> None:
    program = program_of(*product())
    compute = program.instructions[0]
    value = program.values[compute.ins[0]]
    dims = value.placement.dims[::-1]
    with pytest.raises(ProgramError, match=r"\(dot_general\) is not placed as its strategy says"):
        verify(
            program.with_instructions(
                program.instructions, {value.id: value._replace(placement=Placement(dims))}
            )
        )
