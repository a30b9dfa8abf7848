"""Problems in which a stretch of nodes repeats: shortened to a few repetitions, and what is found there tiled back.

In the order of sweeps, two nodes look alike if their costs are alike and so are their edges, in order: to nodes as far
away, or to the same hub, with matrices that are alike. A stretch has a period: each node in it looks like the one a
period later. Layers of a network are such periods, whatever the network. The shortened problem leaves most periods
out; its edges across the gap are those that a period has anyway. Nothing makes equal layers choose alike: the messages
of the short problem are where sweeps of the whole begin, and its choice is one of many. Any messages prove a bound, and
any choice is a choice, so nothing is lost.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from autopar.solve.flat import Flat, with_per_edge
from autopar.solve.order import HUB
from autopar.solve.problem import Edge, Floats, Problem, derived
from autopar.solve.reduction import Bools, Choice, Ints

_PERIODS = 8  # candidates: the most frequent distances of nodes that look alike
_WORTH = 1 / 3  # of the nodes: if fewer can be left out, none are
_ALIKE = 1e-9  # of an array's largest entry: rounding errors of equal layers may differ


@dataclass(frozen=True)
class Stretch:
    """Positions first <= i < stop, where i looks like i + period; `out` of them, whole periods, can be left out."""

    first: int
    stop: int
    period: int
    out: int


@dataclass(frozen=True, eq=False)
class Shortened:
    """A problem with fewer periods, in the order of sweeps, and how the whole is made of it.

    `at` is where each stretch is cut: a cut at any of `sites` gives the same short problem, but another tiling.
    `edges[e]` is the short problem's edge that the whole's edge e is like. `band`: the farthest that two joined nodes
    are apart.
    """

    problem: Problem
    order: Ints
    stretches: tuple[Stretch, ...]
    at: tuple[int, ...]
    edges: Ints
    band: int

    def messages(self, flat: Flat, short: Sequence[tuple[Floats, Floats]]) -> Floats:
        """The messages of the whole, from those of the short problem's edges."""
        return with_per_edge(flat, [short[e] for e in self.edges.tolist()])

    def choice(self, flat: Flat, short: Choice) -> Choice:
        """The cheapest tiling of a choice of the short problem, each stretch cut where that is best."""
        strategies, at = np.array(short, dtype=np.intp), list(self.at)
        for i in range(len(self.stretches)):
            tilings = [(*at[:i], site, *at[i + 1 :]) for site in self.sites(i)]
            at = list(min(tilings, key=lambda tiling: _cost(flat, strategies[self._image(tiling)])))
        found = np.empty_like(self.order)
        found[self.order] = strategies[self._image(at)]
        return tuple(found.tolist())

    def sites(self, i: int) -> range:
        """Where the stretch can be cut: a whole period before it, and room for edges behind what is left out."""
        return _sites(self.stretches[i], self.band)

    def _image(self, at: Sequence[int]) -> Ints:
        return _image(len(self.order), self.stretches, at)


