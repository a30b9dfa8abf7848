"""Span and Group: what formulas need to know of groups on one level, and on all; and the counts of switch levels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cost_models.topology import Level

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Span:
    """How the groups lie on one level. Every count is the worst over groups and links.

    The links of a switch level are the uplinks of its units; `units` are those that hold members of one group, and
    `fanout` of them lie under the same unit of the level around. A path through all members in device order has
    `edges` between units of this level under the same unit of the level around. A group crosses an uplink if it has
    members inside and outside of the unit.

    On a full level a group of f devices has f - 1 links from each: its ring is run as f - 1 rings, which share no link
    (`sharing` 1 / (f - 1)); a message to another device has a link for itself (`crossing_members` 1,
    `crossing_pairs` 1/n). Groups share nothing there, and messages that leave the level pass none of its links.

    The links of a torus level are those of its lines: a group has one ring on each line that holds several of its
    members (`fanout` of them), and crosses the links from its first to its last member, or all of them where it
    lies evenly on a wrapped axis (`lanes` is then 2: both ways round are used).

    | count | of one link, summed over the groups that cross it |
    |---|---|
    | sharing | 1: messages, if each group sends along one ring |
    | crossing_members | members on the smaller side: messages, if as many send to the other side as can |
    | crossing_pairs | (members inside) x (outside) / members: messages of 1/n each, if all send to all |

    With two lanes, pairs take the shorter way round: half of the pairs cross a cut by each of its two links. A shift
    by k of f members splits each message over both ways so that all links carry as much: k (f - k) / f, which
    crossing_members then is at its worst. `hops` is the number of link latencies from the first to the last member
    of a ring (half way round, with two lanes).
    """

    level: Level
    units: int = 1
    edges: int = 0
    fanout: int = 1
    hops: int = 0
    sharing: float = 0
    crossing_members: float = 0.0
    crossing_pairs: float = 0.0
    lanes: int = 1


@dataclass(frozen=True)
class Group:
    """Groups of `size` devices that run the same collective at the same time, one span for each level.

    `regular`: every group has the same number of members in each unit it touches, on every level, so it can be cut
    into equal smaller groups level by level. On a torus: it is a grid of lines.
    """

    size: int
    spans: tuple[Span, ...]
    regular: bool

    @cached_property
    def switches(self) -> tuple[Span, ...]:
        """The spans of switch and full levels that some group crosses, outermost first."""
        return tuple(span for span in self.spans if span.level.kind != "torus" and span.sharing)

    @cached_property
    def tori(self) -> tuple[Span, ...]:
        """The spans of torus axes that some group crosses, outermost first."""
        return tuple(span for span in self.spans if span.level.kind == "torus" and span.sharing)


def switch_span(level: Level, groups: Ints, stride: int, parent_stride: int) -> tuple[Span, bool]:
    """The span of a switch level whose units hold `stride` devices, and whether all groups lie on it alike."""
    size = groups.shape[1]
    touched, members = _distinct(*_parents(groups, stride))
    around, fanouts = _distinct(touched[0], touched[1] * stride // parent_stride)
    even = members.min() == members.max() and fanouts.min() == fanouts.max()
    crossing = members < size
    unit = touched[1][crossing]
    inside = members[crossing]
    if not len(unit):
        return Span(level), bool(even)

    outside = size - inside
    span = Span(
        level,
        units=int(np.bincount(touched[0]).max()),
        edges=int((np.bincount(touched[0]) - np.bincount(around[0])).max()),
        fanout=int(fanouts.max()),
        hops=int(fanouts.max()) - 1,
        sharing=int(np.bincount(unit).max()),
        crossing_members=float(np.bincount(unit, weights=np.minimum(inside, outside)).max()),
        crossing_pairs=float(np.bincount(unit, weights=inside * outside / size).max()),
    )
    return span, bool(even)


def full_span(level: Level, groups: Ints, stride: int, parent_stride: int) -> tuple[Span, bool]:
    """The span of a full level of single devices: as a switch level has, but for the loads of its links."""
    span, even = switch_span(level, groups, stride, parent_stride)
    _, together = _distinct(*_parents(groups, parent_stride))
    if together.max() < 2:
        return replace(span, hops=0, sharing=0, crossing_members=0.0, crossing_pairs=0.0), even
    slowest = 1 / (int(together[together > 1].min()) - 1)
    return replace(
        span, hops=1, sharing=slowest, crossing_members=1.0, crossing_pairs=1 / groups.shape[1]
    ), even


def _parents(groups: Ints, stride: int) -> tuple[Ints, Ints]:
    """For each member the number of its group, and that of the unit of `stride` devices that holds it."""
    return np.repeat(np.arange(len(groups)), groups.shape[1]), groups.ravel() // stride


def _distinct(group: Ints, unit: Ints) -> tuple[tuple[Ints, Ints], Ints]:
    """The distinct pairs of a group and a unit, in order, and how many there are of each."""
    # a pair is one number, as sorting pairs takes ten times as long
    units = int(unit.max(initial=0)) + 1
    codes, counts = np.unique(group * units + unit, return_counts=True)
    return (codes // units, codes % units), counts
