"""Exchange costs: what an operator's exchanges cost beside its computing, where it sends in rounds."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from autopar.core.graph import OpNode
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import StepKind
from autopar.core.strategy import Exchange, Strategy
from autopar.ops.exchanged import joined_bytes, turns
from cost_models import Overlap
from cost_models.compute import Device, moving_time_s


class Priced(Protocol):
    """What knows the prices of operators and of collectives."""

    def op_cost(self, op: OpNode, strategy: Strategy) -> float:
        """As `Pricing`."""
        ...

    def step_cost(self, kind: StepKind, axes: tuple[str, ...], size_bytes: int) -> float:
        """As `Pricing`."""
        ...


@runtime_checkable
class Hiding(Protocol):
    """A pricing under which what is sent in rounds goes beside what the operator computes in them."""

    def exchange_cost(self, op: OpNode, strategy: Strategy, exchange: Exchange) -> float:
        """By how much an exchange of `strategy` makes `op` longer, in all its rounds."""
        ...


def exchange_cost(pricing: Priced, op: OpNode, strategy: Strategy, exchange: Exchange) -> float:
    """`Hiding.exchange_cost` of a pricing that has it; else that of every round."""
    if isinstance(pricing, Hiding):
        return pricing.exchange_cost(op, strategy, exchange)
    one = pricing.step_cost(exchange.kind, exchange.axes, exchange.size_bytes)
    return max(1, exchange.rounds) * one


def cost_beside(
    pricing: Priced, op: OpNode, strategy: Strategy, exchange: Exchange, overlap: Overlap | None
) -> float:
    """Seconds of an exchange; of one in rounds those by which it makes the operator longer.

        rounds * (max(computing, sending) - computing)

    with what both slow each other, of what all exchanges send in a round the share of this one. Of n devices each
    computes n blocks and sends in n - 1 rounds: the last block has arrived.
    """
    once = pricing.step_cost(exchange.kind, exchange.axes, exchange.size_bytes)
    if not exchange.rounds or not once:
        return once

    sent = [e for e in strategy.exchanges if e.rounds]
    sending = sum(pricing.step_cost(e.kind, e.axes, e.size_bytes) for e in sent)
    computing = pricing.op_cost(op, strategy) / (exchange.rounds + 1)
    longer = sending if overlap is None else overlap.together_s(computing, sending) - computing
    return exchange.rounds * longer * once / sending


def joining_s(op: OpNode, strategy: Strategy, mesh: DeviceMesh, device: Device) -> float:
    """Seconds of kernels that put together what an operator computes in rounds, and of launching it in each."""
    count = turns(strategy)
    if not count:
        return 0.0
    return count * (moving_time_s(joined_bytes(op, strategy, mesh), device) + 2 * device.launch_s)
