"""Reduction: a node whose strategy follows from a neighbour's is merged into it (equality ties and functional edges).

An edge (u, v) is functional if every strategy s of u has one finite partner f(s) of v:

    cost_u[s] += cost_v[f(s)] + cost_uv[s, f(s)];    an edge (v, w) becomes (u, w) with rows cost_vw[f(s)]
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from autopar.solve.certificate.proof import Follow
from autopar.solve.problem.factored_matrix import ALL, Matrix, at, part, taken
from autopar.solve.problem.problem import Edge, Problem, Usage
from autopar.solve.problem.reduction import Choice, Ints, Reduction, compact, unchanged

# (node that goes, node it follows, its strategy for each of the other's)
Follower = tuple[int, int, Ints]


def _functions(matrix: Matrix) -> tuple[Ints | None, Ints | None]:
    """The map of rows to columns and that of columns to rows, where there is one."""
    lines = at(matrix, 0, ALL), at(matrix, ALL, 0)
    if all(np.count_nonzero(np.isfinite(line)) != 1 for line in lines):  # most of them, at a glance
        return None, None
    finite = np.isfinite(part(matrix))
    if np.count_nonzero(finite) not in matrix.shape:
        return None, None
    by_row = finite.argmax(axis=1) if (finite.sum(axis=1) == 1).all() else None
    by_column = finite.argmax(axis=0) if (finite.sum(axis=0) == 1).all() else None
    return by_row, by_column


def is_functional(matrix: Matrix) -> bool:
    """Whether one of the two nodes of an edge follows the other."""
    return any(found is not None for found in _functions(matrix))


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
        self.rows: dict[tuple[int, bytes, bool], Matrix] = {}
        self.held: list[Matrix] = []  # keeps ids that are keys valid
        self.followers: list[Follower] = []

    def functions(self, matrix: Matrix) -> tuple[Ints | None, Ints | None]:
        """The map of rows to columns and that of columns to rows, where there is one."""
        if id(matrix) not in self.maps:
            self.held.append(matrix)
            self.maps[id(matrix)] = _functions(matrix)
        return self.maps[id(matrix)]

    def follower(self, edge: Edge) -> Follower | None:
        """What the edge says about which node follows which; of two equal ones the later node follows."""
        forward, backward = self.functions(edge.matrix)
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
                self.costs[u] = self.costs[u] + (
                    at(edge.matrix, to_v, own) if edge.u == v else at(edge.matrix, own, to_v)
                )
                del self.edges[e]
                self.incident[u].discard(e)
                continue
            mine = self.taken(edge.matrix, to_v, edge.u == v)
            self.edges[e] = Edge(u, other, mine) if edge.u == v else Edge(other, u, mine)
            self.incident[u].add(e)
            changed.append(e)

        self.incident[v].clear()
        return changed

    def taken(self, matrix: Matrix, index: Ints, by_row: bool) -> Matrix:
        """The rows (or columns) `index` of a matrix; itself if those are all, in order."""
        if index.tolist() == list(range(matrix.shape[0 if by_row else 1])):
            return matrix
        key = (id(matrix), index.tobytes(), by_row)
        if key not in self.rows:
            self.held.append(matrix)
            self.rows[key] = taken(matrix, index, None) if by_row else taken(matrix, None, index)
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
    maps = {id(matrix): _functions(matrix) for matrix in matrices}
    functional = [any(to is not None for to in maps[id(matrix)]) for matrix in matrices]
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
    smaller, stay = compact(problem, work.costs, gone, list(work.edges.values()), usages)
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


def lift_followers(
    count: int, stay: list[int], followers: list[Follower], choice: Choice
) -> Choice:
    """The choice of all nodes that a choice of those that stay is."""
    full = [0] * count
    for v, s in zip(stay, choice, strict=True):
        full[v] = s
    for v, u, to_v in reversed(followers):
        full[v] = int(to_v[full[u]])
    return tuple(full)
