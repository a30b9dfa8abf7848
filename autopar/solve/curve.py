"""One problem under one memory limit after another: what is proven and met under one limit serves all of them.

    bound(limit) = max over prices met of  value(prices) - limit * sum of prices
    value(prices) = what messages prove of  min over choices of cost + sum over rows of price * use

The value does not know the limit, so every prices met prove a line that bounds the optimum of every limit, and every
choice met is one within every limit that it keeps. The problem is reduced and flattened once, and sweeps go on from
the prices and messages whose line is highest at the limit. Choices come from annealing near the decoded one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from autopar.solve.anneal import Schedule, anneal
from autopar.solve.ascent import Prices
from autopar.solve.contract_chains import contract_chains
from autopar.solve.dual import Dual, State
from autopar.solve.flat import Flat
from autopar.solve.kernels import cost_of, use_of
from autopar.solve.merge import merge_usages
from autopar.solve.options import SolveOptions
from autopar.solve.problem import Floats, Problem, Solution, derived, objective, peak
from autopar.solve.reduce import reduce_cheaply
from autopar.solve.reduction import Choice, Ints, unchanged
from autopar.solve.rows import memory_rows
from autopar.solve.verifier import TOLERANCE, verify_choice

_FIRST_SWEEPS = 15  # without prices
_SWEEPS = 20  # in a round, with new prices after each
_PASSES = 25  # of annealing in a round
_HEAT = 0.1  # of a node's share of the cost
_MAX_ROUNDS = 6  # for a limit
_FEW_ROUNDS = 2  # that are worked on whatever they gain
_WORTH = 0.8  # of the gap of the round before: what a round has to leave at most for another
_DEAR = 20.0  # times the cost of everything, for the peak: memory decides, costs settle what is equal
_SPLICED = 3  # choices of either side of a limit
_SETTLING = 5  # sweeps at the best prices before a choice is decoded
_DIPS = 60  # of the cuts of a splice, the cheapest first
_LEAST_SWEEPS = 20
_ROUNDING = 1e-13  # of the costs and prices that a bound is the difference of
_SHARPNESS = 30.0  # of the weights of rows near the highest


@dataclass(frozen=True, eq=False)
class _Line:
    """A moment of the sweeps: what it proves of all choices, less its `slope` a byte of the limit."""

    state: State
    slope: float

    def at(self, limit: float) -> float:
        """The height of the line at a limit."""
        return self.state.bound - self.slope * limit

    def proven(self, limit: float) -> float:
        """The height of the line at a limit, less what may be rounding: where prices are high, small is large."""
        scale = abs(self.state.bound) + self.slope * limit if np.isfinite(limit) else abs(self.state.bound)
        return self.at(limit) - _ROUNDING * scale


@dataclass(frozen=True, eq=False)
class _Met:
    """A choice in the order of sweeps, its cost and its peak."""

    choice: Ints
    cost: float
    peak: float


class Curve:
    """Good choices of a problem, and bounds, within whatever memory limit is asked for.

    `wanted` is asked now and then whether to go on.

    Raises:
      Infeasible: if forbidden entries leave a node no strategy.
    """

    def __init__(self, problem: Problem, options: SolveOptions, wanted: Callable[[], bool] = lambda: True) -> None:
        self.problem, self.options, self.wanted = _within(problem, 0.0), options, wanted
        contract = partial(contract_chains, options=options)
        self.reduction = unchanged(self.problem).then(reduce_cheaply).then(merge_usages).then(contract)
        self.rows = memory_rows(self.reduction.problem)
        self.dual = Dual(self.reduction.problem, self.rows)
        self._asked: list[float] = []
        self._lines: list[_Line] = []
        self._met: list[_Met] = []
        for _ in range(_FIRST_SWEEPS):
            self.dual.sweep()
        self._note()
        self._meet(self._decoded())

    def bound(self, limit: float) -> float:
        """No choice within the limit costs less, rounding errors included."""
        return self._highest(limit).proven(limit) + self.reduction.offset

    def least(self) -> float:
        """The smallest peak of a choice met; inf if none was. The prices follow the rows that are the highest."""
        free, highest = self._lines[0].state, float(self._used(self._decoded()).max(initial=0.0))
        total = _DEAR * (abs(free.bound) or 1.0) / (highest or 1.0)
        weights = np.zeros(self.rows.count)
        for n in range(_LEAST_SWEEPS):
            choice = self._decoded()
            self._meet(choice)
            used = self._used(choice)
            weights += _SHARPNESS * (used / max(float(used.max(initial=0.0)), 1.0) - 1) / (n + 1) ** 0.5
            shares = np.exp(weights - weights.max(initial=0.0))
            self.dual.set_prices(total * shares / max(float(shares.sum()), 1.0))
            self.dual.sweep()
            self._note()
        return min((met.peak for met in self._met), default=np.inf)

    def work(self, limit: float, enough: float) -> None:
        """Meets choices within the limit and raises its bound until the gap is `enough`, for a few rounds at most."""
        schedule = Prices(replace(self.rows, limit=limit))
        self._asked += [limit] if limit not in self._asked else []
        self.dual.restore(self._highest(limit).state)
        self._join(limit, self._highest(limit).slope)
        last = np.inf
        for n in range(_MAX_ROUNDS):
            gap = self._gap(limit)
            if gap <= enough or (n >= _FEW_ROUNDS and gap > _WORTH * last) or not self.wanted():
                break
            last = gap
            self._priced(limit, schedule)
            self._annealed(limit)

    def solution(self, limit: float) -> Solution | None:
        """The best choice met within the limit, without a bound; None if none was met."""
        best = self._best(limit)
        if best is None:
            return None
        choice = self.reduction.lift(self._outward(best.choice))
        return Solution(choice, objective(self.problem, choice), -np.inf, peak(self.problem, choice))

    def bounded(self, solution: Solution, limit: float) -> Solution:
        """A choice within the limit, with the limit's bound and its witness; verified but for the witness."""
        held, cost = self._highest(limit), solution.objective
        certificate = self.dual.certificate(held.state)
        bound = min(certificate.bound - held.slope * limit, held.proven(limit)) + self.reduction.offset
        bound = cost if bound >= cost - TOLERANCE * abs(cost) else bound
        found = replace(solution, lower_bound=bound, witness=self.reduction.steps + certificate.proof())
        verify_choice(_within(self.problem, limit), found)
        return found

    def _priced(self, limit: float, schedule: Prices) -> None:
        """Sweeps, the prices following what the decoded choices use."""
        for _ in range(_SWEEPS):
            self.dual.sweep()
            now, choice = self._note(), self._decoded()
            best, held = self._best(limit), self._highest(limit)
            upper = best.cost if best is not None else np.inf
            bounds = now.at(limit), upper, held.at(limit)
            self.dual.set_prices(schedule.next(now.state.prices, self._used(choice), *bounds, held.state.prices))

    def _annealed(self, limit: float) -> None:
        """A short annealing from what the highest line decodes, and splices of what was met."""
        held = self._highest(limit)
        self.dual.restore(held.state)
        for _ in range(_SETTLING):
            self.dual.sweep()
        self._note()
        flat = self.dual.flat._replace(memory=self.dual.flat.memory._replace(limit=limit))
        met, _ = anneal(flat, held.state.prices, self._schedule(self._decoded()), lambda _: True)
        if met is not None:
            self._meet(met)
        self._join(limit, held.slope)

    def _join(self, limit: float, slope: float) -> None:
        """Splices of the most promising choices on either side of the limit."""
        ranked = sorted(self._met, key=lambda met: met.cost + slope * met.peak)
        below = [met.choice for met in ranked if met.peak <= limit][:_SPLICED]
        above = [met.choice for met in ranked if met.peak > limit][:_SPLICED]
        for a, b in [pair for x in below for y in above for pair in ((x, y), (y, x))]:
            mixed = self._spliced(limit, a, b)
            if mixed is not None:
                self._meet(mixed)

    def _schedule(self, start: Ints) -> Schedule:
        return Schedule(start, _HEAT * abs(self._lines[0].state.bound) / max(1, len(start)), _PASSES, self.options.seed)

    def _spliced(self, limit: float, a: Ints, b: Ints) -> Ints | None:
        """The cheapest choice within the limit that is a's up to some node, as sweeps go, and b's from there."""
        for cut in _dips(spliced_costs(self.dual.flat, a, b)).tolist():
            mixed = np.concatenate([a[:cut], b[cut:]])
            if self._used(mixed).max(initial=0.0) <= limit:
                return mixed
        return None

    def _gap(self, limit: float) -> float:
        best, offset = self._best(limit), self.reduction.offset
        if best is None:
            return np.inf
        cost = best.cost + offset
        return max(0.0, cost - self.bound(limit)) / abs(cost) if cost else 0.0

    def _highest(self, limit: float) -> _Line:
        return max(self._lines, key=lambda line: line.at(limit))

    def _best(self, limit: float) -> _Met | None:
        return min((met for met in self._met if met.peak <= limit), key=lambda met: met.cost, default=None)

    def _note(self) -> _Line:
        """The line of this moment; kept are the first, without prices, and the highest at every limit asked about."""
        state = self.dual.state()
        now = _Line(state, float(state.prices.sum()))
        held = [self._highest(limit) for limit in self._asked]
        if not held or any(now.at(limit) > line.at(limit) for limit, line in zip(self._asked, held, strict=True)):
            self._lines.append(now)
            highest = {id(self._lines[0]), *(id(self._highest(limit)) for limit in self._asked)}
            self._lines = [line for line in self._lines if id(line) in highest] if self._asked else self._lines
        return now

    def _meet(self, choice: Ints) -> None:
        """Keeps a choice if no other met is as cheap and as small."""
        cost, top = cost_of(self.dual.flat, self.dual.flat.cost, choice), float(self._used(choice).max(initial=0.0))
        if np.isfinite(cost) and not any(met.cost <= cost and met.peak <= top for met in self._met):
            self._met = [met for met in self._met if met.cost < cost or met.peak < top]
            self._met.append(_Met(choice.copy(), cost, top))

    def _decoded(self) -> Ints:
        return self.dual.decode()[self.dual.order]

    def _used(self, choice: Ints) -> Floats:
        used = np.zeros(self.rows.count)
        use_of(self.dual.flat.memory, choice, used)
        return used

    def _outward(self, choice: Ints) -> Choice:
        return tuple(choice[self.dual.rank].tolist())


