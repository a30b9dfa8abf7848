"""Standing: a problem without a limit whose nodes were eliminated once; after a change only what follows is done anew.

    left_v[x] = min over k of the sum of the tables of v at (k, x)        x: strategies of the nodes in v's scope

A table is the costs of v, the matrix of an edge, or what a node eliminated before left on v. Each node leaves one, to
the first of its scope that is eliminated after it; what those of empty scope leave adds up to the optimum. Where the
costs of a node change, so do the tables that are left on the way from it to the end, until one comes out as it was.
Equal tables are made once, so a hundred equal layers cost little more than one.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heappush
from math import prod
from operator import is_

import numpy as np
from numpy.typing import NDArray

from autopar.solve import Edge, Infeasible, Problem, Solution, SolveOptions, verify_choice
from autopar.solve.minplus import MinSum
from autopar.solve.problem import objective
from autopar.solve.proof import Eliminate, Fold, Proof

Floats = NDArray[np.float64]
Table = tuple[Floats, tuple[int, ...]]
"""An array and what its axes are: -1 for the node that is eliminated, else a position in its scope."""
_SMALL = 64
_KEPT_ENTRIES = 30_000_000  # 8 bytes each, for as long as the plan is held
_PROVEN = 1e-9  # relative: sums in another order differ by less


@dataclass(frozen=True, eq=False)
class Bucket:
    """An eliminated node: the nodes that its table is over, its edges, and the nodes that left it theirs."""

    node: int
    scope: tuple[int, ...]
    shape: tuple[int, ...]
    edges: tuple[Table, ...]
    left_to_it: tuple[tuple[int, tuple[int, ...]], ...]


@dataclass(frozen=True, eq=False)
class Standing:
    """A solved problem, and what is needed to solve it again with other costs of some nodes.

    `buckets` are in the order of elimination; `rank` says where each node stands in it, `readers` whose scopes have it.
    `folded` is what edges that depend on one end only add to the costs of that end. `costs` (with `folded`), `left` and
    `choice` are by node.
    """

    problem: Problem
    buckets: tuple[Bucket, ...]
    rank: Mapping[int, int]
    readers: Mapping[int, tuple[int, ...]]
    folded: dict[int, Floats]
    costs: dict[int, Floats]
    left: dict[int, Floats]
    choice: tuple[int, ...]

    def solve(self, problem: Problem) -> Solution:
        """The optimum of `problem`, which differs in node costs only; verified, and proven up to rounding.

        Raises:
          Infeasible: if no choice avoids the forbidden entries.
          ValueError: if it has other edges, or a limit.
        """
        same = len(problem.edges) == len(self.problem.edges)
        if problem.usage_limit is not None or not same or not all(map(is_, problem.edges, self.problem.edges)):
            raise ValueError("the problem differs in more than the costs of nodes")
        changed = [v for v, cost in enumerate(problem.node_costs) if cost is not self.problem.node_costs[v]]
        costs = {v: problem.node_costs[v] + self.folded[v] for v in changed}
        left = self._left_anew(costs)
        total = sum(float(left.get(b.node, self.left[b.node])) for b in self.buckets if not b.scope)
        if not np.isfinite(total):
            raise Infeasible("no choice avoids the forbidden entries")
        choice = self._chosen_anew(costs, left)
        cost = objective(problem, choice)
        proven = total >= cost - _PROVEN * abs(cost)
        solution = Solution(choice, cost, cost if proven else total, 0.0, self.proof)
        verify_choice(problem, solution)
        return solution

    @cached_property
    def proof(self) -> Proof:
        """Of every optimum, whatever the costs of nodes: edges that depend on one end are folded, all eliminated."""
        held = {frozenset((b.node, b.scope[i])) for b in self.buckets for _, axes in b.edges for i in axes if i >= 0}
        folded = {(min(e.u, e.v), max(e.u, e.v)) for e in self.problem.edges if frozenset((e.u, e.v)) not in held}
        return Fold(tuple(sorted(folded))), Eliminate(tuple(bucket.node for bucket in self.buckets))

    def _left_anew(self, costs: dict[int, Floats]) -> dict[int, Floats]:
        """What is left by the nodes whose tables change with these costs, those that come out as they were included."""
        left: dict[int, Floats] = {}
        waiting = [self.rank[v] for v in costs]
        heapify(waiting)
        while waiting:
            bucket = self.buckets[heappop(waiting)]
            if bucket.node in left:
                continue
            tables = _tables(bucket, ChainMap(costs, self.costs), ChainMap(left, self.left))
            left[bucket.node] = MinSum().eliminate(bucket.shape, tables)
            if bucket.scope and not np.array_equal(left[bucket.node], self.left[bucket.node]):
                heappush(waiting, min(self.rank[u] for u in bucket.scope))
        return left

    def _chosen_anew(self, costs: dict[int, Floats], left: dict[int, Floats]) -> tuple[int, ...]:
        """The optimal choice, last eliminated first: nodes again whose tables, or whose scope's choices, changed."""
        choice, before = list(self.choice), -1
        waiting = [-self.rank[v] for v in left]
        heapify(waiting)
        while waiting:
            rank = -heappop(waiting)
            if rank == before:
                continue
            before, bucket = rank, self.buckets[rank]
            tables = _tables(bucket, ChainMap(costs, self.costs), ChainMap(left, self.left))
            best = _best(bucket, tables, choice)
            if best != choice[bucket.node]:
                choice[bucket.node] = best
                for reader in self.readers.get(bucket.node, ()):
                    heappush(waiting, -self.rank[reader])
        return tuple(choice)


