"""Stages: how the layers of a function are divided among pipeline stages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stages:
    """Into how many stages (`count`) layers are divided, and their rows into how many micro-batches.

    A micro-batch goes through all stages `rounds` times, each of which holds as many runs of layers. In more than one
    round micro-batches go in groups of `count`, which divides their number.
    """

    count: int
    micro_batches: int
    rounds: int = 1

    def __post_init__(self) -> None:
        if self.rounds > 1 and self.micro_batches % self.count:
            raise ValueError(f"{self.micro_batches} micro-batches are no groups of {self.count}")

    @property
    def runs(self) -> int:
        """The runs of equally many layers that all stages hold."""
        return self.count * self.rounds

    @property
    def ticks(self) -> int:
        """How often all stages run at once, each on another micro-batch or on none."""
        return self.rounds * self.micro_batches + self.count - 1

    @property
    def bubble(self) -> float:
        """The share of all ticks in which a stage has nothing of use to do."""
        return (self.count - 1) / self.ticks
