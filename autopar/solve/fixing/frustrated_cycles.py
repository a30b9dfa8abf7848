"""Frustrated cycles: a few nodes whose strategies fit their neighbours', one edge at a time, but do not fit together.

What messages prove of them is too little: a mixture of strategies gets round every edge of a cycle. Of what lies within
a small window above the bound, nodes are eliminated, those of the smallest tables first. A table with nothing within
the window says that the nodes it was made of cost more than messages prove; of these, as few as do are a knot. `join`
unties it.

D. Sontag et al., "Tightening LP relaxations for MAP using message passing", UAI 2008.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np

from autopar.solve.elimination.min_sum import Axes, MinSum
from autopar.solve.problem.problem import Floats
from autopar.solve.problem.stop import is_up
from autopar.solve.trws.dual import Certificate

_WINDOWS = (0.03, 0.01, 0.003)  # of the gap: a knot of a wider one says more
_PASSES = 2  # that leave fewer strategies beside one another
_ENTRIES = 100_000  # of a table with the node that goes
_MOST = 8  # knots at a time
_NEAR = 100  # nodes: of more, no few are looked for


@dataclass(frozen=True, eq=False)
class _Table:
    """Costs by the strategies of the nodes in `scope`, made of what there is between `nodes`."""

    scope: tuple[int, ...]
    cost: Floats
    nodes: frozenset[int]


def knots(certificate: Certificate, gap: float) -> list[frozenset[int]]:
    """Some knots, no node in two of them, in the widest window that shows any; `gap`: what is of interest at all.

    The certificate is one right after a sweep. When the time is up there are none.
    """
    edges = [(edge.u, edge.v) for edge in certificate.problem.edges]
    for share in _WINDOWS:
        if is_up():
            return []
        found = [knot for knot in _knots(_left(certificate, share * gap), share * gap) if _has_cycle(knot, edges)]
        if found:
            return found
    return []


def _knots(tables: Sequence[_Table], window: float) -> Iterator[frozenset[int]]:
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


def _left(certificate: Certificate, window: float) -> list[_Table]:
    """Costs above the bound of the strategies and pairs of strategies that the window leaves beside one another."""
    keep = [np.flatnonzero(excess <= window) for excess in certificate.excess]
    nodes = [(cost - cost.min())[ids] for cost, ids in zip(certificate.node_costs, keep, strict=True)]
    ends, edges = list[tuple[int, int]](), list[Floats]()
    for edge, (to_u, to_v) in zip(certificate.problem.edges, certificate.messages, strict=True):
        s, t = keep[edge.u], keep[edge.v]
        ends.append((edge.u, edge.v))
        edges.append(edge.cost[s[:, None], t] - to_u[s][:, None] - to_v[t])
    for _ in range(_PASSES):
        nodes, edges = _beside(nodes, ends, edges, window)
    alone = [_Table((v,), cost, frozenset((v,))) for v, cost in enumerate(nodes)]
    return alone + [_Table(pair, cost, frozenset(pair)) for pair, cost in zip(ends, edges, strict=True)]


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
        s, t = stay[u], stay[v]
        over = cost[s][:, t]
        most = window - (beyond[u][s] - rows[s])[:, None] - (beyond[v][t] - columns[t])
        left.append(np.where(over > most, np.inf, over))
    return [cost[mask] for cost, mask in zip(nodes, stay, strict=True)], left


def _few(tables: Sequence[_Table], nodes: frozenset[int], window: float) -> frozenset[int]:
    """As few of the nodes as still do not fit together: each is left out if the others do not need it."""
    counts = {table.scope[0]: len(table.cost) for table in tables if len(table.scope) == 1}
    for v in sorted(nodes, key=lambda v: (-counts[v], v)):
        met = _met(tables, nodes - {v}, window) if v in nodes else None
        nodes = met or nodes
    return nodes


def _met(tables: Sequence[_Table], nodes: frozenset[int], window: float) -> frozenset[int] | None:
    """Those of the nodes that a table with nothing within the window was made of, the first met; None: there is none.

    Where a table would be too large, a node goes from some of its tables apart from the others, which may fit together
    less then. None is met after the time is up.
    """
    of = _by_node(tables, nodes)
    counts = {v: len(of[v][0].cost) for v in nodes}
    size = {v: _size(counts, of[v]) for v in nodes}
    queue, made = [(entries, v) for v, entries in size.items()], MinSum()
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


def _by_node(tables: Sequence[_Table], nodes: frozenset[int]) -> dict[int, list[_Table]]:
    """For every one of the nodes its tables that are about no others; its own costs are the first."""
    of: dict[int, list[_Table]] = {v: [] for v in nodes}
    for table in tables:
        if table.nodes <= nodes:
            for v in table.scope:
                of[v].append(table)
    return of


def _size(counts: Mapping[int, int], tables: Sequence[_Table]) -> int:
    """The entries of the sum of tables."""
    return math.prod(counts[u] for u in {u for table in tables for u in table.scope})


def _groups(counts: Mapping[int, int], tables: Sequence[_Table]) -> list[list[_Table]]:
    """The tables in groups whose sums are small enough: each with the first that it fits."""
    groups = list[list[_Table]]()
    for table in sorted(tables, key=lambda table: -table.cost.size):
        for group in groups:
            if _size(counts, [*group, table]) <= _ENTRIES:
                group.append(table)
                break
        else:
            groups.append([table])
    return groups


def _without(v: int, counts: Mapping[int, int], tables: Sequence[_Table], made: MinSum) -> _Table:
    """What a node leaves that goes from the sum of tables: by the nodes with a choice, as arrays have few axes."""
    scope = tuple(sorted({u for table in tables for u in table.scope if counts[u] > 1} - {v}))
    axis = {u: i for i, u in enumerate(scope)} | {v: -1}
    inputs = [_by_axes(table, axis) for table in tables]
    cost = made.eliminate(tuple(counts[u] for u in scope), inputs)
    return _Table(scope, cost, _nodes(tables))


def _by_axes(table: _Table, axis: Mapping[int, int]) -> tuple[Floats, Axes]:
    """The costs of a table, and the axes of its nodes; nodes without one have no choice."""
    alone = tuple(i for i, u in enumerate(table.scope) if u not in axis)
    return table.cost.squeeze(alone), tuple(axis[u] for u in table.scope if u in axis)


def _nodes(tables: Sequence[_Table]) -> frozenset[int]:
    return frozenset[int]().union(*(table.nodes for table in tables))
