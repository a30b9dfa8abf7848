"""Cheaper choices from a good one: the forest in a small region is solved anew, at costs with noise, as annealing goes.

A region is connected and of 1 to 200 nodes, as often of up to 14 as of more. Its new choice is taken if it keeps the
limit and passes Metropolis' test on the true cost, so the search never leaves the limit, and walks from valley to
valley while it is hot. Prices of memory steer the re-solves: in the rows that a trial would change, they rise where it
exceeds the limit and fall where it leaves room, whether it is taken or not.

S. Kirkpatrick, C. Gelatt, M. Vecchi, "Optimization by Simulated Annealing", Science 220 (1983).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from autopar._jit import compiled, compiled_inner
from autopar.solve.primal.tree_moves import Desk, desk_for, grow_forest, solve_forest
from autopar.solve.problem.problem import Floats
from autopar.solve.problem.reduction import Ints
from autopar.solve.trws.arrays import Flat
from autopar.solve.trws.kernels import add_prices, cost_of, entry, use_of

_LEAST = 1
_MOST = 200  # nodes of a region
_TRIES = 50  # to find another neighbour of a region
_NOISE = 0.3  # of the temperature, on every strategy
_RATE = 0.02  # of the highest price: a whole limit in excess
_EXCESS = 0.2
_ROOM = 0.1  # of the limit: more counts as this
_COOLED = 1e-3  # of the first temperature, at the end
_CHUNK = 100  # steps at one temperature, with one set of random numbers
_DRAWS = 1 << 15  # of each kind, for one chunk; taken again from the first if they run out
_FIRST_EXCESS = (
    0.05  # of the limit: an excess that costs as much as the heat, where nothing has a price
)


@dataclass(frozen=True, eq=False)
class Walk:
    """Where a search starts, how hot (in costs), for how many steps, its random numbers."""

    choice: Ints
    heat: float
    steps: int
    seed: int


class Neighbour(NamedTuple):
    """Where a search is: the choice, the trial (the same between steps), the best, the bytes used, the prices.

    base: costs of strategies at the prices of a while ago; cost: of the choice and of the best, an array of two.
    """

    choice: Ints
    trial: Ints
    best: Ints
    used: Floats
    prices: Floats
    base: Floats
    cost: Floats


class Draws(NamedTuple):
    """Random numbers, uniform in [0, 1) and Gumbel's, and how many of them are taken, an array of two."""

    uniform: Floats
    gumbel: Floats
    taken: Ints


class Neighbourhood(NamedTuple):
    """The nodes of a region are the first of `nodes`; `mark` is 0 between steps."""

    nodes: Ints
    mark: Ints


def search_regions(
    flat: Flat, prices: Floats, walk: Walk, wanted: Callable[[float], bool]
) -> tuple[Ints | None, float]:
    """The cheapest choice met and its cost; None and inf if the start exceeds the limit or takes a forbidden entry.

    `wanted` is told the cost of the best now and then, and ends the search by saying False.
    """
    place = _start(flat, prices, walk)
    desk = desk_for(flat)
    nodes = len(walk.choice)
    if not np.isfinite(place.cost[0]) or (place.used > flat.memory.limit).any():
        return None, np.inf

    region = Neighbourhood(np.zeros(nodes, dtype=np.intp), np.zeros(nodes, dtype=np.intp))
    least = walk.heat / (_FIRST_EXCESS * (flat.memory.limit or 1.0))
    rate = _RATE * max(float(prices.max(initial=0.0)), least)
    random = np.random.default_rng(walk.seed)
    for done in range(0, walk.steps, _CHUNK):
        draws = Draws(random.random(_DRAWS), random.gumbel(size=_DRAWS), np.zeros(2, dtype=np.intp))
        _refresh(flat, place)
        heat = walk.heat * _COOLED ** (done / walk.steps)
        move(flat, min(_CHUNK, walk.steps - done), heat, rate, draws, region, place, desk)
        if not wanted(float(place.cost[1])):
            break

    return place.best, cost_of(flat, flat.cost, place.best)


def _start(flat: Flat, prices: Floats, walk: Walk) -> Neighbour:
    choice = walk.choice.copy()
    used = np.zeros(flat.memory.rows)
    use_of(flat.memory, choice, used)
    costs = np.full(2, cost_of(flat, flat.cost, choice))
    return Neighbour(
        choice, choice.copy(), choice.copy(), used, prices.copy(), flat.cost.copy(), costs
    )


def _refresh(flat: Flat, place: Neighbour) -> None:
    """What steps add up, from scratch."""
    place.base[:] = flat.cost
    add_prices(flat, place.prices, place.base)
    use_of(flat.memory, place.choice, place.used)
    place.cost[0] = cost_of(flat, flat.cost, place.choice)


@compiled_inner
def uniform(draws: Draws) -> float:
    """The next random number in [0, 1)."""
    draws.taken[0] += 1
    return float(draws.uniform[draws.taken[0] % len(draws.uniform)])


