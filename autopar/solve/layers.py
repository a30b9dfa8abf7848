"""Where a problem that repeats falls apart: at few edges between one layer and the next, the fewest there are.

A stretch (see `tile`) has a period of positions in the order of sweeps. That order winds through the layers, so a cut
at a position crosses many edges; a minimum cut between two far positions crosses those that join a layer to the next.
Moved by whole periods it cuts the stretch into equal layers. Hubs belong to no layer: every part may meet them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autopar.solve.flat import Flat
from autopar.solve.order import HUB
from autopar.solve.problem import Problem
from autopar.solve.reduction import Bools, Ints
from autopar.solve.tile import Stretch

_TRIES = 3  # fewer layers each time: the more are left, the more room there is for a cut
_MOST_EDGES = 6  # that a cut may have


@dataclass(frozen=True)
class Run:
    """Equal layers: parts first <= p < first + count, each `period` positions after the one before it."""

    first: int
    count: int
    period: int

    def holds(self, part: Ints) -> Bools:
        """Which of these parts are in it."""
        return (part >= self.first) & (part < self.first + self.count)


@dataclass(frozen=True, eq=False)
class Layers:
    """Parts of a problem in a row, by position in the order of sweeps.

    Part p has the positions where `part` is p, and the edges `edges[starts[p] : starts[p + 1]]`, those to lower parts
    included: these lead to the part before or to a hub, which is in part 0. `low` and `high` are the positions of every
    edge's nodes, that in the lower part first. The parts of a run have nodes and edges in the same order.
    """

    part: Ints
    hub: Bools
    low: Ints
    high: Ints
    edges: Ints
    starts: Ints
    runs: tuple[Run, ...]

    def of(self, p: int) -> Ints:
        """The edges of a part."""
        return self.edges[self.starts[p] : self.starts[p + 1]]

    @property
    def count(self) -> int:
        """How many parts there are."""
        return len(self.starts) - 1


def layers_of(problem: Problem, flat: Flat, order: Ints, stretches: Sequence[Stretch], band: int) -> Layers | None:
    """The parts that minimum cuts make of the stretches; None if there is no such cut, or layers are not equal."""
    count, rank = len(order), np.argsort(order)
    ends = rank[np.array([(edge.u, edge.v) for edge in problem.edges], dtype=np.intp)]
    low, high = ends.min(axis=1), ends.max(axis=1)
    hub = np.diff(flat.near) > HUB
    is_near = ~hub[low] & ~hub[high]
    part, runs = np.zeros(count, dtype=np.intp), list[Run]()
    for stretch in stretches:
        within = _within(stretch, band, low[is_near], high[is_near], count)
        if within is None:
            return None
        layer, copies = within
        runs.append(Run(int(part.max()) + 1, copies, stretch.period))
        part += layer
    part[hub] = 0
    low, high = np.where(part[low] <= part[high], (low, high), (high, low))
    of_edge = part[high]
    if (np.abs(part[low] - part[high])[is_near] > 1).any():
        return None
    edges = np.lexsort((high, low, of_edge))
    starts = np.searchsorted(of_edge[edges], np.arange(int(part.max()) + 2))
    layers = Layers(part, hub, low, high, edges, starts, tuple(runs))
    return layers if all(_repeats(layers, run) for run in runs) else None


def _within(stretch: Stretch, band: int, low: Ints, high: Ints, count: int) -> tuple[Ints, int] | None:
    """For every position its layer, 0 below the first cut, one more beyond each other; and how many lie between cuts.

    Between the first cut and the last are as many layers as leave room for the cuts.
    """
    period, first = stretch.period, stretch.first + band
    most = stretch.out // period
    for copies in range(most, max(0, most - _TRIES), -1):
        last = stretch.stop - copies * period
        lower = _lower_side(first, last, low, high)
        if lower is None:
            continue
        layer = np.full(count, copies + 1)
        for k in range(copies, -1, -1):
            layer[first + k * period : last + k * period][lower] = k
            layer[: first + k * period] = np.minimum(layer[: first + k * period], k)
        return layer, copies
    return None


def _lower_side(first: int, last: int, low: Ints, high: Ints) -> Bools | None:
    """Which of the positions first <= i < last are on the side of those below in a minimum cut; None if it is too wide.

    The first path that is found from below to beyond takes an edge away, and so on, as long as there is one (Ford and
    Fulkerson); those that can be reached then are on the side of those below.
    """
    crosses = (high >= first) & (low < last)
    lows, highs = (np.clip(ends[crosses], first - 1, last).tolist() for ends in (low, high))
    room = Counter(pair for u, v in zip(lows, highs, strict=True) if u != v for pair in ((u, v), (v, u)))
    near: dict[int, list[int]] = {first - 1: []}
    for u, v in room:
        near.setdefault(u, []).append(v)
    for _ in range(_MOST_EDGES + 1):
        came = _reached(first - 1, near, room)
        if last not in came:
            return np.array([i in came for i in range(first, last)])
        v = last
        while v != first - 1:
            u = came[v]
            room[u, v] -= 1
            room[v, u] += 1
            v = u
    return None


def _reached(start: int, near: Mapping[int, Sequence[int]], room: Mapping[tuple[int, int], int]) -> dict[int, int]:
    """Where there is a way to from the start, and from where one comes there."""
    came, queue = {start: start}, [start]
    for u in queue:
        fresh = [v for v in near[u] if v not in came and room[u, v]]
        came |= dict.fromkeys(fresh, u)
        queue += fresh
    return came


def _repeats(layers: Layers, run: Run) -> bool:
    """Whether all its parts have nodes and edges in the same order."""
    own = np.argsort(layers.part, kind="stable")
    ends = np.searchsorted(layers.part[own], np.arange(layers.count + 1))
    nodes = [own[ends[p] : ends[p + 1]] for p in range(run.first, run.first + run.count)]
    if any(len(of) != len(nodes[0]) or (of - nodes[0] != k * run.period).any() for k, of in enumerate(nodes)):
        return False
    first = layers.of(run.first)
    for k in range(1, run.count):
        these = layers.of(run.first + k)
        if len(these) != len(first):
            return False
        for ends in (layers.low, layers.high):
            if (ends[these] - ends[first] != np.where(layers.hub[ends[first]], 0, k * run.period)).any():
                return False
    return True
