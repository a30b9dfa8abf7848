"""What a split factor sends inside an operator, for the ways of sending that several rules share."""

from __future__ import annotations

from collections.abc import Callable

from autopar.core.halo import Halo
from autopar.core.strategy import MIRROR, Hop
from autopar.ops.rules.factor_rule import Traffic, TrafficOf

Place = tuple[int, int, Callable[[int], Halo | None]]


def neighbours(*places: Place) -> TrafficOf:
    """Elements of neighbours: for each place a tensor, its dim, and the halo for so many parts."""

    def traffic(parts: int) -> tuple[Traffic, ...] | None:
        found: list[Traffic] = []
        for tensor, dim, halo_of in places:
            halo = halo_of(parts)
            if halo is None:
                return None
            for piece in halo.pieces:
                if piece.distance:
                    elements = piece.end - piece.begin
                    found.append(Traffic("permute", tensor, dim, elements, Hop(-piece.distance)))
            found.append(Traffic("permute", tensor, dim, 0, extent=halo.length))
        return tuple(found)

    return traffic


def mirrored(tensor: int, dim: int, size: int) -> TrafficOf:
    """Whole shards of a dim of `size` elements, sent to the device at the other end."""
    return lambda parts: (Traffic("permute", tensor, dim, size // parts, MIRROR),)


def gathered(*places: tuple[int, int | None, Callable[[int], int]]) -> TrafficOf:
    """All-gathers: for each place a tensor, its dim, and how many elements of it each of so many devices sends."""

    def traffic(parts: int) -> tuple[Traffic, ...]:
        return tuple(
            Traffic("all_gather", tensor, dim, parts * count(parts))
            for tensor, dim, count in places
        )

    return traffic


def is_possible(size: int, traffic_of: TrafficOf) -> bool:
    """Whether a factor of `size` can be cut into any number of parts at all."""
    return any(size % parts == 0 and traffic_of(parts) is not None for parts in range(2, size + 1))
