"""Where a problem that repeats falls apart: at few edges between one layer and the next, the fewest there are.

A stretch (see `stretch`) has a period of positions in the order of sweeps. That order winds through the layers, so a
cut at a position crosses many edges; a minimum cut between two far positions crosses those that join a layer to the
next. Moved by whole periods it cuts the stretch into equal layers. Near its ends the order winds in other ways, and
layers that are like these follow: node by node, from edges that are alike to nodes that are (`match`). Hubs belong to
no layer: every part may meet them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autopar.solve.periodic.period import Looks, Stretch, joined_in
from autopar.solve.periodic.period_matching import Matching
from autopar.solve.problem.reduction import Bools, Ints
from autopar.solve.trws.arrays import Flat
from autopar.solve.trws.order import Ends

_TRIES = 3  # fewer layers each time: the more are left, the more room there is for a cut
_MOST_EDGES = 6  # that a cut may have


@dataclass(frozen=True)
class Run:
    """Equal layers: parts first <= p < first + count, each of `period` nodes."""

    first: int
    count: int
    period: int


@dataclass(frozen=True, eq=False)
class Layers:
    """Parts of a problem in a row, by position in an order in which one follows the other.

    Part p has the positions bounds[p] <= i < bounds[p + 1], and the edges whose higher end is there: these lead to the
    part before or to a hub, which is in part 0. Each part of a run has the nodes and edges of the one before it, a
    period later; the first of them meets the last positions of the part before as the others do. So does what comes
    after a run. `looks` are numbers of nodes by position, equal in all parts of a run; `hub`: which nodes are hubs;
    `kinds`: numbers of edges, equal where matrices are alike and lie the same way.
    """

    order: Ints
    bounds: Ints
    hub: Bools
    ends: Ends
    looks: Ints
    kinds: Ints
    runs: tuple[Run, ...]

    def of(self, p: int) -> Ints:
        """The edges of a part."""
        return self.ends.into(int(self.bounds[p]), int(self.bounds[p + 1]))

    def across(self, p: int) -> Ints:
        """The edges that lead to the part before, sorted by where they lead and their kinds."""
        edges = self.of(p)
        low = self.ends.low[edges]
        edges = edges[(low < self.bounds[p]) & ~self.hub[low]]
        found: Ints = edges[np.lexsort((self.kinds[edges], self.ends.low[edges]))]
        return found

    def nodes(self, p: int) -> Ints:
        """The positions of a part."""
        return np.arange(int(self.bounds[p]), int(self.bounds[p + 1]))

    @property
    def count(self) -> int:
        """How many parts there are."""
        return len(self.bounds) - 1

    @cached_property
    def part(self) -> Ints:
        """The part of each position."""
        return np.repeat(np.arange(self.count), np.diff(self.bounds))


def layers_of(flat: Flat, order: Ints, looks: Looks, stretches: Sequence[Stretch]) -> Layers | None:
    """The parts that minimum cuts make of the stretches; None if there is no such cut, or layers are not equal.

    `flat` is the problem in the order of sweeps, `order`, where nodes look as `looks` says.
    """
    joined = joined_in(flat)
    low, high = np.sort(joined[~looks.hub[joined].any(axis=1)], axis=1).T
    between, rows = [np.arange(len(order))], list[list[Ints]]()
    for stretch in stretches:
        within = _within(stretch, looks.band, low, high, len(order))
        if within is None:
            return None
        layer, copies = within
        rest = between.pop()
        below, *row, above = (rest[layer[rest] == k] for k in range(copies + 2))
        between += [below, above]
        rows.append(row)
    if min(map(len, rows)) < 2:
        return None
    longer = _longer(Matching(flat, looks), looks.hub, between, rows)
    return _laid(flat, order, looks, *longer) or _laid(flat, order, looks, between, rows)


def _longer(
    matching: Matching, hub: Bools, between: list[Ints], rows: list[list[Ints]]
) -> tuple[list[Ints], list[list[Ints]]]:
    """The rows of layers with those that are found node by node, and what is left between them.

    Of the first of a row only those nodes need be like the others' that the next layer meets.
    """
    left, longer = [{v for v in rest.tolist() if not hub[v]} for rest in between], list[list[Ints]]()
    for row, below, above in zip(rows, left, left[1:], strict=False):
        pattern, grown = matching.pattern(*row[:2]), deque(row)
        while matching.is_whole(found := matching.beside(grown[-1], pattern.above, pattern, above), pattern):
            grown.append(_layer(found, above))
        while matching.is_whole(found := matching.beside(grown[0], pattern.below, pattern, below), pattern):
            grown.appendleft(_layer(found, below))
        met = {place for arcs in pattern.below for _, place in arcs}
        missing = len(pattern.costs) - len(found)
        if met <= found.keys() and missing <= len(others := sorted(below - set(found.values()))):
            places = (place for place in range(len(pattern.costs)) if place not in found)
            grown.appendleft(_layer(found | dict(zip(places, others[len(others) - missing :], strict=True)), below))
        longer.append(list(grown))
    return [rest[hub[rest] | np.isin(rest, list(free))] for rest, free in zip(between, left, strict=True)], longer


def _layer(found: Mapping[int, int], free: set[int]) -> Ints:
    """The nodes by place; they are not free any more."""
    free -= set(found.values())
    return np.array([found[place] for place in range(len(found))], dtype=np.intp)


def _laid(
    flat: Flat, order: Ints, looks: Looks, between: Sequence[Ints], rows: Sequence[Sequence[Ints]]
) -> Layers | None:
    """The layers of rows one behind the other, and what is between them; None if they are not equal.

    The first of each row belongs to what is before it, where the others' lower edges lead to what is like them; the
    last to what comes after: there are the same costs to be moved between layers as between others.
    """
    parts, runs = [between[0]], list[Run]()
    for (first, *row, last), rest in zip(rows, between[1:], strict=True):
        parts[-1] = np.concatenate([parts[-1], first])
        runs.append(Run(len(parts), len(row), len(first)))
        parts += [*row, np.concatenate([last, rest])]
    at = np.concatenate(parts)
    bounds = np.cumsum([0, *map(len, parts)])
    joined = np.argsort(at)[joined_in(flat)]
    ends = Ends.of(joined, len(at))
    same = looks.whole[at]
    for run in runs:
        like = same[bounds[run.first + run.count // 2] :][: run.period]
        same[bounds[run.first] : bounds[run.first + run.count]] = np.tile(like, run.count)
    kinds = looks.kinds[flat.arcs[:, 0]] + (joined[:, 0] > joined[:, 1])
    layers = Layers(order[at], bounds, looks.hub[at], ends, same, kinds, tuple(runs))
    return layers if _is_near(layers) and all(_repeats(layers, run, looks.costs[at]) for run in runs) else None


def _is_near(layers: Layers) -> bool:
    """Whether edges lead to the part before, or within one, or to a hub."""
    low, high = layers.ends.low, layers.ends.high
    return bool(((layers.part[high] - layers.part[low] <= 1) | layers.hub[low]).all())


def _repeats(layers: Layers, run: Run, costs: Ints) -> bool:
    """Whether all its parts have nodes and edges alike, in the same order, and what follows meets them as they do."""
    after, ends = run.first + run.count, layers.ends
    first, stop = int(layers.bounds[run.first]), int(layers.bounds[after])
    edges = ends.into(first, stop)
    if not run.count or len(edges) % run.count:
        return False
    low, high = ends.low[edges].reshape(run.count, -1), ends.high[edges].reshape(run.count, -1)
    back = run.period * np.arange(run.count)[:, None]
    rows = (
        low - np.where(layers.hub[low], 0, back),
        high - back,
        layers.kinds[edges].reshape(run.count, -1),
        costs[first:stop].reshape(run.count, -1),
    )
    met, meets = layers.across(run.first), layers.across(after)
    return (
        all(bool((row == row[0]).all()) for row in rows)
        and np.array_equal(ends.low[met] + run.count * run.period, ends.low[meets])
        and np.array_equal(layers.kinds[met], layers.kinds[meets])
    )


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
