"""Exact re-solves of a forest among some nodes, the others held: the move of every search for choices.

A forest has no cycle, so it is solved by one pass from the leaves to the roots and one back. All work goes on a desk
that is laid out once, so that a move costs no more than the nodes that it looks at.

Annealing re-solves random forests at costs with noise that cools. Memory is priced, so that the search goes back and
forth across the limit; the cheapest choice that fits is kept. Prices move in one of two ways. Together: one factor on
all rises while a row exceeds the limit and falls while all fit, and a row that exceeds it becomes dearer for good (good
where thousands of rows have a price). Each: a row's price rises by its own excess and falls by what it leaves free
(good where a few rows decide).

F. Hamze, N. de Freitas, "From fields to trees", UAI 2004; S. Kirkpatrick, C. Gelatt, M. Vecchi, "Optimization by
simulated annealing", Science 220 (1983).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from autopar._jit import compiled_inner
from autopar.solve.problem.problem import Floats
from autopar.solve.problem.reduction import Ints
from autopar.solve.trws.arrays import Flat
from autopar.solve.trws.kernels import add_prices, add_row, cost_of, use_of


class Desk(NamedTuple):
    """Room to work on: the costs of strategies to be minimised (set by the caller), and what a move writes down.

    inside: 1 for the nodes of the forest; root and seen: of union-find. walk: the nodes, parents first; via: the arc
    into each from its parent (-1: none). total: the costs beside the nodes outside; kept: the best strategy of a child
    for each of its parent; best: one row of costs.
    """

    costs: Floats
    inside: Ints
    root: Ints
    seen: Ints
    walk: Ints
    via: Ints
    total: Floats
    kept: Ints
    best: Floats


def desk_for(flat: Flat) -> Desk:
    """A clean desk, with the costs of the problem."""
    nodes = len(flat.start) - 1
    inside, root, seen, walk, via = (np.zeros(nodes, dtype=np.intp) for _ in range(5))
    total = np.zeros(len(flat.cost))
    kept = np.zeros(flat.size, dtype=np.intp)
    best = np.zeros(flat.widest)
    return Desk(flat.cost.copy(), inside, root, seen, walk, via, total, kept, best)


@compiled_inner
def find(root: Ints, v: int) -> int:
    """The root of v's tree; paths are halved on the way."""
    while root[v] != v:
        root[v] = root[root[v]]
        v = root[v]
    return v


@compiled_inner
def grow_forest(p: Flat, order: Ints, desk: Desk) -> None:
    """Writes 1 inside for the nodes of a maximal forest, taken greedily in `order`: no cycle among them.

    Nodes outside `order` must be 0 inside already.
    """
    for v in order:
        desk.inside[v] = 0
        desk.seen[v] = -1
        desk.root[v] = v

    for v in order:
        fits = True
        for k in range(p.near[v], p.near[v + 1]):
            if desk.inside[p.other[k]]:
                tree = find(desk.root, p.other[k])
                fits = fits and desk.seen[tree] != v
                desk.seen[tree] = v
        if fits:
            desk.inside[v] = 1
            for k in range(p.near[v], p.near[v + 1]):
                if desk.inside[p.other[k]]:
                    desk.root[find(desk.root, p.other[k])] = v


@compiled_inner
def walk_forest(p: Flat, order: Ints, choice: Ints, desk: Desk) -> int:
    """Writes the forest's nodes, parents first, and their costs beside the nodes outside. Returns how many."""
    for v in order:
        desk.via[v] = -2

    found = 0
    for i in range(len(order)):
        if not desk.inside[order[i]] or desk.via[order[i]] != -2:
            continue
        desk.via[order[i]] = -1
        desk.walk[found] = order[i]
        done = found
        found = found + 1
        while done < found:
            v = desk.walk[done]
            done += 1
            first = p.start[v]
            count = p.start[v + 1] - p.start[v]
            for t in range(first, first + count):
                desk.total[t] = desk.costs[t]
            for k in range(p.near[v], p.near[v + 1]):
                u = p.other[k]
                if not desk.inside[u]:
                    add_row(p, k, int(choice[u]), desk.total[first : first + count])
                elif desk.via[u] == -2:
                    desk.via[u] = p.back[k]
                    desk.walk[found] = u
                    found += 1

    return found


