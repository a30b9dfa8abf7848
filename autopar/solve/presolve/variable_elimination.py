"""Reduction: nodes with at most two neighbours are eliminated exactly; the problem stays one of pairs.

    result_ab[s, t] = min over k of cost_v[k] + cost_va[k, s] + cost_vb[k, t]

Nodes go in rounds, no two of a round adjacent, so that equal stretches of the graph make equal (shared) products.

J. Larrosa, "Boosting search with variable elimination", CP 2000.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from autopar.solve.certificate.proof import Eliminate
from autopar.solve.elimination.min_sum import least_to_one, least_to_two
from autopar.solve.problem.factored_matrix import ALL, Matrix, added, at
from autopar.solve.problem.options import SolveOptions
from autopar.solve.problem.problem import Edge, Floats, Problem
from autopar.solve.problem.reduction import Choice, Reduction, compact, unchanged
from autopar.solve.problem.stop import is_up

_MAX_NEIGHBOURS = 2  # with more, a problem of pairs would not stay one


A = TypeVar("A", bound=Matrix)


@dataclass(frozen=True, eq=False)
class _Gone:
    """An eliminated node, its costs, and its matrices (transposed if flagged: rows are the neighbour's)."""

    node: int
    cost: Floats
    near: tuple[tuple[int, Matrix, bool], ...]


class _Made(Generic[A]):
    """What was made of arrays, remembered by their identity, so that equal layers cost nothing. `entries`: of all."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], tuple[A, tuple[Matrix, ...]]] = {}
        self.entries = 0

    def once(
        self, inputs: tuple[Matrix, ...], flipped: tuple[bool, ...], make: Callable[[], A]
    ) -> A:
        """What `make` makes of the inputs, those that are flipped transposed, when it is first asked."""
        key = (*map(id, inputs), *flipped)
        if key not in self._known:
            self._known[key] = make(), inputs  # which keep their ids
            self.entries += self._known[key][0].size
        return self._known[key][0]


class _Graph:
    """Costs and, for each node, its neighbours with the matrix and whether its rows are the neighbour's."""

    def __init__(self, problem: Problem) -> None:
        self.costs = list(problem.node_costs)
        self.near: list[dict[int, tuple[Matrix, bool]]] = [{} for _ in self.costs]
        self.sums = _Made[Matrix]()
        self.least = _Made[Matrix]()  # of matrices
        self.added = _Made[Floats]()
        self.lowest = _Made[Floats]()  # costs of nodes
        self.offset = 0.0
        for edge in problem.edges:
            self.join(edge.u, edge.v, edge.matrix)

    @property
    def entries(self) -> int:
        """Of all that was made."""
        return self.sums.entries + self.least.entries + self.added.entries + self.lowest.entries

    def join(self, u: int, v: int, cost: Matrix) -> None:
        """Adds a matrix with rows u and columns v to what is between them."""
        if v in self.near[u]:
            before, flipped = self.near[u][v]
            cost = self.sums.once(
                (before, cost), (flipped,), lambda: added(before, cost.T if flipped else cost)
            )
            u, v = (v, u) if flipped else (u, v)
        self.near[u][v] = (cost, False)
        self.near[v][u] = (cost, True)

    def eliminate(self, v: int) -> _Gone:
        """Takes v out and gives its neighbours what it leaves."""
        near = tuple((u, *self.near[v][u]) for u in sorted(self.near[v]))
        gone = _Gone(v, self.costs[v], near)
        for u, _, _ in near:
            del self.near[u][v]

        self.near[v].clear()
        if not near:
            self.offset += float(gone.cost.min())
            return gone

        inputs = (gone.cost, *(matrix for _, matrix, _ in near))
        flipped = tuple(turned for _, _, turned in near)
        sides = [matrix if turned else matrix.T for _, matrix, turned in near]
        if len(near) == 1:
            u = near[0][0]
            least = self.lowest.once(inputs, flipped, lambda: least_to_one(gone.cost, *sides))
            before = self.costs[u]
            self.costs[u] = self.added.once((before, least), (), lambda: before + least)
        else:
            self.join(
                near[0][0],
                near[1][0],
                self.least.once(inputs, flipped, lambda: least_to_two(gone.cost, *sides)),
            )

        return gone


def contract_chains(problem: Problem, options: SolveOptions) -> Reduction:
    """Eliminates all nodes with at most two neighbours and without usages, while tables stay within the options."""
    if not options.presolve.variable_elimination:
        return unchanged(problem)

    graph = _Graph(problem)
    fixed = {use.node for use in problem.usages}
    gone: list[_Gone] = []
    open_nodes = [v for v in range(len(graph.costs)) if v not in fixed]
    while chosen := [] if is_up() else _round(graph, open_nodes, options):
        gone += [graph.eliminate(v) for v in chosen if not is_up()]
        done = set(chosen)
        open_nodes = [v for v in open_nodes if v not in done]

    if not gone:
        return unchanged(problem)

    edges = [
        Edge(u, v, cost)
        for u, near in enumerate(graph.near)
        for v, (cost, flipped) in near.items()
        if not flipped
    ]
    out = {item.node for item in gone}
    smaller, stay = compact(problem, graph.costs, out, edges)
    step = Eliminate(tuple(item.node for item in gone))
    return Reduction(smaller, graph.offset, partial(_lift, len(graph.costs), stay, gone), (step,))


def _round(graph: _Graph, nodes: list[int], options: SolveOptions) -> list[int]:
    """Nodes that may go now, no two adjacent: those of fewest neighbours first, then in order."""
    room = options.max_total_entries - graph.entries
    chosen = list[int]()
    blocked = set[int]()
    for v in sorted(nodes, key=lambda v: len(graph.near[v])):
        if len(graph.near[v]) > _MAX_NEIGHBOURS:
            break
        if v in blocked:
            continue
        entries = 1
        for u in graph.near[v]:
            entries *= len(graph.costs[u])
        if entries > min(options.max_table_entries, room):
            continue
        room -= 2 * entries
        chosen.append(v)
        blocked.update(graph.near[v])

    return chosen


def _lift(count: int, stay: list[int], gone: list[_Gone], choice: Choice) -> Choice:
    full = [0] * count
    for v, s in zip(stay, choice, strict=True):
        full[v] = s
    for item in reversed(gone):
        total = item.cost
        for u, cost, flipped in item.near:
            total = total + (at(cost, full[u], ALL) if flipped else at(cost, ALL, full[u]))
        full[item.node] = int(total.argmin())
    return tuple(full)
