"""Layers: which repetition of its place every node is in, as the places say that are told (`Problem.periods`).

Nodes of one place come in order, but those of the backward pass from the last layer to the first. Edges tell: between
two places that repeat as often, most lead from the k-th node of the one to the (k + d)-th of the other, or to the
(d - k)-th. So a spanning tree of places, by edges that agree, gives each a direction and a first layer:

    layer(v) = first + (number of v in its place)        or        first - (number of v in its place)
"""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

from autopar.solve.periodic.quotient import classes_of
from autopar.solve.problem.problem import Problem, derived
from autopar.solve.problem.reduction import Ints

_FEWEST = 6  # nodes of a place: of fewer, nothing is left out; and what repeats within a layer does not count
_AGREE = 0.5  # of the edges between two places, that have to agree on how these lie
_APART = (
    8  # layers between those of places that no edges join: more than any edge of a network skips
)

Lies = tuple[int, int]
"""How a place lies: its direction, 1 or -1, and the layer of its first node."""


def with_layers(problem: Problem) -> Problem:
    """The problem with `layers`: of every node its place, and its layer (-1: none); as it is if nothing is told."""
    places = classes_of(problem)
    if places is None:
        return problem

    order = np.argsort(places, kind="stable")
    first = np.searchsorted(places[order], np.arange(int(places.max(initial=-1)) + 1))
    number = np.empty_like(places)
    number[order] = np.arange(len(places)) - first[places[order]]

    layer = np.full(len(places), -1, dtype=np.intp)
    begins = 0
    for part in _parts(_pairs(problem, places, number)):
        lies = np.zeros((len(first), 2), dtype=np.intp)
        lies[list(part)] = list(part.values())
        inside = np.flatnonzero(lies[places, 0])
        own = lies[places[inside], 0] * number[inside] + lies[places[inside], 1]
        layer[inside] = own - own.min() + begins
        begins = int(layer.max()) + _APART + 1

    layers = np.stack([places, layer], axis=1)
    made = derived(
        problem.node_costs,
        problem.edges,
        problem.usages,
        problem.usage_limit,
        problem.periods,
        layers,
    )
    made.__dict__.update({name: getattr(problem, name) for name in ("counts", "ends", "matrices")})
    return made


def _pairs(
    problem: Problem, places: Ints, number: Ints
) -> dict[int, list[tuple[int, int, int, int]]]:
    """For every place the others that edges lead to: how many agree, the other, the direction, and the shift."""
    count = np.bincount(places)
    u, v = problem.ends.T
    joins = (places[u] != places[v]) & (np.minimum(count[places[u]], count[places[v]]) >= _FEWEST)
    u = u[joins]
    v = v[joins]
    pair = places[u] * len(count) + places[v]
    total = dict(zip(*(part.tolist() for part in np.unique(pair, return_counts=True)), strict=True))

    best: dict[int, tuple[int, int, int]] = {}
    for direction in (1, -1):
        shift = number[v] - direction * number[u]
        low = int(shift.min(initial=0))
        span = int(shift.max(initial=0)) - low + 1
        rows, agree = np.unique(pair * span + (shift - low), return_counts=True)
        for row, many in zip(rows.tolist(), agree.tolist(), strict=True):
            key, by = divmod(row, span)
            best[key] = max(best.get(key, (0, 0, 0)), (many, direction, by + low))

    found: dict[int, list[tuple[int, int, int, int]]] = {}
    for key, (many, direction, by) in best.items():
        if many >= _AGREE * total[key] and many >= _FEWEST - 1:
            a, b = divmod(key, len(count))
            found.setdefault(a, []).append((many, b, direction, by))
            found.setdefault(b, []).append((many, a, direction, -direction * by))

    return found


def _parts(pairs: dict[int, list[tuple[int, int, int, int]]]) -> list[dict[int, Lies]]:
    """Places that edges join, each with how it lies: along the edges that agree the most (Prim's tree)."""
    seen = set[int]()
    parts = list[dict[int, Lies]]()
    for root in pairs:
        if root in seen:
            continue
        part = dict[int, Lies]()
        waiting = [(0, root, 1, 0)]
        while waiting:
            _, place, sign, begins = heappop(waiting)
            if place in part:
                continue
            part[place] = sign, begins
            for many, other, direction, by in pairs[
                place
            ]:  # number there = direction * number here + by
                if other not in part:
                    heappush(
                        waiting, (-many, other, sign * direction, begins - sign * direction * by)
                    )
        seen |= part.keys()
        parts.append(part)

    return parts
