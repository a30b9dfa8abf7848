"""What a compiled program takes, and its collectives at a cluster's prices: HLO text in, numbers out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from autopar.inspect.hlo import HloCollective, collectives_in
from autopar.inspect.hlo_text import Groups
from cost_models import Cluster, collective_time_s
from cost_models.groups import group_of_devices


class UnknownRounds(ValueError):
    """A compiled program has a loop of which the compiler does not say how often it runs: its times are not known."""


class Communicated(NamedTuple):
    """Seconds of a program's collectives by the cluster's links, how many they are, and the bytes that they move."""

    seconds: float
    collectives: int
    size_bytes: int


@dataclass(frozen=True)
class Made:
    """What a compiler made of a program for one device. `work` is kernels on GPUs, cycles on TPUs."""

    computing_s: float
    work: int
    communicating_s: float
    collectives: int
    collective_bytes: int
    launching_s: float = 0.0

    @property
    def serial_s(self) -> float:
        """Computing, launches and communicating, one behind the other."""
        return self.computing_s + self.launching_s + self.communicating_s


def communicated(text: str, cluster: Cluster) -> Communicated:
    """The collectives of the program with this HLO text on `cluster`, in whose order its devices are numbered.

    Raises:
      UnknownRounds: for a loop whose rounds the compiler does not know.
      ValueError: for text that is not understood.
    """
    found = collectives_in(text)
    return Communicated(
        sum(rounds(c.times) * price_s(c, cluster) for c in found),
        sum(rounds(c.times) for c in found),
        sum(rounds(c.times) * c.size_bytes for c in found),
    )


def rounds(times: int | None) -> int:
    """How often something runs.

    Raises:
      UnknownRounds: if the compiler does not know.
    """
    if times is None:
        raise UnknownRounds("the program has a loop whose rounds the compiler does not know")
    return times


def price_s(collective: HloCollective, cluster: Cluster) -> float:
    """Seconds by the cluster's links; groups of one device take none."""
    groups = _joined(collective.groups) if collective.kind == "permute" else collective.groups
    if len(groups[0]) == 1:
        return 0.0
    group = group_of_devices(cluster.topology, np.array(groups, dtype=np.int64))
    return collective_time_s(collective.kind, collective.size_bytes, group)


def _joined(pairs: Sequence[tuple[int, ...]]) -> Groups:
    """The devices that a permute's pairs join, as groups of the largest size; a smaller one is left out."""
    group_of: dict[int, set[int]] = {}
    for pair in pairs:
        joined = set[int]().union(*(group_of.get(device, {device}) for device in pair))
        group_of.update(dict.fromkeys(joined, joined))
    groups = {tuple(sorted(group)) for group in group_of.values()}
    most = max(map(len, groups))
    return tuple(sorted(group for group in groups if len(group) == most))
