"""What every reduction returns, how reductions follow one another, and the two edits they are made of.

A reduction turns a Problem into a smaller one whose optimum is that of the first, less `offset`; `lift` turns a choice
of the smaller into one of the first whose cost is the smaller one's plus `offset`, or less. `steps` say what was done,
for the proof of a bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from autopar.solve.certificate.proof import Proof, Step, Unlimit
from autopar.solve.problem.factored_matrix import Ints, Matrix, taken
from autopar.solve.problem.problem import Edge, Floats, Infeasible, Problem, Usage, derived

Choice = tuple[int, ...]
Bools = NDArray[np.bool_]


_WORTH = 0.99  # of nodes, strategies or edges: with more left, the same again achieves less still


@dataclass(frozen=True, eq=False)
class Reduction:
    """A smaller problem, the cost that was taken out of it, the way back for choices, and what was done."""

    problem: Problem
    offset: float
    lift: Callable[[Choice], Choice]
    steps: Proof = ()

    def then(self, step: Callable[[Problem], Reduction]) -> Reduction:
        """One reduction out of two: `step` after it.

        Raises:
          Infeasible: as `step` does; its witness, if it has one, begins with the steps so far. Or nothing that it took
            out has a finite choice.
        """
        try:
            after = step(self.problem)
        except Infeasible as error:
            error.witness = None if error.witness is None else self.steps + error.witness
            raise

        if after.problem is self.problem:
            return self

        first = self.lift
        then = after.lift  # not the reductions: their problems may go
        steps = self.steps + after.steps
        if after.offset == inf:
            raise Infeasible("no choice of the nodes taken out is finite", witness=steps)
        return Reduction(
            after.problem, self.offset + after.offset, lambda choice: first(then(choice)), steps
        )


def unchanged(problem: Problem) -> Reduction:
    """The reduction that does nothing."""
    return Reduction(problem, 0.0, lambda choice: choice)


def size(problem: Problem) -> tuple[int, int, int]:
    """Nodes, strategies and edges: falls with every reduction that achieved anything."""
    return len(problem.node_costs), sum(problem.counts), len(problem.edges)


def shrank(before: Problem, after: Problem) -> bool:
    """Whether nodes, strategies or edges fell by enough for the same reductions to be tried again."""
    return any(new < _WORTH * old for old, new in zip(size(before), size(after), strict=True))


def without_limit(problem: Problem) -> Reduction:
    """The problem without memory: a relaxation of it."""
    return Reduction(
        derived(problem.node_costs, problem.edges, layers=problem.layers),
        0.0,
        lambda choice: choice,
        (Unlimit(),),
    )


def kept(keep: Sequence[Bools]) -> dict[int, Ints]:
    """The strategies that stay of the nodes that lose some."""
    return {v: np.flatnonzero(mask) for v, mask in enumerate(keep) if not mask.all()}


def restrict(
    problem: Problem, keep: Sequence[Bools], because: Callable[[Mapping[int, Ints]], Step]
) -> Reduction:
    """Only the strategies in `keep[v]` of every node v are left. Parts of shared arrays are shared.

    `because` makes a step of a proof of what is kept of the nodes that lose strategies.
    """
    ids_of = {key: mask.nonzero()[0] for key, mask in {id(mask): mask for mask in keep}.items()}
    index = [ids_of[id(mask)] for mask in keep]
    left = {
        v: ids
        for v, (ids, mask) in enumerate(zip(index, keep, strict=True))
        if len(ids) < len(mask)
    }
    if not left:
        return unchanged(problem)

    name_of = {id(ids): ids.tobytes() for ids in ids_of.values()}
    names = [name_of[id(ids)] for ids in index]
    matrices: dict[tuple[int, bytes, bytes], Matrix] = {}
    vectors: dict[tuple[int, bytes], Floats] = {}

    def submatrix(edge: Edge) -> Matrix:
        u, v = (
            None if len(index[node]) == len(keep[node]) else index[node]
            for node in (edge.u, edge.v)
        )
        if u is None and v is None:
            return edge.matrix
        key = (id(edge.matrix), names[edge.u], names[edge.v])
        if key not in matrices:
            matrices[key] = taken(edge.matrix, u, v)
        return matrices[key]

    def subvector(v: int) -> Floats:
        cost = problem.node_costs[v]
        if len(index[v]) == len(cost):
            return cost
        key = (id(cost), names[v])
        if key not in vectors:
            vectors[key] = cost[index[v]]
        return vectors[key]

    smaller = derived(
        tuple(subvector(v) for v in range(len(index))),
        tuple(Edge(edge.u, edge.v, submatrix(edge)) for edge in problem.edges),
        tuple(
            Usage(use.node, use.start, use.stop, use.size_bytes[index[use.node]])
            for use in problem.usages
        ),
        problem.usage_limit,
        layers=problem.layers,
    )
    step = because(left)
    return Reduction(
        smaller,
        0.0,
        lambda choice: tuple(int(ids[s]) for ids, s in zip(index, choice, strict=True)),
        (step,),
    )


def compact(
    problem: Problem,
    costs: Sequence[Floats],
    gone: set[int],
    edges: Sequence[Edge],
    usages: Sequence[Usage] | None = None,
) -> tuple[Problem, list[int]]:
    """The problem with these costs, edges and usages (None: its own), without the nodes in `gone`; those that stay.

    The nodes in `gone` have no edges and usages any more.
    """
    stay = [v for v in range(len(costs)) if v not in gone]
    new = {v: i for i, v in enumerate(stay)}
    smaller = derived(
        tuple(costs[v] for v in stay),
        tuple(Edge(new[edge.u], new[edge.v], edge.matrix) for edge in edges),
        tuple(
            Usage(new[use.node], use.start, use.stop, use.size_bytes)
            for use in (problem.usages if usages is None else usages)
        ),
        problem.usage_limit,
        layers=None if problem.layers is None else problem.layers[stay],
    )

    return smaller, stay
