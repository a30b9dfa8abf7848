"""The quotient of a problem: what repeats is one node, so of its choices only those are left that choose alike there.

It is smaller by as often as things repeat. What it finds is a choice of the whole problem, and a good one: layers of
a deep network are placed alike, and that hardly ever costs anything. It proves nothing of other choices.

Nodes are told apart by their periods (`Problem.periods`); those that have none, by the nodes that they have edges to.

Reference: the quotient by an equitable partition (Grohe et al., "Dimension reduction via colour refinement", ESA 2014).
Differs: classes need not be equitable, as the first and the last layer's are not; so costs are exact, bounds are not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autopar.solve.problem.factored_matrix import Matrix, Thin, added, whole
from autopar.solve.problem.hash_consing import distinct
from autopar.solve.problem.problem import Edge, Floats, Problem, Usage, derived
from autopar.solve.problem.reduction import Choice, Ints

_ROUNDS = 2  # of telling nodes without a period apart by their neighbours
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)  # of the hash splitmix64 (Steele et al., OOPSLA 2014)
_WORTH = 0.2  # of the nodes: more classes save too little for what else they take


@dataclass(frozen=True, eq=False)
class Quotient:
    """The problem with one node for each class, and the class of every node of the whole problem."""

    problem: Problem
    classes: Ints

    def lift(self, choice: Sequence[int]) -> Choice:
        """A choice of the whole problem."""
        return tuple(np.asarray(choice, dtype=np.intp)[self.classes].tolist())

    def most_common(self, choice: Choice) -> Choice:
        """For every class what most of its nodes choose in a choice of the whole problem."""
        votes: list[Counter[int]] = [Counter() for _ in self.problem.node_costs]
        for node, s in zip(self.classes.tolist(), choice, strict=True):
            votes[node][s] += 1
        return tuple(max(sorted(vote), key=lambda s: vote[s]) for vote in votes)


def chooses_alike(problem: Problem, choice: Choice) -> bool:
    """Whether nodes of one period number choose the same already."""
    if problem.periods is None:
        return True
    known = problem.periods >= 0
    chosen = np.array(choice, dtype=np.intp)[known]
    _, first, which = np.unique(problem.periods[known], return_index=True, return_inverse=True)
    return bool((chosen == chosen[first][which]).all())


def quotient(problem: Problem) -> Quotient | None:
    """The quotient by what repeats; None if little does."""
    if problem.periods is None:
        return None

    classes = _classes(problem, problem.periods)
    count = int(classes.max(initial=-1)) + 1
    if count > _WORTH * len(classes):
        return None

    costs = _costs(problem.node_costs, classes, count)
    edges = dict[tuple[int, int], Matrix]()
    for (u, v), matrix in _between(problem, classes):
        if u == v:
            costs[u] = costs[u] + np.diagonal(whole(matrix))
        elif (v, u) in edges:
            edges[v, u] = added(edges[v, u], matrix.T)
        else:
            edges[u, v] = matrix

    usages = tuple(
        Usage(int(classes[use.node]), use.start, use.stop, use.size_bytes) for use in problem.usages
    )
    joined = tuple(Edge(u, v, matrix) for (u, v), matrix in edges.items())
    return Quotient(derived(tuple(costs), joined, usages, problem.usage_limit), classes)


def classes_of(problem: Problem) -> Ints | None:
    """The class of every node, 0, 1, ... as they come first; None if nothing is told of what repeats."""
    return None if problem.periods is None else _classes(problem, problem.periods)


def _classes(problem: Problem, periods: Ints) -> Ints:
    """The class of every node, 0, 1, ... as they come first. Those of one class are allowed the same strategies."""
    which, every = _numbered_objects(problem.node_costs)
    masks = dict[bytes, int]()
    allowed = [masks.setdefault(np.isfinite(cost).tobytes(), len(masks)) for cost in every]
    colours = _as_they_come(periods, np.array(allowed, dtype=np.intp)[which])

    arcs = np.concatenate([problem.ends, problem.ends[:, ::-1]])
    arcs = arcs[periods[arcs[:, 0]] < 0]
    node, other = arcs[np.argsort(arcs[:, 0], kind="stable")].T
    for _ in range(_ROUNDS):
        colours = _as_they_come(colours, _bags(len(colours), node, colours[other]))

    return colours


def _bags(count: int, node: Ints, items: Ints) -> Ints:
    """For each of so many nodes a number, equal where nodes have the same items; `node` ascends.

    It is the sum of the items' hashes (splitmix64): were two sums equal by chance, two nodes of as many strategies
    would be one class, which any choice may be lifted from.
    """
    mixed = items.astype(np.uint64) + _GOLDEN
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    first = np.flatnonzero(np.diff(node, prepend=-1))
    sums = np.add.reduceat(mixed, first) if len(first) else mixed

    found = np.zeros(count, dtype=np.intp)
    found[node[first]] = 1 + np.unique(sums, return_inverse=True)[1]
    return found


def _as_they_come(*columns: Ints) -> Ints:
    """For every row of the columns which of the distinct ones it is, numbered as they come first."""
    first, each = distinct(*columns)
    number = np.empty(len(first), dtype=np.intp)
    number[np.argsort(first)] = np.arange(len(first))
    return number[each]


def _costs(costs: Sequence[Floats], classes: Ints, count: int) -> list[Floats]:
    """What each class costs: the sum over its nodes, equal ones counted."""
    which, every = _numbered_objects(costs)
    rows, counts = _counted(np.stack([classes, which], axis=1))
    parts: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for (node, kind), many in zip(rows, counts, strict=True):
        parts[node].append((kind, many))
    sums: dict[
        tuple[tuple[int, int], ...], Floats
    ] = {}  # equal ones are one object, as kernels and caches want it
    for part in map(tuple, parts):
        if part not in sums:
            sums[part] = np.sum([many * every[kind] for kind, many in part], axis=0)
    return [sums[tuple(part)] for part in parts]


def _numbered_objects(arrays: Sequence[Floats]) -> tuple[Ints, list[Floats]]:
    """Which of the arrays, each object once, stands at every place."""
    first: dict[int, int] = {}
    which = np.array([first.setdefault(id(array), len(first)) for array in arrays], dtype=np.intp)
    by_id = {id(array): array for array in arrays}
    return which, [by_id[key] for key in first]


def _counted(rows: Ints) -> tuple[list[list[int]], list[int]]:
    """The distinct rows, and how often each is there."""
    first, each = distinct(*rows.T)
    return rows[first].tolist(), np.bincount(each).tolist()


def _between(problem: Problem, classes: Ints) -> list[tuple[tuple[int, int], Matrix]]:
    """What lies between two classes: the sum over the edges from the one to the other, equal ones counted."""
    if not problem.edges:
        return []
    every, which = problem.matrices
    rows, counts = _counted(np.concatenate([classes[problem.ends], which[:, None]], axis=1))
    many: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for (u, v, kind), count in zip(rows, counts, strict=True):
        many.setdefault((u, v), []).append((kind, count))
    sums: dict[tuple[tuple[int, int], ...], Matrix] = {}
    for part in map(tuple, many.values()):
        if part not in sums:
            sums[part] = _total([(every[kind], count) for kind, count in part])
    return [(ends, sums[tuple(part)]) for ends, part in many.items()]


def _total(many: Sequence[tuple[Matrix, int]]) -> Matrix:
    """The sum of matrices, each so many times."""
    first, *rest = (_times(matrix, times) for matrix, times in many)
    for matrix in rest:
        first = added(first, matrix)
    return first


def _times(matrix: Matrix, times: int) -> Matrix:
    if isinstance(matrix, Thin):
        return Thin(times * matrix.entries, matrix.rows, matrix.columns)
    return times * matrix
