"""Buckets: the order in which nodes are eliminated, and which tables each is in; from edges alone, whatever they cost.

    left_v[x] = min over k of the sum of the tables of v at (k, x)        x: strategies of the nodes in v's scope

A table is the costs of v, the matrix of an edge, or what a node eliminated before left on v. Each node leaves one, to
the first of its scope that is eliminated after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import prod

import numpy as np

from autopar.solve.problem import Edge, Floats

Table = tuple[Floats, tuple[int, ...]]
"""An array and what its axes are: -1 for the node that is eliminated, else a position in its scope."""
_SMALL = 64
_CHAIN = 2


@dataclass(frozen=True, eq=False)
class Bucket:
    """An eliminated node: the nodes that its table is over, its edges, and the nodes that left it theirs."""

    node: int
    scope: tuple[int, ...]
    shape: tuple[int, ...]
    edges: tuple[Table, ...]
    left_to_it: tuple[tuple[int, tuple[int, ...]], ...]

    def tables(self, costs: Mapping[int, Floats], left: Mapping[int, Floats]) -> list[Table]:
        """All its tables, the costs of nodes and what they left being these."""
        handed = [(left[child], axes) for child, axes in self.left_to_it]
        return [(costs[self.node], (-1,)), *self.edges, *handed]

    def best(self, tables: Sequence[Table], choice: Sequence[int]) -> int:
        """The cheapest strategy of its node, given the choices of its scope; the first of equals."""
        total = np.zeros(1)
        for table, axes in tables:
            total = total + table[tuple(slice(None) if axis < 0 else choice[self.scope[axis]] for axis in axes)]
        return int(total.argmin())


class Order:
    """The nodes with their scopes, one after the other: first those of few neighbours, then, if asked, the others."""

    def __init__(self, counts: Sequence[int], edges: Sequence[Edge]) -> None:
        self.counts = counts
        self.near: list[set[int]] = [set() for _ in counts]
        for edge in edges:
            self.near[edge.u].add(edge.v)
            self.near[edge.v].add(edge.u)
        self.scopes: dict[int, tuple[int, ...]] = {}

    def chains(self, most_entries: int) -> None:
        """Takes out all nodes with at most two neighbours, in rounds, no two of a round adjacent.

        So equal layers are eliminated alike, and share their tables.
        """
        waiting = set(range(len(self.counts)))
        while waiting:
            few = [v for v in waiting if v not in self.scopes and len(self.near[v]) <= _CHAIN]
            small = [v for v in few if self._entries(v) <= most_entries]
            chosen = self._apart(sorted(small, key=lambda v: (len(self.near[v]), v)))
            waiting = {u for v in chosen for u in self._take(v)}.union(small).difference(chosen)

    def rest(self, most_entries: int) -> bool:
        """Takes out the other nodes, always of smallest table; False, and none, if one has more entries than that."""
        entries = {v: self._entries(v) for v in range(len(self.counts)) if v not in self.scopes}
        near, scopes = {v: set(self.near[v]) for v in entries}, dict(self.scopes)
        heap = [(size, v) for v, size in entries.items()]
        heapify(heap)
        while entries:
            small = _smallest(heap, entries, most_entries)
            if not small:
                self.near = [near.get(v, nodes) for v, nodes in enumerate(self.near)]
                self.scopes = scopes
                return False
            chosen = self._apart(small)
            changed = {u for v in chosen for u in self._take(v)}
            for v in chosen:
                del entries[v]
            for v in set(small).difference(chosen, changed):
                heappush(heap, (entries[v], v))
            for u in changed:
                entries[u] = self._entries(u)
                heappush(heap, (entries[u], u))
        return True

    def _entries(self, v: int) -> int:
        return prod(map(self.counts.__getitem__, self.near[v]))

    def _apart(self, nodes: Sequence[int]) -> list[int]:
        """The first of the nodes, without neighbours of those before."""
        chosen, blocked = list[int](), set[int]()
        for v in nodes:
            if v not in blocked:
                chosen.append(v)
                blocked |= self.near[v]
        return chosen

    def _take(self, v: int) -> set[int]:
        """Takes out `v`; the nodes whose tables change."""
        near = self.near[v]
        self.scopes[v] = tuple(sorted(near))
        for u in near:
            self.near[u] |= near
            self.near[u] -= {u, v}
        return near


def buckets_of(
    counts: Sequence[int], edges: Sequence[Edge], scopes: Mapping[int, tuple[int, ...]]
) -> tuple[Bucket, ...]:
    """The buckets of the nodes in `scopes`, in its order; edges between other nodes are in none."""
    never = len(counts)
    rank = [never] * never
    for n, v in enumerate(scopes):
        rank[v] = n
    tables: dict[int, list[Table]] = {}
    for edge in edges:
        u, v = edge.u, edge.v
        if rank[u] < rank[v]:
            tables.setdefault(u, []).append((edge.cost, (-1, scopes[u].index(v))))
        elif rank[v] < never:
            tables.setdefault(v, []).append((edge.cost, (scopes[v].index(u), -1)))
    handed: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
    for v, scope in scopes.items():
        to = min(scope, key=rank.__getitem__, default=v)
        if to != v and rank[to] < never:
            over = scopes[to]
            handed.setdefault(to, []).append((v, tuple([-1 if u == to else over.index(u) for u in scope])))
    return tuple(
        Bucket(v, scope, tuple([counts[u] for u in scope]), tuple(tables.get(v, ())), tuple(handed.get(v, ())))
        for v, scope in scopes.items()
    )


def _smallest(heap: list[tuple[int, int]], entries: Mapping[int, int], most_entries: int) -> list[int]:
    """Takes the nodes of smallest table off the heap, and small ones; none if that has more than `most_entries`.

    What is in the heap with other entries than the node has is out of date.
    """
    found, most = list[int](), most_entries
    while heap and heap[0][0] <= most:
        size, v = heappop(heap)
        if entries.get(v) == size and (not found or found[-1] != v):
            most = most if found else max(size, _SMALL)
            found.append(v)
    return found


def first_of(nodes: Sequence[int], rank: Mapping[int, int]) -> int | None:
    """The one of `nodes` that is eliminated first; None if none is."""
    ranked = [v for v in nodes if v in rank]
    return min(ranked, key=lambda v: rank[v]) if ranked else None
