"""What a part costs, for all choices at the nodes that it shares with others, as far as that lies within a window.

Strategies and pairs of strategies go that exceed the window (`bar`), what is left is reduced, until the nodes of the
part alone can be eliminated. A shared node may be merged into another: a label goes with it, a usage whose size is the
number of its strategy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from heapq import heapify, heappop, heappush

import numpy as np

from autopar.solve.certificate.proof import Eliminate, Proof
from autopar.solve.elimination.bucket_elimination import Bucket, Table, tables_of
from autopar.solve.elimination.exact import finite
from autopar.solve.elimination.min_sum import MinSum
from autopar.solve.fixing.node_merging import is_thin, untied
from autopar.solve.fixing.reduced_cost_fixing import barred
from autopar.solve.presolve.arc_consistency import drop_forbidden
from autopar.solve.presolve.reduce import reduce_once
from autopar.solve.presolve.variable_elimination import contract_chains
from autopar.solve.problem.incumbent import Apart, Watch
from autopar.solve.problem.options import SolveOptions
from autopar.solve.problem.problem import Floats, Problem, Usage
from autopar.solve.problem.reduction import Choice, Ints, Reduction, unchanged
from autopar.solve.trws.ascent import Ascent
from autopar.solve.trws.dual import Certificate

_MOST_ENTRIES = 1_000_000  # of a table
_MOST_WORK = 1e8  # additions
_MOST_AXES = 60  # of a table: an array has 64 at most
_CUTS, _FEW_CUTS = 5, 3  # of a window; of one that may become narrower; sweeps between them
_SWEEPS = 30
_SHRUNK = 0.9  # of the pairs are left after a cut: more hardly go then
_NARROWER = 0.7  # of a window


def labels(problem: Problem, kept: Sequence[int]) -> tuple[Usage, ...]:
    """Usages that say which strategies of the nodes that are kept those of a smaller problem stand for."""
    return tuple(Usage(v, k, k + 1, np.arange(problem.counts[v], dtype=np.float64)) for k, v in enumerate(kept))


@dataclass(frozen=True, eq=False)
class Within:
    """What a part costs: `table`, with an axis for each node it shares, of the strategies `ids` that are left there.

    All that costs less than `upper` is in it; `least` is the least, at most `upper`. `proof` is of that. `states[i]`
    is, for each entry of the table, the strategy at the i-th of the nodes that elimination left, `left`.
    """

    upper: float
    least: float
    ids: tuple[Ints, ...]
    table: Floats
    proof: Proof
    left: tuple[int, ...]
    states: Ints
    buckets: tuple[Bucket, ...]
    reduction: Reduction

    def choice(self, at: Sequence[int]) -> Choice:
        """The cheapest choice of the part for an entry of the table."""
        full = [0] * len(self.reduction.problem.counts)
        for v, strategies in zip(self.left, self.states, strict=True):
            full[v] = int(strategies[tuple(at)])
        for bucket in reversed(self.buckets):
            costs = np.zeros(1)
            for table in bucket.tables:
                costs = costs + table.cost[tuple(slice(None) if u == bucket.node else full[u] for u in table.scope)]
            full[bucket.node] = int(costs.argmin())
        return self.reduction.lift(tuple(full))


def within(
    certificate: Certificate, upper: float, options: SolveOptions, watch: Watch, *, narrower: int = 0
) -> Within | None:
    """What costs less than `upper` of a problem with labels; None if too much is left to eliminate.

    Where that is too much, nodes without labels are joined (`join`); where it still is, what costs less than something
    smaller will do, up to `narrower` times.

    Raises:
      Infeasible: if nothing does.
    """
    left, little = unchanged(certificate.problem), replace(options, max_sweeps=_SWEEPS)
    cuts, pairs, is_untied = 0, np.inf, False
    while True:
        left = left.then(partial(_cut, certificate, upper - left.offset, is_untied, options))
        order = _order(left.problem)
        if order is not None:
            return _eliminated_to_labels(left, order, upper)
        if watch.left_s() <= 0:
            return None
        cuts, before, pairs = cuts + 1, pairs, finite(left.problem)
        is_much = cuts >= (_FEW_CUTS if narrower else _CUTS) or pairs > _SHRUNK * before
        may_untie = options.fixing.node_merging and is_much and not is_untied and is_thin(left.problem)
        if is_much and not narrower and not may_untie:
            return None
        _, certificate = Ascent(left.problem, little, swinging=False).sweeps(upper - left.offset, Apart(watch))
        if may_untie:
            is_untied = True
        elif is_much:
            low = certificate.bound + left.offset
            cuts, narrower, upper = 0, narrower - 1, low + _NARROWER * (upper - low)


def _cut(certificate: Certificate, upper: float, is_untied: bool, options: SolveOptions, _: Problem) -> Reduction:
    """What can be part of a choice that costs less than `upper`, reduced; without cycles beside labels, if untied.

    Raises:
      Infeasible: if nothing can.
    """
    cut = barred(certificate, upper - certificate.bound)
    if is_untied:
        inner = frozenset(range(len(cut.problem.node_costs))) - {use.node for use in cut.problem.usages}
        cut = cut.then(partial(untied, knots=[inner], upper=upper))
    cut = cut.then(partial(reduce_once, options=options.presolve))
    return cut.then(partial(contract_chains, options=options)).then(drop_forbidden)


def _eliminated_to_labels(reduction: Reduction, order: list[int], upper: float) -> Within:
    problem, gone = reduction.problem, set(order)
    left = tuple(v for v in range(len(problem.counts)) if v not in gone)
    buckets, tables, rest = _eliminated(problem, order)
    costs = np.full([problem.counts[v] for v in left], rest + reduction.offset)
    for table in tables:
        lengths = [problem.counts[v] if v in table.scope else 1 for v in left]
        costs = costs + table.cost.transpose([table.scope.index(v) for v in left if v in table.scope]).reshape(lengths)
    ids, places = list[Ints](), list[Ints]()
    for use in sorted(problem.usages, key=lambda use: use.start):
        found, place = np.unique(use.size_bytes.astype(np.intp), return_inverse=True)
        shape = [-1 if v == use.node else 1 for v in left]
        ids.append(found)
        places.append(np.broadcast_to(place.reshape(shape), costs.shape).ravel())
    shape = tuple(len(found) for found in ids)
    entry = np.ravel_multi_index(places, shape) if places else np.zeros(costs.size, dtype=np.intp)
    cheapest = np.lexsort((costs.ravel(), entry))
    entries, first = np.unique(entry[cheapest], return_index=True)
    table, states = np.full(math.prod(shape), np.inf), np.zeros((len(left), math.prod(shape)), dtype=np.intp)
    table[entries] = costs.ravel()[cheapest[first]]
    states[:, entries] = np.unravel_index(cheapest[first], costs.shape) if left else 0
    proof = (*reduction.steps, Eliminate(tuple(order))) if order else reduction.steps
    least = min(float(table.min()), upper)
    return Within(
        upper,
        least,
        tuple(ids),
        table.reshape(shape),
        proof,
        left,
        states.reshape(len(left), *shape),
        tuple(buckets),
        reduction,
    )


def _order(problem: Problem) -> list[int] | None:
    """All nodes without labels, always the one whose table is smallest; None if that is too much work."""
    counts, stays = problem.counts, {use.node for use in problem.usages}
    near: list[set[int]] = [set() for _ in counts]
    for edge in problem.edges:
        near[edge.u].add(edge.v)
        near[edge.v].add(edge.u)
    size = {v: math.prod(counts[u] for u in near[v]) for v in range(len(counts)) if v not in stays}
    queue = [(entries, v) for v, entries in size.items()]
    heapify(queue)
    order, work = list[int](), 0.0
    while size:
        entries, v = heappop(queue)
        if size.get(v) != entries:  # it was put in again with another
            continue
        del size[v]
        work += float(entries) * counts[v] * max(1, len(near[v]))
        if entries > _MOST_ENTRIES or work > _MOST_WORK:
            return None
        order.append(v)
        for u in near[v]:
            near[u] |= near[v]
            near[u] -= {u, v}
        for u in near[v] & size.keys():
            size[u] = math.prod(counts[w] for w in near[u])
            heappush(queue, (size[u], u))
    if max(len(stays), len(problem.usages)) > _MOST_AXES:
        return None
    table = math.prod(counts[v] for v in stays)
    distinct = math.prod(len(np.unique(use.size_bytes)) for use in problem.usages)
    return order if max(table, distinct) <= _MOST_ENTRIES else None


def _eliminated(problem: Problem, order: Sequence[int]) -> tuple[list[Bucket], list[Table], float]:
    """The nodes eliminated in order; the tables that are left, of the other nodes; and what is left without nodes."""
    made, counts, rest = MinSum(), problem.counts, 0.0
    costs, tables = tables_of(problem)
    of = [[Table((v,), cost), *mine] for v, (cost, mine) in enumerate(zip(costs, tables, strict=True))]
    buckets = list[Bucket]()
    for v in order:
        scope = tuple(sorted({u for table in of[v] for u in table.scope} - {v}))
        place = {u: i for i, u in enumerate(scope)} | {v: -1}
        inputs = [(table.cost, tuple(place[u] for u in table.scope)) for table in of[v]]
        cost = made.eliminate(tuple(counts[u] for u in scope), inputs)
        buckets.append(Bucket(v, scope, tuple(of[v]), cost))
        rest += float(cost) if not scope else 0.0
        for u in scope:
            of[u] = [table for table in of[u] if v not in table.scope] + [Table(scope, cost)]
    gone = set(order)
    last = {(table.scope, id(table.cost)): table for v in range(len(counts)) if v not in gone for table in of[v]}
    return buckets, list(last.values()), rest
