"""Overlap: how much computing and communicating slow each other on a device that does both at the same time."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite


@dataclass(frozen=True)
class Overlap:
    """What takes 1 s alone takes `computing_slowdown` s of computing while something is communicated all the time,
    and `communicating_slowdown` s of communicating while something is computed all the time.

    Both take compute units, memory bandwidth and power from each other. 1 is no slowdown. Where both go on, work of

        1 / computing_slowdown + 1 / communicating_slowdown

    seconds is done in a second; if that is not more than 1, one after the other is as fast.

    Invariants: both are finite and >= 1.
    """

    computing_slowdown: float
    communicating_slowdown: float

    def __post_init__(self) -> None:
        for name in ("computing_slowdown", "communicating_slowdown"):
            value = getattr(self, name)
            if not (isfinite(value) and value >= 1):
                raise ValueError(f"{name} must be finite and >= 1, got {value}")

    @property
    def pays(self) -> bool:
        """Whether both at once get more done than one after the other."""
        return 1 / self.computing_slowdown + 1 / self.communicating_slowdown > 1

    @property
    def least_weight(self) -> float:
        """What a second of communicating costs at least beside computing: the work that it keeps computing from.

        So no order of the two takes less than computing + least_weight * communicating; 1 where it does not pay.
        """
        return min(1.0, self.communicating_slowdown * (1 - 1 / self.computing_slowdown))

    def share_at(self, weight: float) -> float:
        """The largest share of computing + weight * communicating than which no order of the two takes less.

        It is 1 up to `least_weight`; from `most_weight` on it counts all that is communicated, and never more.
        """
        together = 1 / self.computing_slowdown + weight / self.communicating_slowdown
        return 1 / max(1.0, weight, together if self.pays else 0.0)

    @property
    def most_weight(self) -> float:
        """As `least_weight`: what a second of communicating counts at most, so that all of it does; inf: none does."""
        kept = 1 - 1 / self.communicating_slowdown
        if not self.pays:
            return 1.0
        return max(1.0, 1 / (self.computing_slowdown * kept)) if kept else inf

    def together_s(self, computing_s: float, communicating_s: float) -> float:
        """Seconds until both are done that begin at the same time, given what each takes alone."""
        if not self.pays:
            return computing_s + communicating_s
        both = min(
            computing_s * self.computing_slowdown, communicating_s * self.communicating_slowdown
        )
        left = computing_s - both / self.computing_slowdown
        return both + left + communicating_s - both / self.communicating_slowdown


def slowest_overlap(overlaps: tuple[Overlap | None, ...]) -> Overlap | None:
    """The larger of each slowdown; None if any device does not overlap at all."""
    known = [overlap for overlap in overlaps if overlap is not None]
    if not known or len(known) < len(overlaps):
        return None
    return Overlap(
        max(o.computing_slowdown for o in known), max(o.communicating_slowdown for o in known)
    )
