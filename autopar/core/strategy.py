"""Strategy: a choice for one operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from autopar.core.placement import Placement, StepKind

Path = Literal["line", "ring", "mirror", "stated"]


@dataclass(frozen=True)
class Hop:
    """To whom a device sends in a permute: to the device `distance` places on, below 0 to one before it.

    On a "line" devices at an end send to nobody, and those that nobody sends to receive zeros. In a "ring" the first
    device comes after the last. On a "mirror" it is the device as far from the end as this one is from the beginning.
    Where they are "stated" these pairs (from, to) are all there are.
    """

    distance: int
    path: Path = "line"
    stated: tuple[tuple[int, int], ...] = ()

    def __str__(self) -> str:
        if self.path == "stated":
            return f"{len(self.stated)} pairs"
        names = {Hop(1): "next", Hop(-1): "previous", Hop(0, "mirror"): "mirror"}
        around = " in a ring" if self.path == "ring" else ""
        return names.get(self, f"{self.distance:+d}{around}")

    def pairs(self, count: int) -> list[tuple[int, int]]:
        """The pairs (from, to) of the permute among `count` devices."""
        if self.path == "stated":
            return [*self.stated]
        if self.path == "mirror":
            return [(n, count - 1 - n) for n in range(count)]
        if self.path == "ring":
            return [(n, (n + self.distance) % count) for n in range(count)]
        return [(n, n + self.distance) for n in range(count) if 0 <= n + self.distance < count]


NEXT = Hop(1)
PREVIOUS = Hop(-1)
MIRROR = Hop(0, "mirror")


@dataclass(frozen=True)
class Exchange:
    """A collective that an operator runs inside itself, or is itself (`core.manual`).

    `axes` stand in mesh order; devices are counted along them, major to minor. `size_bytes` is what one device holds of
    the message before or after, whichever is larger. `tensor` is the operand that is sent (results count on behind the
    operands). `hop` is given for a permute, and only there. It is sent once; or in each of so many `rounds`, each time
    beside what the operator computes in that round.
    """

    kind: StepKind
    axes: tuple[str, ...]
    size_bytes: int
    tensor: int
    hop: Hop | None = None
    rounds: int = 0

    def __post_init__(self) -> None:
        if self.kind in ("slice", "mask"):
            raise ValueError(f"an operator exchanges by collectives, not by {self.kind}")
        if (self.kind == "permute") != (self.hop is not None):
            raise ValueError(f"an exchange by {self.kind} goes to {self.hop}")
        if not self.axes or min(self.size_bytes, self.tensor, self.rounds) < 0:
            raise ValueError(
                f"an exchange needs axes, and numbers >= 0: {self.axes}, {self.size_bytes}, {self.tensor}, "
                f"{self.rounds}"
            )


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


@dataclass(frozen=True, eq=False)
class StrategyArrays:
    """An operator's strategies as arrays.

    `parts[tensor, strategy]` is into how many parts each operand and result is split, `split[strategy]` into how many
    the work is; `exchanging` are the strategies that communicate inside.
    """

    parts: NDArray[np.int64]
    split: NDArray[np.int64]
    exchanging: tuple[int, ...]
