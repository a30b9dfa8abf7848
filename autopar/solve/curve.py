"""One problem under all memory limits: what is proven and met at some prices of memory serves every limit.

    bound(limit) = max over prices met of  value(prices) - limit * sum of prices
    value(prices) = what messages prove of  min over choices of cost + sum over rows of price * use

The value does not know the limit, so every prices met prove a line that bounds the optimum of every limit, and every
choice met is one within every limit that it keeps. So no limit is worked on: the sum of the prices goes down step by
step from where no choice gets smaller to where the fastest is met, and their shares follow the rows that are the
highest. Messages go on from step to step. Better choices are made of what is decoded on the way (`blend`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from autopar.solve.blend import Blend
from autopar.solve.contract_chains import contract_chains
from autopar.solve.dual import Dual, State
from autopar.solve.kernels import cost_of
from autopar.solve.merge import merge_usages
from autopar.solve.options import SolveOptions
from autopar.solve.pareto import Met, Pareto
from autopar.solve.problem import Floats, Problem, Solution, derived, objective, peak
from autopar.solve.reduce import reduce_cheaply
from autopar.solve.reduction import Choice, Ints, unchanged
from autopar.solve.rows import memory_rows
from autopar.solve.verifier import TOLERANCE, verify_choice

_FIRST_SWEEPS = 15  # without prices
_UPDATES, _SWEEPS = 2, 3  # of the shares at each sum of prices; sweeps after each
_UP, _MOST_UP = 4.0, 8  # times the sum, while choices get smaller; at most so often
_SMALLER, _PATIENCE = 0.98, 2  # of the least peak: what counts as smaller, and how often it may not be
_DOWN, _FEW_DOWN, _MOST_DOWN = 1.6, 6.0, 40  # the sum over the next, few lines being kept; at most so often
_NEARLY, _LITTLE = 2.5e-3, 0.1  # of the cost: what a bound has to rise by, what memory may cost, where prices end
_SHARPNESS, _FORGOTTEN, _RECENT = 24.0, 0.91, 0.66  # of the weights of rows; of them, a step; of the use, the last
_MOST_NUMBERS = 1 << 26  # of all messages kept
_ROUNDING = 1e-13  # of the costs and prices that a bound is the difference of


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


class Curve:
    """Good choices of a problem, and bounds, within whatever memory limit is asked for, once it is drawn.

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
        self._weights, self._use = np.zeros(self.rows.count), np.zeros(self.rows.count)
        self._seen = np.zeros(len(self.dual.flat.cost), dtype=bool)
        self._lines: list[_Line] = []
        self._pareto = Pareto()
        for _ in range(_FIRST_SWEEPS):
            self.dual.sweep()
        self._note()
        self._use = self._decoded()

    def draw(self) -> None:
        """Meets choices and proves bounds for all limits."""
        fastest = self._pareto.best(np.inf)
        if fastest is None or not self.rows.count or not fastest.peak:
            return
        first = (abs(fastest.cost) or 1.0) / fastest.peak
        last, upwards = self._climb(first)
        downwards = self._sink(last, fastest.peak)
        self._blend(sorted([*upwards, *downwards], key=lambda prices: -float(prices.sum())))

    def bound(self, limit: float) -> float:
        """No choice within the limit costs less, rounding errors included."""
        return self._highest(limit).proven(limit) + self.reduction.offset

    def choices(self) -> list[Met]:
        """The choices met, the smallest first: each costs less than all before."""
        return self._pareto.by_peak()

    def best(self, limit: float) -> Met | None:
        """The cheapest choice met within the limit; None if none was met."""
        return self._pareto.best(limit)

    def solved(self, met: Met) -> Solution:
        """A choice of the whole problem, without a bound."""
        choice = met.whole
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

    def _climb(self, price: float) -> tuple[float, list[Floats]]:
        """Higher and higher prices until choices get no smaller: the last sum of them, and all."""
        least, waited, met = np.inf, 0, list[Floats]()
        for _ in range(_MOST_UP):
            met.append(self._step(price))
            now = min((met.peak for met in self._pareto.met), default=np.inf)
            waited = 0 if now < _SMALLER * least else waited + 1
            least = min(least, now)
            if waited >= _PATIENCE or not self.wanted():
                break
            price *= _UP
        return price, met

    def _sink(self, price: float, most: float) -> list[Floats]:
        """Lower and lower prices, until memory of `most` costs little, and its bound hardly rises any more."""
        met = list[Floats]()
        times = _DOWN if _MOST_DOWN * self.dual.flat.size <= _MOST_NUMBERS else _FEW_DOWN
        for _ in range(_MOST_DOWN):
            price /= times
            if not self.wanted():
                break
            met.append(self._step(price))
            before, now = self._lines[-2].at(most), self._lines[-1].at(most)
            scale = abs(now + self.reduction.offset)
            if now - before <= _NEARLY * scale and price * most <= _LITTLE * scale:
                break
        return met

    def _step(self, price: float) -> Floats:
        """Sweeps at prices of this sum, on the rows that decoded choices use the most; the prices."""
        for _ in range(_UPDATES):
            shares = np.exp(self._weights - self._weights.max(initial=0.0))
            self.dual.set_prices(price * shares / float(shares.sum()))
            for _ in range(_SWEEPS):
                self.dual.sweep()
            self._use = (1 - _RECENT) * self._use + _RECENT * self._decoded()
            self._weights = _FORGOTTEN * self._weights + _SHARPNESS * (self._use / (self._use.max() or 1.0) - 1)
        self._note()
        return self.dual.prices

    def _blend(self, every: list[Floats]) -> None:
        """Meets better choices out of the strategies that were decoded."""
        start = self.dual.flat.start
        seen = [self._seen[start[rank] : start[rank + 1]] for rank in self.dual.rank.tolist()]
        blend = Blend(self.reduction, seen, self.options, self._pareto)
        blend.descend(self.rows, every, self.wanted)
        blend.splice(self.wanted)

    def _highest(self, limit: float) -> _Line:
        return max(self._lines, key=lambda line: line.at(limit))

    def _note(self) -> None:
        """Keeps the line of this moment."""
        state = self.dual.state()
        self._lines.append(_Line(state, float(state.prices.sum())))

    def _decoded(self) -> Floats:
        """Meets the choice that the messages decode; the bytes that it uses in every row."""
        choice = self.dual.decode()
        used, ranked = self.dual.used(choice), choice[self.dual.order]
        cost = cost_of(self.dual.flat, self.dual.flat.cost, ranked)
        self._seen[self.dual.flat.start[:-1] + ranked] = True
        if np.isfinite(cost):
            whole = cost + self.reduction.offset
            self._pareto.meet(Met(ranked, whole, float(used.max(initial=0.0)), self._lifted))
        return used

    def _lifted(self, choice: Ints) -> Choice:
        return self.reduction.lift(tuple(choice[self.dual.rank].tolist()))


def _within(problem: Problem, limit: float) -> Problem:
    """The problem under this limit."""
    return derived(problem.node_costs, problem.edges, problem.usages, limit)
