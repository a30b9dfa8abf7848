"""Path relinking: better choices made of the strategies of choices met at many prices of memory.

Messages prove good bounds long before the choices that they decode are good. But what these take, now here and now
there, is about what good choices are made of: a few strategies a node. On the problem of these alone, reduced anew,
sweeps and exact re-solves of forests take a fraction of the time. At each of the prices met a choice descends; then
choices of neighbouring peaks are spliced, some layers as in the one, the rest as in the other.

F. Glover, M. Laguna, R. Marti, "Fundamentals of scatter search and path relinking", Control and Cybernetics 29 (2000).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from math import prod

import numpy as np

from autopar._jit import compiled
from autopar.solve.certificate.proof import Forbid
from autopar.solve.parametric.archive import Met, Pareto, lifted_from
from autopar.solve.presolve.reduce import merge_usages, reduce_cheaply
from autopar.solve.presolve.variable_elimination import contract_chains
from autopar.solve.primal.tree_moves import desk_for, grow_forest, solve_forest
from autopar.solve.problem.options import SolveOptions
from autopar.solve.problem.problem import Floats
from autopar.solve.problem.reduction import Bools, Ints, Reduction, restrict
from autopar.solve.problem.rows import Rows, memory_rows
from autopar.solve.trws.arrays import Flat
from autopar.solve.trws.dual import Dual
from autopar.solve.trws.kernels import add_prices, cost_of, entry, use_of

_SWEEPS = 6  # at each prices
_HEAT = 0.1
_COOLED = 0.01  # of a node's share of the cost; of that, at the end
_ROUNDS = 2
_SPLICED = 32
_NEIGHBOURS = 2  # of splices; choices in each; next ones that each is spliced with
_DIPS = 12  # of the cuts of a splice, the cheapest first
_ROUNDING = 1e-9  # of a cost: more than what its sum in another order is off by
_MOST_LISTED = 256  # choices: a search makes more forests than that


def with_few(reduced: Reduction, seen: Sequence[Bools], options: SolveOptions) -> Reduction:
    """What is left of a reduced problem with the strategies `seen`, at least one for every node."""
    few = reduced.then(partial(restrict, keep=seen, because=Forbid))
    cheaply = few.then(partial(reduce_cheaply, options=options.presolve))
    return cheaply.then(merge_usages).then(partial(contract_chains, options=options))


class PathRelinking:
    """Better choices of a problem of few strategies (`with_few`).

    They are told to `pareto`, as those of the whole problem.
    """

    def __init__(self, few: Reduction, options: SolveOptions, pareto: Pareto) -> None:
        self.reduction = few
        self.rows = memory_rows(few.problem)
        self.dual = Dual(self.reduction.problem, self.rows)
        self.dual.is_accelerated = options.trws.acceleration
        self.pareto = pareto
        self.desk = desk_for(self.dual.flat)
        self.random = np.random.default_rng(options.seed)

        self.own = Pareto()
        # What is met outlives this search: it keeps the way back, and neither messages nor desk.
        self._lift = partial(lifted_from, self.reduction.lift, self.dual.rank)

    def list_all(self) -> bool:
        """Meets every choice, where they are few; whether it did: nothing is left to search for."""
        counts = self.reduction.problem.counts
        if prod(counts) > _MOST_LISTED:
            return False

        ranked: list[int] = self.dual.order.tolist()
        for choice in product(*(range(counts[node]) for node in ranked)):
            self._meet(np.array(choice, dtype=np.intp))

        return True

    def descend(
        self,
        rows: Rows,
        every: Sequence[Floats],
        passes: tuple[int, int],
        wanted: Callable[[], bool],
    ) -> None:
        """Choices at all these prices on `rows`, one after another: each from what is decoded and from the last.

        `passes`: forests of a descent from what is decoded, and of one from the best choice of the prices before.
        """
        best: Ints | None = None
        for prices in every:
            if not wanted():
                return
            here = self._at(rows, prices)
            self.dual.set_prices(here)
            for _ in range(_SWEEPS):
                self.dual.sweep()
            found = self._descended(self.dual.decode()[self.dual.order], here, passes[0])
            again = found if best is None else self._descended(best, here, passes[1])
            best = min((found, again), key=lambda choice: self._priced(choice, here))

    def splice(self, wanted: Callable[[], bool]) -> None:
        """Splices of choices of neighbouring peaks."""
        for _ in range(_ROUNDS):
            met = self.own.spread(_SPLICED)
            near = [(x, y) for n, x in enumerate(met) for y in met[n + 1 : n + 1 + _NEIGHBOURS]]
            for a, b in (pair for x, y in near for pair in ((x, y), (y, x))):
                if not wanted():
                    return
                costs = spliced_costs(self.dual.flat, a.choice, b.choice)
                for cut in _dips(costs).tolist():
                    choice = np.concatenate([a.choice[:cut], b.choice[cut:]])
                    cost = float(costs[cut]) + self.reduction.offset
                    if self.own.wants(
                        cost - _ROUNDING * abs(cost), float(self._used(choice).max(initial=0.0))
                    ):
                        self._meet(choice)

    def _descended(self, choice: Ints, prices: Floats, passes: int) -> Ints:
        """Random forests are solved exactly, one after another, at priced costs with noise that cools."""
        flat = self.dual.flat
        desk = self.desk
        choice = choice.copy()
        costs = flat.cost.copy()
        add_prices(flat, prices, costs)
        heat = _HEAT * abs(self._priced(choice, prices)) / max(1, len(choice))
        for n in range(passes if np.isfinite(heat) else 0):
            desk.costs[:] = costs - self.random.gumbel(
                scale=heat * _COOLED ** (n / passes), size=len(costs)
            )
            order = self.random.permutation(len(choice))
            grow_forest(flat, order, desk)
            solve_forest(flat, order, choice, desk)
            self._meet(choice)

        return choice

    def _at(self, rows: Rows, prices: Floats) -> Floats:
        """Prices of other rows as prices of the nearest of these."""
        here = np.zeros(self.rows.count)
        if self.rows.count:
            row = np.minimum(np.searchsorted(self.rows.times, rows.times), self.rows.count - 1)
            np.add.at(here, row, prices)
        return here

    def _priced(self, choice: Ints, prices: Floats) -> float:
        return cost_of(self.dual.flat, self.dual.flat.cost, choice) + float(
            prices @ self._used(choice)
        )

    def _used(self, choice: Ints) -> Floats:
        used = np.zeros(self.rows.count)
        use_of(self.dual.flat.memory, choice, used)
        return used

    def _meet(self, choice: Ints) -> None:
        cost = cost_of(self.dual.flat, self.dual.flat.cost, choice)
        if np.isfinite(cost):
            top = float(self._used(choice).max(initial=0.0))
            met = Met(choice.copy(), cost + self.reduction.offset, top, self._lift)
            self.own.meet(met)
            self.pareto.meet(met)


def spliced_costs(flat: Flat, a: Ints, b: Ints) -> Floats:
    """For every cut, 0 to the number of nodes: the cost of a's strategies before it and b's from it on."""
    change = np.zeros(len(a) + 1)
    closed = np.zeros(len(a) + 1, dtype=np.intp)
    splice_changes(flat, a, b, change, closed)
    return np.where(np.cumsum(closed) > 0, np.inf, np.cumsum(change))


@compiled
def splice_changes(p: Flat, a: Ints, b: Ints, change: Floats, closed: Ints) -> None:
    """Writes what each cut changes: the cost of b's strategies, then, node by node, of one more of a's.

    Likewise the forbidden entries, as often as they are taken.
    """
    for v in range(len(a)):
        change[0] += p.cost[p.start[v] + b[v]]
        change[v + 1] += p.cost[p.start[v] + a[v]] - p.cost[p.start[v] + b[v]]
        for k in range(p.near[v], p.split[v]):
            u = p.other[k]
            mine = int(a[u])
            theirs = int(b[u])
            here = entry(p, k, mine, a[v])
            across = entry(p, k, mine, b[v])
            there = entry(p, k, theirs, b[v])
            change[0] += there
            if np.isfinite(across):
                change[u + 1] += across - there
                change[v + 1] += here - across
            else:
                change[u + 1] -= there
                change[v + 1] += here
                closed[u + 1] += 1
                closed[v + 1] -= 1


def _dips(costs: Floats) -> Ints:
    """Where the costs are no higher than next to it: the lowest, in order."""
    dips = (
        np.flatnonzero(
            (costs[1:-1] <= costs[:-2]) & (costs[1:-1] < costs[2:]) & np.isfinite(costs[1:-1])
        )
        + 1
    )
    return dips[np.argsort(costs[dips], kind="stable")][:_DIPS]
