"""Joined: a problem without what depends on edges alone: followers are with their leaders, one-sided edges with nodes.

What is worked out here holds whatever nodes cost, so a change of their costs is a change of the costs of a few nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autopar.solve.contract import contracted, leaders, lift_followers
from autopar.solve.merge import share_equal
from autopar.solve.problem import Edge, Floats, Problem, derived
from autopar.solve.proof import Fold, Follow, Messages, Pass, Proof
from autopar.solve.reduction import Choice, Ints


@dataclass(frozen=True, eq=False)
class Joined:
    """The nodes that stay, renumbered, and their edges.

    `members` are, for every node that stays, the nodes whose costs it has, itself included, each with its strategy for
    each of the leader's (None: the same); `place` says with whom each node is; `fixed` is what edges add to its costs.
    `steps` say this in a proof.
    """

    counts: tuple[int, ...]
    edges: tuple[Edge, ...]
    members: tuple[tuple[tuple[int, Ints | None], ...], ...]
    place: Mapping[int, int]
    fixed: tuple[Floats, ...]
    stay: list[int]
    followers: list[tuple[int, int, Ints]]
    steps: Proof

    def costs(self, nodes: Sequence[int], node_costs: Sequence[Floats]) -> dict[int, Floats]:
        """The costs of `nodes` that stay, from those of all nodes of the whole problem; equal sums are one array."""
        known: dict[tuple[int, ...], Floats] = {}
        found: dict[int, Floats] = {}
        for v in nodes:
            key = (id(self.fixed[v]), *[id(part) for u, to_v in self.members[v] for part in (node_costs[u], to_v)])
            if key not in known:
                known[key] = self._cost(v, node_costs)
            found[v] = known[key]
        return found

    def _cost(self, node: int, node_costs: Sequence[Floats]) -> Floats:
        total = self.fixed[node]
        for v, to_v in self.members[node]:
            total = total + (node_costs[v] if to_v is None else node_costs[v][to_v])
        return total

    def lift(self, choice: Choice) -> Choice:
        """The choice of all nodes that a choice of those that stay is."""
        return lift_followers(len(self.place), self.stay, self.followers, choice)


def joined(problem: Problem) -> Joined:
    """`problem`, its limit left out, with followers and one-sided edges joined to nodes."""
    zeros = {count: np.zeros(count) for count in set(problem.counts)}
    edges = share_equal(derived((), problem.edges)).problem.edges
    free = derived(tuple([zeros[count] for count in problem.counts]), edges)
    smaller, stay, followers = contracted(free)
    fixed, edges, steps = _folded(smaller)
    steps = (Follow(tuple(followers)), *steps) if followers else steps
    index = {v: n for n, v in enumerate(stay)}
    members: list[list[tuple[int, Ints | None]]] = [[(v, None)] for v in stay]
    place = dict(index)
    for v, (root, to_v) in leaders(followers).items():
        place[v] = index[root]
        members[index[root]].append((v, to_v))
    return Joined(smaller.counts, edges, tuple(map(tuple, members)), place, fixed, stay, followers, steps)


def _folded(problem: Problem) -> tuple[tuple[Floats, ...], tuple[Edge, ...], Proof]:
    """The costs of nodes with those of edges that depend on one end only, and the other edges, equal ones shared."""
    along: dict[int, tuple[bool, bool]] = {}
    costs, others, moved = list(problem.node_costs), list[Edge](), list[tuple[Edge, bool]]()
    sums: dict[tuple[int, int, bool], tuple[Floats, Floats]] = {}  # with what was added to: it keeps its id

    def add(v: int, cost: Floats, by_row: bool) -> None:
        key = id(costs[v]), id(cost), by_row
        if key not in sums:
            sums[key] = costs[v] + (cost[:, 0] if by_row else cost[0]), costs[v]
        costs[v] = sums[key][0]

    for edge in share_equal(derived((), problem.edges)).problem.edges:
        cost = edge.cost
        if id(cost) not in along:
            is_finite = bool(np.isfinite(cost).all())  # what is forbidden stays with edges: it is no message
            along[id(cost)] = (
                is_finite and bool((cost == cost[:, :1]).all()),
                is_finite and bool((cost == cost[:1]).all()),
            )
        by_row, by_column = along[id(cost)]
        if by_row or by_column:
            add(edge.u if by_row else edge.v, cost, by_row)
            moved.append((edge, by_row))
        else:
            others.append(edge)
    return tuple(costs), tuple(others), _steps(moved, others)


def _steps(moved: Sequence[tuple[Edge, bool]], others: Sequence[Edge]) -> Proof:
    """That one-sided edges moved to a node: messages where others are between the same nodes, else they are gone."""
    held = {frozenset((edge.u, edge.v)) for edge in others}
    beside = [(edge, by_row) for edge, by_row in moved if frozenset((edge.u, edge.v)) in held]
    pairs = {(min(e.u, e.v), max(e.u, e.v)) for e, _ in moved if frozenset((e.u, e.v)) not in held}
    ends = np.array([(edge.u, edge.v) for edge, _ in beside], dtype=np.intp).reshape(-1, 2)
    parts = tuple(_one_sided(edge.cost, by_row) for edge, by_row in beside)
    return (Pass(Messages(ends, parts)),) * bool(beside) + (Fold(tuple(sorted(pairs))),) * bool(pairs)


def _one_sided(cost: Floats, by_row: bool) -> tuple[Floats, Floats]:
    """What a matrix that depends on its row only, or its column only, adds to the costs of either node."""
    none: Floats = np.zeros(len(cost.T) if by_row else len(cost))
    return (cost[:, 0], none) if by_row else (none, cost[0])