def shortened(problem: Problem, flat: Flat, order: Ints) -> Shortened | None:
    """The problem without most of what repeats; None if too little does, or if there is memory to share.

    `flat` is the problem in the order of sweeps, `order`.
    """
    if problem.usages:
        return None
    count, into = len(order), _into(flat)
    is_hub = np.diff(flat.near) > HUB
    near = ~is_hub[flat.other] & ~is_hub[into]
    band = int(np.abs(flat.other - into)[near].max(initial=0))
    stretches = _stretches(_looks(problem, flat, order), band)
    if sum(stretch.out for stretch in stretches) < _WORTH * count:
        return None
    at = tuple(sites[len(sites) // 2] for sites in (_sites(stretch, band) for stretch in stretches))
    image = _image(count, stretches, at)
    stays = np.ones(count, dtype=bool)
    for stretch, site in zip(stretches, at, strict=True):
        stays[site : site + stretch.out] = False
    small, edges = _assembled(problem, flat, order, image, stays)
    return Shortened(small, order, stretches, at, edges, band)


def _assembled(problem: Problem, flat: Flat, order: Ints, image: Ints, stays: Bools) -> tuple[Problem, Ints]:
    """The short problem, and for every edge of the whole the one of it that is like it.

    A node that stays has its edges to lower nodes, as far away as ever; the upper ones are others' lower ones.
    """
    into, place = _into(flat), np.flatnonzero(stays)
    lower = (np.arange(len(into)) < flat.split[into]) & stays[into]
    name = np.cumsum(lower) - 1
    edge_of, is_to_v = np.empty(len(into), dtype=np.intp), np.zeros(len(into), dtype=bool)
    edge_of[flat.arcs] = np.arange(len(flat.arcs))[:, None]
    is_to_v[flat.arcs[:, 1]] = True
    is_hub = np.diff(flat.near) > HUB
    lows = np.where(is_hub[flat.other], image[flat.other], image[into] - (into - flat.other))
    edges: list[Edge] = []
    for k in np.flatnonzero(lower).tolist():
        low, high, cost = int(lows[k]), int(image[into[k]]), problem.edges[edge_of[k]].cost
        edges.append(Edge(low, high, cost) if is_to_v[k] else Edge(high, low, cost))
    costs = tuple(problem.node_costs[v] for v in order[place].tolist())
    down = flat.arcs.min(axis=1)
    down = np.where(flat.other[flat.arcs[:, 0]] < into[flat.arcs[:, 0]], flat.arcs[:, 0], flat.arcs[:, 1])
    high = into[down]
    return derived(costs, tuple(edges)), name[flat.near[place[image[high]]] + down - flat.near[high]]


def _image(count: int, stretches: Sequence[Stretch], at: Sequence[int]) -> Ints:
    """The short problem's position that each position is like; what is left out is like the period before the cut."""
    image, gone = np.arange(count), 0
    for stretch, site in zip(stretches, at, strict=True):
        period, stop = stretch.period, site + stretch.out
        image[site:stop] = site - gone - period + np.arange(stretch.out) % period
        image[stop:] -= stretch.out
        gone += stretch.out
    return image


def _sites(stretch: Stretch, band: int) -> range:
    return range(stretch.first + stretch.period, stretch.stop - stretch.out - band + 1)


def _stretches(looks: Ints, band: int) -> tuple[Stretch, ...]:
    """Disjoint stretches, chosen by how much they can leave out; in order."""
    found: list[Stretch] = []
    for period in _periods(looks):
        same = np.concatenate([[False], looks[period:] == looks[:-period], [False]])
        ends = np.flatnonzero(same[1:] != same[:-1]).reshape(-1, 2)
        for first, last in ends.tolist():
            out = (last - first - band) // period * period  # a period stays, and room for edges
            if out > 0:
                found.append(Stretch(first, last + period, period, out))
    chosen: list[Stretch] = []
    for stretch in sorted(found, key=lambda stretch: (-stretch.out, stretch.period, stretch.first)):
        if all(stretch.stop <= other.first or other.stop <= stretch.first for other in chosen):
            chosen.append(stretch)
    return tuple(sorted(chosen, key=lambda stretch: stretch.first))


def _periods(looks: Ints) -> list[int]:
    """The most frequent distances from a node to the next that looks like it."""
    by_look = np.argsort(looks, kind="stable")
    steps = np.diff(by_look)[np.diff(looks[by_look]) == 0]
    periods, counts = np.unique(steps, return_counts=True)
    most = np.argsort(-counts, kind="stable")[:_PERIODS]
    return [int(period) for period in periods[most]]


def _looks(problem: Problem, flat: Flat, order: Ints) -> Ints:
    """A number for every position: those of equal numbers look alike. No other node looks like a hub."""
    count, into = len(order), _into(flat)
    is_hub = np.diff(flat.near) > HUB
    away = np.where(is_hub[flat.other], flat.other - 2 * count, flat.other - into)
    kinds = np.empty(len(into), dtype=np.intp)
    of_edge = np.array(_alike(edge.cost for edge in problem.edges), dtype=np.intp)
    kinds[flat.arcs] = 2 * of_edge[:, None] + np.arange(2)
    arcs, ends = np.stack([away, kinds], axis=1), flat.near.tolist()
    own = _alike(problem.node_costs)
    known: dict[Hashable, int] = {}
    looks = [
        known.setdefault((own[v], i if is_hub[i] else -1, arcs[ends[i] : ends[i + 1]].tobytes()), len(known))
        for i, v in enumerate(order.tolist())
    ]
    return np.array(looks, dtype=np.intp)


def _alike(arrays: Iterable[Floats]) -> list[int]:
    """A number for every array: those of equal numbers are equal up to rounding."""
    of_array: dict[int, int] = {}
    known: dict[tuple[int, ...], list[tuple[int, Floats]]] = {}
    result: list[int] = []
    for array in arrays:
        if id(array) not in of_array:
            others = known.setdefault(array.shape, [])
            same = next((name for name, other in others if _is_alike(array, other)), None)
            of_array[id(array)] = len(of_array) if same is None else same
            if same is None:
                others.append((of_array[id(array)], array))
        result.append(of_array[id(array)])
    return result


def _is_alike(a: Floats, b: Floats) -> bool:
    scale = float(np.abs(a[0]).max(initial=0.0, where=np.isfinite(a[0]))) if a.ndim > 1 else 0.0
    if a.ndim > 1 and not np.allclose(a[0], b[0], rtol=_ALIKE, atol=_ALIKE * scale):
        return False
    scale = float(np.abs(a).max(initial=0.0, where=np.isfinite(a)))
    return bool(np.allclose(a, b, rtol=_ALIKE, atol=_ALIKE * scale))


def _into(flat: Flat) -> Ints:
    """The node that each arc goes into."""
    return np.repeat(np.arange(len(flat.near) - 1), np.diff(flat.near))


def _cost(flat: Flat, choice: Ints) -> float:
    """What a choice costs, its nodes in the order of sweeps."""
    into = _into(flat)
    lower = np.flatnonzero(np.arange(len(into)) < flat.split[into])
    v = into[lower]
    entries = flat.place[lower] + choice[flat.other[lower]] * np.diff(flat.start)[v] + choice[v]
    return float(flat.cost[flat.start[:-1] + choice].sum() + flat.pool[entries].sum())
