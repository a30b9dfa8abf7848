"""Reduction: strategy a replaces b of the same node if it is never dearer and needs no more memory.

    cost_v[a] - cost_v[b] + sum over edges (v, w) of max over t of (cost_vw[a, t] - cost_vw[b, t])  <=  0
    and size_a <= size_b in every usage of v, if there is a limit

A few columns of each matrix refute most pairs; only the others are computed in full, from distinct rows and columns.

J. Desmet et al., "The dead-end elimination theorem and its use in protein side-chain positioning", Nature 356 (1992).
"""

from __future__ import annotations

import numpy as np

from autopar._jit import compiled
from autopar.solve.certificate.proof import Dominate
from autopar.solve.problem.factored_matrix import Matrix, Thin
from autopar.solve.problem.problem import Floats, Problem
from autopar.solve.problem.reduction import Bools, Ints, Reduction, restrict
from autopar.solve.problem.stop import is_up

_SAMPLES = 8  # columns of each matrix: they refute nearly all pairs that a whole row would
_MOST_WORK = (
    2e7  # entries to compare for all pairs of a node's strategies: above, it stays as it is
)


def drop_dominated(problem: Problem) -> Reduction:
    """Drops dominated strategies, of equal ones but the first; not of nodes that take too long, or come too late."""
    edges: list[list[tuple[Matrix, bool]]] = [[] for _ in problem.node_costs]
    rank: dict[int, int] = {}
    for edge in problem.edges:
        rank.setdefault(id(edge.matrix), len(rank))
        edges[edge.u].append((edge.matrix, False))
        edges[edge.v].append((edge.matrix, True))

    usages: list[list[Floats]] = [[] for _ in problem.node_costs]
    if problem.usage_limit is not None:
        for use in problem.usages:
            usages[use.node].append(use.size_bytes)

    keep = list[Bools]()
    replaced = dict[int, Ints]()
    dominance = _Dominance()
    for v, (cost, near, sizes) in enumerate(zip(problem.node_costs, edges, usages, strict=True)):
        # nodes with the same around them share the work
        near.sort(key=lambda item: (rank[id(item[0])], item[1]))
        mask, pairs = dominance.undominated(cost, near, sizes)
        keep.append(mask)
        if len(pairs):
            replaced[v] = pairs

    return restrict(problem, keep, lambda _: Dominate(replaced))


# the strategies that stay, and rows (which goes, which replaces it)
Undominated = tuple[Bools, Ints]


