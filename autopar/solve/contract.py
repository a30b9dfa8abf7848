"""Reduction: a node whose strategy follows from a neighbour's is merged into it (equality ties and functional edges).

An edge (u, v) is functional if every strategy s of u has one finite partner f(s) of v:

    cost_u[s] += cost_v[f(s)] + cost_uv[s, f(s)];    an edge (v, w) becomes (u, w) with rows cost_vw[f(s)]
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from autopar.solve.problem import Edge, Floats, Problem, Usage
from autopar.solve.proof import Follow
from autopar.solve.reduction import Choice, Ints, Reduction, compact, unchanged

Follower = tuple[int, int, Ints]  # (node that goes, node it follows, its strategy for each of the other's)


def _functions(cost: Floats) -> tuple[Ints | None, Ints | None]:
    """The map of rows to columns and that of columns to rows, where there is one."""
    if all(np.count_nonzero(np.isfinite(line)) != 1 for line in (cost[0], cost[:, 0])):  # most of them, at a glance
        return None, None
    finite = np.isfinite(cost)
    if np.count_nonzero(finite) not in cost.shape:
        return None, None
    by_row = finite.argmax(axis=1) if (finite.sum(axis=1) == 1).all() else None
    by_column = finite.argmax(axis=0) if (finite.sum(axis=0) == 1).all() else None
    return by_row, by_column


def is_functional(cost: Floats) -> bool:
    """Whether one of the two nodes of an edge follows the other."""
    return any(found is not None for found in _functions(cost))


class _Contraction:
    """The problem while nodes are being merged. Edges live in a table by number; `incident` lists those of a node."""

    def __init__(self, problem: Problem, maps: dict[int, tuple[Ints | None, Ints | None]]) -> None:
        self.costs = list(problem.node_costs)
        self.edges: dict[int, Edge] = dict(enumerate(problem.edges))
        self.incident: list[set[int]] = [set() for _ in self.costs]
        for e, edge in self.edges.items():
            self.incident[edge.u].add(e)
            self.incident[edge.v].add(e)
        self.maps = maps  # of the problem's matrices, by id
        self.rows: dict[tuple[int, bytes, bool], Floats] = {}
        self.held: list[Floats] = []  # keeps ids that are keys valid
        self.followers: list[Follower] = []

    def functions(self, cost: Floats) -> tuple[Ints | None, Ints | None]:
        """The map of rows to columns and that of columns to rows, where there is one."""
        if id(cost) not in self.maps:
            self.held.append(cost)
            self.maps[id(cost)] = _functions(cost)
        return self.maps[id(cost)]

    def follower(self, edge: Edge) -> Follower | None:
        """What the edge says about which node follows which; of two equal ones the later node follows."""
        forward, backward = self.functions(edge.cost)
        found = [(edge.v, edge.u, forward)] if forward is not None else []
        found += [(edge.u, edge.v, backward)] if backward is not None else []
        found.sort(key=lambda item: -item[0])
        return found[0] if found else None

    def merge(self, v: int, u: int, to_v: Ints) -> list[int]:
        """Merges v into u; returns the numbers of the edges that changed."""
        self.followers.append((v, u, to_v))
        self.costs[u] = self.costs[u] + self.costs[v][to_v]
        changed: list[int] = []
        for e in sorted(self.incident[v]):
            edge = self.edges[e]
            other = edge.v if edge.u == v else edge.u
            if other == u:
                own = np.arange(len(to_v))
                self.costs[u] = self.costs[u] + (edge.cost[to_v, own] if edge.u == v else edge.cost[own, to_v])
                del self.edges[e]
                self.incident[u].discard(e)
                continue
            taken = self.taken(edge.cost, to_v, edge.u == v)
            self.edges[e] = Edge(u, other, taken) if edge.u == v else Edge(other, u, taken)
            self.incident[u].add(e)
            changed.append(e)
        self.incident[v].clear()
        return changed

    def taken(self, cost: Floats, index: Ints, by_row: bool) -> Floats:
        """The rows (or columns) `index` of a matrix; itself if those are all, in order."""
        if index.tolist() == list(range(cost.shape[0 if by_row else 1])):
            return cost
        key = (id(cost), index.tobytes(), by_row)
        if key not in self.rows:
            self.held.append(cost)
            self.rows[key] = cost[index] if by_row else np.ascontiguousarray(cost[:, index])
        return self.rows[key]


def contract_functional(problem: Problem) -> Reduction:
    """Merges every node that follows a neighbour into that neighbour."""
    smaller, stay, followers = contracted(problem)
    if not followers:
        return unchanged(problem)
    lift = partial(lift_followers, len(problem.node_costs), stay, followers)
    return Reduction(smaller, 0.0, lift, (Follow(tuple(followers)),))


def contracted(problem: Problem) -> tuple[Problem, list[int], list[Follower]]:
    """The problem without the nodes that follow others, the nodes that stay, and the others in the order they went.

    Which these are, and whom they follow how, does not depend on the costs of nodes.
    """
    matrices, which = problem.matrices
    maps = {id(cost): _functions(cost) for cost in matrices}
    functional = [any(to is not None for to in maps[id(cost)]) for cost in matrices]
    queue: list[int] = np.flatnonzero(np.array(functional, dtype=np.bool_)[which]).tolist()
    if not queue:
        return problem, list(range(len(problem.node_costs))), []
    work = _Contraction(problem, maps)
    queue.reverse()
    while queue:
        edge = work.edges.get(queue.pop())
        found = work.follower(edge) if edge is not None else None
        if found is not None:
            queue.extend(sorted(work.merge(*found), reverse=True))
    usages = _moved(problem.usages, work.followers)
    gone = {v for v, _, _ in work.followers}
    smaller, stay = compact(work.costs, gone, list(work.edges.values()), usages, problem.usage_limit)
    return smaller, stay, work.followers


def leaders(followers: Sequence[Follower]) -> dict[int, tuple[int, Ints]]:
    """For every node that went the one that stays, and its strategy for each of that one's."""
    leader: dict[int, tuple[int, Ints]] = {}
    for v, u, to_v in reversed(followers):
        root, to_u = leader.get(u, (u, None))
        leader[v] = (root, to_v if to_u is None else to_v[to_u])
    return leader


def _moved(usages: Sequence[Usage], followers: list[Follower]) -> list[Usage]:
    """The usages of followers as usages of the nodes that stay."""
    leader = leaders(followers) if usages else {}
    moved: list[Usage] = []
    for use in usages:
        if use.node in leader:
            root, to_node = leader[use.node]
            use = Usage(root, use.start, use.stop, use.size_bytes[to_node])
        moved.append(use)
    return moved


def lift_followers(count: int, stay: list[int], followers: list[Follower], choice: Choice) -> Choice:
    """The choice of all nodes that a choice of those that stay is."""
    full = [0] * count
    for v, s in zip(stay, choice, strict=True):
        full[v] = s
    for v, u, to_v in reversed(followers):
        full[v] = int(to_v[full[u]])
    return tuple(full)
