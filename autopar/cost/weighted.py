"""Weighted: a pricing under which communicating counts as more or less than the time that it takes."""

from __future__ import annotations

from dataclasses import dataclass

from autopar.core.graph import OpNode
from autopar.core.placement import StepKind
from autopar.core.strategy import Exchange, Strategy
from autopar.cost.exchange_costs import exchange_cost
from autopar.cost.pricing import Wrapped


@dataclass(frozen=True)
class Weighted(Wrapped):
    """`pricing` where a second of communicating counts as `weight` seconds, as a part of it may hide.

    What a device copies for it counts in full.
    """

    weight: float

    def step_cost(self, kind: StepKind, axes: tuple[str, ...], size_bytes: int) -> float:
        """As `pricing`; of a collective what counts."""
        cost = self.pricing.step_cost(kind, axes, size_bytes)
        return cost if kind in ("slice", "mask") else self.weight * cost

    def exchange_cost(self, op: OpNode, strategy: Strategy, exchange: Exchange) -> float:
        """As `pricing`, of what counts."""
        return self.weight * exchange_cost(self.pricing, op, strategy, exchange)
