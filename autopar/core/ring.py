"""Ring: devices that hand blocks of a sequence on, and the zigzag order in which causal work is the same for all.

Of `2 n` halves of shards device i has i and `2 n - 1 - i` in zigzag order. So it sees as many pairs of a query and an
earlier key as any other: one that is early in the first half is late in the second.

Reference: Liu, Zaharia and Abbeel 2023, "Ring attention with blockwise transformers"; Brandon et al. 2023, "Striped
attention"; the zigzag order is that of Zhu's ring-flash-attention.
"""

from __future__ import annotations

from typing import NamedTuple

from autopar.core.strategy import Hop

AROUND = Hop(1, "ring")
"""To the next device, from the last one to the first."""


class Zigzag(NamedTuple):
    """To whom a device sends the first and the second half of its shard."""

    first: Hop
    second: Hop

    @property
    def back(self) -> Zigzag:
        """The same halves, sent back."""
        return Zigzag(*(Hop(0, "stated", tuple((b, a) for a, b in hop.stated)) for hop in self))


def zigzag(parts: int) -> Zigzag:
    """From a run of elements for each of `parts` devices to zigzag order; every device gets one of either half.

    Device i has the earlier of its halves of those that were first ones where i is even, else of the second ones.
    """
    halves = [[(n, _owner(2 * n + half, parts)) for n in range(parts)] for half in (0, 1)]
    return Zigzag(*(Hop(0, "stated", tuple(pairs)) for pairs in halves))


def _owner(half: int, parts: int) -> int:
    return half if half < parts else 2 * parts - 1 - half
