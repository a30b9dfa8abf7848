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
from hashlib import blake2b

import numpy as np

from autopar.solve.flat import Flat, with_per_edge
from autopar.solve.order import HUB
from autopar.solve.problem import Edge, Floats, Problem, derived
from autopar.solve.reduction import Bools, Choice, Ints
from autopar.solve.same import Same

_SPARE = 1  # periods more than are needed: near the ends of a stretch choices are not what they are further in
_PERIODS = 8  # candidates: the most frequent distances of nodes that look alike
_WORTH = 1 / 3  # of the nodes: if fewer can be left out, none are
_TIE = 3e-13  # of the cost: what breaks ties
_ALIKE = 1e-6  # of an array's largest entry: rounding errors of equal layers may differ


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

    A stretch may be cut at many sites: the short problem is the same, its tilings differ. `edges[e]` is the short
    problem's edge that the whole's edge e is like. `band`: the farthest that two joined nodes are apart. `looks`: its
    nodes' (see `_looks`).
    """

    problem: Problem
    order: Ints
    stretches: tuple[Stretch, ...]
    edges: Ints
    band: int
    looks: Ints

    def without_ties(self) -> Problem:
        """The problem with next to nothing added to nodes' costs, the same to nodes that look alike.

        Of choices that cost the same one is the best then, and in every period alike.
        """
        little, known = _TIE * sum(abs(float(cost.min())) for cost in self.problem.node_costs), dict[int, Floats]()
        for look, cost in zip(self.looks.tolist(), self.problem.node_costs, strict=True):
            if look not in known:
                known[look] = little * np.random.default_rng(look).random(len(cost))
        costs = (c + known[look] for c, look in zip(self.problem.node_costs, self.looks.tolist(), strict=True))
        return derived(tuple(costs), self.problem.edges)

    def messages(self, flat: Flat, short: Sequence[tuple[Floats, Floats]]) -> Floats:
        """The messages of the whole, from those of the short problem's edges."""
        edges: list[int] = self.edges.tolist()
        return with_per_edge(flat, [short[e] for e in edges])

    def choice(self, flat: Flat, short: Choice) -> Choice:
        """The cheapest tiling of a choice of the short problem: each stretch is cut where a period costs least."""
        strategies, at = np.array(short, dtype=np.intp), list[int]()
        for i, stretch in enumerate(self.stretches):
            image = _image(len(self.order), self.stretches[:i], at)  # right as far as this stretch's cut
            here = strategies[np.minimum(image, len(short) - 1)]
            costs = [_period_cost(flat, here, site, stretch.period) for site in self.sites[i]]
            at.append(self.sites[i][int(np.argmin(costs))])
        return self.tiled(short, at)

    def tiled(self, short: Choice, at: Sequence[int]) -> Choice:
        """The choice of the whole with every stretch cut at one of its sites."""
        found = np.empty_like(self.order)
        found[self.order] = np.array(short, dtype=np.intp)[_image(len(self.order), self.stretches, at)]
        return tuple(found.tolist())

    @property
    def sites(self) -> list[range]:
        """Where each stretch can be cut, by the position in the whole."""
        return [_sites(stretch, self.band) for stretch in self.stretches]


def shortened(problem: Problem, flat: Flat, order: Ints, more: int = 0) -> Shortened | None:
    """The problem without most of what repeats; None if too little does, or if there is memory to share.

    `flat` is the problem in the order of sweeps, `order`. Of every stretch `more` positions stay than have to.
    """
    if problem.usages:
        return None
    count, into = len(order), _into(flat)
    is_hub = _hubs(flat)
    near = ~is_hub[flat.other] & ~is_hub[into]
    band = int(np.abs(flat.other - into)[near].max(initial=0))
    for at_a_glance in (True, False):  # to read all entries takes long, and some are enough to tell that little repeats
        looks = _looks(problem, flat, order, at_a_glance=at_a_glance)
        stretches = _stretches(looks, band, more)
        if sum(stretch.out for stretch in stretches) < _WORTH * count:
            return None
    small, edges, stays = _assembled(problem, flat, order, stretches, band)
    return Shortened(small, order, stretches, edges, band, looks[stays])


