"""Shortest paths between the states of a weighted graph: numbers in, numbers out."""

from __future__ import annotations

import math

import numpy as np

from autopar._jit import compiled
from autopar.redistribute.alike import Alike
from autopar.redistribute.graph import Floats, Weights
from autopar.redistribute.sequences import Ints


@compiled
def shortest_distances(start: Ints, head: Ints, cost: Floats, sources: Ints) -> Floats:
    """distance[state, n]: that of a shortest path from state `sources[n]`; inf where there is none.

    The edges of state u are start[u] <= e < start[u + 1]: to state head[e], for cost[e] >= 0. States whose distances
    fell tell those behind their edges, for all sources at once, until none does. A distance is the least of the sums
    along paths, each added up from its source on: adding never makes less, nor changes an order, so these are the very
    numbers that Dijkstra's algorithm finds.

    Reference: Bellman 1958, "On a routing problem"; Moore 1959 (the queue).
    """
    states = len(start) - 1
    distance = np.full((states, len(sources)), np.inf)
    queue = np.empty(states + 1, dtype=np.int64)
    is_queued = np.zeros(states, dtype=np.bool_)
    first = 0
    last = len(sources)
    for n in range(len(sources)):
        source = sources[n]
        distance[source, n] = 0.0
        queue[n] = source
        is_queued[source] = True

    while first != last:
        state = queue[first]
        first = (first + 1) % (states + 1)
        is_queued[state] = False
        mine = distance[state]
        for edge in range(start[state], start[state + 1]):
            price = cost[edge]
            other = distance[head[edge]]
            fell = 0
            for n in range(len(mine)):
                total = mine[n] + price
                is_less = total < other[n]
                fell |= is_less
                other[n] = total if is_less else other[n]
            if fell and not is_queued[head[edge]]:
                is_queued[head[edge]] = True
                queue[last] = head[edge]
                last = (last + 1) % (states + 1)

    return distance


class ShortestPaths:
    """Shortest distances in a weighted graph, found for sources when asked for.

    States that are alike have distances that are alike: they are looked for from one of them.
    """

    def __init__(self, alike: Alike, weights: Weights) -> None:
        states = len(alike.first)
        self._start = np.searchsorted(weights.tail, np.arange(states + 1))
        self._alike = alike
        self._weights = weights
        self._rows = np.empty((0, states))
        self._row = np.full(states, -1, dtype=np.int64)

    @property
    def nbytes(self) -> int:
        """About the bytes held."""
        weights = self._weights
        return weights.tail.nbytes + weights.head.nbytes + weights.cost.nbytes + self._rows.nbytes

    def distances(self, sources: Ints, targets: Ints) -> Floats:
        """The distances distance[source, target]; inf where there is no path."""
        first, turn, turned = self._alike
        found = np.empty((len(sources), len(targets)))
        if not found.size:
            return found
        rows = self._found(first[sources])
        turns = turn[sources]
        for n, becomes in enumerate(turned):
            mine = np.flatnonzero(turns == n)
            if len(mine):
                found[mine] = self._rows[rows[mine]].take(becomes[targets], axis=1)
        return found

    def _found(self, sources: Ints) -> Ints:
        """Where the rows of these sources are; those that are missing are found."""
        missing = np.unique(sources[self._row[sources] < 0])
        if len(missing):
            weights = self._weights
            fresh = shortest_distances(self._start, weights.head, weights.cost, missing)
            self._row[missing] = len(self._rows) + np.arange(len(missing))
            self._rows = np.concatenate([self._rows, fresh.T])
        return self._row[sources]

    def path(self, source: int, target: int, number: Ints) -> list[int]:
        """The states of a shortest path of the fewest edges, both ends included; none if there is no path.

        Of several the one whose states have the lowest `number`, the last one first. An edge is on a shortest path if
        distance[tail] + cost = distance[head]. That is exact in floating point: distances are these very sums.
        """
        distance = self.distances(np.array([source]), np.arange(len(number)))[0]
        if math.isinf(distance[target]):
            return []

        tail = self._weights.tail
        head = self._weights.head
        cost = self._weights.cost
        with np.errstate(over="ignore"):
            tight = np.isfinite(distance[tail]) & (distance[tail] + cost == distance[head])

        tail = tail[tight]
        head = head[tight]
        hops = _hops(tail, head, len(distance), source)
        path = [target]
        while path[-1] != source:
            last = path[-1]
            before = tail[(head == last) & (hops[tail] == hops[last] - 1)]
            path.append(int(before[np.argmin(number[before])]))

        return path[::-1]


def _hops(tail: Ints, head: Ints, states: int, source: int) -> Ints:
    """The fewest edges from `source` to every state; -1 where there is no path."""
    hops = np.full(states, -1, dtype=np.int64)
    frontier = np.array([source], dtype=np.int64)
    level = 0
    while len(frontier):
        hops[frontier] = level
        reached = np.unique(head[hops[tail] == level])
        frontier = reached[hops[reached] < 0]
        level += 1
    return hops
