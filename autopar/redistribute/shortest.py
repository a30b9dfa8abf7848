"""Shortest paths between the states of a weighted graph: numbers in, numbers out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from scipy.sparse import csgraph as scipy_csgraph
from scipy.sparse import csr_array

from autopar.redistribute.alike import Alike
from autopar.redistribute.graph import Floats, Weights
from autopar.redistribute.sequences import Ints

# scipy ships no types. Explicit zeros of a sparse array are edges that cost nothing, not missing edges.
_dijkstra = cast(Callable[..., Floats], cast(Any, scipy_csgraph).dijkstra)


class ShortestPaths:
    """Shortest distances in a weighted graph, found source by source when asked for.

    States that are alike have distances that are alike: they are looked for from one of them.
    """

    def __init__(self, alike: Alike, weights: Weights) -> None:
        states = len(alike.first)
        starts = np.searchsorted(weights.tail, np.arange(states + 1)).astype(np.int32)
        self._graph = csr_array((weights.cost, weights.head.astype(np.int32), starts), shape=(states, states))
        self._alike = alike
        self._weights = weights
        self._rows = np.empty((0, states))
        self._row = np.full(states, -1, dtype=np.int64)

    @property
    def nbytes(self) -> int:
        """About the bytes held."""
        weights = self._weights
        return 2 * (weights.tail.nbytes + weights.head.nbytes + weights.cost.nbytes) + self._rows.nbytes

    def distances(self, sources: Ints, targets: Ints) -> Floats:
        """The distances distance[source, target]; inf where there is no path."""
        first, turn, turned = self._alike
        found = np.empty((len(sources), len(targets)))
        if not found.size:
            return found
        rows, turns = self._found(first[sources]), turn[sources]
        for n, becomes in enumerate(turned):
            mine = np.flatnonzero(turns == n)
            if len(mine):
                found[mine] = self._rows[rows[mine]].take(becomes[targets], axis=1)
        return found

    def _found(self, sources: Ints) -> Ints:
        """Where the rows of these sources are; those that are missing are found."""
        missing = np.unique(sources[self._row[sources] < 0])
        if len(missing):
            self._row[missing] = len(self._rows) + np.arange(len(missing))
            self._rows = np.concatenate([self._rows, _dijkstra(self._graph, indices=missing)])
        return self._row[sources]

    def path(self, source: int, target: int, number: Ints) -> list[int]:
        """The states of a shortest path of the fewest edges, both ends included; none if there is no path.

        Of several the one whose states have the lowest `number`, the last one first. An edge is on a shortest path if
        distance[tail] + cost = distance[head]. That is exact in floating point: Dijkstra's algorithm computed the
        distances as these very sums.
        """
        distance = self.distances(np.array([source]), np.arange(len(number)))[0]
        if math.isinf(distance[target]):
            return []
        tail, head, cost = self._weights.tail, self._weights.head, self._weights.cost
        tight = np.isfinite(distance[tail]) & (distance[tail] + cost == distance[head])
        tail, head = tail[tight], head[tight]
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