@compiled_inner
def hand_up(p: Flat, v: int, desk: Desk) -> None:
    """Adds to v's parent's costs, for each of its strategies, the least of v's tree, and keeps v's strategy."""
    k = p.back[desk.via[v]]
    u = p.other[desk.via[v]]
    wide = p.wide[k]
    kept = p.mail[k]
    for c in range(wide):
        desk.best[c] = np.inf

    for s in range(p.start[v + 1] - p.start[v]):
        own = desk.total[p.start[v] + s]
        base = p.thin[k] + p.class_of[p.rows_at[k] + s] * wide
        for c in range(wide):
            value = own + p.pool[base + c]
            if value < desk.best[c]:
                desk.best[c] = value
                desk.kept[kept + c] = s

    for t in range(
        p.start[u + 1] - p.start[u] - 1, -1, -1
    ):  # downwards: a class stands for none before its number
        c = p.class_of[p.columns_at[k] + t]
        desk.kept[kept + t] = desk.kept[kept + c]
        desk.total[p.start[u] + t] += desk.best[c]


@compiled_inner
def solve_forest(p: Flat, order: Ints, choice: Ints, desk: Desk) -> None:
    """Makes the choice the cheapest on the forest among `order`, at the desk's costs; the others stay."""
    found = walk_forest(p, order, choice, desk)
    for i in range(found - 1, -1, -1):
        if desk.via[desk.walk[i]] >= 0:
            hand_up(p, desk.walk[i], desk)
    for i in range(found):
        v = desk.walk[i]
        if desk.via[v] < 0:
            choice[v] = np.argmin(desk.total[p.start[v] : p.start[v + 1]])
        else:
            choice[v] = desk.kept[p.mail[p.back[desk.via[v]]] + choice[p.other[desk.via[v]]]]


_COOLED = 1e-3  # of the first temperature, at the end
_UP = 1.02
_DOWN = 0.995  # of the factor on all prices, a pass: up faster, as most passes should fit
_DEARER = 0.1  # of the highest price: a whole limit in excess, for good
_EACH = 0.1
_EACH_UP = 0.2
_EACH_DOWN = 0.1  # of the highest price, a whole limit in excess; the most excess, slack
_FIRST_EXCESS = (
    0.05  # of the limit: an excess that is to cost as much as a node, where nothing has a price yet
)


@dataclass(frozen=True, eq=False)
class Cooling:
    """Where an annealing starts, how hot (in costs), for how many passes, its random numbers, how prices move."""

    choice: Ints
    heat: float
    passes: int
    seed: int
    each: bool = False


def anneal(
    flat: Flat, prices: Floats, schedule: Cooling, wanted: Callable[[float], bool]
) -> tuple[Ints | None, float]:
    """The cheapest choice met that fits, and its cost; None and inf if none fits.

    `wanted` is told the cost of the best after every pass, and ends the annealing by saying False.
    """
    random = np.random.default_rng(schedule.seed)
    choice = schedule.choice.copy()
    control = _Control(flat, prices, schedule)
    desk = desk_for(flat)
    best = None
    least = np.inf
    for n in range(schedule.passes):
        desk.costs[:] = flat.cost
        add_prices(flat, control.prices * control.factor, desk.costs)
        heat = schedule.heat * _COOLED ** (n / schedule.passes)
        desk.costs[:] -= random.gumbel(scale=heat, size=len(desk.costs))
        order = random.permutation(len(choice))
        grow_forest(flat, order, desk)
        solve_forest(flat, order, choice, desk)
        if control.fits(choice):
            cost = cost_of(flat, flat.cost, choice)
            if cost < least:
                best = choice.copy()
                least = cost
        if not wanted(least):
            break

    return best, least


class _Control:
    """The prices of memory and the factor on all of them."""

    def __init__(self, flat: Flat, prices: Floats, schedule: Cooling) -> None:
        self.memory = flat.memory
        self.each = schedule.each
        self.prices = prices.copy()
        self.factor = 1.0
        self.used = np.zeros(flat.memory.rows)
        self.scale = flat.memory.limit or 1.0
        least = schedule.heat / (_FIRST_EXCESS * self.scale) if flat.memory.rows else 0.0
        self.unit = max(float(prices.max(initial=0.0)), least)

    def fits(self, choice: Ints) -> bool:
        """Whether the choice is within the limit; the prices follow."""
        if not self.memory.rows:
            return True

        use_of(self.memory, choice, self.used)
        excess = (self.used - self.memory.limit) / self.scale
        hot = self.used > self.memory.limit
        if self.each:
            steps = _EACH * self.unit * np.clip(excess, -_EACH_DOWN, _EACH_UP)
            self.prices = np.maximum(0.0, self.prices + steps)
        elif hot.any():
            self.factor *= _UP
            self.prices[hot] += _DEARER * excess[hot] * max(float(self.prices.max()), self.unit)
        else:
            self.factor *= _DOWN

        return not hot.any()
