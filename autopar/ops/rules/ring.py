"""What devices send each other along a sequence whose blocks travel from one to the next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autopar.core.ring import AROUND, Zigzag, zigzag
from autopar.ops.rules.factor_rule import Traffic

Place = tuple[int, int]
"""A tensor (results count on behind the operands), and its dim of places in the sequence."""


@dataclass(frozen=True)
class RingTraffic:
    """What is sent of a sequence of `size` places.

    The blocks of `moved` go all the way round but for the last step, beside computing. Those of `summed` are results
    that go with them and home, with `summed_bytes` for an element. In a causal one all operands (`entering`) are put in
    zigzag order first, and the results (`leaving`) put back.
    """

    size: int
    is_causal: bool
    entering: Sequence[Place]
    moved: Sequence[Place]
    summed: Sequence[Place]
    leaving: Sequence[Place]
    summed_bytes: int

    def __call__(self, parts: int) -> tuple[Traffic, ...] | None:
        """As `TrafficOf`; None where halves of shards do not come out even."""
        shard = self.size // parts
        if self.is_causal and shard % 2:
            return None
        return tuple(self._sent(parts, shard))

    def _sent(self, parts: int, shard: int) -> Iterator[Traffic]:
        order = zigzag(parts)
        if self.is_causal:
            yield from _halves(self.entering, order, shard)
        for tensor, dim in self.moved:
            yield Traffic("permute", tensor, dim, shard, AROUND, rounds=parts - 1)
        for tensor, dim in self.summed:
            for rounds in (parts - 1, 0):
                yield Traffic(
                    "permute", tensor, dim, shard, AROUND, None, self.summed_bytes, rounds
                )
        if self.is_causal:
            yield from _halves(self.leaving, order.back, shard)


def _halves(places: Sequence[Place], order: Zigzag, shard: int) -> Iterator[Traffic]:
    for tensor, dim in places:
        for hop in order:
            yield Traffic("permute", tensor, dim, shard // 2, hop)