def _within(problem: Problem, limit: float) -> Problem:
    """The problem under this limit."""
    return derived(problem.node_costs, problem.edges, problem.usages, limit)


def spliced_costs(flat: Flat, a: Ints, b: Ints) -> Floats:
    """For every cut, 0 to the number of nodes: the cost of a's strategies before it and b's from it on."""
    counts = np.diff(flat.start)
    into = np.repeat(np.arange(len(counts)), np.diff(flat.near))
    arcs = np.flatnonzero(flat.other < into)
    v, u = into[arcs], flat.other[arcs]

    def edges(first: Ints, second: Ints) -> Floats:
        return flat.pool[flat.place[arcs] + first[u] * counts[v] + second[v]]

    nodes_a, nodes_b = flat.cost[flat.start[:-1] + a], flat.cost[flat.start[:-1] + b]
    here, across, there = edges(a, a), edges(a, b), edges(b, b)
    forbidden = ~np.isfinite(across)
    across[forbidden] = 0.0
    change, closed = np.zeros(len(counts) + 1), np.zeros(len(counts) + 1, dtype=np.intp)
    change[1:] = nodes_a - nodes_b
    np.add.at(change, u + 1, across - there)
    np.add.at(change, v + 1, here - across)
    np.add.at(closed, u[forbidden] + 1, 1)
    np.add.at(closed, v[forbidden] + 1, -1)
    costs = float(nodes_b.sum() + there.sum()) + np.cumsum(change)
    return np.where(np.cumsum(closed) > 0, np.inf, costs)


def _dips(costs: Floats) -> Ints:
    """Where the costs are no higher than next to it: the lowest, in order."""
    dips = np.flatnonzero((costs[1:-1] <= costs[:-2]) & (costs[1:-1] < costs[2:]) & np.isfinite(costs[1:-1])) + 1
    return dips[np.argsort(costs[dips], kind="stable")][:_DIPS]
