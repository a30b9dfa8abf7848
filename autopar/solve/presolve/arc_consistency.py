"""Reduction: strategies that no finite choice can contain are dropped (arc consistency on infinite entries).

M. Cooper, T. Schiex, "Arc consistency for soft constraints", Artificial Intelligence 154 (2004).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from autopar._jit import compiled
from autopar.solve.certificate.proof import Forbid
from autopar.solve.problem.factored_matrix import Matrix, entries_of, finite_in
from autopar.solve.problem.problem import Edge, Floats, Infeasible, Problem
from autopar.solve.problem.reduction import Bools, Ints, Reduction, kept, restrict, unchanged

_UNSHARED = 0.5  # of edges: with more distinct matrices, nothing is gained by asking once of each


def drop_forbidden(problem: Problem) -> Reduction:
    """Drops infinite strategies and those without a finite partner on some edge, until none is left.

    Raises:
      Infeasible: if a node loses its last strategy.
    """
    costs = {id(cost): cost for cost in problem.node_costs}
    if all(map(is_finite, (*costs.values(), *map(entries_of, problem.matrices[0])))):
        return unchanged(problem)
    return restrict(problem, possible(problem), Forbid)


def is_finite(cost: Floats) -> bool:
    """Whether costs, which are never NaN or -inf, are finite everywhere: read once, and nothing written."""
    return bool(cost.max(initial=-np.inf) < np.inf)


def possible(problem: Problem) -> list[Bools]:
    """The strategies that `drop_forbidden` leaves.

    Raises:
      Infeasible: if a node loses its last strategy.
    """
    if len(problem.matrices[0]) > _UNSHARED * len(problem.edges):
        return _found(_supported_everywhere(problem))
    finite = _Finite()
    alive = [finite.of(cost) for cost in problem.node_costs]
    partial = [edge for edge in problem.edges if not finite.everywhere(edge.matrix)]
    if not partial and all(map(finite.everywhere, problem.node_costs)):
        return alive
    _propagate(alive, partial, finite)
    return _found(alive)


def _found(alive: list[Bools]) -> list[Bools]:
    for v, mask in enumerate(alive):
        if not mask.any():
            message = f"node {v}: none of its {len(mask)} strategies is part of a finite choice"
            raise Infeasible(message, witness=(Forbid(kept(alive)),))
    return alive


def _propagate(alive: list[Bools], partial: Sequence[Edge], finite: _Finite) -> None:
    """Takes strategies without a finite partner out of `alive`; edges and masks that are one object are asked once."""
    incident: dict[int, list[int]] = {}
    for e, edge in enumerate(partial):
        incident.setdefault(edge.u, []).append(e)
        incident.setdefault(edge.v, []).append(e)

    queue = deque(range(len(partial)))
    queued = set(range(len(partial)))
    while queue:
        e = queue.popleft()
        queued.discard(e)
        edge = partial[e]
        left = finite.supported(edge.matrix, alive[edge.u], alive[edge.v])
        for v, mask in zip((edge.u, edge.v), left, strict=True):
            if mask is not alive[v]:
                alive[v] = mask
                again = [other for other in incident[v] if other not in queued]
                queue.extend(again)
                queued.update(again)


def _supported_everywhere(problem: Problem) -> list[Bools]:
    """The strategies without those that have no finite partner: edge by edge, in a compiled loop."""
    counts = problem.counts
    edges = [edge for edge in problem.edges if not is_finite(entries_of(edge.matrix))]
    masks = [finite_in(edge.matrix) for edge in edges]
    start = np.concatenate([[0], np.cumsum(counts)]).astype(np.intp)
    ends = np.array([(edge.u, edge.v) for edge in edges], dtype=np.intp).reshape(-1, 2)
    place = np.concatenate([[0], np.cumsum([mask.size for mask in masks])]).astype(np.intp)
    pool = np.concatenate([np.zeros(0, dtype=np.bool_), *(mask.ravel() for mask in masks)])
    by_node = np.argsort(ends.ravel(), kind="stable") // 2
    near = np.concatenate(
        [[0], np.cumsum(np.bincount(ends.ravel(), minlength=len(counts)))]
    ).astype(np.intp)
    left = np.isfinite(np.concatenate(problem.node_costs))
    propagate(start, ends, place, pool, near, by_node, left)

    return [left[a:b] for a, b in pairwise(start.tolist())]


@compiled
def revise(rows: Bools, columns: Bools, mask: Bools, seen: Bools) -> tuple[bool, bool]:
    """Takes out rows and columns without a true entry beside each other; returns whether any of each went."""
    less_rows = less_columns = False
    seen[: len(columns)] = False
    for s in range(len(rows)):
        if rows[s]:
            found = False
            for t in range(len(columns)):
                if mask[s, t] and columns[t]:
                    found = seen[t] = True
            less_rows = less_rows or not found
            rows[s] = found

    for t in range(len(columns)):
        if columns[t] and not seen[t]:
            less_columns = True
            columns[t] = False

    return less_rows, less_columns


@compiled
def propagate(
    start: Ints, ends: Ints, place: Ints, pool: Bools, near: Ints, by_node: Ints, alive: Bools
) -> None:
    """Revises edges, and again those of nodes that lost strategies, until none is lost.

    Edge e is between the nodes ends[e], its matrix pool[place[e] ...]; v's edges are by_node[near[v] ... near[v + 1]].
    """
    count = len(ends)
    queue = np.arange(count)
    queued = np.ones(count, dtype=np.bool_)
    seen = np.empty(len(alive), dtype=np.bool_)
    first = 0
    waiting = count

    while waiting:
        e = queue[first]
        first = (first + 1) % count
        waiting = waiting - 1
        queued[e] = False
        u, v = ends[e]
        rows = alive[start[u] : start[u + 1]]
        columns = alive[start[v] : start[v + 1]]
        mask = pool[place[e] : place[e + 1]].reshape(len(rows), len(columns))
        less_rows, less_columns = revise(rows, columns, mask, seen)
        for w, less in ((u, less_rows), (v, less_columns)):
            if less:
                for k in range(near[w], near[w + 1]):
                    if not queued[by_node[k]]:
                        queue[(first + waiting) % count] = by_node[k]
                        waiting = waiting + 1
                        queued[by_node[k]] = True


class _Finite:
    """Where arrays are finite, and which strategies that leaves on an edge: asked once of equal arrays."""

    def __init__(self) -> None:
        self._masks: dict[int, Bools] = {}
        self._everywhere: dict[int, bool] = {}
        self._same: dict[bytes, Bools] = {}
        self._left: dict[tuple[int, int, int], tuple[Bools, Bools]] = {}

    def of(self, cost: Matrix) -> Bools:
        """Where it is finite."""
        if id(cost) not in self._masks:
            mask = finite_in(cost)
            self._masks[id(cost)] = self._shared(mask) if mask.ndim == 1 else mask
        return self._masks[id(cost)]

    def everywhere(self, cost: Matrix) -> bool:
        """Whether it is finite everywhere."""
        if id(cost) not in self._everywhere:
            self._everywhere[id(cost)] = is_finite(entries_of(cost))
        return self._everywhere[id(cost)]

    def supported(self, cost: Matrix, rows: Bools, columns: Bools) -> tuple[Bools, Bools]:
        """The rows and columns left by an edge; the very arrays that were given where all of them are."""
        key = (id(cost), id(rows), id(columns))
        if key not in self._left:
            mask = self.of(cost)
            by_row = self._shared(rows & mask[:, columns].any(axis=1))
            self._left[key] = by_row, self._shared(columns & mask[by_row].any(axis=0))
        return self._left[key]

    def _shared(self, mask: Bools) -> Bools:
        """Equal masks as one array, which keeps its id as long as this is there."""
        return self._same.setdefault(mask.tobytes(), mask)
