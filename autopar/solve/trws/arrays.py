"""A problem as flat arrays, which is what kernels read.

Node v's strategies are start[v] <= i < start[v+1] of one long vector. Every edge is two arcs, one into each of its
nodes. The arcs into v are near[v] <= k < near[v+1], those from lower nodes before split[v]. Arc k comes from other[k];
its messages to v begin at mail[k]; the same edge's arc the other way is back[k]. arcs[e] are those into u and v of the
problem's edge e. Nodes are numbered in the order of sweeps.

Rows of one matrix are often equal (strategies that differ in other tensors only), and so are columns. Matrices lie in
the pool without their repetitions, that of arc k, which has tall[k] rows and wide[k] columns, from thin[k] on. Strategy
s of other[k] has its row class_of[rows_at[k] + s], strategy t of v its column class_of[columns_at[k] + t]. Classes are
numbered in the order in which they come first.

Passes visit nodes with neighbours close together (`sweep_order`), so that news crosses the graph in one pass: breadth
first from a node at the far end, those of few neighbours first. In a training step's own order the backward pass comes
after the whole forward pass, although their layers are neighbours; this order takes them side by side, which halves the
passes. Nodes with very many neighbours, which would make everything near everything, come first.

E. Cuthill, J. McKee, "Reducing the bandwidth of sparse symmetric matrices", ACM National Conference 1969, for the
order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autopar._jit import compiled, compiled_inner
from autopar.solve.problem.factored_matrix import Matrix, entries_of, thin
from autopar.solve.problem.hash_consing import ascending
from autopar.solve.problem.problem import Floats, Problem
from autopar.solve.problem.reduction import Bools, Ints
from autopar.solve.problem.rows import Rows

_ROOM = 1024  # entries, to begin with
_COPIES = 2  # of every matrix, at most: both ways up


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


def flatten(
    problem: Problem, rows: Rows, order: Ints | None = None, pool: Pool | None = None
) -> Flat:
    """The problem with its memory rows, flat. `order`: its nodes in the order of sweeps, their own if None.

    Its matrices are put into `pool`, where those of like problems may be already.
    """
    order = np.arange(len(problem.counts)) if order is None else order
    nodes: list[int] = order.tolist()
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    counts = np.array(problem.counts, dtype=np.intp)[order]
    into = rank[problem.ends.ravel()]
    other = into.reshape(-1, 2)[:, ::-1].ravel()
    pool = pool or Pool()
    places = pool.put(problem)
    arcs = np.lexsort((other, into))
    arc_of = np.empty_like(arcs)
    arc_of[arcs] = np.arange(len(arcs))
    partner = np.arange(len(arcs)).reshape(-1, 2)[:, ::-1].ravel()
    into = into[arcs]
    other = other[arcs]
    where = places[arcs].T
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
        pool=pool.entries,
        thin=where[0].copy(),
        tall=where[1].copy(),
        wide=where[2].copy(),
        rows_at=where[3].copy(),
        columns_at=where[4].copy(),
        class_of=pool.classes,
        size=int(mail[-1]),
        memory=_memory(rows, order, rank),
    )


def entries_read(flat: Flat) -> int:
    """How many entries of matrices a sweep reads each way."""
    return int(flat.tall @ flat.wide)


def per_edge(flat: Flat, messages: Floats) -> list[tuple[Floats, Floats]]:
    """The messages of every edge of the problem to its nodes u and v."""
    ends = np.append(flat.mail, flat.size)
    return [
        (messages[ends[i] : ends[i + 1]], messages[ends[j] : ends[j + 1]])
        for i, j in flat.arcs.tolist()
    ]


def tiled(flat: Flat, like: Ints, short: Flat, messages: Floats) -> Floats:
    """Messages in which every edge has those of the edge of another problem that it is like.

    The edge e is like the edge like[e] of `short`, whose `messages` these are.
    """
    found = np.empty(flat.size)
    ends = np.append(flat.mail, flat.size)
    _tile(flat.arcs, ends, short.arcs, short.mail, like, messages, found)
    return found


@compiled
def _tile(
    arcs: Ints, ends: Ints, short: Ints, mail: Ints, like: Ints, messages: Floats, found: Floats
) -> None:
    for e in range(len(arcs)):
        for side in range(2):
            begin = ends[arcs[e, side]]
            first = mail[short[like[e], side]]
            for n in range(ends[arcs[e, side] + 1] - begin):
                found[begin + n] = messages[first + n]


def owners(problem: Problem) -> Ints:
    """The node that each arc goes into, in the order of arcs, where nodes are swept in `sweep_order`."""
    order = sweep_order(problem)
    return order[np.sort(np.argsort(order)[problem.ends.ravel()])]


def with_messages(flat: Flat, messages: Floats) -> Floats:
    """The costs of all nodes with the messages to them."""
    sums = np.zeros(len(flat.cost))
    add_messages(flat, messages, sums)
    return flat.cost + sums


@compiled
def add_messages(flat: Flat, messages: Floats, sums: Floats) -> None:
    """Adds to every strategy the messages to it, in double precision."""
    for v in range(len(flat.start) - 1):
        count = flat.start[v + 1] - flat.start[v]
        mine = sums[flat.start[v] : flat.start[v + 1]]
        for k in range(flat.near[v], flat.near[v + 1]):
            told = messages[flat.mail[k] : flat.mail[k] + count]
            for t in range(count):
                mine[t] += told[t]


def _starts(lengths: Ints) -> Ints:
    return np.concatenate([np.zeros(1, dtype=np.intp), np.cumsum(lengths, dtype=np.intp)])


class Pool:
    """The distinct matrices of problems, both ways up, one after the other; those of one more problem follow.

    `entries` and `classes` are what a `Flat` has as `pool` and `class_of`: what is put later moves nothing in them.
    """

    def __init__(self) -> None:
        self._entries = Growing(np.float64)
        self._classes = Growing(np.intp)
        self._where: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self._matrices: list[Matrix] = []  # they keep their ids

    @property
    def entries(self) -> Floats:
        """All matrices."""
        return self._entries.values

    @property
    def classes(self) -> Ints:
        """The numbers of rows and columns."""
        return self._classes.values

    def put(self, problem: Problem) -> Ints:
        """Where the matrices of each arc are, `where[arc]` as `_put` says; arcs into u, then v, by edge."""
        matrices, which = problem.matrices
        fresh = {id(matrix): matrix for matrix in matrices if id(matrix) not in self._where}
        self._entries.expect(_COPIES * sum(entries_of(matrix).size for matrix in fresh.values()))
        for key, matrix in fresh.items():
            self._where[key] = self._put(matrix)
        self._matrices += fresh.values()
        where = np.array([self._where[id(matrix)] for matrix in matrices], dtype=np.intp).reshape(
            -1, 2, 5
        )
        return where[which].reshape(-1, 5)

    def _put(self, matrix: Matrix) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Where a matrix lies: thin, tall, wide, rows_at, columns_at of the arc into u and of the one into v."""
        found = thin(matrix)
        tall, wide = found.entries.shape
        to_u = self._entries.add(found.entries.T)
        to_v = self._entries.add(found.entries)
        row_at = self._classes.add(found.rows)
        column_at = self._classes.add(found.columns)
        return (to_u, wide, tall, column_at, row_at), (to_v, tall, wide, row_at, column_at)