class _Dominance:
    """What replaces what at nodes: asked once of nodes with the same costs, matrices and sizes."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, bool], _Rows] = {}
        self._known: dict[tuple[tuple[int, bool], ...], Undominated] = {}

    def undominated(
        self, cost: Floats, near: list[tuple[Matrix, bool]], sizes: list[Floats]
    ) -> Undominated:
        """Of a node with these matrices (transposed if flagged: rows are its own) and sizes."""
        key = (
            (id(cost), False),
            *((id(matrix), flipped) for matrix, flipped in near),
            *((id(s), True) for s in sizes),
        )
        if key not in self._known:
            work = len(cost) ** 2 * sum(matrix.size // len(cost) for matrix, _ in near)
            none = np.ones(len(cost), dtype=bool), np.empty((0, 2), dtype=np.intp)
            self._known[key] = (
                self._undominated(cost, near, sizes) if work <= _MOST_WORK and not is_up() else none
            )
        return self._known[key]

    def _undominated(
        self, cost: Floats, near: list[tuple[Matrix, bool]], sizes: list[Floats]
    ) -> Undominated:
        matrices = [self._rows_of(matrix, flipped) for matrix, flipped in near]
        excess = _difference(cost[:, None], cost[None, :])
        for rows in matrices:
            with np.errstate(invalid="ignore"):
                excess = excess + rows.sampled
        possible = excess <= 0
        for size_bytes in sizes:
            possible &= size_bytes[:, None] <= size_bytes[None, :]
        np.fill_diagonal(possible, val=False)
        return _undominated(possible, cost, matrices)

    def _rows_of(self, matrix: Matrix, flipped: bool) -> _Rows:
        key = (id(matrix), flipped)
        if key not in self._rows:
            self._rows[key] = _Rows(matrix.T if flipped else matrix)
        return self._rows[key]


class _Rows:
    """A matrix as its rows are compared: `entries` has each row and column once, `row` which of its rows each row is.

    `sampled[a, b]` is a lower bound of the worst difference between rows a and b.
    """

    def __init__(self, matrix: Matrix) -> None:
        entries = matrix.entries if isinstance(matrix, Thin) else matrix
        self.entries = np.ascontiguousarray(entries)
        self.row = matrix.rows if isinstance(matrix, Thin) else np.arange(len(matrix))
        wide = entries.shape[1]
        columns = sorted({i * (wide - 1) // (_SAMPLES - 1) for i in range(_SAMPLES)})
        self.sampled = np.empty((len(self.row), len(self.row)))
        compare_all(np.ascontiguousarray(entries[:, columns]), self.row, self.sampled)


def _difference(a: Floats, b: Floats) -> Floats:
    """A - b, and -inf wherever b is forbidden: what is forbidden may always be replaced."""
    with np.errstate(invalid="ignore"):
        return np.where(np.isposinf(b), -np.inf, a - b)


@compiled
def worst_difference(a: Floats, b: Floats) -> float:
    """Max over t of a[t] - b[t], as `_difference` has it; four at a time, none of which waits for another."""
    w = x = y = z = -np.inf
    last = len(a) - len(a) % 4
    for t in range(0, last, 4):
        d = a[t] - b[t] if b[t] < np.inf else -np.inf
        e = a[t + 1] - b[t + 1] if b[t + 1] < np.inf else -np.inf
        f = a[t + 2] - b[t + 2] if b[t + 2] < np.inf else -np.inf
        g = a[t + 3] - b[t + 3] if b[t + 3] < np.inf else -np.inf
        w = d if d > w else w
        x = e if e > x else x
        y = f if f > y else y
        z = g if g > z else z

    for t in range(last, len(a)):
        d = a[t] - b[t] if b[t] < np.inf else -np.inf
        w = d if d > w else w

    return max(max(w, x), max(y, z))


@compiled
def compare_all(entries: Floats, row: Ints, worst: Floats) -> None:
    """Writes the worst difference between every two rows."""
    for a in range(len(row)):
        for b in range(len(row)):
            worst[a, b] = worst_difference(entries[row[a]], entries[row[b]])


@compiled
def add_worst(entries: Floats, row: Ints, a: Ints, b: Ints, excess: Floats) -> None:
    """Adds the worst difference between rows a[i] and b[i] to excess[i]."""
    for i in range(len(a)):
        excess[i] += worst_difference(entries[row[a[i]]], entries[row[b[i]]])


def _undominated(possible: Bools, cost: Floats, matrices: list[_Rows]) -> Undominated:
    """The strategies that stay, given the pairs (a, b) in which a may replace b; the others, each with such an a."""
    a, b = np.nonzero(possible)
    excess = _difference(cost[a], cost[b])
    for rows in matrices:
        add_worst(rows.entries, rows.row, a, b, excess)

    replaces = np.zeros_like(possible)
    replaces[a, b] = excess <= 0  # NaN, from inf - inf, is no
    alive = np.ones(len(cost), dtype=bool)
    pairs = list[tuple[int, int]]()
    for s in np.flatnonzero(replaces.any(axis=0))[::-1]:
        by = replaces[:, s] & alive
        alive[s] = not by.any()
        if not alive[s]:
            pairs.append((int(s), int(by.argmax())))

    return alive, np.array(pairs, dtype=np.intp).reshape(-1, 2)
