"""The enumerator against its slow definition: every assignment, every tensor, one by one."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import prod

import pytest

from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.core.strategy import Strategy
from autopar.ops.rules.enumerate import enumerate_strategies
from autopar.ops.rules.factor_rule import FactorRule, TensorFactors
from autopar.ops.rules.registry import rule_of
from tests.ops.all_cases import CASES
from tests.ops.build import Case, operator_of

MESHES = [DeviceMesh.of({"x": 2, "y": 4}), DeviceMesh.of({"x": 2, "one": 1, "y": 2, "z": 2})]
SAMPLE = CASES[::7]


def slow(rule: FactorRule, mesh: DeviceMesh) -> list[Strategy]:
    """Without exchanges, which only some rules have: their strategies are left out on both sides."""
    axes = [name for name, size in mesh.axes if size > 1]
    options = [None, *rule.factors] if rule.everywhere is None else [rule.everywhere]
    found: dict[object, Strategy] = {}
    for choice in product(options, repeat=len(axes)):
        given: dict[str, tuple[str, ...]] = {}
        for axis, factor in zip(axes, choice, strict=True):
            if factor is not None:
                given[factor] = (*given.get(factor, ()), axis)
        if any(rule.sizes[factor] % mesh.product(mine) for factor, mine in given.items()):
            continue
        ins = [
            placed(rule, mesh, dims, given, [f for f in given if n in rule.carried.get(f, ())])
            for n, dims in enumerate(rule.ins)
        ]
        outs = [
            placed(rule, mesh, dims, given, [f for f in given if f in missing(rule, dims)])
            for dims in rule.outs
        ]
        if all(ins + outs) and not any(f in rule.exchanged for f in given):
            split = mesh.product(
                axis for factor, mine in given.items() if rule.sizes[factor] for axis in mine
            )
            strategy = Strategy(
                tuple(filter(None, ins)), tuple(filter(None, outs)), tuple(given.items()), split
            )
            found.setdefault((strategy.ins, strategy.outs), strategy)
    return list(found.values())


def missing(rule: FactorRule, dims: TensorFactors) -> set[str]:
    return set(rule.reduced) - {factor for factors in dims for factor in factors}


def placed(
    rule: FactorRule,
    mesh: DeviceMesh,
    dims: TensorFactors,
    given: dict[str, tuple[str, ...]],
    unreduced: list[str],
) -> Placement | None:
    for factors in dims:
        parts = [mesh.product(given.get(factor, ())) for factor in factors]
        for n, part in enumerate(parts):
            if part > 1 and prod(parts[:n]) != prod(rule.sizes[f] for f in factors[:n]):
                return None
    kinds = {rule.reduced[factor] for factor in unreduced} or {"sum"}
    if len(kinds) > 1:
        return None
    split = tuple(
        tuple(axis for factor in factors for axis in given.get(factor, ())) for factors in dims
    )
    return Placement(
        split, tuple(axis for factor in unreduced for axis in given[factor]), kinds.pop()
    )


@pytest.mark.quick_share(3)
@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("case", SAMPLE, ids=lambda case: case.name)
def test_as_defined_and_in_the_same_order(case: Case, mesh: DeviceMesh) -> None:
    rule = rule_of(operator_of(case))
    alone = replace(rule, ways=())
    found = [
        s
        for s in enumerate_strategies(alone, mesh)
        if not any(f in rule.exchanged for f, _ in s.factors)
    ]
    assert found == slow(rule, mesh)


def test_rules_that_are_divided_alike_share_their_strategies():
    """Of equal factors' sizes only what divides them evenly matters, but for those that make a dim together."""
    mesh = DeviceMesh.of({"x": 2, "y": 4})

    def plain(size: int) -> FactorRule:
        return FactorRule(ins=((("a",),),), outs=((("a",),),), sizes={"a": size})

    def joined(size: int) -> FactorRule:
        return FactorRule(ins=((("a", "b"),),), outs=((("a", "b"),),), sizes={"a": size, "b": 8})

    shared = enumerate_strategies(plain(8), mesh)
    assert enumerate_strategies(plain(24), mesh) is shared
    assert len(enumerate_strategies(plain(4), mesh)) < len(shared)
    assert enumerate_strategies(plain(0), mesh) != shared
    assert enumerate_strategies(joined(4), mesh) != enumerate_strategies(joined(12), mesh)
