"""Standing: a problem without a limit, solved once and kept so that a change of node costs takes little to solve.

Followers are joined to their leaders (`joined`), nodes eliminated as far as their tables stay small (`buckets`); what
is then left, if anything, is solved by messages (`remainder`). Where the costs of a node change, so do the tables that
are left on the way from it to the end, until one comes out as it was; and sweeps start from the messages of before.
Equal tables are made once, so a hundred equal layers cost little more than one.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from operator import is_

import numpy as np

from autopar.solve.buckets import Bucket, Order, buckets_of, first_of
from autopar.solve.clock import is_up
from autopar.solve.joined import Joined, joined
from autopar.solve.minplus import MinSum
from autopar.solve.options import SolveOptions
from autopar.solve.problem import Floats, Infeasible, Problem, Solution, objective
from autopar.solve.proof import Eliminate, Proof
from autopar.solve.remainder import NOTHING, Remainder, Settled, remainder_of, settle
from autopar.solve.verifier import TOLERANCE, verify_choice

_MOST_ENTRIES = 2_000_000  # of distinct matrices: on more (three axes) messages alone rarely prove a choice
_KEPT_ENTRIES = 30_000_000  # 8 bytes each, for as long as the plan is held


@dataclass(frozen=True, eq=False)
class Standing:
    """A solved problem, and what is needed to solve it again with other costs of some nodes.

    All but `problem` is about the nodes of `joined`. `buckets` are in the order of elimination; `rank` says where each
    node stands in it, `readers` whose scopes have it. `costs`, `left` and `choice` are by node. `remainder` is what the
    buckets leave, `settled` how that was solved.
    """

    problem: Problem
    options: SolveOptions
    joined: Joined
    buckets: tuple[Bucket, ...]
    rank: Mapping[int, int]
    readers: Mapping[int, tuple[int, ...]]
    costs: dict[int, Floats]
    left: dict[int, Floats]
    remainder: Remainder
    settled: Settled
    choice: tuple[int, ...]

    def solve(self, problem: Problem) -> Solution | None:
        """The optimum of `problem`, which differs in node costs only: verified, and proven up to rounding.

        None where messages do not prove it.

        Raises:
          Infeasible: if no choice avoids the forbidden entries.
          ValueError: if it has other edges, or a limit.
        """
        same = len(problem.edges) == len(self.problem.edges)
        if problem.usage_limit is not None or not same or not all(map(is_, problem.edges, self.problem.edges)):
            raise ValueError("the problem differs in more than the costs of nodes")
        changed = (v for v, cost in enumerate(problem.node_costs) if cost is not self.problem.node_costs[v])
        nodes = sorted({self.joined.place[v] for v in changed})
        costs = self.joined.costs(nodes, problem.node_costs)
        left = self._left_anew(costs)
        settled = self._settled_anew(costs, left)
        if settled is None:
            return None
        bound = settled.bound + sum(float(left.get(b.node, self.left[b.node])) for b in self.buckets if not b.scope)
        if not np.isfinite(bound):
            raise Infeasible("no choice avoids the forbidden entries")
        choice = self.joined.lift(self._chosen_anew(costs, left, settled.choice))
        cost = objective(problem, choice)
        if bound < cost - TOLERANCE * abs(cost):
            return None
        solution = Solution(choice, cost, cost, 0.0, self._proof(settled))
        verify_choice(problem, solution)
        return solution

    def _proof(self, settled: Settled) -> Proof:
        """Of the optimum, whatever nodes cost, given how what the buckets leave was solved."""
        order = tuple(bucket.node for bucket in self.buckets)
        return self.joined.steps + ((Eliminate(order),) if order else ()) + settled.proof

    def _left_anew(self, costs: dict[int, Floats]) -> dict[int, Floats]:
        """What is left by the nodes whose tables change with these costs, those that come out as they were included."""
        left: dict[int, Floats] = {}
        waiting = [self.rank[v] for v in costs if v in self.rank]
        heapify(waiting)
        while waiting:
            bucket = self.buckets[heappop(waiting)]
            if bucket.node in left:
                continue
            tables = bucket.tables(ChainMap(costs, self.costs), ChainMap(left, self.left))
            left[bucket.node] = MinSum().eliminate(bucket.shape, tables)
            following = first_of(bucket.scope, self.rank)
            if following is not None and not np.array_equal(left[bucket.node], self.left[bucket.node]):
                heappush(waiting, self.rank[following])
        return left

    def _settled_anew(self, costs: dict[int, Floats], left: dict[int, Floats]) -> Settled | None:
        """How what the buckets leave is solved with these costs and tables: as before if there it is as it was."""
        held = self.remainder.holds
        if not self.remainder.nodes or not (held & costs.keys() or any(held.issuperset(self._scope(v)) for v in left)):
            return self.settled
        problem = self.remainder.problem(ChainMap(costs, self.costs), ChainMap(left, self.left))
        return settle(problem, self.options, self.settled.messages)

    def _scope(self, node: int) -> tuple[int, ...]:
        return self.buckets[self.rank[node]].scope

    def _chosen_anew(
        self, costs: dict[int, Floats], left: dict[int, Floats], remaining: Sequence[int]
    ) -> tuple[int, ...]:
        """The optimal choice, last eliminated first: nodes again whose tables, or whose scope's choices, changed."""
        choice, before = list(self.choice), -1
        waiting = [-self.rank[v] for v in left]
        for v, strategy in zip(self.remainder.nodes, remaining, strict=True):
            if strategy != choice[v]:
                choice[v] = strategy
                waiting += [-self.rank[reader] for reader in self.readers.get(v, ())]
        heapify(waiting)
        while waiting:
            rank = -heappop(waiting)
            if rank == before:
                continue
            before, bucket = rank, self.buckets[rank]
            best = bucket.best(bucket.tables(ChainMap(costs, self.costs), ChainMap(left, self.left)), choice)
            if best != choice[bucket.node]:
                choice[bucket.node] = best
                for reader in self.readers.get(bucket.node, ()):
                    heappush(waiting, -self.rank[reader])
        return tuple(choice)


