"""Reduction: strategies that no finite choice can contain are dropped (arc consistency on infinite entries)."""

from __future__ import annotations

from collections import deque

import numpy as np

from autopar.solve.problem import Floats, Infeasible, Problem
from autopar.solve.proof import Forbid
from autopar.solve.reduction import Bools, Reduction, kept, restrict


def drop_forbidden(problem: Problem) -> Reduction:
    """Drops infinite strategies and those without a finite partner on some edge, until none is left.

    Raises:
      Infeasible: if a node loses its last strategy.
    """
    return restrict(problem, possible(problem), Forbid)


def possible(problem: Problem) -> list[Bools]:
    """The strategies that `drop_forbidden` leaves.

    Raises:
      Infeasible: if a node loses its last strategy.
    """
    finite = _Finite()
    alive = [finite.of(cost) for cost in problem.node_costs]
    partial = [edge for edge in problem.edges if not finite.everywhere(edge.cost)]
    if not partial and all(map(finite.everywhere, problem.node_costs)):
        return alive
    incident: dict[int, list[int]] = {}
    for e, edge in enumerate(partial):
        incident.setdefault(edge.u, []).append(e)
        incident.setdefault(edge.v, []).append(e)
    queue, queued = deque(range(len(partial))), set(range(len(partial)))
    while queue:
        e = queue.popleft()
        queued.discard(e)
        edge = partial[e]
        left = finite.supported(edge.cost, alive[edge.u], alive[edge.v])
        for v, mask in zip((edge.u, edge.v), left, strict=True):
            if mask is not alive[v]:
                alive[v] = mask
                again = [other for other in incident[v] if other not in queued]
                queue.extend(again)
                queued.update(again)
    for v, mask in enumerate(alive):
        if not mask.any():
            message = f"node {v}: none of its {len(mask)} strategies is part of a finite choice"
            raise Infeasible(message, witness=(Forbid(kept(alive)),))
    return alive


class _Finite:
    """Where arrays are finite, and which strategies that leaves on an edge: asked once of equal arrays."""

    def __init__(self) -> None:
        self._masks: dict[int, tuple[Bools, bool]] = {}
        self._same: dict[bytes, Bools] = {}
        self._left: dict[tuple[int, int, int], tuple[Bools, Bools]] = {}

    def of(self, cost: Floats) -> Bools:
        """Where it is finite."""
        if id(cost) not in self._masks:
            mask = np.isfinite(cost)
            self._masks[id(cost)] = (self._shared(mask) if mask.ndim == 1 else mask), bool(mask.all())
        return self._masks[id(cost)][0]

    def everywhere(self, cost: Floats) -> bool:
        """Whether it is finite everywhere."""
        self.of(cost)
        return self._masks[id(cost)][1]

    def supported(self, cost: Floats, rows: Bools, columns: Bools) -> tuple[Bools, Bools]:
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
