"""The one enumerator: from an operator's rule and a mesh, every strategy."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Dims, Kind, Placement
from autopar.core.strategy import Strategy
from autopar.rules.factor_rule import Factor, FactorRule, TensorFactors

Assignment = dict[Factor, tuple[str, ...]]


def enumerate_strategies(rule: FactorRule, mesh: DeviceMesh) -> tuple[Strategy, ...]:
    """Every strategy of the operator on `mesh`, the replicated one first, in a fixed order.

    A mesh axis goes to at most one factor; several axes on one factor stand in mesh order. What does not divide
    evenly, splits a minor factor of a compound dim before the major one is whole to the device, or would leave a
    tensor unreduced in two ways at once does not exist. Strategies with equal placements are listed once.
    """
    found: dict[tuple[tuple[Placement, ...], tuple[Placement, ...]], Strategy] = {}
    for assignment in _assignments(rule, mesh):
        strategy = _strategy(rule, mesh, assignment)
        if strategy is not None:
            found.setdefault((strategy.ins, strategy.outs), strategy)
    return tuple(found.values())


def _assignments(rule: FactorRule, mesh: DeviceMesh) -> Iterator[Assignment]:
    axes = [name for name, size in mesh.axes if size > 1]
    options = (None, *rule.factors) if rule.everywhere is None else (rule.everywhere,)
    for choice in product(options, repeat=len(axes)):
        assignment: Assignment = {}
        for axis, factor in zip(axes, choice, strict=True):
            if factor is not None:
                assignment[factor] = (*assignment.get(factor, ()), axis)
        if all(rule.sizes[factor] % mesh.product(given) == 0 for factor, given in assignment.items()):
            yield assignment


def _strategy(rule: FactorRule, mesh: DeviceMesh, given: Assignment) -> Strategy | None:
    ins: list[Placement] = []
    for operand, dims in enumerate(rule.ins):
        unreduced = [f for f in given if operand in rule.carried.get(f, ())]
        placement = _placement(rule, mesh, dims, given, unreduced)
        if placement is None:
            return None
        ins.append(placement)
    outs: list[Placement] = []
    for dims in rule.outs:
        held = {f for factors in dims for f in factors}
        unreduced = [f for f in given if f in rule.reduced and f not in held]
        placement = _placement(rule, mesh, dims, given, unreduced)
        if placement is None:
            return None
        outs.append(placement)
    split = mesh.product(axis for factor, axes in given.items() if rule.sizes[factor] for axis in axes)
    return Strategy(tuple(ins), tuple(outs), tuple(given.items()), split)


def _placement(
    rule: FactorRule, mesh: DeviceMesh, dims: TensorFactors, given: Assignment, unreduced: list[Factor]
) -> Placement | None:
    kinds: set[Kind] = {rule.reduced[f] for f in unreduced}
    if len(kinds) > 1:
        return None
    split: Dims = ()
    for factors in dims:
        if not _contiguous(rule, mesh, factors, given):
            return None
        split += (tuple(axis for f in factors for axis in given.get(f, ())),)
    axes = tuple(axis for f in unreduced for axis in given[f])
    return Placement(split, axes, kinds.pop() if kinds else "sum")


def _contiguous(rule: FactorRule, mesh: DeviceMesh, factors: tuple[Factor, ...], given: Assignment) -> bool:
    """Whether a shard of the compound dim is one run: a factor may be split only if those before it are used up."""
    if len(factors) == 1:
        return True
    whole = True
    for factor in factors:
        parts = mesh.product(given.get(factor, ()))
        if parts > 1 and not whole:
            return False
        whole = whole and parts == rule.sizes[factor]
    return True
