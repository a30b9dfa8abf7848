"""Exchanged: what a device holds and moves for what an operator sends inside, beside its operands and results."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from autopar.core.graph import OpNode
from autopar.core.manual import COLLECTIVES
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import StepKind
from autopar.core.strategy import Exchange, Strategy
from autopar.ops.traits import traits_of

_FLOAT32_BYTES = 4


class Sent(Protocol):
    """A collective, as a strategy or a program has it."""

    @property
    def kind(self) -> StepKind:
        """What it does."""
        ...

    @property
    def size_bytes(self) -> int:
        """What one device holds of it."""
        ...


def lengthening(op: OpNode, strategy: Strategy, mesh: DeviceMesh) -> tuple[Exchange, ...]:
    """The exchanges whose results are put beside the elements of a shard, on a copy of which the operator runs.

    Where it only moves elements from shard to shard of one size, what was sent and what stayed are the result. What
    is sent in rounds is used and sent on.
    """
    if op.kind in COLLECTIVES or turns(strategy):
        return ()
    if traits_of(op.kind).keeps_shards:
        before = strategy.ins[0].local_shape(op.ins[0].shape, mesh)
        if before == strategy.outs[0].local_shape(op.outs[0].shape, mesh):
            return ()
    return tuple(exchange for exchange in strategy.exchanges if exchange.kind != "all_to_all")


def sent_bytes(op: OpNode, sent: Iterable[Sent]) -> int:
    """What is held of what `op` sends, beside its operands and results.

    The user's own collective sends these themselves; on a copy in which the dim that it splits or joins comes first.
    """
    if op.kind in COLLECTIVES:
        return sum(one.size_bytes for one in sent) if any(map(any, op.params["dims"])) else 0
    return message_bytes(sent)


def message_bytes(sent: Iterable[Sent]) -> int:
    """What is held of messages, as they are sent and as they arrive: of all-to-alls, which follow one another, one."""
    beside = largest = 0
    for one in sent:
        if one.kind == "all_to_all":
            largest = max(largest, one.size_bytes)
        else:
            beside += one.size_bytes
    return 2 * (beside + largest)


def rounds(op: OpNode, strategy: Strategy) -> int:
    """How often a device does its share of the work: a sort among devices sorts every shard four times."""
    return 4 if op.kind == "sort" and strategy.exchanges else 1


def turns(strategy: Strategy) -> int:
    """In how many rounds beside the first what is sent is computed with: 0 where nothing goes round."""
    return max((exchange.rounds for exchange in strategy.exchanges), default=0)


def joined_bytes(op: OpNode, strategy: Strategy, mesh: DeviceMesh) -> int:
    """What a round reads and writes to add its results to what is known, in float32."""
    return sum(
        placement.local_size(tensor.shape, mesh) * (2 * _FLOAT32_BYTES + tensor.itemsize)
        for tensor, placement in zip(op.outs, strategy.outs, strict=True)
    )


def laid_out_bytes(op: OpNode, strategy: Strategy, mesh: DeviceMesh) -> int:
    """What is read and written to lay out messages and shards: lengthened ones, and what goes through an all-to-all."""
    joined = {
        (e.tensor, e.axes)
        for e in lengthening(op, strategy, mesh)
        if e.hop is not None and e.hop.path == "line"
    }
    copied = sum(
        strategy.ins[n].local_size(op.ins[n].shape, mesh) * op.ins[n].itemsize for n, _ in joined
    )
    return 2 * (copied + sum(e.size_bytes for e in strategy.exchanges if e.kind == "all_to_all"))
