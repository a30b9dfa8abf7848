"""Exact optimum of a problem without limit by elimination of all nodes, if the tables it needs are small enough.

The order is planned first, on sizes alone: always a node whose table is smallest, or one that joins the fewest
others (min-fill). Nothing is computed unless the whole plan fits.

R. Dechter, "Bucket elimination: a unifying framework for reasoning", Artificial Intelligence 113 (1999).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from heapq import heapify, heappop, heappush

import numpy as np

from autopar.solve.certificate.proof import Eliminate
from autopar.solve.elimination.min_sum import MinSum
from autopar.solve.periodic.few_periods import shortened
from autopar.solve.presolve.arc_consistency import drop_forbidden
from autopar.solve.presolve.batched_elimination import reduce_alike
from autopar.solve.presolve.reduce import reduce_cheaply, reduce_fully
from autopar.solve.presolve.variable_elimination import contract_chains
from autopar.solve.problem.factored_matrix import finite_entries
from autopar.solve.problem.options import SolveOptions
from autopar.solve.problem.problem import Floats, Infeasible, Problem
from autopar.solve.problem.reduction import Choice, Reduction, shrank, unchanged
from autopar.solve.problem.rows import drop_slack
from autopar.solve.problem.stop import TimeUp, is_up, keep_on
from autopar.solve.trws.ascent import Answer


@dataclass(frozen=True)
class EliminationPlan:
    """An order of all nodes, and what eliminating in it takes."""

    order: tuple[int, ...]
    largest_entries: int
    total_entries: int
    work: float

    def fits(self, options: SolveOptions) -> bool:
        """Whether the options allow it."""
        small = (
            self.largest_entries <= options.max_table_entries
            and self.total_entries <= options.max_total_entries
        )
        return small and self.work <= options.max_elimination_work


@dataclass(frozen=True, eq=False)
class Table:
    """Costs over a scope: axis i of `cost` is the strategy of node `scope[i]`."""

    scope: tuple[int, ...]
    cost: Floats


@dataclass(frozen=True, eq=False)
class Bucket:
    """An eliminated node, the tables it was in, and what it left on its scope (in order of nodes)."""

    node: int
    scope: tuple[int, ...]
    tables: tuple[Table, ...]
    left: Floats


@dataclass(frozen=True, eq=False)
class Elimination:
    """The buckets in the order of elimination, and the optimum (inf if every choice is forbidden)."""

    counts: tuple[int, ...]
    buckets: tuple[Bucket, ...]
    cost: float

    def choice(self) -> Choice:
        """The optimal choice, last eliminated first: each the cheapest given those that are known."""
        choice = [0] * len(self.counts)
        for bucket in reversed(self.buckets):
            total = np.zeros(1)
            for table in bucket.tables:
                known = tuple(slice(None) if u == bucket.node else choice[u] for u in table.scope)
                total = total + table.cost[known]
            choice[bucket.node] = int(total.argmin())
        return tuple(choice)


def plan_elimination(
    problem: Problem, most_entries: float = math.inf, *, by_fill: bool = False
) -> EliminationPlan:
    """A greedy order, with its largest and total table entries and its additions.

    Always the node that leaves the smallest table, or, `by_fill`, of those that join the fewest others the one that
    does; ties by node. It ends, without the rest of the nodes, at the first table of more than `most_entries`.
    """
    counts = problem.counts
    near = _neighbours(problem)

    def entries(v: int) -> int:
        """Of the table that v leaves; where those are more than allowed, enough of its factors to say so."""
        table = 1
        for u in near[v]:
            table *= counts[u]
            if table > most_entries:
                break
        return table

    def rank(v: int) -> tuple[int, int]:
        joined = sum(len(near[v]) - 1 - len(near[u] & near[v]) for u in near[v]) if by_fill else 0
        return joined, entries(v)

    cost = {v: rank(v) for v in range(len(counts))}
    queue = [(ranked, v) for v, ranked in cost.items()]
    heapify(queue)
    order = list[int]()
    largest = 0
    total = 0
    work = 0.0
    while cost:
        ranked, v = heappop(queue)
        if cost.get(v) != ranked:  # it was put in again with another
            continue
        table = ranked[1]
        del cost[v]
        order.append(v)
        if table > most_entries:
            return EliminationPlan(tuple(order), table, total, work)
        largest = max(largest, table)
        total = total + table
        work = work + float(table) * counts[v] * len(near[v])
        for u in near[v]:
            near[u] |= near[v]
            near[u] -= {u, v}
        around = near[v].union(*(near[u] for u in near[v])) if by_fill else near[v]
        for u in around:
            cost[u] = rank(u)
            heappush(queue, (cost[u], u))

    return EliminationPlan(tuple(order), largest, total, work)


def _neighbours(problem: Problem) -> list[set[int]]:
    """Of every node with more than one strategy, those that it has edges to."""
    near: list[set[int]] = [set() for _ in problem.counts]
    counts = np.array(problem.counts, dtype=np.intp)
    ends: list[tuple[int, int]] = problem.ends[(counts[problem.ends] > 1).all(axis=1)].tolist()
    for u, v in ends:
        near[u].add(v)
        near[v].add(u)
    return near


def tables_of(problem: Problem) -> tuple[list[Floats], list[list[Table]]]:
    """The costs of every node, and the tables of edges that it is in: those between nodes with more than one strategy.

    What an edge to a node of one strategy costs is the other's.
    """
    costs = list(problem.node_costs)
    counts = problem.counts
    tables: list[list[Table]] = [[] for _ in counts]
    for edge in problem.edges:
        if counts[edge.u] == 1:
            costs[edge.v] = costs[edge.v] + edge.cost[0]
        elif counts[edge.v] == 1:
            costs[edge.u] = costs[edge.u] + edge.cost[:, 0]
        else:
            table = Table((edge.u, edge.v), edge.cost)
            tables[edge.u].append(table)
            tables[edge.v].append(table)

    return costs, tables


def eliminate(problem: Problem, plan: EliminationPlan) -> Elimination:
    """Eliminates all nodes along a plan that fits.

    A node of one strategy is no axis of any table, as an array has 64 at most: its edges are costs of its neighbours.

    Raises:
      TimeUp: before the end.
    """
    counts = problem.counts
    made = MinSum()
    costs, tables = tables_of(problem)
    buckets: list[Bucket] = []
    cost = 0.0
    for v in plan.order:
        keep_on()
        mine = (Table((v,), costs[v]), *tables[v])
        scope = tuple(sorted({u for table in mine for u in table.scope} - {v}))
        place = {u: i for i, u in enumerate(scope)} | {v: -1}
        inputs = [(table.cost, tuple(place[u] for u in table.scope)) for table in mine]
        left = made.eliminate(tuple(counts[u] for u in scope), inputs)
        buckets.append(Bucket(v, scope, mine, left))
        cost += float(left) if not scope else 0.0
        for u in scope:
            tables[u] = [table for table in tables[u] if v not in table.scope] + [
                Table(scope, left)
            ]

    return Elimination(counts, tuple(buckets), cost)


def minimise_exactly(problem: Problem, plan: EliminationPlan) -> tuple[Choice, float]:
    """The cheapest choice and its cost (inf if every choice is forbidden), along a plan that fits.

    Raises:
      TimeUp: before the end.
    """
    elimination = eliminate(problem, plan)
    return elimination.choice(), elimination.cost


NOTHING = Answer(None, np.inf, np.inf)
"""That there is no choice."""


def exactly(problem: Problem, options: SolveOptions, *, at_last: bool = False) -> Answer | None:
    """The optimum of a problem without usages by elimination; None if it has some, or that does not fit, or in time.

    `at_last`: what comes after it takes longer, so that another order is worth planning, on few nodes.
    """
    if problem.usages or (problem.edges and not options.elimination.bucket_elimination):
        return None

    if not at_last and not _fits_in_short(problem, options):
        return None

    plan = plan_elimination(problem, options.max_table_entries)
    if not plan.fits(options):
        if not at_last or not options.elimination.min_fill or len(problem.node_costs) > _FEW_NODES:
            return None
        plan = plan_elimination(problem, options.max_table_entries, by_fill=True)
        if not plan.fits(options) or plan.work > _MOST_WORK:
            return None

    try:
        choice, cost = minimise_exactly(problem, plan)
    except TimeUp:
        return None

    return Answer(
        choice if np.isfinite(cost) else None,
        cost,
        cost,
        (Eliminate(plan.order),) if plan.order else (),
    )


def _fits_in_short(problem: Problem, options: SolveOptions) -> bool:
    """Whether elimination fits where most of what repeats is left out: if not, it does not fit with it either."""
    short = shortened(problem)
    return short is None or plan_elimination(short.problem, options.max_table_entries).fits(options)


_FEW_NODES = 300  # their min-fill order is planned in hundredths of a second
_MOST_WORK = 4e9  # additions of that order: some seconds, where CP-SAT takes ten


def reduced(problem: Problem, options: SolveOptions) -> Reduction:
    """Cheap reductions.

    Raises:
      Infeasible: if forbidden entries leave a node no strategy.
    """
    result = unchanged(problem).then(drop_slack).then(partial(reduce_alike, options=options))
    result = result.then(partial(reduce_cheaply, options=options.presolve))
    # sums may forbid more
    return result.then(partial(contract_chains, options=options)).then(drop_forbidden)


def reduced_fully(problem: Problem, options: SolveOptions) -> Reduction:
    """All reductions, as long as they achieve much.

    Raises:
      Infeasible: if forbidden entries leave a node no strategy.
    """
    result = unchanged(problem)
    while True:
        before = result.problem
        result = result.then(partial(reduce_fully, options=options.presolve)).then(drop_slack)
        result = result.then(partial(contract_chains, options=options)).then(drop_forbidden)
        if is_up() or not shrank(before, result.problem):
            return result


def eliminated(problem: Problem, options: SolveOptions, most: float) -> Answer | None:
    """The optimum by elimination after the cheap reductions or, up to a weight, after all; None if it does not fit."""
    try:
        reduction = reduced(problem, options)
        found = exactly(reduction.problem, options)
        if found is None and weight(reduction.problem) <= most:
            reduction = reduction.then(partial(reduced_fully, options=options))
            found = exactly(reduction.problem, options)
    except Infeasible as error:
        return replace(NOTHING, proof=error.witness or ())
    return None if found is None else lifted(reduction, found)


def lifted(reduction: Reduction, found: Answer) -> Answer:
    """What an answer on what a reduction leaves says of the whole."""
    choice = reduction.lift(found.choice) if found.choice is not None else None
    costs = found.objective + reduction.offset, found.bound + reduction.offset
    return Answer(choice, *costs, reduction.steps + found.proof)


def weight(problem: Problem) -> int:
    """The entries of its edges and the strategies of its nodes: what work on it grows with."""
    return sum(edge.matrix.size for edge in problem.edges) + sum(problem.counts)


def finite(problem: Problem) -> int:
    """The finite entries of its edges and the strategies of its nodes: what is left to choose from."""
    matrices, which = problem.matrices
    count = np.array([finite_entries(matrix) for matrix in matrices], dtype=np.intp)
    return int(count[which].sum()) + sum(problem.counts)