def standing(problem: Problem, options: SolveOptions) -> Standing | None:
    """`problem`, which has no limit, with its nodes eliminated; None where `options` do not allow such large tables."""
    folded, edges = _folded(problem)
    order = _order(problem.counts, edges, options.max_table_entries)
    if order is None:
        return None
    buckets = _buckets(problem.counts, edges, order)
    kernel, same = MinSum(), dict[bytes, Floats]()
    costs: dict[int, Floats] = {}
    left: dict[int, Floats] = {}
    for bucket in buckets:
        cost = problem.node_costs[bucket.node] + folded[bucket.node]
        costs[bucket.node] = same.setdefault(cost.tobytes(), cost)
        left[bucket.node] = kernel.eliminate(bucket.shape, _tables(bucket, costs, left))
        if kernel.entries > min(options.max_total_entries, _KEPT_ENTRIES):
            return None
    choice = [0] * len(buckets)
    readers: dict[int, list[int]] = {}
    for bucket in reversed(buckets):
        choice[bucket.node] = _best(bucket, _tables(bucket, costs, left), choice)
        for u in bucket.scope:
            readers.setdefault(u, []).append(bucket.node)
    rank = {bucket.node: n for n, bucket in enumerate(buckets)}
    by_node = {v: tuple(nodes) for v, nodes in readers.items()}
    return Standing(problem, buckets, rank, by_node, folded, costs, left, tuple(choice))


def _folded(problem: Problem) -> tuple[dict[int, Floats], list[Edge]]:
    """What edges that depend on one end only add to each node's costs; and the others, equal matrices as one array."""
    along: dict[int, tuple[bool, bool, Floats]] = {}
    same: dict[tuple[tuple[int, ...], bytes], Floats] = {}
    added = {v: np.zeros(count) for v, count in enumerate(problem.counts)}
    others: list[Edge] = []
    for edge in problem.edges:
        if id(edge.cost) not in along:
            known = same.setdefault((edge.cost.shape, edge.cost.tobytes()), edge.cost)
            along[id(edge.cost)] = bool((known == known[:, :1]).all()), bool((known == known[:1]).all()), known
        by_row, by_column, cost = along[id(edge.cost)]
        if by_row:
            added[edge.u] = added[edge.u] + cost[:, 0]
        elif by_column:
            added[edge.v] = added[edge.v] + cost[0]
        else:
            others.append(Edge(edge.u, edge.v, cost))
    return added, others


def _tables(bucket: Bucket, costs: Mapping[int, Floats], left: Mapping[int, Floats]) -> list[Table]:
    handed = [(left[child], axes) for child, axes in bucket.left_to_it]
    return [(costs[bucket.node], (-1,)), *bucket.edges, *handed]


def _best(bucket: Bucket, tables: Sequence[Table], choice: Sequence[int]) -> int:
    """The cheapest strategy of a bucket's node, given the choices of its scope; the first of equals."""
    total = np.zeros(1)
    for table, axes in tables:
        total = total + table[tuple(slice(None) if axis < 0 else choice[bucket.scope[axis]] for axis in axes)]
    return int(total.argmin())


def _order(counts: Sequence[int], edges: Sequence[Edge], most_entries: int) -> list[tuple[int, tuple[int, ...]]] | None:
    """The nodes with their scopes, always one whose table is smallest; None if one has more entries than allowed."""
    near: list[set[int]] = [set() for _ in counts]
    for edge in edges:
        near[edge.u].add(edge.v)
        near[edge.v].add(edge.u)
    entries = {v: prod(counts[u] for u in nodes) for v, nodes in enumerate(near)}
    order: list[tuple[int, tuple[int, ...]]] = []
    while entries:
        chosen = _round(near, entries)
        if entries[chosen[0]] > most_entries:
            return None
        changed: set[int] = set()
        for v in chosen:
            del entries[v]
            order.append((v, tuple(sorted(near[v]))))
            for u in near[v]:
                near[u] |= near[v]
                near[u] -= {u, v}
            changed |= near[v]
        for u in changed:
            entries[u] = prod(counts[w] for w in near[u])
    return order


def _round(near: Sequence[set[int]], entries: Mapping[int, int]) -> list[int]:
    """The nodes that go next: of smallest tables (or small ones, all together), no two adjacent.

    So equal layers are eliminated alike, and share their tables.
    """
    most = max(min(entries.values()), _SMALL)
    chosen, blocked = list[int](), set[int]()
    for v in sorted((v for v, size in entries.items() if size <= most), key=lambda v: (entries[v], v)):
        if v not in blocked:
            chosen.append(v)
            blocked |= near[v]
    return chosen


def _buckets(
    counts: Sequence[int], edges: Sequence[Edge], order: Sequence[tuple[int, tuple[int, ...]]]
) -> tuple[Bucket, ...]:
    rank = {v: n for n, (v, _) in enumerate(order)}
    place = {v: {u: n for n, u in enumerate(scope)} | {v: -1} for v, scope in order}
    tables: dict[int, list[Table]] = {}
    for edge in edges:
        first = min(edge.u, edge.v, key=lambda v: rank[v])
        tables.setdefault(first, []).append((edge.cost, (place[first][edge.u], place[first][edge.v])))
    handed: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
    for v, scope in order:
        if scope:
            to = min(scope, key=lambda u: rank[u])
            handed.setdefault(to, []).append((v, tuple(place[to][u] for u in scope)))
    return tuple(
        Bucket(v, scope, tuple(counts[u] for u in scope), tuple(tables.get(v, ())), tuple(handed.get(v, ())))
        for v, scope in order
    )
