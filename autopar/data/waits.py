"""Waits: how much of the time a loop over batches waits for them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Waits:
    """Over `batches` steps: seconds in which the loop waited for a batch, and seconds of all else that it did.

    The difference of two is what came between: `loader.waits - before`. JAX runs steps while the loop goes on: seconds
    of the loop are those of the devices where it waits for results now and then, as for a loss to show.
    """

    batches: int = 0
    waited_s: float = 0.0
    busy_s: float = 0.0

    @property
    def share(self) -> float:
        """The part of the time in which the loop waited for data, from 0 to 1."""
        whole = self.waited_s + self.busy_s
        return self.waited_s / whole if whole > 0 else 0.0

    def __add__(self, other: Waits) -> Waits:
        return Waits(
            self.batches + other.batches,
            self.waited_s + other.waited_s,
            self.busy_s + other.busy_s,
        )

    def __sub__(self, other: Waits) -> Waits:
        return Waits(
            self.batches - other.batches,
            self.waited_s - other.waited_s,
            self.busy_s - other.busy_s,
        )