class Growing:
    """A vector to which arrays are added; `values` are those so far. Room that is not used yet takes no memory."""

    def __init__(self, dtype: type[np.generic]) -> None:
        self._room = np.empty(_ROOM, dtype=dtype)
        self._count = 0

    @property
    def values(self) -> NDArray[Any]:
        """All entries so far."""
        return self._room[: self._count]

    def expect(self, count: int) -> None:
        """Has room for so many entries more."""
        if self._count + count > len(self._room):
            values = self.values
            self._room = np.empty(2 * (self._count + count), dtype=values.dtype)
            self._room[: self._count] = values

    def add(self, array: NDArray[Any]) -> int:
        """Where its entries, row by row, begin."""
        self.expect(array.size)
        at = self._count
        self._count = self._count + array.size
        self._room[at : self._count].reshape(array.shape)[...] = array
        return at


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


_HUB = 16  # neighbours: more do not count as near
_SEARCHES = 2  # for the far end


def sweep_order(problem: Problem) -> Ints:
    """The nodes in the order of sweeps; linear in the edges, but for sorting the neighbours of each node."""
    count = len(problem.node_costs)
    u, v = problem.ends.T
    pairs = ascending(np.minimum(u, v) * count + np.maximum(u, v))
    low, high = np.divmod(pairs, max(1, count))
    ends = np.concatenate([low, high])
    others = np.concatenate([high, low])
    degree = np.bincount(ends, minlength=count)
    few_first = np.lexsort((others, degree[others], ends))

    hubs = np.flatnonzero(degree > _HUB)
    order = np.empty(count - len(hubs), dtype=np.intp)
    _search_all(_starts(degree), others[few_first], degree > _HUB, order)
    return np.concatenate([hubs, order[::-1]])


@compiled
def _search_all(at: Ints, near: Ints, closed: Bools, order: Ints) -> None:
    """Writes all nodes that are not closed, part by part, each from a node at the far end; closes them.

    The neighbours of v are near[at[v] : at[v + 1]].
    """
    seen = np.full(len(closed), -1, dtype=np.intp)
    begin = 0
    number = 0

    for v in range(len(closed)):
        if closed[v]:
            continue
        start = v
        end = begin
        for _ in range(1 + _SEARCHES):
            end = begin + _search(at, near, closed, seen, number, start, order[begin:])
            start = order[end - 1]
            number += 1

        for n in range(begin, end):
            closed[order[n]] = True
        begin = end


@compiled_inner
def _search(
    at: Ints, near: Ints, closed: Bools, seen: Ints, number: int, start: int, found: Ints
) -> int:
    """Writes the nodes that can be reached without those that are closed, the nearest first; returns how many.

    Neighbours come in the given order. `number` is another one for each search; `seen` has those of the last.
    """
    found[0] = start
    seen[start] = number
    count = 1
    done = 0

    while done < count:
        v = found[done]
        done += 1
        for n in range(at[v], at[v + 1]):
            u = near[n]
            if seen[u] != number and not closed[u]:
                seen[u] = number
                found[count] = u
                count += 1
    return count
