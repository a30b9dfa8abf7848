"""Reduction: strategy a replaces b of the same node if it is never dearer and needs no more memory.

    cost_v[a] - cost_v[b] + sum over edges (v, w) of max over t of (cost_vw[a, t] - cost_vw[b, t])  <=  0
    and size_a <= size_b in every usage of v, if there is a limit

A few columns of each matrix refute most pairs; only the others are computed in full.

J. Desmet et al., "The dead-end elimination theorem and its use in protein side-chain positioning", Nature 356 (1992).
"""

from __future__ import annotations

import numpy as np

from autopar.solve.certificate.proof import Dominate
from autopar.solve.problem.problem import Floats, Problem
from autopar.solve.problem.reduction import Bools, Ints, Reduction, restrict
from autopar.solve.problem.stop import is_up

_SAMPLES = 8  # columns of each matrix: they refute nearly all pairs that a whole row would
_CHUNK_ENTRIES = 1 << 18  # 2 MB: what is compared at a time stays in the cache
_MOST_WORK = (
    2e7  # entries to compare for all pairs of a node's strategies: above, it stays as it is
)


def drop_dominated(problem: Problem) -> Reduction:
    """Drops dominated strategies, of equal ones but the first; not of nodes that take too long, or come too late."""
    edges: list[list[tuple[Floats, bool]]] = [[] for _ in problem.node_costs]
    rank: dict[int, int] = {}
    for edge in problem.edges:
        rank.setdefault(id(edge.cost), len(rank))
        edges[edge.u].append((edge.cost, False))
        edges[edge.v].append((edge.cost, True))

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
        self._sampled: dict[tuple[int, bool], Floats] = {}
        self._known: dict[tuple[tuple[int, bool], ...], Undominated] = {}

    def undominated(
        self, cost: Floats, near: list[tuple[Floats, bool]], sizes: list[Floats]
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
        self, cost: Floats, near: list[tuple[Floats, bool]], sizes: list[Floats]
    ) -> Undominated:
        excess = _difference(cost[:, None], cost[None, :])
        with np.errstate(invalid="ignore"):
            for matrix, flipped in near:
                excess = excess + self._sample(matrix, flipped)
        possible = excess <= 0
        for size_bytes in sizes:
            possible &= size_bytes[:, None] <= size_bytes[None, :]
        np.fill_diagonal(possible, val=False)
        return _undominated(possible, cost, [m.T if flipped else m for m, flipped in near])

    def _sample(self, cost: Floats, flipped: bool) -> Floats:
        key = (id(cost), flipped)
        if key not in self._sampled:
            self._sampled[key] = _sampled_excess(cost.T if flipped else cost)
        return self._sampled[key]


def _difference(a: Floats, b: Floats) -> Floats:
    """A - b, and -inf wherever b is forbidden: what is forbidden may always be replaced."""
    with np.errstate(invalid="ignore"):
        return np.where(np.isposinf(b), -np.inf, a - b)


def _sampled_excess(cost: Floats) -> Floats:
    """A lower bound of the worst row difference for every pair of rows."""
    columns = sorted({i * (cost.shape[1] - 1) // (_SAMPLES - 1) for i in range(_SAMPLES)})
    excess = np.full((len(cost), len(cost)), -np.inf)
    for column in cost[:, columns].T:
        np.maximum(excess, _difference(column[:, None], column[None, :]), out=excess)
    return excess


def _worst_difference(cost: Floats, a: Ints, b: Ints) -> Floats:
    """Max over t of cost[a, t] - cost[b, t] for each pair (a, b), in pieces."""
    step = max(1, _CHUNK_ENTRIES // cost.shape[1])
    parts = [
        _difference(cost[a[i : i + step]], cost[b[i : i + step]]).max(axis=1, initial=-np.inf)
        for i in range(0, len(a), step)
    ]
    return np.concatenate(parts) if parts else np.empty(0)


def _undominated(possible: Bools, cost: Floats, matrices: list[Floats]) -> Undominated:
    """The strategies that stay, given the pairs (a, b) in which a may replace b; the others, each with such an a."""
    a, b = np.nonzero(possible)
    excess = _difference(cost[a], cost[b])
    for matrix in matrices:
        with np.errstate(invalid="ignore"):
            excess = excess + _worst_difference(matrix, a, b)

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
