"""Reduction: two nodes with an edge become one, whose strategies are the pairs that the edge allows.

    cost_w[s, t] = cost_u[s] + cost_v[t] + cost_uv[s, t]        cost_wx[(s, t), r] = cost_ux[s, r] + cost_vx[t, r]

The problem stays one of pairs, but messages prove more of it: what they lose on cycles, they lose on fewer of them.
Where pairs were fixed (`reduced_cost_fixing`) few are left, and nodes with a common neighbour leave it an edge less.
Where few of all are, every cycle is merged: with every merge more pairs exceed the window, and what is left is a tree.
Elsewhere `frustrated_cycles` says which: a few nodes whose strategies fit their neighbours', one edge at a time, but do
not fit together. A mixture of strategies gets round every edge of a cycle, so messages prove too little of them. Of
what lies within a small window above the bound, nodes are eliminated, those of the smallest tables first. A table with
nothing within the window says that the nodes it was made of cost more than messages prove; as few of these as do are
merged.

D. Sontag et al., "Tightening LP relaxations for MAP using message passing", UAI 2008.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heapify, heappop, heappush

import numpy as np

from autopar.solve.certificate.proof import Join
from autopar.solve.elimination.min_sum import Axes, MinSum
from autopar.solve.fixing.reduced_cost_fixing import pairs_fixed_in_place
from autopar.solve.presolve.arc_consistency import drop_forbidden
from autopar.solve.presolve.reduce import merge_parallel
from autopar.solve.problem.factored_matrix import finite_entries
from autopar.solve.problem.problem import Edge, Floats, Problem, Usage, derived
from autopar.solve.problem.reduction import Choice, Ints, Reduction, unchanged
from autopar.solve.problem.stop import is_up
from autopar.solve.trws.dual import Certificate

_MOST_PAIRS = 10_000  # strategies of a node that two become
_ENTRIES = 6_000_000  # of all edges afterwards
_FEW_LEFT = 150_000
_SHARE_LEFT = 0.4  # pairs that are not forbidden; of all that edges have


@dataclass(frozen=True, eq=False)
class _Place:
    """The node that one became, and which of its strategies each of that one's stands for (None: its own)."""

    node: int
    strategy: Ints | None

    def of(self, values: Floats, axis: int = 0) -> Floats:
        """Values by strategy, for the strategies of what the node became."""
        return values if self.strategy is None else values.take(self.strategy, axis=axis)


def joined(problem: Problem, pairs: Sequence[tuple[int, int]]) -> Reduction:
    """Each of these pairs of nodes, no node in two of them, as one node in the place of the first.

    Between the nodes of a pair there is one edge.
    """
    if not pairs:
        return unchanged(problem)

    partner = dict(pairs) | {v: u for u, v in pairs}
    between = {edge.u: edge for edge in problem.edges if partner.get(edge.u) == edge.v}
    between |= {edge.v: Edge(edge.v, edge.u, edge.cost.T) for edge in between.values()}
    gone = {v for _, v in pairs}
    stay = [v for v in range(len(problem.node_costs)) if v not in gone]
    place = {v: _Place(i, None) for i, v in enumerate(stay)}
    costs = list(problem.node_costs)
    steps = list[tuple[int, int, Ints, Ints]]()
    for u, v in pairs:
        s, t = (ids.astype(np.intp) for ids in np.nonzero(np.isfinite(between[u].cost)))
        costs[u] = costs[u][s] + costs[v][t] + between[u].cost[s, t]
        place[u], place[v] = _Place(place[u].node, s), _Place(place[u].node, t)
        steps.append((u, v, s, t))

    edges = tuple(
        _moved(edge, place[edge.u], place[edge.v])
        for edge in problem.edges
        if partner.get(edge.u) != edge.v
    )
    usages = tuple(
        Usage(place[use.node].node, use.start, use.stop, place[use.node].of(use.size_bytes))
        for use in problem.usages
    )
    smaller = derived(tuple(costs[v] for v in stay), edges, usages, problem.usage_limit)
    places = [place[v] for v in range(len(problem.node_costs))]

    def lift(choice: Choice) -> Choice:
        taken = ((choice[at.node], at.strategy) for at in places)
        return tuple(s if ids is None else int(ids[s]) for s, ids in taken)

    return Reduction(smaller, 0.0, lift, (Join(tuple(steps)),))


