"""Reduction: two nodes with an edge become one, whose strategies are the pairs that the edge allows.

    cost_w[s, t] = cost_u[s] + cost_v[t] + cost_uv[s, t]        cost_wx[(s, t), r] = cost_ux[s, r] + cost_vx[t, r]

The problem stays one of pairs, but messages prove more of it: what they lose on cycles, they lose on fewer of them.
Where pairs were barred (see `bar`) few are left, and nodes with a common neighbour leave it an edge less. Where few of
all are, every cycle is untied: with every join more pairs exceed the window, and what is left is a tree. Elsewhere
`knots` says which are joined.

D. Sontag et al., "Tightening LP relaxations for MAP using message passing", UAI 2008.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from autopar.solve.certificate.proof import Join
from autopar.solve.fixing.reduced_cost_fixing import barred_in_place
from autopar.solve.presolve.arc_consistency import drop_forbidden
from autopar.solve.presolve.merging import merge_parallel
from autopar.solve.problem.factored_matrix import finite_entries
from autopar.solve.problem.problem import Edge, Floats, Problem, Usage, derived
from autopar.solve.problem.reduction import Choice, Ints, Reduction, unchanged
from autopar.solve.problem.stop import is_up

_MOST_PAIRS = 10_000  # strategies of a node that two become
_ENTRIES = 6_000_000  # of all edges afterwards
_FEW_LEFT, _SHARE_LEFT = 150_000, 0.4  # pairs that are not forbidden; of all that edges have


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


def is_thin(problem: Problem) -> bool:
    """Whether few pairs of strategies are left, of all and of those that edges have: then all cycles may be untied."""
    left = sum(finite_entries(edge.matrix) for edge in problem.edges)
    return left <= min(_FEW_LEFT, _SHARE_LEFT * sum(edge.matrix.size for edge in problem.edges))


def untied(problem: Problem, knots: Sequence[frozenset[int]], upper: float) -> Reduction:
    """Joins along knots, no node in two of them, until no cycle is left in any, or what is left would be too large.

    It stops when the time is up.

    Pairs that no choice below `upper` can have are few, so that two nodes leave hardly more than they had. Between any
    two nodes there is one edge at most; costs are moved as messages say.

    Raises:
      Infeasible: if no choice is left.
    """
    left = unchanged(problem)
    while pairs := [] if is_up() else _on_cycles(left.problem, knots):
        gone = {v for _, v in pairs}
        name = {v: i for i, v in enumerate(v for v in range(len(left.problem.node_costs)) if v not in gone)}
        knots = [frozenset(name[v] for v in knot if v not in gone) for knot in knots]
        left = left.then(partial(joined, pairs=pairs)).then(merge_parallel)
        left = left.then(partial(barred_in_place, upper=upper)).then(drop_forbidden)
    return left


def _on_cycles(problem: Problem, knots: Sequence[frozenset[int]]) -> list[tuple[int, int]]:
    """Pairs of nodes, no node in two of them, side by side on cycles of knots: those of few pairs first."""
    counts, near = problem.counts, [dict[int, Floats]() for _ in problem.node_costs]
    for edge in problem.edges:
        near[edge.u][edge.v] = near[edge.v][edge.u] = edge.cost
    entries = [counts[v] * sum(counts[u] for u in around) for v, around in enumerate(near)]
    total, found, used = sum(entries) // 2, list[tuple[int, int, int]](), set[int]()
    for knot in knots:
        on = _without_leaves({v: near[v].keys() & knot for v in knot})
        pairs = ((u, v) for u in sorted(on) for v in sorted(on[u]) if u < v)
        found += [(int(np.isfinite(near[u][v]).sum()), u, v) for u, v in pairs]
    chosen = list[tuple[int, int]]()
    for count, u, v in sorted(found):
        around = (near[u].keys() | near[v].keys()) - {u, v}
        more = count * sum(counts[w] for w in around) - entries[u] - entries[v] + counts[u] * counts[v]
        if 0 < count <= _MOST_PAIRS and total + more <= _ENTRIES and not used & {u, v}:
            chosen.append((u, v))
            used |= {u, v}
            total += more
    return chosen


def _without_leaves(near: dict[int, set[int]]) -> dict[int, set[int]]:
    """The neighbours of nodes on cycles, or between them."""
    while leaves := {v for v, around in near.items() if len(around) < 2}:
        near = {v: around - leaves for v, around in near.items() if v not in leaves}
    return near