def standing(problem: Problem, options: SolveOptions) -> Standing | None:
    """`problem`, which has no limit, solved so that it can be solved again; None where `options` do not allow that.

    That is where tables become too large and messages prove nothing either, or no choice is finite.
    """
    whole = joined(problem)
    if sum(cost.size for cost in {id(edge.cost): edge.cost for edge in whole.edges}.values()) > _MOST_ENTRIES:
        return None
    same: dict[bytes, Floats] = {}
    costs = whole.costs(range(len(whole.counts)), problem.node_costs)
    shared = {id(cost): same.setdefault(cost.tobytes(), cost) for cost in costs.values()}
    costs = {v: shared[id(cost)] for v, cost in costs.items()}
    order = Order(whole.counts, whole.edges)
    order.chains(options.max_table_entries)
    few = dict(order.scopes)
    made = _eliminated(whole, order.scopes, costs, options) if order.rest(options.max_table_entries) else None
    buckets, left = made or _eliminated(whole, few, costs, options) or ((), {})
    rank = {bucket.node: n for n, bucket in enumerate(buckets)}
    remainder = remainder_of(whole.edges, buckets, [v for v in range(len(whole.counts)) if v not in rank])
    settled = settle(remainder.problem(costs, left), options) if remainder.nodes else NOTHING
    if settled is None or not settled.is_proven:
        return None
    choice, readers = [0] * len(whole.counts), dict[int, list[int]]()
    for v, strategy in zip(remainder.nodes, settled.choice, strict=True):
        choice[v] = strategy
    best: dict[tuple[int, ...], int] = {}  # of equal tables, which left one and the same, at equal choices
    for bucket in reversed(buckets):
        key = (id(left[bucket.node]), *(choice[u] for u in bucket.scope))
        if key not in best:
            best[key] = bucket.best(bucket.tables(costs, left), choice)
        choice[bucket.node] = best[key]
        for u in bucket.scope:
            readers.setdefault(u, []).append(bucket.node)
    by_node = {v: tuple(nodes) for v, nodes in readers.items()}
    return Standing(problem, options, whole, buckets, rank, by_node, costs, left, remainder, settled, tuple(choice))


def _eliminated(
    whole: Joined, scopes: Mapping[int, tuple[int, ...]], costs: Mapping[int, Floats], options: SolveOptions
) -> tuple[tuple[Bucket, ...], dict[int, Floats]] | None:
    """The buckets of the nodes in `scopes` and what they leave; None if that is more than `options` allow."""
    buckets, kernel, left = buckets_of(whole.counts, whole.edges, scopes), MinSum(), dict[int, Floats]()
    for bucket in buckets:
        left[bucket.node] = kernel.eliminate(bucket.shape, bucket.tables(costs, left))
        if is_up() or kernel.entries > min(options.max_total_entries, _KEPT_ENTRIES):
            return None
    return buckets, left
