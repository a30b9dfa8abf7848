"""Few periods: a problem of few of the equal layers, solved beside the whole, which begins at its messages.

Layers are those that are told (`layers`). Where their nodes and edges are alike, a period of one or a few layers apart,
most are left out: the edges across the gap are those that a layer has anyway. What they cost is not looked at. Any
messages prove a bound, and any choice is a choice, so nothing is lost where layers differ after all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import cast
from weakref import WeakKeyDictionary

import numpy as np

from autopar.solve.problem.incumbent import Apart, Watch
from autopar.solve.problem.problem import Edge, Floats, Problem, derived, objective
from autopar.solve.problem.reduction import Bools, Choice, Ints
from autopar.solve.trws.arrays import Flat, tiled
from autopar.solve.trws.ascent import Answer, Ascent, better, is_closed

_MORE = 3.0
_LITTLE = 1e-4  # times as much, and a share of the cost: gaps that are alike
_PERIODS = (1, 2, 3)  # layers: elimination may leave every second one as it is not the others
_FAR = 4  # layers: what an edge joins that are farther apart are not alike by how far they are
_MORE_LAYERS = 4  # stay where few do not tell: about as many as have to anyway
_ROUNDS = 6  # of taking in what lies beside layers
_SPARE = 1  # periods more than are needed: near the ends choices are not what they are further in
_WORTH = 1 / 3  # of the nodes: if fewer can be left out, none are
_TIE = 3e-13  # of the cost: what breaks ties


@dataclass(frozen=True)
class Cut:
    """Layers first <= l < stop are left out; each is like the one a number of `period`s before that stays."""

    first: int
    stop: int
    period: int


@dataclass(frozen=True, eq=False)
class Shortened:
    """A problem with fewer layers: which of its nodes and edges each of the whole is like.

    `places`: numbers of its nodes, equal where they have one place in a layer.
    """

    problem: Problem
    nodes: Ints
    edges: Ints
    places: Ints

    def without_ties(self) -> Problem:
        """The problem with next to nothing added to nodes' costs, the same to nodes of one place.

        Of choices that cost the same one is the best then, and in every layer alike.
        """
        little = _TIE * sum(abs(float(cost.min())) for cost in self.problem.node_costs)
        known = dict[tuple[int, int], Floats]()
        looks = [*zip(self.places.tolist(), self.problem.counts, strict=True)]
        for place, count in looks:  # the ends of a network may have fewer candidates left
            if (place, count) not in known:
                known[place, count] = little * np.random.default_rng(place).random(count)
        costs = (c + known[look] for c, look in zip(self.problem.node_costs, looks, strict=True))
        return derived(tuple(costs), self.problem.edges)

    def messages(self, flat: Flat, short: Flat, messages: Floats) -> Floats:
        """The messages of the whole, from those of the short problem."""
        return tiled(flat, self.edges, short, messages)

    def choice(self, short: Choice) -> Choice:
        """The choice of the whole that chooses in what is left out as in what it is like."""
        return tuple(np.array(short, dtype=np.intp)[self.nodes].tolist())


@dataclass(frozen=True, eq=False)
class _Arcs:
    """The edges by layer: from the `low` end to the `high` one, `apart` layers later; `is_up` where that is its u.

    `is_far`: what the edge joins is in no layer, or too many of them apart; `apart` is 0 then.
    """

    low: Ints
    high: Ints
    apart: Ints
    is_far: Bools
    is_up: Bools

    @classmethod
    def of(cls, problem: Problem, layer: Ints) -> _Arcs:
        """Those of a problem."""
        u, v = problem.ends.T
        is_up = layer[u] >= layer[v]
        at = np.arange(len(u))
        to = is_up.astype(np.intp)
        low = problem.ends[at, to]
        high = problem.ends[at, 1 - to]
        apart = layer[high] - layer[low]
        is_far = (layer[low] < 0) | (apart > _FAR)
        return cls(low, high, np.where(is_far, 0, apart), is_far, is_up)


_KNOWN: WeakKeyDictionary[Problem, Shortened | None] = WeakKeyDictionary()
"""Problems of as few layers as can be: elimination and messages ask for the same ones."""


def shortened(problem: Problem, more: int = 0) -> Shortened | None:
    """The problem without most of what repeats; None if too little does, or if there is memory to share.

    `more` layers stay than have to.
    """
    if problem.usages or problem.layers is None:
        return None
    if more:
        return _shortened(problem, problem.layers, more)
    if problem not in _KNOWN:
        _KNOWN[problem] = _shortened(problem, problem.layers, more)
    return _KNOWN[problem]


def _shortened(problem: Problem, layers: Ints, more: int) -> Shortened | None:
    place, layer = _beside(problem, layers)
    arcs = _Arcs.of(problem, layer)
    looks = _looks(arcs, place, layer, np.array(problem.counts, dtype=np.intp))
    cuts = _cuts(looks, int(arcs.apart.max(initial=0)), more)
    gone = np.zeros(len(looks) + 1, dtype=np.bool_)  # the last stands for no layer
    for cut in cuts:
        gone[cut.first : cut.stop] = True
    if not cuts or gone[layer].sum() < _WORTH * len(layer):
        return None
    return _without(problem, place, layer, arcs, cuts, gone)


def _beside(problem: Problem, layers: Ints) -> tuple[Ints, Ints]:
    """The places and layers of nodes, those included that have none but edges to nodes of one layer, or two in a row.

    What they have edges to is their place: so the update of a layer's parameters is with the layer.
    """
    place, layer = layers.T.copy()
    near = list[tuple[int, int]](zip(*problem.ends.T.tolist(), strict=True))
    for _ in range(_ROUNDS):
        beside: dict[int, list[tuple[int, int]]] = {}
        known: list[int] = layer.tolist()
        for u, v in near:
            if (known[u] < 0) != (known[v] < 0):
                u, v = (v, u) if known[u] < 0 else (u, v)
                beside.setdefault(v, []).append((known[u], int(place[u])))
        near = [(u, v) for u, v in near if known[u] < 0 or known[v] < 0]
        fresh = int(place.max(initial=-1)) + 1
        names = dict[tuple[object, ...], int]()
        taken = dict[tuple[object, ...], int]()
        for v, others in sorted(beside.items()):
            low = min(others)[0]
            if max(others)[0] - low <= 1:
                look = (problem.counts[v], *sorted((at - low, other) for at, other in others))
                twin = taken.get((low, look), 0)  # several may look alike: in order
                taken[low, look] = twin + 1
                layer[v] = low
                place[v] = fresh + names.setdefault((twin, look), len(names))
        if not beside:
            break

    return place, layer


def _looks(arcs: _Arcs, place: Ints, layer: Ints, counts: Ints) -> Ints:
    """For every layer a number, equal where nodes and edges are alike: by place, and how far they lead; -1: of none."""
    none = np.zeros_like(layer)
    nodes = np.stack([layer, none, place, counts, none], axis=1)
    others = np.where(arcs.is_far, -1 - arcs.low, place[arcs.low])
    edges = np.stack(
        [layer[arcs.high], 1 + arcs.is_up, place[arcs.high], others, arcs.apart], axis=1
    )

    rows = np.concatenate([nodes, edges])
    rows = rows[np.lexsort(rows.T[::-1])]
    ends = np.searchsorted(rows[:, 0], np.arange(int(layer.max(initial=-1)) + 2)).tolist()
    known = {b"": -1}
    found = [known.setdefault(rows[a:b, 1:].tobytes(), len(known)) for a, b in pairwise(ends)]
    return np.array(found, dtype=np.intp)


def _cuts(looks: Ints, band: int, more: int) -> list[Cut]:
    """Disjoint cuts, chosen by how much they leave out; in order. `band`: the most layers that an edge goes on."""
    found = list[tuple[int, Cut, range]]()
    for period in _PERIODS:
        same = np.concatenate(
            [[False], (looks[period:] == looks[:-period]) & (looks[period:] >= 0), [False]]
        )
        for begin, end in np.flatnonzero(same[1:] != same[:-1]).reshape(-1, 2).tolist():
            first = begin + max(period, band)
            stop = end + period - band  # a period before, and room for edges
            out = ((stop - first - more) // period - _SPARE) * period
            if out > 0:
                found.append((out, Cut(first, first + out, period), range(begin, end + period)))

    chosen = list[tuple[Cut, range]]()
    for _, cut, run in sorted(found, key=lambda item: (-item[0], item[1].period, item[1].first)):
        if all(run.stop <= other.start or other.stop <= run.start for _, other in chosen):
            chosen.append((cut, run))

    return sorted((cut for cut, _ in chosen), key=lambda cut: cut.first)


def _without(
    problem: Problem, place: Ints, layer: Ints, arcs: _Arcs, cuts: Sequence[Cut], gone: Bools
) -> Shortened | None:
    """The problem without what the cuts leave out; None if what that is like is not there, or two edges become one.

    A node that stays has its edges to lower nodes, as far away as ever; the upper ones are others' lower ones.
    """
    like = np.arange(len(gone))
    for cut in cuts:
        like[cut.first : cut.stop] = (
            cut.first - cut.period + np.arange(cut.stop - cut.first) % cut.period
        )

    kept = np.flatnonzero(~gone)
    at = (np.cumsum(~gone) - 1)[like]  # in the row of layers that stay

    image = np.where(layer < 0, np.arange(len(layer)), _found(place, layer, place, like[layer]))
    lower = np.where(arcs.is_far, layer[arcs.low], kept[at[layer[arcs.high]] - arcs.apart])
    low = np.where(arcs.is_far, image[arcs.low], _found(place, layer, place[arcs.low], lower))
    high = image[arcs.high]
    keys = 2 * (low * len(layer) + high) + arcs.is_up
    stays = ~gone[layer[arcs.high]]
    own = np.flatnonzero(stays)
    own = own[np.argsort(keys[own], kind="stable")]
    edges = np.minimum(np.searchsorted(keys[own], keys), len(own) - 1)
    if (
        min(image.min(), low.min()) < 0
        or (keys[own][edges] != keys).any()
        or not np.diff(keys[own] // 2).all()
    ):
        return None

    nodes = np.flatnonzero(~gone[layer])
    name = np.empty(len(layer), dtype=np.intp)
    name[nodes] = np.arange(len(nodes))
    ends = np.where(
        arcs.is_up[:, None], np.stack([high, low], axis=1), np.stack([low, high], axis=1)
    )
    pairs: list[tuple[int, int]] = name[ends[own]].tolist()
    matrices = [problem.edges[e].matrix for e in cast("list[int]", own.tolist())]
    left = tuple(Edge(u, v, matrix) for (u, v), matrix in zip(pairs, matrices, strict=True))
    small = derived(tuple(problem.node_costs[v] for v in nodes.tolist()), left)
    places = np.where(layer[nodes] < 0, -1 - nodes, place[nodes])
    return Shortened(small, name[image], edges, np.unique(places, return_inverse=True)[1])


def _found(place: Ints, layer: Ints, wanted: Ints, where: Ints) -> Ints:
    """The nodes of the wanted places in these layers; -1: there is none."""
    span = int(layer.max(initial=-1)) + 2
    keys = np.where(layer < 0, -1, place * span + layer)
    order = np.argsort(keys, kind="stable")
    asked = wanted * span + where
    found = order[np.minimum(np.searchsorted(keys[order], asked), len(order) - 1)]
    return np.where(keys[found] == asked, found, -1)


@dataclass(frozen=True, eq=False)
class Few:
    """A problem of few of the equal layers beside the whole, its ascent, and its best choice.

    It has `more` layers than have to stay.
    """

    whole: Ascent
    short: Shortened
    ascent: Ascent
    best: Answer
    more: int = 0

    @property
    def is_proven(self) -> bool:
        """Whether its optimum is known."""
        return is_closed(self.best.bound, self.best.objective)

    def searched(self, search: Callable[[Ascent], Answer]) -> Few:
        """With what a search that goes on from its messages finds."""
        return replace(self, best=search(self.ascent))

    def begin(self) -> None:
        """Has the whole's ascent begin at its messages, tiled."""
        self.whole.start_from(self.tiled_messages())

    def tiled_messages(self) -> Floats:
        """Its messages, tiled over the whole."""
        own = self.ascent
        return self.short.messages(self.whole.dual.flat, own.dual.flat, own.held.messages)

    def is_like(self, gap: float, more: float = _MORE) -> bool:
        """Whether a gap that its messages leave of the whole is what its length makes of its own, `more` times.

        If not, more layers are what few are not: where layers and ends want different strategies, it is the number of
        layers that decides, and messages differ from one layer to the next.
        """
        own = abs(self.best.objective - self.ascent.held.bound)
        times = len(self.whole.problem.node_costs) / len(self.short.problem.node_costs)
        return gap <= more * times * own + _LITTLE * abs(self.whole.held.bound)

    def tiled(self) -> Answer:
        """Its best choice, tiled over the whole."""
        if self.best.choice is None:
            return self.best
        choice = self.short.choice(self.best.choice)
        return Answer(choice, objective(self.whole.problem, choice), -np.inf)

    def annealed(self, watch: Watch) -> Few:
        """With a better choice, if annealing finds one."""
        if self.best.choice is None:
            return self
        near = self.ascent.anneal(self.best.objective, self.best.choice, Apart(watch))
        return replace(self, best=better(self.best, near))


def few_of(
    whole: Ascent,
    ascent_of: Callable[[Problem], Ascent],
    search: Callable[[Ascent], Answer],
    fewer: Few | None,
) -> Few | None:
    """Few of the equal layers, searched; about twice as many as `fewer` has. None if too little repeats."""
    more = 0 if fewer is None else 2 * fewer.more + _MORE_LAYERS
    short = shortened(whole.problem, more)
    if short is None:
        return None
    ascent = ascent_of(short.without_ties())
    best = search(ascent)
    return Few(whole, short, ascent, best, more)
