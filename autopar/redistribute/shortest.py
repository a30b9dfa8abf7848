"""Shortest paths between the states of a weighted graph: numbers in, numbers out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csgraph as scipy_csgraph
from scipy.sparse import csr_array

from autopar.redistribute.graph import Floats, Weights

# scipy ships no types. Explicit zeros of a sparse array are edges that cost nothing, not missing edges.
_dijkstra = cast(Callable[..., Floats], cast(Any, scipy_csgraph).dijkstra)


class ShortestPaths:
    """Shortest distances in a weighted graph, found source by source when asked for."""

    def __init__(self, states: int, weights: Weights) -> None:
        starts = np.searchsorted(weights.tail, np.arange(states + 1)).astype(np.int32)
        self._graph = csr_array((weights.cost, weights.head, starts), shape=(states, states))
        self._states = states
        self._weights = weights
        self._rows: dict[int, Floats] = {}

    @property
    def nbytes(self) -> int:
        """About the bytes held."""
        weights = self._weights
        edges = 2 * (weights.tail.nbytes + weights.head.nbytes + weights.cost.nbytes)
        return edges + len(self._rows) * self._states * np.dtype(np.float64).itemsize

    def rows(self, sources: Iterable[int]) -> Floats:
        """The distances distance[source, state] of these sources; inf where there is no path."""
        wanted = list(sources)
        missing = sorted(set(wanted) - self._rows.keys())
        if missing:
            found = _dijkstra(self._graph, indices=missing)
            self._rows.update(zip(missing, found, strict=True))
        return np.array([self._rows[source] for source in wanted]).reshape(len(wanted), self._states)

    def path(self, source: int, target: int) -> list[int]:
        """The states of a shortest path of the fewest edges, both ends included; none if there is no path.

        An edge is on a shortest path if distance[tail] + cost = distance[head]. That is exact in floating point:
        Dijkstra's algorithm computed the distances as these very sums.
        """
        distance = self.rows([source])[0]
        if math.isinf(distance[target]):
            return []
        tail, head, cost = self._weights.tail, self._weights.head, self._weights.cost
        tight = np.isfinite(distance[tail]) & (distance[tail] + cost == distance[head])
        tail, head = tail[tight], head[tight]
        hops = _hops(tail, head, len(distance), source)
        path = [target]
        while path[-1] != source:
            last = path[-1]
            path.append(int(tail[(head == last) & (hops[tail] == hops[last] - 1)].min()))
        return path[::-1]


def _hops(tail: NDArray[np.int32], head: NDArray[np.int32], states: int, source: int) -> NDArray[np.int64]:
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
