"""Stages: how the layers of a function are divided among pipeline stages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stages:
    """Into how many stages (`count`) layers are divided, and their rows into how many micro-batches."""

    count: int
    micro_batches: int

    @property
    def ticks(self) -> int:
        """How often all stages run at once, each on another micro-batch or on none."""
        return self.micro_batches + self.count - 1

    @property
    def bubble(self) -> float:
        """The share of all ticks in which a stage has nothing of use to do."""
        return (self.count - 1) / self.ticks
