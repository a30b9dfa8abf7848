"""Buckets: the order in which nodes are eliminated, and which tables each is in; from edges alone, whatever they cost.

    left_v[x] = min over k of the sum of the tables of v at (k, x)        x: strategies of the nodes in v's scope

A table is the costs of v, the matrix of an edge, or what a node eliminated before left on v. Each node leaves one, to
the first of its scope that is eliminated after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
        near, scopes = [set(nodes) for nodes in self.near], dict(self.scopes)
        entries = {v: self._entries(v) for v in range(len(self.counts)) if v not in self.scopes}
        while entries:
            most = min(entries.values())
            if most > most_entries:
                self.near, self.scopes = near, scopes
                return False
            small = [v for v, size in entries.items() if size <= max(most, _SMALL)]
            chosen = self._apart(sorted(small, key=lambda v: (entries[v], v)))
            changed = {u for v in chosen for u in self._take(v)}
            for v in chosen:
                del entries[v]
            entries.update((u, self._entries(u)) for u in changed)
        return True

    def _entries(self, v: int) -> int:
        return prod(self.counts[u] for u in self.near[v])

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
    rank = {v: n for n, v in enumerate(scopes)}
    place = {v: {u: n for n, u in enumerate(scope)} | {v: -1} for v, scope in scopes.items()}
    tables: dict[int, list[Table]] = {}
    for edge in edges:
        first = first_of((edge.u, edge.v), rank)
        if first is not None:
            tables.setdefault(first, []).append((edge.cost, (place[first][edge.u], place[first][edge.v])))
    handed: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
    for v, scope in scopes.items():
        to = first_of(scope, rank)
        if to is not None:
            handed.setdefault(to, []).append((v, tuple(place[to][u] for u in scope)))
    return tuple(
        Bucket(v, scope, tuple(counts[u] for u in scope), tuple(tables.get(v, ())), tuple(handed.get(v, ())))
        for v, scope in scopes.items()
    )


def first_of(nodes: Sequence[int], rank: Mapping[int, int]) -> int | None:
    """The one of `nodes` that is eliminated first; None if none is."""
    ranked = [v for v in nodes if v in rank]
    return min(ranked, key=lambda v: rank[v]) if ranked else None
