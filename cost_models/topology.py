"""Topology: what connects the devices of a cluster, as levels from the outermost network to the single device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import isfinite, prod
from typing import Literal

from cost_models.terms import Terms

LevelKind = Literal["switch", "full", "torus"]
KINDS: tuple[LevelKind, ...] = ("switch", "full", "torus")
"""From the outside in: no kind stands around one before it."""


@dataclass(frozen=True)
class Link:
    """One direction of one link: `latency_s` for a message to arrive, `bandwidth_bytes_per_s` while it flows.

    Links are full duplex. Invariants: latency is finite and >= 0, bandwidth is finite and > 0.
    """

    latency_s: float
    bandwidth_bytes_per_s: float

    def __post_init__(self) -> None:
        if not (isfinite(self.latency_s) and self.latency_s >= 0):
            raise ValueError(f"link latency_s must be finite and >= 0, got {self.latency_s}")
        if not (isfinite(self.bandwidth_bytes_per_s) and self.bandwidth_bytes_per_s > 0):
            raise ValueError(
                f"link bandwidth_bytes_per_s must be finite and > 0, got {self.bandwidth_bytes_per_s}"
            )


@dataclass(frozen=True)
class Level:
    """One level of a topology: `size` units side by side inside each unit of the level around it.

    A unit of the innermost level is a device, a unit of the level around it (say, a server) all devices inside.

    * kind "switch": the units hang on a switch that never blocks, each by an uplink of its own.
      `link.bandwidth_bytes_per_s` is what ONE unit can send in one direction, shared by all groups whose messages
      leave that unit at the same time. A message that leaves a server passes the device's and the server's uplink.
    * kind "full": every device has a link of its own to each other device of the level, and `link` is ONE such link
      in one direction. A message takes the direct link; what leaves the level passes none of these.
    * kind "torus": the level is one axis of a torus or mesh of devices; each device has a link to its next neighbour
      in either direction, and `link` is ONE such link in one direction. With `wrap` the last is a neighbour of the
      first. Messages go along the axis link by link.

    `start_s` passes before a collective that crosses the level sends anything, whichever it is: a library is called and
    devices meet. `terms` are collectives that were measured on this level, start and all; the others go by formulas.

    Invariants: start_s is finite and >= 0; the name is not empty; size >= 1; only a torus of at least 3 wraps.
    """

    name: str
    size: int
    link: Link
    kind: LevelKind = "switch"
    wrap: bool = False
    terms: tuple[Terms, ...] = field(default=(), hash=False)
    start_s: float = 0.0

    def __post_init__(self) -> None:
        if not (isfinite(self.start_s) and self.start_s >= 0):
            raise ValueError(
                f"level {self.name!r}: start_s must be finite and >= 0, got {self.start_s}"
            )
        if not self.name:
            raise ValueError("a level needs a name")
        if self.size < 1:
            raise ValueError(f"level {self.name!r} has size {self.size}; sizes are >= 1")
        if self.wrap and (self.kind != "torus" or self.size < 3):
            raise ValueError(
                f"level {self.name!r} wraps, but only a torus axis of 3 or more devices can"
            )


@dataclass(frozen=True)
class Topology:
    """Levels from outermost to innermost. Devices are numbered row-major: the last level changes fastest.

    Invariants: at least one level; names are distinct; torus levels stand together and innermost (each node of a
    torus is one device); a full level is the innermost, and there is no torus beside it.
    """

    levels: tuple[Level, ...]

    def __post_init__(self) -> None:
        names = [level.name for level in self.levels]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"a topology needs levels with distinct names, got {names}")
        kinds = [level.kind for level in self.levels]
        if kinds != sorted(kinds, key=KINDS.index) or (
            "full" in kinds and kinds.index("full") != len(kinds) - 1
        ):
            got = ", ".join(f"{name} ({kind})" for name, kind in zip(names, kinds, strict=True))
            raise ValueError(f"torus levels, or one full level, must be the innermost, got {got}")

    @property
    def sizes(self) -> tuple[int, ...]:
        """The size of each level, outermost first."""
        return tuple(level.size for level in self.levels)

    @property
    def device_count(self) -> int:
        """The number of devices."""
        return prod(self.sizes)

    @property
    def strides(self) -> tuple[int, ...]:
        """For each level the number of devices in one of its units."""
        return tuple(prod(self.sizes[i + 1 :]) for i in range(len(self.levels)))

    def index(self, name: str) -> int:
        """The position of the level called `name`.

        Raises:
          ValueError: if there is none; the message lists those there are.
        """
        names: Iterable[str] = [level.name for level in self.levels]
        for position, known in enumerate(names):
            if known == name:
                return position
        raise ValueError(f"no level {name!r}; the levels are {', '.join(names)}")
