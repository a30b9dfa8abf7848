"""price_exchanges: what operators communicate inside, as collectives of the program with their prices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autopar.core.graph import OpNode
from autopar.core.manual import COLLECTIVES
from autopar.core.program import Compute, Instruction, Move, ShardedProgram
from autopar.core.strategy import NEXT, PREVIOUS, Exchange, Strategy

ExchangePrice = Callable[[OpNode, Strategy, Exchange], float]
"""What one exchange of an operator costs under a strategy, in all its rounds."""


@dataclass(frozen=True)
class PriceExchanges:
    """Gives every operator the moves that its strategy's exchanges are, priced by `price`."""

    price: ExchangePrice
    name: str = "price_exchanges"

    def apply(self, program: ShardedProgram) -> ShardedProgram:
        """`program` with the exchanges of its operators listed."""
        listed: list[Instruction] = [
            self._listed(i) if isinstance(i, Compute) and i.strategy.exchanges else i
            for i in program.instructions
        ]
        return program.with_instructions(tuple(listed))

    def _listed(self, compute: Compute) -> Compute:
        moves = tuple(self._move(compute, exchange) for exchange in compute.strategy.exchanges)
        return compute._replace(exchanges=moves)

    def _move(self, compute: Compute, exchange: Exchange) -> Move:
        value = (*compute.ins, *compute.outs)[exchange.tensor]
        named = compute.op.params.get("primitive") if compute.op.kind in COLLECTIVES else None
        where = f" to the {exchange.hop}" if exchange.hop in (NEXT, PREVIOUS) else ""

        return Move(
            exchange.kind,
            exchange.axes,
            (value,),
            _served(compute, exchange) if value in compute.ins else (value,),
            exchange.size_bytes,
            self.price(compute.op, compute.strategy, exchange),
            "exchange",
            region=compute.region,
            source=compute.op.source,
            reason=f"the function's own {named}" if named else f"inside {compute.op.kind}{where}",
            hop=exchange.hop,
            rounds=exchange.rounds,
        )


def _served(compute: Compute, exchange: Exchange) -> tuple[int, ...]:
    """The results for which an operand is sent: in a sort what is no key, or goes back at the end, for one only."""
    op = compute.op
    if op.kind == "sort" and (exchange.tensor >= op.params["num_keys"] or exchange.hop == PREVIOUS):
        return (compute.outs[exchange.tensor],)
    return compute.outs