def _moved(edge: Edge, u: _Place, v: _Place) -> Edge:
    return Edge(u.node, v.node, v.of(u.of(edge.cost), axis=1))


def has_few_pairs(problem: Problem) -> bool:
    """Whether few pairs of strategies are left, of all and of those that edges have: then all cycles may be merged."""
    left = sum(finite_entries(edge.matrix) for edge in problem.edges)
    return left <= min(_FEW_LEFT, _SHARE_LEFT * sum(edge.matrix.size for edge in problem.edges))


def cycles_merged(problem: Problem, cycles: Sequence[frozenset[int]], upper: float) -> Reduction:
    """Merges along cycles, no node in two of them, until no cycle is left in any, or what is left would be too large.

    It stops when the time is up.

    Pairs that no choice below `upper` can have are few, so that two nodes leave hardly more than they had. Between any
    two nodes there is one edge at most; costs are moved as messages say.

    Raises:
      Infeasible: if no choice is left.
    """
    left = unchanged(problem)
    while pairs := [] if is_up() else _on_cycles(left.problem, cycles):
        gone = {v for _, v in pairs}
        name = {
            v: i
            for i, v in enumerate(v for v in range(len(left.problem.node_costs)) if v not in gone)
        }
        cycles = [frozenset(name[v] for v in cycle if v not in gone) for cycle in cycles]
        left = left.then(partial(joined, pairs=pairs)).then(merge_parallel)
        left = left.then(partial(pairs_fixed_in_place, upper=upper)).then(drop_forbidden)
    return left


def _on_cycles(problem: Problem, cycles: Sequence[frozenset[int]]) -> list[tuple[int, int]]:
    """Pairs of nodes, no node in two of them, side by side on frustrated cycles: those of few pairs first."""
    counts = problem.counts
    near = [dict[int, Floats]() for _ in problem.node_costs]
    for edge in problem.edges:
        near[edge.u][edge.v] = near[edge.v][edge.u] = edge.cost

    entries = [counts[v] * sum(counts[u] for u in around) for v, around in enumerate(near)]
    total = sum(entries) // 2
    found = list[tuple[int, int, int]]()
    used = set[int]()
    for cycle in cycles:
        on = _without_leaves({v: near[v].keys() & cycle for v in cycle})
        pairs = ((u, v) for u in sorted(on) for v in sorted(on[u]) if u < v)
        found += [(int(np.isfinite(near[u][v]).sum()), u, v) for u, v in pairs]

    chosen = list[tuple[int, int]]()
    for count, u, v in sorted(found):
        around = (near[u].keys() | near[v].keys()) - {u, v}
        more = (
            count * sum(counts[w] for w in around) - entries[u] - entries[v] + counts[u] * counts[v]
        )
        if 0 < count <= _MOST_PAIRS and total + more <= _ENTRIES and not used & {u, v}:
            chosen.append((u, v))
            used |= {u, v}
            total += more

    return chosen


def _without_leaves(near: dict[int, set[int]]) -> dict[int, set[int]]:
    """The neighbours of nodes on cycles, or between them."""
    while leaves := {v for v, around in near.items() if len(around) < 2}:
        near = {v: around - leaves for v, around in near.items() if v not in leaves}
    return near


# Frustrated cycles: which nodes are to be merged ----------------------------------------------------------------------

_WINDOWS = (0.03, 0.01, 0.003)  # of the gap: a cycle of a wider one says more
_PASSES = 2  # that leave fewer strategies beside one another
_TABLE_ENTRIES = 100_000  # of a table with the node that goes
_MOST = 8  # frustrated cycles at a time
_NEAR = 100  # nodes: of more, no few are looked for


