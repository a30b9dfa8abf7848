"""Resolve: the rule by which an operator is planned. Written, or found by trial, or none: then it is whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from autopar.core.graph import OpGraph, OpNode
from autopar.core.manual import manual_axes
from autopar.errors import UnsupportedPrimitive
from autopar.ops.rules.factor_rule import FactorRule
from autopar.ops.rules.notation import show
from autopar.ops.rules.registry import has_rule, rule_of, whole

FindRule = Callable[[OpNode], FactorRule | None]
"""What finds a rule by trial; it runs operators, which nothing in here does."""


@runtime_checkable
class Noting(Protocol):
    """A `FindRule` that says why it found nothing."""

    def note(self, op: OpNode) -> str:
        """A sentence about why there is no rule for `op`; "" where nothing is to be said."""
        ...


def note_of(find: FindRule, op: OpNode) -> str:
    """What `find` says of an operator that it finds no rule for, after a space; "" if nothing."""
    note = find.note(op) if isinstance(find, Noting) else ""
    return note and f" {note}"


def no_rule(_op: OpNode) -> FactorRule | None:
    """Finds nothing."""
    return None


def resolve(op: OpNode, find: FindRule, *, strict: bool = False) -> FactorRule:
    """The rule of `op`: a written one, else the one that `find` gives, else that it is whole.

    In the user's own shard_map what has no rule runs as it is, on the shards that it was given.

    Raises:
      UnsupportedPrimitive: if no rule is written and `strict`: what is found is evidence and no proof.
    """
    try:
        return rule_of(op)
    except UnsupportedPrimitive as error:
        if manual_axes(op):
            return whole(op)
        found = find(op)
        if not strict:
            return found or whole(op)
        if found is None:
            raise
        raise UnsupportedPrimitive(
            f"no sharding rule for {op.kind!r} ({op.source}). One was found by trial, which strict=True does not take: "
            f"if it is right, state it by autopar.register_rule({op.kind!r}, {show(found)})."
        ) from error


def found_rules(graph: OpGraph, find: FindRule) -> dict[str, tuple[OpNode, FactorRule]]:
    """The first operator of every kind that is planned by a rule found by trial, with that rule, by kind."""
    found: dict[str, tuple[OpNode, FactorRule]] = {}
    for op in graph.ops:
        if has_rule(op.kind) or op.kind in found or manual_axes(op):
            continue
        if (rule := find(op)) is not None:
            found[op.kind] = op, rule
    return found
