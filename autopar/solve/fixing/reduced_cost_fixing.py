"""Reduction: strategies, and pairs of strategies, go that no choice within a window above a bound can contain.

With costs moved between edges and nodes as the messages of the bound say (cost', `trws.dual`), a choice costs at least

    bound + beyond_v[s]                                                               with strategy s at v
    bound + beyond_u[s] - row[s] + beyond_v[t] - column[t] + cost'_uv[s, t] - low     with s at u and t at v

    row[s] = min over t of cost'_uv[s, t] - low    column[t]: alike    low = min cost'_uv
    beyond_v = cost'_v - min cost'_v + sum over v's edges of row (or column)

Strategies that go leave most edges as wide as they were; pairs that go leave them nearly functional, so that the cheap
reductions go far. Costs stay moved: sweeps on what is left begin where the messages were.

G. Dantzig, R. Fulkerson, S. Johnson, "Solution of a large-scale traveling-salesman problem" (1954).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from autopar._jit import compiled
from autopar.solve.certificate.proof import FREE, Bar, Exceed, Messages, Pass
from autopar.solve.problem.factored_matrix import part
from autopar.solve.problem.problem import Edge, Floats, Infeasible, Problem, derived
from autopar.solve.problem.reduction import Bools, Ints, Reduction, restrict, unchanged
from autopar.solve.trws.dual import Certificate, rounding_error

_SAMPLE = 2_000_000  # entries of edges
_ROUNDING = 1e-12  # of what is added up

Bits = NDArray[np.uint8]

_UNMOVED = Messages(np.zeros((0, 2), dtype=np.intp), ())


def pairs_fixed(certificate: Certificate, window: float) -> Reduction:
    """What can be part of a choice within `window` of the bound, up to rounding; costs are moved.

    The certificate is of a problem with at most one edge between any two nodes. One that proves nothing, as where a
    strategy has no finite partner, rules out nothing and moves nothing.

    Raises:
      Infeasible: if a node loses all its strategies.
    """
    problem = certificate.problem
    if certificate.bound == -np.inf:
        return unchanged(problem)

    (prices, messages) = certificate.parts()
    alone = unchanged(derived(problem.node_costs, (), problem.usages, problem.usage_limit))
    keep = certificate.keep(window)
    left = alone.then(
        partial(restrict, keep=keep, because=lambda ids: Exceed(ids, prices, _UNMOVED))
    )
    if not all(mask.any() for mask in keep):
        raise Infeasible("no choice lies within the window", witness=(Pass(messages), *left.steps))

    costs, moved = _moved(problem, certificate.messages, keep)
    priced = [cost[mask] for cost, mask in zip(certificate.node_costs, keep, strict=True)]
    edges, bars = _without_dear(priced, *moved, window + rounding_error(certificate))
    smaller = derived(tuple(costs), edges, left.problem.usages, problem.usage_limit)
    return Reduction(
        smaller,
        0.0,
        left.lift,
        (Pass(messages), *left.steps, *((Bar(bars, prices),) if bars else ())),
    )


def pairs_fixed_in_place(problem: Problem, upper: float) -> Reduction:
    """As `pairs_fixed`, where costs are moved already: without the pairs that no choice below `upper` can have.

    Raises:
      Infeasible: if all choices cost as much.
    """
    pool = np.concatenate([np.zeros(0), *(edge.cost.ravel() for edge in problem.edges)])
    parts = np.split(pool, np.cumsum([edge.cost.size for edge in problem.edges])[:-1])
    moved = [
        Edge(e.u, e.v, part.reshape(e.cost.shape))
        for e, part in zip(problem.edges, parts, strict=False)
    ]
    lows = [
        float(cost.min()) for cost in (*problem.node_costs, *(edge.cost for edge in problem.edges))
    ]
    bound = sum(lows)
    error = _ROUNDING * (sum(map(abs, lows)) + abs(upper))
    if bound > upper + error:
        raise Infeasible("no choice lies within the window", witness=(Pass(_UNMOVED),))

    edges, bars = _without_dear(problem.node_costs, moved, pool, upper - bound + error)
    if not bars:
        return unchanged(problem)

    left = derived(problem.node_costs, edges, problem.usages, problem.usage_limit)
    return Reduction(left, 0.0, lambda choice: choice, (Bar(bars, FREE),))


def sampled(certificate: Certificate) -> tuple[Floats, float]:
    """What pairs of strategies cost above the bound, at least, of some of the edges; how many pairs each stands for."""
    total = sum(edge.matrix.size for edge in certificate.problem.edges)
    stride = max(1, total // _SAMPLE)
    values: list[Floats] = []
    for e in range(0, len(certificate.messages), stride):
        edge = certificate.problem.edges[e]
        (to_u, to_v) = certificate.messages[e]
        over = part(edge.matrix) - to_u[:, None] - to_v
        over -= over.min()
        u = certificate.excess[edge.u] - over.min(axis=1)
        v = certificate.excess[edge.v] - over.min(axis=0)
        values.append((over + u[:, None] + v).ravel())

    found = np.concatenate([np.zeros(0), *values])
    return found, total / len(found) if len(found) else 1.0


def window_of(above: Floats, pairs: float) -> float:
    """The window in which as many are left of pairs that cost this above the bound; inf if there are no more."""
    wanted = int(pairs)
    return float(np.partition(above, wanted)[wanted]) if wanted < len(above) else np.inf


def _moved(
    problem: Problem, messages: Sequence[tuple[Floats, Floats]], keep: Sequence[Bools]
) -> tuple[list[Floats], tuple[list[Edge], Floats]]:
    """Nodes' costs and edges after what is left of the messages went from edges to nodes; all edges' entries."""
    index = [np.flatnonzero(mask) for mask in keep]
    costs = [cost[ids] for cost, ids in zip(problem.node_costs, index, strict=True)]
    edges = list[Edge]()
    at = 0
    pool = np.empty(sum(len(index[edge.u]) * len(index[edge.v]) for edge in problem.edges))
    for edge, (to_u, to_v) in zip(problem.edges, messages, strict=True):
        rows = index[edge.u]
        columns = index[edge.v]
        some_rows = len(rows) < len(to_u)
        some_columns = len(columns) < len(to_v)
        cost = part(edge.matrix, rows if some_rows else None, columns if some_columns else None)
        to_u = to_u[rows] if some_rows else to_u
        to_v = to_v[columns] if some_columns else to_v
        costs[edge.u] += to_u
        costs[edge.v] += to_v
        left = pool[at : at + cost.size].reshape(cost.shape)
        np.subtract(cost, to_u[:, None], out=left)
        left -= to_v
        edges.append(Edge(edge.u, edge.v, left))
        at += left.size

    return costs, (edges, pool)


def _without_dear(
    costs: Sequence[Floats], edges: Sequence[Edge], pool: Floats, most: float
) -> tuple[tuple[Edge, ...], dict[tuple[int, int], Bits]]:
    """The edges, with infinity in place of pairs that cost more than `most` above the bound; and where that was put.

    `pool` has the edges' entries, one after the other, and is changed. None go if some edge has no finite pair.
    """
    start = np.concatenate([[0], np.cumsum([len(cost) for cost in costs])]).astype(np.intp)
    ends = np.array([(edge.u, edge.v) for edge in edges], dtype=np.intp).reshape(-1, 2)
    place = np.concatenate([[0], np.cumsum([edge.cost.size for edge in edges])]).astype(np.intp)
    beyond = np.concatenate([np.zeros(0), *(cost - cost.min() for cost in costs)])
    gone = np.zeros(len(pool), dtype=np.bool_)
    least = np.empty(int((start[ends + 1] - start[ends]).sum()))
    fix_dear(start, ends, place, pool, beyond, least, most, gone)
    left = list[Edge]()
    bars = dict[tuple[int, int], Bits]()
    for edge, (first, last) in zip(edges, pairwise(place.tolist()), strict=True):
        bits = gone[first:last]
        if bits.any():
            bars[edge.u, edge.v] = np.packbits(bits)
            edge = Edge(edge.u, edge.v, pool[first:last].reshape(edge.cost.shape))
        left.append(edge)

    return tuple(left), bars


@compiled
def fix_dear(
    start: Ints,
    ends: Ints,
    place: Ints,
    pool: Floats,
    beyond: Floats,
    least: Floats,
    most: float,
    gone: Bools,
) -> None:
    """Puts infinity, and `gone`, where a pair of edge e, pool[place[e] ...] between ends[e], costs more than `most`.

    `beyond` has what strategies cost above the least of their node; `least` is room for what edges add to it.
    """
    at = 0
    lows = np.empty(len(ends))
    for e in range(len(ends)):
        u, v = ends[e]
        tall = start[u + 1] - start[u]
        wide = start[v + 1] - start[v]
        cost = pool[place[e] : place[e + 1]].reshape(tall, wide)
        rows = least[at : at + tall]
        columns = least[at + tall : at + tall + wide]
        columns[:] = np.inf
        for s in range(tall):
            row = cost[s]
            for t in range(wide):
                columns[t] = row[t] if row[t] < columns[t] else columns[t]
            rows[s] = _least(row)
        low = lows[e] = _least(rows)
        if low == np.inf:
            return
        rows -= low
        columns -= low
        beyond[start[u] : start[u + 1]] += rows
        beyond[start[v] : start[v + 1]] += columns
        at += tall + wide

    at = 0
    for e in range(len(ends)):
        u, v = ends[e]
        tall = start[u + 1] - start[u]
        wide = start[v + 1] - start[v]
        cost = pool[place[e] : place[e + 1]].reshape(tall, wide)
        bits = gone[place[e] : place[e + 1]]
        rows = beyond[start[u] : start[u + 1]] - least[at : at + tall]
        columns = beyond[start[v] : start[v + 1]] - least[at + tall : at + tall + wide]
        for s in range(tall):
            row = cost[s]
            goes = bits[s * wide : (s + 1) * wide]
            limit = most + lows[e] - rows[s]
            for t in range(wide):
                goes[t] = row[t] < np.inf and not (row[t] + columns[t] <= limit)
            for t in range(wide):
                row[t] = np.inf if goes[t] else row[t]
        at += tall + wide


@compiled
def _least(values: Floats) -> float:
    """The least of them; four at a time, none of which waits for another."""
    a = b = c = d = np.inf
    last = len(values) - len(values) % 4
    for i in range(0, last, 4):
        a = values[i] if values[i] < a else a
        b = values[i + 1] if values[i + 1] < b else b
        c = values[i + 2] if values[i + 2] < c else c
        d = values[i + 3] if values[i + 3] < d else d
    for i in range(last, len(values)):
        a = values[i] if values[i] < a else a
    return min(min(a, b), min(c, d))