@dataclass(frozen=True, eq=False)
class _PairTable:
    """Costs by the strategies of the nodes in `scope`, made of what there is between `nodes`."""

    scope: tuple[int, ...]
    cost: Floats
    nodes: frozenset[int]


def frustrated_cycles(certificate: Certificate, gap: float) -> list[frozenset[int]]:
    """Some, no node in two of them, in the widest window that shows any; `gap`: what is of interest at all.

    The certificate is one right after a sweep. When the time is up there are none.
    """
    edges = [(edge.u, edge.v) for edge in certificate.problem.edges]
    for share in _WINDOWS:
        if is_up():
            return []
        found = [
            cycle
            for cycle in _frustrated_cycles(_left(certificate, share * gap), share * gap)
            if _has_cycle(cycle, edges)
        ]
        if found:
            return found
    return []


def _frustrated_cycles(tables: Sequence[_PairTable], window: float) -> Iterator[frozenset[int]]:
    """Sets of few nodes, disjoint, of which nothing fits together within the window."""
    nodes = _nodes(tables)
    for _ in range(_MOST):
        met = _met(tables, nodes, window)
        if met is None or len(met) > _NEAR:
            return
        few = _few(tables, met, window)
        nodes -= few
        yield few


def _has_cycle(nodes: frozenset[int], edges: Sequence[tuple[int, int]]) -> bool:
    """Whether they are no tree: of trees sweeps prove all, in time."""
    return sum(u in nodes and v in nodes for u, v in edges) >= len(nodes)


def _left(certificate: Certificate, window: float) -> list[_PairTable]:
    """Costs above the bound of the strategies and pairs of strategies that the window leaves beside one another."""
    keep = [np.flatnonzero(excess <= window) for excess in certificate.excess]
    nodes = [
        (cost - cost.min())[ids] for cost, ids in zip(certificate.node_costs, keep, strict=True)
    ]
    ends = list[tuple[int, int]]()
    edges = list[Floats]()
    for edge, (to_u, to_v) in zip(certificate.problem.edges, certificate.messages, strict=True):
        s = keep[edge.u]
        t = keep[edge.v]
        ends.append((edge.u, edge.v))
        edges.append(edge.cost[s[:, None], t] - to_u[s][:, None] - to_v[t])

    for _ in range(_PASSES):
        nodes, edges = _beside(nodes, ends, edges, window)

    alone = [_PairTable((v,), cost, frozenset((v,))) for v, cost in enumerate(nodes)]
    return alone + [
        _PairTable(pair, cost, frozenset(pair)) for pair, cost in zip(ends, edges, strict=True)
    ]


def _beside(
    nodes: Sequence[Floats], ends: Sequence[tuple[int, int]], edges: Sequence[Floats], window: float
) -> tuple[list[Floats], list[Floats]]:
    """Nodes and edges without the strategies that are too dear beside what is left, and with dear pairs forbidden."""
    beyond = [cost.copy() for cost in nodes]
    least = [(cost.min(axis=1, initial=np.inf), cost.min(axis=0, initial=np.inf)) for cost in edges]
    for (u, v), (rows, columns) in zip(ends, least, strict=True):
        beyond[u] += rows
        beyond[v] += columns

    stay = [cost <= window for cost in beyond]
    left = list[Floats]()
    for (u, v), cost, (rows, columns) in zip(ends, edges, least, strict=True):
        s = stay[u]
        t = stay[v]
        over = cost[s][:, t]
        most = window - (beyond[u][s] - rows[s])[:, None] - (beyond[v][t] - columns[t])
        left.append(np.where(over > most, np.inf, over))

    return [cost[mask] for cost, mask in zip(nodes, stay, strict=True)], left


