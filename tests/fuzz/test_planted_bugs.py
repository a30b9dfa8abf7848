"""The test of the fuzzer: what is broken on purpose is found within some dozens of cases, and made small."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from autopar.core.graph import OpNode
from autopar.emit.local import localize
from autopar.emit.local.shard import LocalOp, Run
from autopar.ops.rules import registry
from autopar.ops.rules.factor_rule import FactorRule
from tests.fuzz.case import FuzzCase, check, draw_case, first_difference
from tests.fuzz.shrink import shrink

MOST_CASES = 120


def first_failure(seeds: range = range(MOST_CASES)) -> FuzzCase:
    """The first case that fails; AssertionError if none does."""
    for seed in seeds:
        case = draw_case(seed)
        if check(case).verdict == "failed":
            return case
    raise AssertionError("the bug was not found")


def plant_rule(
    monkeypatch: pytest.MonkeyPatch, kind: str, change: Callable[[OpNode, FactorRule], FactorRule]
) -> None:
    rule = registry._RULES[kind]
    monkeypatch.setitem(registry._RULES, kind, lambda op: change(op, rule(op)))


def without_reduction(_: OpNode, rule: FactorRule) -> FactorRule:
    return replace(rule, reduced={factor: rule.reduced[factor] for factor in rule.carried})


def as_sum(_: OpNode, rule: FactorRule) -> FactorRule:
    return replace(rule, reduced=dict.fromkeys(rule.reduced, "sum"))


def swapped(op: OpNode, rule: FactorRule) -> FactorRule:
    """The dims of the result in another order, wherever their sizes are equal."""
    shape = op.outs[0].shape
    return replace(rule, outs=(tuple(reversed(rule.outs[0])),)) if shape == shape[::-1] else rule


def not_linear(op: OpNode, rule: FactorRule) -> FactorRule:
    """A sum of parts and a whole: the whole is added once on every device."""
    return replace(rule, carried={factor: places[:1] for factor, places in rule.carried.items()})


@pytest.mark.quick_share(2)
@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("dot_general", without_reduction),
        ("transpose", swapped),
        *(
            pytest.param(*planted, marks=pytest.mark.slow)
            for planted in (("reduce_max", as_sum), ("add", not_linear))
        ),
    ],
)
def test_a_wrong_rule_is_found(
    monkeypatch: pytest.MonkeyPatch, kind: str, change: Callable[[OpNode, FactorRule], FactorRule]
) -> None:
    plant_rule(monkeypatch, kind, change)
    first_failure()


def as_it_is(local: LocalOp) -> Run:
    """The localiser that forgets where the shard begins."""
    return local.bind(shape=local.out_shape()) if local.op.kind == "iota" else local.bind()


@pytest.mark.quick_share(3)
@pytest.mark.parametrize("kind", ["iota", "gather", "scatter-add"])
def test_a_wrong_localiser_is_found(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setitem(localize._LOCALISERS, kind, as_it_is)
    first_failure()


@pytest.mark.slow
def test_a_planted_bug_is_made_small_and_located(monkeypatch: pytest.MonkeyPatch) -> None:
    plant_rule(monkeypatch, "reduce_max", as_sum)
    small = shrink(first_failure())
    assert small.program.size <= 3
    assert "reduce_max" in first_difference(small)
