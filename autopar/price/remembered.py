"""Remembered: a pricing that is asked once for equal operators under one strategy."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from autopar.core.graph import OpNode
from autopar.core.placement import StepKind
from autopar.core.strategy import Strategy
from autopar.price.pricing import Batched, Floats, Layout, Pricing

_Key = tuple[Hashable, Hashable, int]


@dataclass(frozen=True, eq=False)
class Remembered:
    """`pricing`, whose answers for operators of one signature and context are kept: repeated layers share them.

    Those of an operator object under a strategy object are found at once.
    """

    pricing: Pricing
    _costs: dict[_Key, tuple[Strategy, float]] = field(default_factory=dict[_Key, tuple[Strategy, float]])
    _found: dict[tuple[int, int], tuple[OpNode, Strategy, float]] = field(
        default_factory=dict[tuple[int, int], tuple[OpNode, Strategy, float]]
    )

    def op_cost(self, op: OpNode, strategy: Strategy) -> float:
        """As `pricing`."""
        known = self._found.get((id(op), id(strategy)))
        if known is None:
            known = op, strategy, self._cost(op, strategy)  # both keep their ids
            self._found[id(op), id(strategy)] = known
        return known[2]

    def _cost(self, op: OpNode, strategy: Strategy) -> float:
        key = (op.signature, self.pricing.context(op), id(strategy))
        if key not in self._costs:
            self._costs[key] = strategy, self.pricing.op_cost(op, strategy)  # the strategy keeps its id
        return self._costs[key][1]

    def op_costs(self, op: OpNode, strategies: tuple[Strategy, ...], layout: Layout) -> Floats | None:
        """As `pricing`."""
        return self.pricing.op_costs(op, strategies, layout) if isinstance(self.pricing, Batched) else None

    def context(self, op: OpNode) -> Hashable:
        """As `pricing`."""
        return self.pricing.context(op)

    def step_cost(self, kind: StepKind, axes: tuple[str, ...], size_bytes: int) -> float:
        """As `pricing`."""
        return self.pricing.step_cost(kind, axes, size_bytes)

    def keep(self, op: OpNode, strategies: tuple[Strategy, ...]) -> tuple[Strategy, ...]:
        """As `pricing`."""
        return self.pricing.keep(op, strategies)
