"""What `check` does with pieces of a problem: takes them out of its tables, and puts back what is left of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autopar.solve.certificate.proof import Piece
from autopar.solve.certificate.tables import Floats, Ints, Tables
from autopar.solve.problem.problem import Edge, InvalidSolution, Problem, Usage, derived


@dataclass(frozen=True, eq=False)
class Left:
    """What a piece's proof leaves: costs by the strategies `ids` of the nodes it keeps; what it lost; its cap.

    Every choice costs at least `least` in the piece, and at least `cap` if it is none of these.
    """

    ids: tuple[Ints, ...]
    table: Floats
    lost: float
    cap: float

    @property
    def least(self) -> float:
        """What any choice costs in the piece, at least."""
        return min(float(self.table.min(initial=math.inf)), self.cap) - self.lost


def taken_out(tables: Tables, piece: Piece) -> Problem:
    """The piece as a problem, whose tables are no longer among `tables`; labels are its usages."""
    names = [tables.name(i) for i in piece.nodes.tolist()]
    if len(set(names)) < len(names) or not 0 <= piece.own <= len(names):
        raise InvalidSolution("a piece has a node twice, or more nodes of its own than nodes")
    counts = [tables.count(v) for v in names]
    costs = [tables.tables[v,] for v in names[: piece.own]]
    edges = list[Edge]()
    ends: list[tuple[int, int]] = piece.edges.tolist()
    for i, j in ends:
        scope = (min(names[i], names[j]), max(names[i], names[j]))
        if min(i, j) < 0 or scope not in tables.tables:
            raise InvalidSolution(f"the edge {scope} of a piece is not there: no two pieces can have it")
        edges.append(Edge(i, j, tables.beside(names[i], scope)))
        tables.pop(scope)
    for v in names[: piece.own]:
        tables.tables[v,] = np.zeros(tables.count(v))
    costs += [np.zeros(n) for n in counts[piece.own :]]
    labels = (Usage(v, k, k + 1, np.arange(counts[v], dtype=np.float64)) for k, v in enumerate(piece.kept))
    return derived(tuple(costs), tuple(edges), tuple(labels))


def without(tables: Tables, pieces: Sequence[Piece]) -> None:
    """Own nodes of pieces that are not kept are no more; nothing of them may be left."""
    kept = {tables.name(piece.nodes[k]) for piece in pieces for k in piece.kept}
    own = [tables.name(i) for piece in pieces for i in piece.nodes[: piece.own].tolist()]
    if len(set(own)) < len(own):
        raise InvalidSolution("a node is the own node of two pieces")
    gone = [v for v in own if v not in kept]
    for v in gone:
        if tables.near[v]:
            raise InvalidSolution(f"node {v} goes with a piece, but has an edge elsewhere")
        tables.pop((v,))
    tables.forget(gone)


def left_of(tables: Tables, kept: int, lost: float, cap: float) -> Left:
    """What a piece's own tables have come to, by labels."""
    if not tables.live:
        return Left((np.zeros(0, dtype=np.intp),) * kept, np.zeros([0] * kept), lost, cap)
    labels = {start: (v, size) for v in tables.names for start, _, size in tables.usages[v]}
    if sorted(labels) != list(range(kept)) or {v for v, _ in labels.values()} != set(tables.names):
        raise InvalidSolution("what is left of a piece is not the nodes that it keeps")
    names = tables.names
    costs = np.full([tables.count(v) for v in names], math.fsum(tables.constants))
    for scope, table in tables.tables.items():
        lengths = [tables.count(v) if v in scope else 1 for v in names]
        costs = costs + table.reshape(lengths)  # axes are in order of the nodes
    ids, places = list[Ints](), list[Ints]()
    for k in range(kept):
        v, size = labels[k]
        found, place = np.unique(size.astype(np.intp), return_inverse=True)
        ids.append(found)
        places.append(np.broadcast_to(place.reshape([-1 if u == v else 1 for u in names]), costs.shape))
    table = np.full([len(found) for found in ids], math.inf)
    np.minimum.at(table, tuple(places), costs)
    return Left(tuple(ids), table, lost, cap)


def loss_between(one: Problem, two: Problem) -> float:
    """By how much the second problem of the same shape may cost less than the first, at most."""
    if one.counts != two.counts or [(e.u, e.v) for e in one.edges] != [(e.u, e.v) for e in two.edges]:
        raise InvalidSolution("a piece is not like the one whose proof it has")
    pairs = list(zip(one.node_costs, two.node_costs, strict=True))
    pairs += [(e.cost, f.cost) for e, f in zip(one.edges, two.edges, strict=True)]
    return math.fsum(_excess(a, b) for a, b in pairs if a is not b)


def _excess(one: Floats, two: Floats) -> float:
    more = np.where(one == two, 0.0, one - two)
    return max(0.0, float(more.max(initial=0.0)))


def put_back(tables: Tables, names: Sequence[Sequence[int]], left: Sequence[Left]) -> None:
    """Tables of what is left of pieces on the nodes they keep, for the strategies that are left in all of them."""
    ids: dict[int, Ints] = {}
    for of, found in zip(names, left, strict=True):
        for v, these in zip(of, found.ids, strict=True):
            ids[v] = np.intersect1d(ids[v], these) if v in ids else these
    for v, these in ids.items():
        tables.keep(v, these)
    for of, found in zip(names, left, strict=True):
        table = found.table
        for axis, (v, these) in enumerate(zip(of, found.ids, strict=True)):
            table = tables.once(np.take, table, np.searchsorted(these, ids[v]), axis)
        tables.add(tuple(of), table)
