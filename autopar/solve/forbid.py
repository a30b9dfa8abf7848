"""Reduction: strategies that no finite choice can contain are dropped (arc consistency on infinite entries)."""

from __future__ import annotations

from collections import deque

import numpy as np

from autopar.solve.problem import Infeasible, Problem
from autopar.solve.reduction import Bools, Reduction, restrict


def drop_forbidden(problem: Problem) -> Reduction:
    """Drops infinite strategies and those without a finite partner on some edge, until none is left.

    Raises:
      Infeasible: if a node loses its last strategy.
    """
    return restrict(problem, possible(problem))


def possible(problem: Problem) -> list[Bools]:
    """The strategies that `drop_forbidden` leaves.

    Raises:
      Infeasible: if a node loses its last strategy.
    """
    alive = [np.isfinite(cost) for cost in problem.node_costs]
    finite: dict[int, Bools] = {}
    for edge in problem.edges:
        if id(edge.cost) not in finite:
            finite[id(edge.cost)] = np.isfinite(edge.cost)
    complete = {key for key, mask in finite.items() if mask.all()}
    partial = [edge for edge in problem.edges if id(edge.cost) not in complete]
    incident: dict[int, list[int]] = {}
    for e, edge in enumerate(partial):
        incident.setdefault(edge.u, []).append(e)
        incident.setdefault(edge.v, []).append(e)
    queue, queued = deque(range(len(partial))), set(range(len(partial)))
    while queue:
        e = queue.popleft()
        queued.discard(e)
        edge, mask = partial[e], finite[id(partial[e].cost)]
        for v, supported in (
            (edge.u, mask[:, alive[edge.v]].any(axis=1)),
            (edge.v, mask[alive[edge.u]].any(axis=0)),
        ):
            left = alive[v] & supported
            if left.sum() < alive[v].sum():
                alive[v] = left
                again = [other for other in incident[v] if other not in queued]
                queue.extend(again)
                queued.update(again)
    for v, mask in enumerate(alive):
        if not mask.any():
            raise Infeasible(f"node {v}: none of its {len(mask)} strategies is part of a finite choice")
    return alive
