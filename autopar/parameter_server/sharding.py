"""Which server holds what: leaves are cut by rows where they are large, and placed by bytes, the largest first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

from autopar.core.sizes import exact_bytes
from autopar.errors import ServerFull

PIECES_PER_SERVER = 2
"""No piece is larger than this part of a server's share, as far as rows go: then no server holds more than
1 + 1 / PIECES_PER_SERVER times the mean (Graham 1969: largest first exceeds the mean by a piece at most)."""


@dataclass(frozen=True)
class Leaf:
    """A parameter: what it is called, its shape and type, its bytes on a server with the optimizer's state, and whether
    it may be cut by rows.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    held_bytes: int
    may_cut: bool = True

    @property
    def rows(self) -> int:
        """Along the first dim; a scalar is one row."""
        return self.shape[0] if self.shape else 1


@dataclass(frozen=True, order=True)
class Shard:
    """Rows [start, stop) of a leaf. A scalar is row 0 of itself."""

    name: str
    start: int
    stop: int

    @property
    def key(self) -> str:
        """`kernel[0:64]`, its name on a server."""
        return f"{self.name}[{self.start}:{self.stop}]"


def place(
    leaves: Sequence[Leaf], capacities: Sequence[int | None]
) -> tuple[tuple[Shard, ...], ...]:
    """The shards of each server, which has room for `capacities[server]` bytes (None: for all that comes).

    Pieces go to the server that holds least among those with room, the largest first.

    Raises:
      ServerFull: a piece fits on no server.
    """
    share = sum(leaf.held_bytes for leaf in leaves) / len(capacities)
    pieces = [piece for leaf in leaves for piece in _pieces(leaf, share)]
    pieces.sort(key=lambda piece: (-piece[1], piece[0]))
    held = [0] * len(capacities)
    placed: list[list[Shard]] = [[] for _ in capacities]

    for shard, size in pieces:
        free = [n for n, most in enumerate(capacities) if most is None or held[n] + size <= most]
        if not free:
            raise ServerFull(_full(shard, size, held, capacities, leaves))
        server = min(free, key=held.__getitem__)
        held[server] += size
        placed[server].append(shard)

    return tuple(tuple(sorted(shards)) for shards in placed)


def _pieces(leaf: Leaf, share: float) -> list[tuple[Shard, int]]:
    """The leaf in pieces of nearly as many rows each, with their bytes."""
    wanted = ceil(leaf.held_bytes * PIECES_PER_SERVER / share) if share else 1
    count = max(1, min(wanted, leaf.rows)) if leaf.may_cut and leaf.shape else 1
    row_bytes = leaf.held_bytes / max(1, leaf.rows)
    bounds = [leaf.rows * n // count for n in range(count + 1)]
    return [
        (Shard(leaf.name, start, stop), ceil(row_bytes * (stop - start)))
        for start, stop in pairwise(bounds)
    ]


def _full(
    shard: Shard,
    size: int,
    held: Sequence[int],
    capacities: Sequence[int | None],
    leaves: Sequence[Leaf],
) -> str:
    servers = ", ".join(
        f"server {n} holds {exact_bytes(bytes_)} of {exact_bytes(most or 0)}"
        for n, (bytes_, most) in enumerate(zip(held, capacities, strict=True))
    )
    total = sum(leaf.held_bytes for leaf in leaves)
    return (
        f"{shard.key} takes {exact_bytes(size)} with the optimizer's state, and no server has room: {servers}. All "
        f"parameters take {exact_bytes(total)}. Start more servers, or raise their memory_limit_bytes"
    )