def _assembled(
    problem: Problem, flat: Flat, order: Ints, stretches: tuple[Stretch, ...], band: int
) -> tuple[Problem, Ints, Bools]:
    """The short problem, for every edge of the whole the one of it that is like it, and the positions that stay.

    A node that stays has its edges to lower nodes, as far away as ever; the upper ones are others' lower ones.
    """
    at = [sites[len(sites) // 2] for sites in (_sites(stretch, band) for stretch in stretches)]
    image, stays = _image(len(order), stretches, at), np.ones(len(order), dtype=bool)
    for stretch, site in zip(stretches, at, strict=True):
        stays[site : site + stretch.out] = False
    into, place = _into(flat), np.flatnonzero(stays)
    lower = (np.arange(len(into)) < flat.split[into]) & stays[into]
    name = np.cumsum(lower) - 1
    edge_of, is_to_v = np.empty(len(into), dtype=np.intp), np.zeros(len(into), dtype=bool)
    edge_of[flat.arcs] = np.arange(len(flat.arcs))[:, None]
    is_to_v[flat.arcs[:, 1]] = True
    is_hub = _hubs(flat)
    lows = np.where(is_hub[flat.other], image[flat.other], image[into] - (into - flat.other))
    edges: list[Edge] = []
    for k in np.flatnonzero(lower).tolist():
        low, high, cost = int(lows[k]), int(image[into[k]]), problem.edges[int(edge_of[k])].cost
        edges.append(Edge(low, high, cost) if is_to_v[k] else Edge(high, low, cost))
    nodes: list[int] = order[place].tolist()
    costs = tuple(problem.node_costs[v] for v in nodes)
    down = np.where(flat.other[flat.arcs[:, 0]] < into[flat.arcs[:, 0]], flat.arcs[:, 0], flat.arcs[:, 1])
    high = into[down]
    return derived(costs, tuple(edges)), name[flat.near[place[image[high]]] + down - flat.near[high]], stays


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
    """Where it can be cut: a whole period before, and room for edges behind what is left out."""
    return range(stretch.first + stretch.period, stretch.stop - stretch.out - band + 1)


def _stretches(looks: Ints, band: int, more: int) -> tuple[Stretch, ...]:
    """Disjoint stretches, chosen by how much they can leave out; in order."""
    found: list[Stretch] = []
    for period in _periods(looks):
        same = np.concatenate([[False], looks[period:] == looks[:-period], [False]])
        ends = np.flatnonzero(same[1:] != same[:-1]).reshape(-1, 2)
        whole = max(1, -(-band // period)) * period  # so long that no edge skips one
        for first, last in ends.tolist():
            room = last + period - first - band  # one stays, and room for edges
            out = (room // whole - 1 - _SPARE - -(-more // whole)) * whole
            if out > 0:
                found.append(Stretch(first, last + period, whole, out))
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


def _looks(problem: Problem, flat: Flat, order: Ints, *, at_a_glance: bool) -> Ints:
    """A number for every position: those of equal numbers look alike. No other node looks like a hub.

    If `at_a_glance`, some entries of an array are looked at.
    """
    count, into = len(order), _into(flat)
    is_hub = _hubs(flat)
    away = np.where(is_hub[flat.other], flat.other - 2 * count, flat.other - into)
    kinds = np.empty(len(into), dtype=np.intp)
    of_edge = np.array(_alike((edge.cost for edge in problem.edges), at_a_glance), dtype=np.intp)
    kinds[flat.arcs] = 2 * of_edge[:, None] + np.arange(2)
    arcs, ends = np.stack([away, kinds], axis=1), flat.near.tolist()
    own, nodes = _alike(problem.node_costs, at_a_glance), list[int](order.tolist())
    known: dict[Hashable, int] = {}
    looks = [
        known.setdefault((own[v], i if is_hub[i] else -1, arcs[ends[i] : ends[i + 1]].tobytes()), len(known))
        for i, v in enumerate(nodes)
    ]
    return np.array(looks, dtype=np.intp)


def _alike(arrays: Iterable[Floats], at_a_glance: bool) -> list[int]:
    """A number for every array: those of equal numbers are equal up to rounding, as far as looked at."""
    of_array, same = dict[int, int](), Same(_rounded, at_a_glance=at_a_glance)
    result: list[int] = []
    for array in arrays:
        if id(array) not in of_array:
            of_array[id(array)] = same.number(array)
        result.append(of_array[id(array)])
    return result


def _rounded(array: Floats) -> bytes:
    scale = float(np.abs(array).max(initial=0.0, where=np.isfinite(array))) or 1.0
    rounded = np.round(array / (_ALIKE * scale)) + 0.0  # + 0: there is no -0
    return blake2b(rounded.tobytes(), digest_size=16).digest()


def _hubs(flat: Flat) -> Bools:
    return np.diff(flat.near) > HUB


def _into(flat: Flat) -> Ints:
    """The node that each arc goes into."""
    return np.repeat(np.arange(len(flat.near) - 1), np.diff(flat.near))


def _period_cost(flat: Flat, choice: Ints, stop: int, period: int) -> float:
    """What the period before `stop` costs with its edges to lower nodes, where the one before it chooses alike."""
    first = stop - period
    arcs: Ints = np.arange(int(flat.near[first]), int(flat.near[stop]))
    into = np.repeat(np.arange(first, stop), np.diff(flat.near[first : stop + 1]))
    is_lower = arcs < flat.split[into]
    arcs, into = arcs[is_lower], into[is_lower]
    low = flat.other[arcs]
    is_hub = _hubs(flat)[low]
    low = np.where((low < first) & ~is_hub, first + (low - first) % period, low)
    rows, columns = (flat.class_of[at[arcs] + choice[v]] for at, v in ((flat.rows_at, low), (flat.columns_at, into)))
    entries = flat.thin[arcs] + rows * flat.wide[arcs] + columns
    nodes = flat.cost[flat.start[first:stop] + choice[first:stop]]
    return float(nodes.sum() + flat.pool[entries].sum())
