"""The order in which sweeps visit the nodes: neighbours close together, so that news crosses the graph in one sweep.

Breadth first from a node at the far end, those of few neighbours first (Cuthill and McKee). In a training step's own
order the backward pass comes after the whole forward pass, although their layers are neighbours; this order takes them
side by side, which halves the sweeps. Nodes with very many neighbours, which would make everything near everything,
come first.

E. Cuthill, J. McKee, "Reducing the bandwidth of sparse symmetric matrices", ACM National Conference 1969.
"""

from __future__ import annotations

import numpy as np

from autopar.solve.problem.problem import Problem
from autopar.solve.problem.reduction import Ints

_HUB = 16  # neighbours: more do not count as near
_SEARCHES = 2  # for the far end


def sweep_order(problem: Problem) -> Ints:
    """The nodes in the order of sweeps; linear in the edges, but for sorting the neighbours of each node."""
    near: list[set[int]] = [set() for _ in problem.node_costs]
    ends: list[tuple[int, int]] = problem.ends.tolist()
    for u, v in ends:
        near[u].add(v)
        near[v].add(u)
    hubs = [v for v, nodes in enumerate(near) if len(nodes) > _HUB]
    seen, order = set(hubs), list[int]()
    few_first = [sorted(nodes, key=lambda u: (len(near[u]), u)) for nodes in near]
    for v in range(len(near)):
        if v not in seen:
            found = _breadth_first(few_first, v, seen)
            for _ in range(_SEARCHES):
                found = _breadth_first(few_first, found[-1], seen)
            order += found
            seen.update(found)
    return np.array([*hubs, *reversed(order)], dtype=np.intp)


def _breadth_first(near: list[list[int]], start: int, closed: set[int]) -> list[int]:
    """The nodes that can be reached without those that are closed, the nearest first, neighbours in the given order."""
    found, seen = [start], {start}
    for v in found:
        fresh = [u for u in near[v] if u not in seen and u not in closed]
        found += fresh
        seen.update(fresh)
    return found
