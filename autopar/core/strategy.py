"""Strategy: a choice for one operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autopar.core.placement import Placement, StepKind

Hop = Literal["next", "previous", "mirror"]
"""To whom a device sends in a permute: to the device after it, to the one before it, or to the one as far from the end
as it is from the beginning. Those at an end that nobody sends to receive zeros."""


@dataclass(frozen=True)
class Exchange:
    """A collective that an operator runs inside itself: a permute between neighbours, or an all-gather.

    `axes` stand in mesh order; devices are counted along them, major to minor. `size_bytes` is what one device holds of
    the message before or after, whichever is larger. `tensor` is the operand that is sent (results count on behind the
    operands). `hop` is given for a permute, and only there.
    """

    kind: StepKind
    axes: tuple[str, ...]
    size_bytes: int
    tensor: int
    hop: Hop | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("permute", "all_gather"):
            raise ValueError(f"an operator exchanges by permute or all_gather, not by {self.kind}")
        if (self.kind == "permute") != (self.hop is not None):
            raise ValueError(f"an exchange by {self.kind} goes to {self.hop}")
        if not self.axes or self.size_bytes < 0 or self.tensor < 0:
            raise ValueError(f"an exchange needs axes, and numbers >= 0: {self.axes}, {self.size_bytes}, {self.tensor}")


@dataclass(frozen=True)
class Strategy:
    """The placements of one operator's operands and results, and what it communicates inside.

    `factors` says which mesh axes each factor of the rule was given, major to minor (factors without axes are left
    out). `split` is the number of parts the operator's work is cut into: the devices along factors that are dims,
    without those that only carry unreduced values through. `exchanges` are the collectives that it runs,
    those along one dim of one tensor in order.
    """

    ins: tuple[Placement, ...]
    outs: tuple[Placement, ...]
    factors: tuple[tuple[str, tuple[str, ...]], ...] = ()
    split: int = 1
    exchanges: tuple[Exchange, ...] = ()

    def axes_of(self, factor: str) -> tuple[str, ...]:
        """The mesh axes given to `factor`, major to minor; () if it is whole."""
        return dict(self.factors).get(factor, ())


def hop_pairs(hop: Hop, count: int) -> list[tuple[int, int]]:
    """The pairs (from, to) of a permute among `count` devices."""
    if hop == "mirror":
        return [(n, count - 1 - n) for n in range(count)]
    forward = [(n, n + 1) for n in range(count - 1)]
    return forward if hop == "next" else [(after, before) for before, after in forward]
