"""The registry: primitive name -> rule."""

from __future__ import annotations

from collections.abc import Callable

from autopar.core.graph import OpNode
from autopar.errors import RuleError, UnsupportedPrimitive
from autopar.ops.rules.factor_rule import FactorRule

Rule = Callable[[OpNode], FactorRule]
_RULES: dict[str, Rule] = {}
_WHOLE: dict[str, str] = {}
_SHIPPED: set[str] = set()
_YIELDING: dict[str, Rule] = {}


def rule_for(*kinds: str, yields: bool = False) -> Callable[[Rule], Rule]:
    """Decorator: registers a function as the rule of the primitives `kinds`.

    With `yields` it holds as long as the user states none: only he knows what can be split.

    Raises:
      RuleError: if one of them has a rule already.
    """

    def decorate(rule: Rule) -> Rule:
        for kind in kinds:
            register(kind, rule)
            _SHIPPED.add(kind)
            if yields:
                _YIELDING[kind] = rule
        return rule

    return decorate


def register(kind: str, rule: Rule, *, replace: bool = False) -> None:
    """`rule` is the rule of the primitive or operator `kind` from now on.

    Raises:
      RuleError: if `kind` has a rule already, which does not yield, and not `replace`.
    """
    if kind in _RULES and not replace and _RULES[kind] is not _YIELDING.get(kind):
        raise RuleError(
            f"{kind!r} has a rule already. Pass replace=True to put another in its place."
        )
    _RULES[kind] = rule


def unregister(kind: str) -> Rule:
    """Takes the rule of `kind` out of the registry and gives it back; one that yielded to it holds again.

    Raises:
      KeyError: if it has none.
    """
    taken = _RULES.pop(kind)
    if kind in _YIELDING:
        _RULES[kind] = _YIELDING[kind]
    return taken


def register_whole(*kinds: str, reason: str) -> None:
    """States that the primitives `kinds` can never be split, and why: their rule is `whole`.

    Raises:
      ValueError: if one of them has a rule already.
    """
    rule_for(*kinds)(whole)
    _WHOLE.update(dict.fromkeys(kinds, reason))


def reason_whole(kind: str) -> str | None:
    """Why the primitive `kind` is never split; None where that is not stated."""
    return _WHOLE.get(kind)


def registered() -> tuple[str, ...]:
    """The names of all primitives whose rules ship with autopar, sorted; without the user's, and without functions."""
    return tuple(sorted(_SHIPPED))


def has_rule(kind: str) -> bool:
    """Whether the primitive or function `kind` has a rule."""
    return kind in _RULES


def registered_rules() -> dict[str, Rule]:
    """The rule of every primitive that has one, by name, sorted."""
    return {kind: _RULES[kind] for kind in sorted(_RULES)}


def rule_of(op: OpNode) -> FactorRule:
    """The rule of `op`.

    Raises:
      UnsupportedPrimitive: if its primitive has none.
    """
    if op.kind not in _RULES:
        raise UnsupportedPrimitive(
            f"no sharding rule for {op.kind!r} ({op.source}). Register one with autopar.register_rule, or pass "
            f"strict=False to replicate it."
        )
    return _RULES[op.kind](op)


def whole(op: OpNode) -> FactorRule:
    """The rule that splits nothing: every dim frozen. What an operator without a rule gets."""
    ins = [[f"i{n}.{d}" for d in range(t.ndim)] for n, t in enumerate(op.ins)]
    outs = [[f"o{n}.{d}" for d in range(t.ndim)] for n, t in enumerate(op.outs)]
    frozen = [factor for tensor in (*ins, *outs) for factor in tensor]
    return FactorRule.of(op, ins=ins, outs=outs, frozen=frozen)
