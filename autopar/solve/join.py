"""Reduction: two nodes with an edge become one, whose strategies are the pairs that the edge allows.

    cost_w[s, t] = cost_u[s] + cost_v[t] + cost_uv[s, t]        cost_wx[(s, t), r] = cost_ux[s, r] + cost_vx[t, r]

The problem stays one of pairs, but messages prove more of it: what they lose on cycles, they lose on fewer of them.
Where pairs were barred (see `bar`) few are left, and nodes with a common neighbour leave it an edge less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autopar.solve.problem import Edge, Floats, Problem, Usage, derived
from autopar.solve.proof import Join
from autopar.solve.reduction import Choice, Ints, Reduction, unchanged

_MOST_PAIRS = 10_000  # strategies of a node that two become
_ENTRIES, _LARGEST = 3_000_000, 12_000_000  # of all edges afterwards: what may be; what may be where it grows slowly
_GROWTH = 1.25
_SHARE = 0.1  # of the nodes: so many pairs of them, until something else is tried
_CLOSER = 4  # times cheaper, by each common neighbour


@dataclass(frozen=True, eq=False)
class _Place:
    """The node that one became, and which of its strategies each of that one's stands for (None: its own)."""

    node: int
    strategy: Ints | None

    def of(self, values: Floats, axis: int = 0) -> Floats:
        """Values by strategy, for the strategies of what the node became."""
        return values if self.strategy is None else values.take(self.strategy, axis=axis)


def joined(problem: Problem, pairs: Sequence[tuple[int, int]]) -> Reduction:
    """Each of these pairs of nodes, no node in two of them, as one node in the place of the first.

    Between the nodes of a pair there is one edge.
    """
    if not pairs:
        return unchanged(problem)
    partner = dict(pairs) | {v: u for u, v in pairs}
    between = {edge.u: edge for edge in problem.edges if partner.get(edge.u) == edge.v}
    between |= {edge.v: Edge(edge.v, edge.u, edge.cost.T) for edge in between.values()}
    gone = {v for _, v in pairs}
    stay = [v for v in range(len(problem.node_costs)) if v not in gone]
    place = {v: _Place(i, None) for i, v in enumerate(stay)}
    costs, steps = list(problem.node_costs), list[tuple[int, int, Ints, Ints]]()
    for u, v in pairs:
        s, t = (ids.astype(np.intp) for ids in np.nonzero(np.isfinite(between[u].cost)))
        costs[u] = costs[u][s] + costs[v][t] + between[u].cost[s, t]
        place[u], place[v] = _Place(place[u].node, s), _Place(place[u].node, t)
        steps.append((u, v, s, t))
    edges = tuple(_moved(edge, place[edge.u], place[edge.v]) for edge in problem.edges if partner.get(edge.u) != edge.v)
    usages = tuple(
        Usage(place[use.node].node, use.start, use.stop, place[use.node].of(use.size_bytes)) for use in problem.usages
    )
    smaller = derived(tuple(costs[v] for v in stay), edges, usages, problem.usage_limit)
    places = [place[v] for v in range(len(problem.node_costs))]

    def lift(choice: Choice) -> Choice:
        taken = ((choice[at.node], at.strategy) for at in places)
        return tuple(s if ids is None else int(ids[s]) for s, ids in taken)

    return Reduction(smaller, 0.0, lift, (Join(tuple(steps)),))


def _moved(edge: Edge, u: _Place, v: _Place) -> Edge:
    return Edge(u.node, v.node, v.of(u.of(edge.cost), axis=1))


def worth_joining(problem: Problem) -> list[tuple[int, int]]:
    """Pairs of nodes, no node in two of them, that leave few entries and many common neighbours; a part of all nodes.

    None, if what they leave is too much. Between any two nodes there is one edge at most.
    """
    counts, near = problem.counts, [dict[int, int]() for _ in problem.node_costs]
    for edge in problem.edges:
        near[edge.u][edge.v] = near[edge.v][edge.u] = int(np.isfinite(edge.cost).sum())
    entries = [counts[v] * sum(counts[u] for u in around) for v, around in enumerate(near)]
    total = sum(entries) // 2
    most = min(max(_ENTRIES, int(_GROWTH * total)), _LARGEST)
    found: list[tuple[float, int, int, int]] = []
    for edge in problem.edges:
        u, v = edge.u, edge.v
        pairs, around = near[u][v], (near[u].keys() | near[v].keys()) - {u, v}
        after = pairs * sum(counts[w] for w in around)
        if 0 < pairs <= _MOST_PAIRS:
            weight = after / (1 + _CLOSER * len(near[u].keys() & near[v].keys()))
            found.append((weight, after - entries[u] - entries[v] + counts[u] * counts[v], u, v))
    chosen, used = list[tuple[int, int]](), set[int]()
    for _, more, u, v in sorted(found):
        if u not in used and v not in used and total + more <= most and len(chosen) <= _SHARE * len(counts):
            chosen.append((u, v))
            used |= {u, v}
            total += more
    return chosen
