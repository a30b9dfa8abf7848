"""The reductions in order, repeated as long as they achieve much; and those on edges and lone nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from weakref import WeakKeyDictionary

import numpy as np

from autopar.solve.certificate.proof import Eliminate, Fold, Look
from autopar.solve.presolve.arc_consistency import drop_forbidden
from autopar.solve.presolve.dead_end_elimination import drop_dominated
from autopar.solve.presolve.functional_edges import contract_functional
from autopar.solve.problem.factored_matrix import ALL, Matrix, Thin, added, at, entries_of
from autopar.solve.problem.hash_consing import A, HashConsing
from autopar.solve.problem.options import PresolveOptions
from autopar.solve.problem.problem import Edge, Problem, Usage, derived
from autopar.solve.problem.reduction import Choice, Reduction, compact, shrank, unchanged
from autopar.solve.problem.rows import memory_rows
from autopar.solve.problem.stop import is_up


def share_equal(problem: Problem) -> Reduction:
    """Arrays with the same contents become the same object, so that later work on them is done once."""
    costs = _shared(problem.node_costs)
    (matrices, which) = problem.matrices
    first: list[Matrix] = _shared(matrices)
    numbers: list[int] = which.tolist()
    edges = [
        edge if first[n] is edge.matrix else Edge(edge.u, edge.v, first[n])
        for edge, n in zip(problem.edges, numbers, strict=True)
    ]
    smaller = derived(
        tuple(costs), tuple(edges), problem.usages, problem.usage_limit, layers=problem.layers
    )
    return Reduction(smaller, 0.0, lambda choice: choice)


def _shared(arrays: Sequence[A]) -> list[A]:
    """The arrays, equal ones as the first of them."""
    same = HashConsing[A]()
    number = {
        id(array): same.number(array) for array in {id(array): array for array in arrays}.values()
    }
    return [same.arrays[number[id(array)]] for array in arrays]


def merge_parallel(problem: Problem) -> Reduction:
    """One edge for each pair of nodes: the sum of all between them, from the lower to the higher node."""
    if _is_simple(problem):
        return unchanged(problem)

    groups: dict[tuple[int, int], list[Edge]] = {}
    for edge in problem.edges:
        groups.setdefault((min(edge.u, edge.v), max(edge.u, edge.v)), []).append(edge)

    sums: dict[tuple[tuple[int, bool], ...], Matrix] = {}

    def total(group: list[Edge]) -> Matrix:
        key = tuple((id(edge.matrix), edge.u > edge.v) for edge in group)
        if key not in sums:
            found = reduce(
                added, [edge.matrix.T if edge.u > edge.v else edge.matrix for edge in group]
            )
            sums[key] = found if isinstance(found, Thin) else np.ascontiguousarray(found)
        return sums[key]

    edges = tuple(
        group[0] if len(group) == 1 else Edge(u, v, total(group))
        for (u, v), group in groups.items()
    )
    merged = derived(
        problem.node_costs, edges, problem.usages, problem.usage_limit, layers=problem.layers
    )
    return Reduction(merged, 0.0, lambda choice: choice)


def _is_simple(problem: Problem) -> bool:
    """Whether no two edges are between the same nodes."""
    ends = problem.ends
    return len(np.unique(ends.min(axis=1) * len(problem.node_costs) + ends.max(axis=1))) == len(
        ends
    )


def fold_constant(problem: Problem) -> Reduction:
    """An edge whose matrix is constant along one of its nodes (one strategy, or a free edge) goes into the other."""
    folded: dict[int, int | None] = {}

    def constant_axis(matrix: Matrix) -> int | None:
        cost = entries_of(matrix)
        if (cost[0] == cost[0, 0]).all() and (
            cost == cost[:, :1]
        ).all():  # most fail in the first row
            return 1
        return 0 if (cost[:, 0] == cost[0, 0]).all() and (cost == cost[:1]).all() else None

    costs = list(problem.node_costs)
    edges = list[Edge]()
    gone = list[tuple[int, int]]()
    for edge in problem.edges:
        if id(edge.matrix) not in folded:
            folded[id(edge.matrix)] = constant_axis(edge.matrix)
        axis = folded[id(edge.matrix)]
        if axis is None:
            edges.append(edge)
            continue
        gone.append((edge.u, edge.v))
        if axis == 1:
            costs[edge.u] = costs[edge.u] + at(edge.matrix, ALL, 0)
        else:
            costs[edge.v] = costs[edge.v] + at(edge.matrix, 0, ALL)

    if not gone:
        return unchanged(problem)

    smaller = derived(
        tuple(costs), tuple(edges), problem.usages, problem.usage_limit, layers=problem.layers
    )
    return Reduction(smaller, 0.0, lambda choice: choice, (Fold(tuple(gone)),))


def merge_usages(problem: Problem) -> Reduction:
    """Usages as the rows that can bind see them: those of one node disjoint, times that cannot bind left out."""
    rows = memory_rows(problem)
    if not rows.count:
        return unchanged(problem)
    usages = tuple(Usage(part.node, part.low, part.high, part.size_bytes) for part in rows.segments)
    merged = derived(problem.node_costs, problem.edges, usages, problem.usage_limit)
    return Reduction(merged, 0.0, lambda choice: choice, (Look(rows.times),))


def drop_lone(problem: Problem) -> Reduction:
    """A node without edges and usages takes its cheapest strategy."""
    tied = {edge.u for edge in problem.edges} | {edge.v for edge in problem.edges}
    tied |= {use.node for use in problem.usages}
    best = {v: int(cost.argmin()) for v, cost in enumerate(problem.node_costs) if v not in tied}
    if not best:
        return unchanged(problem)
    offset = sum(float(problem.node_costs[v][s]) for v, s in best.items())
    smaller, stay = compact(problem, problem.node_costs, set(best), problem.edges)
    return Reduction(smaller, offset, partial(_lift, stay, best), (Eliminate(tuple(best)),))


def _lift(stay: list[int], best: dict[int, int], choice: Choice) -> Choice:
    full = {**best, **dict(zip(stay, choice, strict=True))}
    return tuple(full[v] for v in range(len(full)))


Step = Callable[[Problem], Reduction]

_ALL = PresolveOptions()
_AT_REST: WeakKeyDictionary[Problem, PresolveOptions] = WeakKeyDictionary()
"""What came out of the cheap reductions, with these switches: they have nothing to do there."""


def _once(options: PresolveOptions) -> tuple[Step, ...]:
    """The cheap reductions in order."""
    functional = (contract_functional,) if options.functional_edges else ()
    return (drop_forbidden, *functional, merge_parallel, fold_constant, drop_lone)


def _cheap(options: PresolveOptions) -> tuple[Step, ...]:
    """The same, for problems many of whose matrices are equal."""
    shared = (share_equal,) if options.hash_consing else ()
    functional = (drop_forbidden, contract_functional) if options.functional_edges else ()
    return (*shared, *functional, drop_forbidden, merge_parallel, fold_constant, drop_lone)


def reduce_cheaply(problem: Problem, options: PresolveOptions = _ALL) -> Reduction:
    """Everything whose work is linear in the entries of the distinct matrices, as long as it achieves much.

    Raises:
      Infeasible: if forbidden entries leave a node no strategy.
    """
    result = unchanged(problem)
    while _AT_REST.get(result.problem) != options:
        before = result.problem
        for step in _cheap(options):
            result = result.then(step)
        if not shrank(before, result.problem):
            _AT_REST[result.problem] = options
        elif is_up():
            break
    return result


def resting(step: Step, problem: Problem) -> Reduction:
    """`step`, which changes usages alone: what was at rest still is, but for lone nodes."""
    result = step(problem)
    if problem in _AT_REST:
        _AT_REST[result.problem] = _AT_REST[problem]
    return result


def is_at_rest(problem: Problem) -> bool:
    """Whether it came out of the cheap reductions."""
    return problem in _AT_REST


def reduce_once(problem: Problem, options: PresolveOptions = _ALL) -> Reduction:
    """Each of the cheap reductions once, for problems of which hardly two matrices are equal.

    Raises:
      Infeasible: if forbidden entries leave a node no strategy.
    """
    result = unchanged(problem)
    for step in _once(options):
        result = result.then(step)
    return result


def reduce_fully(problem: Problem, options: PresolveOptions = _ALL) -> Reduction:
    """The cheap reductions and dominance, as long as they achieve much."""
    cheaply = partial(reduce_cheaply, options=options)
    result = unchanged(problem).then(cheaply)
    while options.dead_end_elimination:
        before = result.problem
        result = result.then(drop_dominated).then(cheaply)
        if is_up() or not shrank(before, result.problem):
            break
    return result