@compiled_inner
def gumbel(draws: Draws) -> float:
    """The next random number of Gumbel's distribution."""
    draws.taken[1] += 1
    return float(draws.gumbel[draws.taken[1] % len(draws.gumbel)])


@compiled_inner
def pick(p: Flat, draws: Draws, region: Neighbourhood) -> int:
    """Writes a connected region, in random order: a random node, then random neighbours. Returns how many nodes."""
    nodes = region.nodes
    mark = region.mark
    wanted = int(_LEAST * (_MOST / _LEAST) ** uniform(draws))
    count = 1
    failed = 0
    nodes[0] = int(uniform(draws) * len(nodes))
    mark[nodes[0]] = 1
    while count < wanted and failed < _TRIES:
        v = nodes[int(uniform(draws) * count)]
        degree = p.near[v + 1] - p.near[v]
        u = p.other[p.near[v] + int(uniform(draws) * degree)] if degree > 0 else v
        if mark[u]:
            failed += 1
        else:
            failed = 0
            nodes[count] = u
            mark[u] = 1
            count += 1

    for i in range(count):
        mark[nodes[i]] = 0

    for i in range(count - 1, 0, -1):
        j = int(uniform(draws) * (i + 1))
        nodes[i], nodes[j] = nodes[j], nodes[i]

    return count


@compiled
def move(
    p: Flat,
    steps: int,
    heat: float,
    rate: float,
    draws: Draws,
    region: Neighbourhood,
    place: Neighbour,
    desk: Desk,
) -> None:
    """Steps at one temperature: a trial on a random region, taken or taken back."""
    for _ in range(steps):
        nodes = region.nodes[: pick(p, draws, region)]
        for v in nodes:
            for s in range(p.start[v], p.start[v + 1]):
                desk.costs[s] = place.base[s] - _NOISE * heat * gumbel(draws)
        grow_forest(p, nodes, desk)
        solve_forest(p, nodes, place.trial, desk)
        for v in nodes:
            desk.inside[v] = 0
        fits = shift(p, nodes, 1.0, place)
        reprice(p, nodes, rate, place)
        rise = rise_of(p, nodes, place)
        if fits and (rise <= 0 or (heat > 0 and uniform(draws) < np.exp(-rise / heat))):
            for v in nodes:
                place.choice[v] = place.trial[v]
            place.cost[0] += rise
            if place.cost[0] < place.cost[1]:
                place.cost[1] = place.cost[0]
                for v in range(len(place.best)):
                    place.best[v] = place.choice[v]
        else:
            shift(p, nodes, -1.0, place)
            for v in nodes:
                place.trial[v] = place.choice[v]


@compiled_inner
def shift(p: Flat, nodes: Ints, sign: float, place: Neighbour) -> bool:
    """Takes the bytes in use from the choice to the trial (1) or back (-1). Returns whether they fit there."""
    m = p.memory
    fits = True
    for v in nodes:
        if place.trial[v] != place.choice[v]:
            for i in range(m.of[v], m.of[v + 1]):
                change = m.size[m.at[i] + place.trial[v]] - m.size[m.at[i] + place.choice[v]]
                if change != 0.0:
                    for r in range(m.low[i], m.high[i]):
                        place.used[r] += sign * change

    for v in nodes:
        if place.trial[v] != place.choice[v]:
            for i in range(m.of[v], m.of[v + 1]):
                for r in range(m.low[i], m.high[i]):
                    fits = fits and place.used[r] <= m.limit

    return fits


@compiled_inner
def reprice(p: Flat, nodes: Ints, rate: float, place: Neighbour) -> None:
    """Moves the prices of the rows that the trial changes by its excess there."""
    m = p.memory
    scale = m.limit if m.limit > 0 else 1.0
    for v in nodes:
        if place.trial[v] != place.choice[v]:
            for i in range(m.of[v], m.of[v + 1]):
                for r in range(m.low[i], m.high[i]):
                    excess = min(max((place.used[r] - m.limit) / scale, -_ROOM), _EXCESS)
                    place.prices[r] = max(0.0, place.prices[r] + rate * excess)


@compiled_inner
def rise_of(p: Flat, nodes: Ints, place: Neighbour) -> float:
    """What the trial costs more than the choice."""
    rise = 0.0
    for v in nodes:
        old = place.choice[v]
        new = place.trial[v]
        if old == new:
            continue
        rise += float(p.cost[p.start[v] + new] - p.cost[p.start[v] + old])
        for k in range(p.near[v], p.near[v + 1]):
            u = p.other[k]
            if (
                u < v or place.choice[u] == place.trial[u]
            ):  # an edge between two that change counts once
                rise += entry(p, k, int(place.trial[u]), int(new))
                rise -= entry(p, k, int(place.choice[u]), int(old))

    return rise
