"""A problem as flat arrays, which is what kernels read.

Node v's strategies are start[v] <= i < start[v+1] of one long vector. Every edge is two arcs, one into each of its
nodes. The arcs into v are near[v] <= k < near[v+1], those from lower nodes before split[v]. Arc k comes from other[k];
its messages to v begin at mail[k]; the same edge's arc the other way is back[k]. arcs[e] are those into u and v of the
problem's edge e. Nodes are numbered in the order of sweeps.

Rows of one matrix are often equal (strategies that differ in other tensors only), and so are columns. Matrices lie in
the pool without their repetitions, that of arc k, which has tall[k] rows and wide[k] columns, from thin[k] on. Strategy
s of other[k] has its row class_of[rows_at[k] + s], strategy t of v its column class_of[columns_at[k] + t]. Classes are
numbered in the order in which they come first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autopar.solve.jit import compiled_or
from autopar.solve.order import sweep_order
from autopar.solve.problem import Floats, Problem
from autopar.solve.reduction import Ints
from autopar.solve.rows import Rows

_THINNED = 256  # entries: in smaller matrices equal rows are not looked for
_SEED, _FACTOR = np.uint64(14695981039346656037), np.uint64(1099511628211)  # of the hash FNV-1a, here word by word
_UPPER = np.uint64(32)  # bits: the upper ones of a product depend on all bits of its factors, the lower ones do not

Words = NDArray[np.uint64]


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
    mail: Ints
    back: Ints
    arcs: Ints
    pool: Floats
    thin: Ints
    tall: Ints
    wide: Ints
    rows_at: Ints
    columns_at: Ints
    class_of: Ints
    size: int
    memory: Memory


def flatten(problem: Problem, rows: Rows, order: Ints | None = None) -> Flat:
    """The problem with its memory rows, flat. `order`: its nodes in the order of sweeps, their own if None."""
    order = np.arange(len(problem.counts)) if order is None else order
    nodes: list[int] = order.tolist()
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    counts = np.array(problem.counts, dtype=np.intp)[order]
    into = rank[np.array([v for edge in problem.edges for v in (edge.u, edge.v)], dtype=np.intp)]
    other = into.reshape(-1, 2)[:, ::-1].ravel()
    pool = _Pool(problem)
    arcs = np.lexsort((other, into))
    arc_of = np.empty_like(arcs)
    arc_of[arcs] = np.arange(len(arcs))
    partner = np.arange(len(arcs)).reshape(-1, 2)[:, ::-1].ravel()
    into, other = into[arcs], other[arcs]
    where = np.array(pool.where, dtype=np.intp).reshape(-1, 5)[arcs].T
    near = _starts(np.bincount(into, minlength=len(counts)))
    mail = _starts(counts[into])
    return Flat(
        start=_starts(counts),
        cost=np.concatenate([np.zeros(0), *(problem.node_costs[v] for v in nodes)]),
        widest=int(counts.max(initial=0)),
        near=near,
        split=near[:-1] + np.bincount(into[other < into], minlength=len(counts)),
        other=other,
        mail=mail[:-1],
        back=arc_of[partner[arcs]],
        arcs=arc_of.reshape(-1, 2),
        pool=pool.entries(),
        thin=where[0].copy(),
        tall=where[1].copy(),
        wide=where[2].copy(),
        rows_at=where[3].copy(),
        columns_at=where[4].copy(),
        class_of=np.concatenate([np.zeros(0, dtype=np.intp), *pool.classes]),
        size=int(mail[-1]),
        memory=_memory(rows, order, rank),
    )


def per_edge(flat: Flat, messages: Floats) -> list[tuple[Floats, Floats]]:
    """The messages of every edge of the problem to its nodes u and v."""
    ends = np.append(flat.mail, flat.size)
    return [(messages[ends[i] : ends[i + 1]], messages[ends[j] : ends[j + 1]]) for i, j in flat.arcs.tolist()]


def with_per_edge(flat: Flat, messages: Sequence[tuple[Floats, Floats]]) -> Floats:
    """The inverse of `per_edge`."""
    result, ends = np.empty(flat.size), np.append(flat.mail, flat.size)
    for (i, j), (to_u, to_v) in zip(flat.arcs.tolist(), messages, strict=True):
        result[ends[i] : ends[i + 1]] = to_u
        result[ends[j] : ends[j + 1]] = to_v
    return result


def owners(problem: Problem) -> Ints:
    """The node that each arc goes into, in the order of arcs, where nodes are swept in `sweep_order`."""
    order = sweep_order(problem)
    into = np.array([v for edge in problem.edges for v in (edge.u, edge.v)], dtype=np.intp)
    return order[np.sort(np.argsort(order)[into])]


def with_messages(flat: Flat, messages: Floats) -> Floats:
    """The costs of all nodes with the messages to them."""
    if not flat.size:
        return flat.cost.copy()
    counts, into = np.diff(flat.start), np.repeat(np.arange(len(flat.start) - 1), np.diff(flat.near))
    strategy = np.arange(flat.size) + np.repeat(flat.start[into] - flat.mail, counts[into])
    return flat.cost + np.bincount(strategy, weights=messages, minlength=len(flat.cost))


def _starts(lengths: Ints) -> Ints:
    return np.concatenate([np.zeros(1, dtype=np.intp), np.cumsum(lengths, dtype=np.intp)])


class _Pool:
    """The distinct matrices of a problem, thin, both ways up, and where those of each arc are (into u, then v)."""

    def __init__(self, problem: Problem) -> None:
        self.pieces: list[Floats] = []
        self.classes: list[Ints] = []
        self.where: list[tuple[int, ...]] = []
        self._count = self._labels = 0
        known: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        for edge in problem.edges:
            if id(edge.cost) not in known:
                known[id(edge.cost)] = self._put(edge.cost)
            self.where += known[id(edge.cost)]

    def _put(self, cost: Floats) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Where a matrix lies: thin, tall, wide, rows_at, columns_at of the arc into u and of the one into v."""
        rows = columns = None
        if cost.size >= _THINNED:
            cost, rows = _thinned(cost)
            turned, columns = _thinned(cost.T)
            cost = turned.T
        tall, wide = cost.shape
        row_at = self._name(np.arange(tall) if rows is None else rows)
        column_at = self._name(np.arange(wide) if columns is None else columns)
        return (self._add(cost.T), wide, tall, column_at, row_at), (self._add(cost), tall, wide, row_at, column_at)

    def entries(self) -> Floats:
        """All matrices, one after the other."""
        result, at = np.empty(self._count), 0
        for piece in self.pieces:
            result[at : at + piece.size].reshape(piece.shape)[...] = piece
            at += piece.size
        return result

    def _add(self, cost: Floats) -> int:
        self.pieces.append(cost)
        self._count += cost.size
        return self._count - cost.size

    def _name(self, classes: Ints) -> int:
        self.classes.append(classes)
        self._labels += len(classes)
        return self._labels - len(classes)


