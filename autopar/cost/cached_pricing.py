"""Remembered: a pricing that is asked once for equal operators of a graph under one strategy."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cached_property
from weakref import WeakKeyDictionary

from autopar.core.graph import OpGraph, OpNode
from autopar.core.strategy import Strategy
from autopar.cost.pricing import Contextual, Wrapped

_KNOWN: WeakKeyDictionary[
    OpGraph, dict[Hashable, tuple[list[int], dict[tuple[Hashable, Hashable], int]]]
] = WeakKeyDictionary()
"""Numbers of a graph's operators, and what each stands for, by the contexts that they are of."""


@dataclass(frozen=True, eq=False)
class Remembered(Wrapped):
    """`pricing`, whose answers for operators of one signature and context are kept: repeated layers share them."""

    graph: OpGraph
    _numbers: dict[tuple[Hashable, Hashable], int] = field(
        default_factory=dict[tuple[Hashable, Hashable], int]
    )
    _kinds: dict[int, tuple[OpNode, int]] = field(default_factory=dict[int, tuple[OpNode, int]])
    _costs: dict[tuple[int, int], tuple[Strategy, float]] = field(
        default_factory=dict[tuple[int, int], tuple[Strategy, float]]
    )

    def op_cost(self, op: OpNode, strategy: Strategy) -> float:
        """As `pricing`."""
        key = self.context(op), id(strategy)
        known = self._costs.get(key)
        if known is None:
            # the strategy keeps its id
            known = self._costs[key] = (
                strategy,
                self.pricing.op_cost(op, strategy),
            )
        return known[1]

    def context(self, op: OpNode) -> int:
        """A number for the operator's signature and what `pricing` looks at beside it."""
        if op.id < len(self._ops) and self._ops[op.id] is op:
            return self._of_graph[op.id]
        known = self._kinds.get(id(op))
        if known is None:
            number = self._numbers.setdefault(
                (op.signature, self.pricing.context(op)), len(self._numbers)
            )
            known = self._kinds[id(op)] = op, number  # the operator keeps its id
        return known[1]

    @cached_property
    def _ops(self) -> tuple[OpNode, ...]:
        return self.graph.ops

    @cached_property
    def _of_graph(self) -> list[int]:
        """The numbers of all operators of the graph: those of another mesh where contexts are the same there."""
        if not isinstance(self.pricing, Contextual) or self._numbers:
            return self._numbered()
        known = _KNOWN.setdefault(self.graph, {})
        key = self.pricing.contexts
        if key not in known:
            known[key] = self._numbered(), self._numbers.copy()
        found, numbers = known[key]
        self._numbers.update(numbers)
        return found

    def _numbered(self) -> list[int]:
        numbers = self._numbers
        context = self.pricing.context
        return [
            numbers.setdefault((first, context(op)), len(numbers))
            for op, first in zip(self.graph.ops, self.graph.alike, strict=True)
        ]