def _few(tables: Sequence[_PairTable], nodes: frozenset[int], window: float) -> frozenset[int]:
    """As few of the nodes as still do not fit together: each is left out if the others do not need it."""
    counts = {table.scope[0]: len(table.cost) for table in tables if len(table.scope) == 1}
    for v in sorted(nodes, key=lambda v: (-counts[v], v)):
        met = _met(tables, nodes - {v}, window) if v in nodes else None
        nodes = met or nodes
    return nodes


def _met(
    tables: Sequence[_PairTable], nodes: frozenset[int], window: float
) -> frozenset[int] | None:
    """Those of the nodes that a table with nothing within the window was made of, the first met; None: there is none.

    Where a table would be too large, a node goes from some of its tables apart from the others, which may fit together
    less then. None is met after the time is up.
    """
    of = _by_node(tables, nodes)
    counts = {v: len(of[v][0].cost) for v in nodes}
    size = {v: _size(counts, of[v]) for v in nodes}
    queue = [(entries, v) for v, entries in size.items()]
    made = MinSum()
    heapify(queue)
    while size and not is_up():
        entries, v = heappop(queue)
        if size.get(v) != entries:  # it was put in again with another
            continue
        if not entries:
            return _nodes(of[v])
        del size[v]
        around = {u for table in of[v] for u in table.scope} - {v}
        for group in _groups(counts, of[v]):
            left = _without(v, counts, group, made)
            least = float(left.cost.min(initial=np.inf))
            if least > window:
                return left.nodes
            np.subtract(left.cost, least, out=left.cost)
            for u in left.scope:
                of[u].append(left)
        for u in around:
            of[u] = [table for table in of[u] if v not in table.scope]
            size[u] = _size(counts, of[u])
            heappush(queue, (size[u], u))

    return None


def _by_node(tables: Sequence[_PairTable], nodes: frozenset[int]) -> dict[int, list[_PairTable]]:
    """For every one of the nodes its tables that are about no others; its own costs are the first."""
    of: dict[int, list[_PairTable]] = {v: [] for v in nodes}
    for table in tables:
        if table.nodes <= nodes:
            for v in table.scope:
                of[v].append(table)
    return of


def _size(counts: Mapping[int, int], tables: Sequence[_PairTable]) -> int:
    """The entries of the sum of tables."""
    return math.prod(counts[u] for u in {u for table in tables for u in table.scope})


def _groups(counts: Mapping[int, int], tables: Sequence[_PairTable]) -> list[list[_PairTable]]:
    """The tables in groups whose sums are small enough: each with the first that it fits."""
    groups = list[list[_PairTable]]()
    for table in sorted(tables, key=lambda table: -table.cost.size):
        for group in groups:
            if _size(counts, [*group, table]) <= _TABLE_ENTRIES:
                group.append(table)
                break
        else:
            groups.append([table])
    return groups


def _without(
    v: int, counts: Mapping[int, int], tables: Sequence[_PairTable], made: MinSum
) -> _PairTable:
    """What a node leaves that goes from the sum of tables: by the nodes with a choice, as arrays have few axes."""
    scope = tuple(sorted({u for table in tables for u in table.scope if counts[u] > 1} - {v}))
    axis = {u: i for i, u in enumerate(scope)} | {v: -1}
    inputs = [_by_axes(table, axis) for table in tables]
    cost = made.eliminate(tuple(counts[u] for u in scope), inputs)
    return _PairTable(scope, cost, _nodes(tables))


def _by_axes(table: _PairTable, axis: Mapping[int, int]) -> tuple[Floats, Axes]:
    """The costs of a table, and the axes of its nodes; nodes without one have no choice."""
    alone = tuple(i for i, u in enumerate(table.scope) if u not in axis)
    return table.cost.squeeze(alone), tuple(axis[u] for u in table.scope if u in axis)


def _nodes(tables: Sequence[_PairTable]) -> frozenset[int]:
    return frozenset[int]().union(*(table.nodes for table in tables))