def _thinned(cost: Floats) -> tuple[Floats, Ints]:
    """The distinct rows in the order in which they come first, and for every row which of them it is."""
    first, classes = np.empty(len(cost), dtype=np.intp), np.empty(len(cost), dtype=np.intp)
    count = number_rows(np.ascontiguousarray(cost).view(np.uint64), first, classes)
    return (cost, classes) if count == len(cost) else (cost[first[:count]], classes)


def _number_by_bytes(words: Words, first: Ints, classes: Ints) -> int:
    known: dict[bytes, int] = {}
    for s, row in enumerate(words):
        before = len(known)
        classes[s] = known.setdefault(row.tobytes(), before)
        if len(known) > before:
            first[before] = s
    return len(known)


@compiled_or(_number_by_bytes)
def number_rows(words: Words, first: Ints, classes: Ints) -> int:
    """Writes which of the distinct rows every row is, and where each of them comes first; returns how many there are.

    Distinct rows are found by a hash table, and compared word by word.
    """
    rows, columns, count, size = len(words), words.shape[1], 0, 2
    while size < 2 * rows:
        size *= 2
    table = np.full(size, -1, dtype=np.intp)
    for s in range(rows):
        row, mixed = words[s], _SEED
        for t in range(columns):
            mixed = (mixed ^ row[t]) * _FACTOR
        slot = np.intp(mixed >> _UPPER) & (size - 1)
        while table[slot] >= 0:
            other, t = words[first[table[slot]]], 0
            while t < columns and other[t] == row[t]:
                t += 1
            if t == columns:
                break
            slot = (slot + 1) & (size - 1)
        if table[slot] < 0:
            table[slot], first[count] = count, s
            count += 1
        classes[s] = table[slot]
    return count


def _memory(rows: Rows, order: Ints, rank: Ints) -> Memory:
    nodes: list[int] = order.tolist()
    segments = [segment for v in nodes for segment in rows.of_node[v]]
    node = rank[np.array([segment.node for segment in segments], dtype=np.intp)]
    return Memory(
        node=node,
        low=np.array([segment.low for segment in segments], dtype=np.intp),
        high=np.array([segment.high for segment in segments], dtype=np.intp),
        at=_starts(np.array([len(segment.size_bytes) for segment in segments], dtype=np.intp))[:-1],
        size=np.concatenate([np.zeros(0), *(segment.size_bytes for segment in segments)]),
        of=_starts(np.bincount(node, minlength=len(order))),
        limit=float(rows.limit),
        rows=rows.count,
    )
