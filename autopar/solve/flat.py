"""A problem as flat arrays, which is what kernels read.

Node v's strategies are start[v] <= i < start[v+1] of one long vector. Every edge is two arcs, one into each of its
nodes. The arcs into v are near[v] <= k < near[v+1], those from lower nodes before split[v]. Arc k comes from other[k];
strategy t of v costs pool[place[k] + s * count + t] beside strategy s there, `count` the strategies of v; its messages
to v begin at mail[k]; the same edge's arc the other way is back[k]. arcs[e] are those into u and v of the problem's
edge e.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autopar.solve.problem import Floats, Problem
from autopar.solve.reduction import Ints
from autopar.solve.rows import Rows


class Memory(NamedTuple):
    """Segment i is node[i]'s bytes, size[at[i] ...], in the rows low[i] <= r < high[i]; of[v] <= i < of[v+1] are v's.

    The limit holds in each of the `rows`.
    """

    node: Ints
    low: Ints
    high: Ints
    at: Ints
    size: Floats
    of: Ints
    limit: float
    rows: int


class Flat(NamedTuple):
    """Costs, arcs and memory rows of a problem. `widest`: the most strategies of a node; `size`: of all messages."""

    start: Ints
    cost: Floats
    widest: int
    near: Ints
    split: Ints
    other: Ints
    place: Ints
    mail: Ints
    back: Ints
    arcs: Ints
    pool: Floats
    size: int
    memory: Memory


def flatten(problem: Problem, rows: Rows) -> Flat:
    """The problem with its memory rows, flat."""
    counts = np.array(problem.counts, dtype=np.intp)
    into = np.array([v for edge in problem.edges for v in (edge.u, edge.v)], dtype=np.intp)
    other = into.reshape(-1, 2)[:, ::-1].ravel()
    place, pool = _pool(problem)
    order = np.lexsort((other, into))
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    partner = np.arange(len(order)).reshape(-1, 2)[:, ::-1].ravel()
    into, other = into[order], other[order]
    near = _starts(np.bincount(into, minlength=len(counts)))
    mail = _starts(counts[into])
    return Flat(
        start=_starts(counts),
        cost=np.concatenate([np.zeros(0), *problem.node_costs]),
        widest=int(counts.max(initial=0)),
        near=near,
        split=near[:-1] + np.bincount(into[other < into], minlength=len(counts)),
        other=other,
        place=place[order],
        mail=mail[:-1],
        back=rank[partner[order]],
        arcs=rank.reshape(-1, 2),
        pool=pool,
        size=int(mail[-1]),
        memory=_memory(rows, len(counts)),
    )


def per_edge(flat: Flat, messages: Floats) -> list[tuple[Floats, Floats]]:
    """The messages of every edge of the problem to its nodes u and v."""
    ends = np.append(flat.mail, flat.size)
    return [(messages[ends[i] : ends[i + 1]], messages[ends[j] : ends[j + 1]]) for i, j in flat.arcs.tolist()]


def owners(problem: Problem) -> Ints:
    """The node that each arc goes into, in the order of arcs."""
    return np.sort(np.array([v for edge in problem.edges for v in (edge.u, edge.v)], dtype=np.intp))


def with_messages(flat: Flat, messages: Floats) -> Floats:
    """The costs of all nodes with the messages to them."""
    if not flat.size:
        return flat.cost.copy()
    counts, into = np.diff(flat.start), np.repeat(np.arange(len(flat.start) - 1), np.diff(flat.near))
    strategy = np.arange(flat.size) + np.repeat(flat.start[into] - flat.mail, counts[into])
    return flat.cost + np.bincount(strategy, weights=messages, minlength=len(flat.cost))


def _starts(lengths: Ints) -> Ints:
    return np.concatenate([np.zeros(1, dtype=np.intp), np.cumsum(lengths, dtype=np.intp)])


def _pool(problem: Problem) -> tuple[Ints, Floats]:
    """Where the matrix of each arc lies (into u, then into v, edge by edge), and the distinct ones, both ways up."""
    known: dict[int, tuple[int, int]] = {}
    pieces: list[Floats] = [np.zeros(0)]
    place, end = list[tuple[int, int]](), 0
    for edge in problem.edges:
        if id(edge.cost) not in known:
            known[id(edge.cost)] = (end, end + edge.cost.size)
            pieces += [edge.cost.T.ravel(), edge.cost.ravel()]
            end += 2 * edge.cost.size
        place.append(known[id(edge.cost)])
    return np.array(place, dtype=np.intp).ravel(), np.concatenate(pieces)


def _memory(rows: Rows, nodes: int) -> Memory:
    segments = [segment for own in rows.of_node for segment in own]
    node = np.array([segment.node for segment in segments], dtype=np.intp)
    return Memory(
        node=node,
        low=np.array([segment.low for segment in segments], dtype=np.intp),
        high=np.array([segment.high for segment in segments], dtype=np.intp),
        at=_starts(np.array([len(segment.size_bytes) for segment in segments], dtype=np.intp))[:-1],
        size=np.concatenate([np.zeros(0), *(segment.size_bytes for segment in segments)]),
        of=_starts(np.bincount(node, minlength=nodes)),
        limit=rows.limit,
        rows=rows.count,
    )
