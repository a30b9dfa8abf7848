"""Problems in which a stretch of nodes repeats: shortened to a few repetitions, and what is found there tiled back.

Where minimum cuts separate equal layers (`layers`), whole layers are left out; elsewhere periods of a stretch of the
order of sweeps (`stretch`). The shortened problem leaves most of them out; its edges across the gap are those that a
layer has anyway. Nothing makes equal layers choose alike: the messages of the short problem are where sweeps of the
whole begin, and its choice is one of many. Any messages prove a bound, and any choice is a choice, so nothing is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from autopar.solve.periodic.period import Stretch, joined_in, looks_of, stretches_of
from autopar.solve.periodic.separators import Layers, Run, layers_of
from autopar.solve.problem.factored_matrix import at
from autopar.solve.problem.problem import Edge, Floats, Problem, derived
from autopar.solve.problem.reduction import Bools, Choice, Ints
from autopar.solve.trws.arrays import Flat, with_per_edge
from autopar.solve.trws.order import Ends

_WORTH = 1 / 3  # of the nodes: if fewer can be left out, none are
_LAYERS = 1  # that stay of a run, beside one at each of its ends
_TIE = 3e-13  # of the cost: what breaks ties


@dataclass(frozen=True, eq=False)
class Shortened:
    """A problem with fewer periods, by position in `order`, and how the whole is made of it.

    A stretch may be cut at many sites: the short problem is the same, its tilings differ. `edges[e]` is the short
    problem's edge that the whole's edge e is like. `looks`: numbers of its nodes, equal where they look alike. `ends`
    and `hub` are of the whole, and so are `layers`, if the stretches are whole ones.
    """

    whole: Problem
    problem: Problem
    order: Ints
    stretches: tuple[Stretch, ...]
    edges: Ints
    looks: Ints
    ends: Ends
    hub: Bools
    layers: Layers | None = None

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

    def choice(self, short: Choice) -> Choice:
        """The cheapest tiling of a choice of the short problem: each stretch is cut where a period costs least."""
        strategies, at = np.array(short, dtype=np.intp), list[int]()
        for i, stretch in enumerate(self.stretches):
            image = _image(len(self.order), self.stretches[:i], at)  # right as far as this stretch's cut
            here = strategies[np.minimum(image, len(short) - 1)]
            at.append(stretch.sites[int(np.argmin(self._period_costs(here, stretch)))])
        return self.tiled(short, at)

    def tiled(self, short: Choice, at: Sequence[int]) -> Choice:
        """The choice of the whole with every stretch cut at one of its sites."""
        found = np.empty_like(self.order)
        found[self.order] = np.array(short, dtype=np.intp)[_image(len(self.order), self.stretches, at)]
        return tuple(found.tolist())

    def _period_costs(self, here: Ints, stretch: Stretch) -> list[float]:
        """What the period before each site costs with its edges to lower nodes, where the one before chooses alike."""
        period, first, stop = stretch.period, stretch.sites.start - stretch.period, stretch.sites[-1]
        strategy: list[int] = here.tolist()
        change = np.zeros(stop - first + period + 2)  # from one site to the next

        def add(cost: float, above: int, last: int) -> None:
            change[above + 1 - first] += cost
            change[last + 1 - first] -= cost

        nodes: list[int] = self.order[first:stop].tolist()
        for i, v in enumerate(nodes, first):
            add(float(self.whole.node_costs[v][strategy[i]]), i, i + period)
        for e in self.ends.into(first, stop).tolist():
            low, high = int(self.ends.low[e]), int(self.ends.high[e])
            like = stop if self.hub[low] else low + period  # where a later window has what is like the lower end
            add(self._entry(e, strategy[low], strategy[high]), high, min(max(high, like), high + period))
            if like < stop:
                add(self._entry(e, strategy[like], strategy[high]), max(high, like), high + period)
        costs = np.cumsum(change)
        return [float(costs[site - first]) for site in stretch.sites]

    def _entry(self, e: int, at_low: int, at_high: int) -> float:
        """What an edge costs with these strategies at its ends."""
        edge = self.whole.edges[e]
        is_turned = edge.u != self.order[self.ends.low[e]]
        return float(at(edge.matrix, at_high, at_low) if is_turned else at(edge.matrix, at_low, at_high))


def shortened(problem: Problem, flat: Flat, order: Ints, more: int = 0) -> Shortened | None:
    """The problem without most of what repeats; None if too little does, or if there is memory to share.

    `flat` is the problem in the order of sweeps, `order`. Of every stretch `more` positions stay than have to.
    """
    if problem.usages:
        return None
    for at_a_glance in (True, False):  # to read all entries takes long, and some are enough to tell that little repeats
        looks = looks_of(problem, flat, order, at_a_glance=at_a_glance)
        stretches = stretches_of(looks, 0)
        if not _are_worth_it(stretches, len(order)):
            return None
    layers = layers_of(flat, order, looks, stretches)
    if layers is None:
        stretches = stretches_of(looks, more)
        if not _are_worth_it(stretches, len(order)):
            return None
        return _without(problem, order, Ends.of(joined_in(flat), len(order)), looks.hub, looks.whole, stretches)
    stretches = tuple(_kept(layers, run, more) for run in layers.runs)
    if not _are_worth_it(stretches, len(order)):
        return None
    found = _without(problem, layers.order, layers.ends, layers.hub, layers.looks, stretches)
    return replace(found, layers=layers)


def _kept(layers: Layers, run: Run, more: int) -> Stretch:
    """A run as a stretch that can be cut behind any of the layers that stay."""
    first, period = int(layers.bounds[run.first]), run.period
    stop, stay = first + run.count * period, period * min(run.count, _LAYERS + -(-more // period))
    return Stretch(first, stop, period, stop - first - stay, range(first + period, first + stay + 1, period))


def _are_worth_it(stretches: Sequence[Stretch], count: int) -> bool:
    return sum(stretch.out for stretch in stretches) >= _WORTH * count


def _without(
    problem: Problem, order: Ints, ends: Ends, hub: Bools, looks: Ints, stretches: tuple[Stretch, ...]
) -> Shortened:
    """The problem without what the stretches leave out.

    A node that stays has its edges to lower nodes, as far away as ever; the upper ones are others' lower ones.
    """
    at = [stretch.sites[len(stretch.sites) // 2] for stretch in stretches]
    image, stays = _image(len(order), stretches, at), np.ones(len(order), dtype=bool)
    for stretch, site in zip(stretches, at, strict=True):
        stays[site : site + stretch.out] = False
    place, high = np.flatnonzero(stays), ends.high[ends.edges]
    lows = np.where(hub[ends.low], image[ends.low], image[ends.high] - (ends.high - ends.low))
    edges, kept = list[Edge](), list[int](ends.edges[stays[high]].tolist())
    for e in kept:
        edge, i, j = problem.edges[e], int(lows[e]), int(image[ends.high[e]])
        edges.append(Edge(i, j, edge.matrix) if edge.u == order[ends.low[e]] else Edge(j, i, edge.matrix))
    nodes: list[int] = order[place].tolist()
    small = derived(tuple(problem.node_costs[v] for v in nodes), tuple(edges))
    name, like = np.cumsum(stays[high]) - 1, np.empty(len(high), dtype=np.intp)
    like[ends.edges] = name[ends.starts[place[image[high]]] + np.arange(len(high)) - ends.starts[high]]
    return Shortened(problem, small, order, stretches, like, looks[place], ends, hub)


def _image(count: int, stretches: Sequence[Stretch], at: Sequence[int]) -> Ints:
    """The short problem's position that each position is like; what is left out is like the period before the cut."""
    image, gone = np.arange(count), 0
    for stretch, site in zip(stretches, at, strict=True):
        period, stop = stretch.period, site + stretch.out
        image[site:stop] = site - gone - period + np.arange(stretch.out) % period
        image[stop:] -= stretch.out
        gone += stretch.out
    return image
