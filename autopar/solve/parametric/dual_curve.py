"""One problem under all memory limits: what is proven and met at some prices of memory serves every limit.

    bound(limit) = max over prices met of  value(prices) - limit * sum of prices
    value(prices) = what messages prove of  min over choices of cost + sum over rows of price * use

The value does not know the limit, so every prices met prove a line that bounds the optimum of every limit, and every
choice met is one within every limit that it keeps. So no limit is worked on: the sum of the prices goes down step by
step from where no choice gets smaller to where the fastest is met, and their shares follow the rows that are the
highest. Messages go on from step to step. Better choices are made of what is decoded on the way (`path_relinking`).

A. Geoffrion, "Lagrangean relaxation for integer programming", Mathematical Programming Study 2 (1974). Differs: one run
serves all limits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise

import numpy as np

from autopar.solve.certificate.proof import Look, Prices
from autopar.solve.parametric.archive import Met, Pareto, lifted_from
from autopar.solve.presolve.reduce import merge_usages, reduce_cheaply
from autopar.solve.presolve.variable_elimination import contract_chains
from autopar.solve.primal.path_relinking import PathRelinking, with_few
from autopar.solve.problem.options import SolveOptions
from autopar.solve.problem.problem import (
    Floats,
    Problem,
    Solution,
    dearest,
    derived,
    objective,
    peak,
)
from autopar.solve.problem.reduction import Ints, Reduction, unchanged
from autopar.solve.problem.rows import memory_rows
from autopar.solve.problem.verifier import TOLERANCE, verify_choice
from autopar.solve.trws.dual import Dual, State
from autopar.solve.trws.kernels import cost_of

_FIRST_SWEEPS = 10
_MOST_FIRST = 6
_RISE = 2e-3  # without prices; so often, while the bound rises by this share
_UPDATES = 2
_SWEEPS = 3  # of the shares at each sum of prices; sweeps after each
_UP = 4.0
_MOST_UP = 8  # times the sum, while choices get smaller; at most so often
_SMALLER = 0.98
_PATIENCE = 2  # of the least peak: what counts as smaller, and how often it may not be
_DOWN = 1.9
_FEW_DOWN = 6.0
_MOST_DOWN = 30  # the sum over the next, few lines being kept; at most so often
_SHORT = 4e-3
_APART = 1.1
_LEAST_SHARE = 1e-12  # of the cost: what is filled; of sums of prices; of one price in them
_NEARLY = 2.5e-3
_LITTLE = 0.1  # of the cost: what a bound has to rise by, what memory may cost, where prices end
_SHARPNESS = 24.0
_FORGOTTEN = 0.91
_RECENT = 0.66  # of the weights of rows; of them, a step; of the use, the last
_MOST_LINES = 32
_MOST_NUMBERS = 1 << 26  # that are kept; of all messages in them
_ROUNDING = 1e-13  # of the costs and prices that a bound is the difference of


@dataclass(frozen=True, eq=False)
class Line:
    """A moment of the sweeps: what it proves of all choices, less its `slope` a byte of the limit.

    `use` is what choices decoded then use, on average: at the largest of it the line is about the best.
    """

    state: State
    slope: float
    use: Floats

    def at(self, limit: float) -> float:
        """The height of the line at a limit."""
        return self.state.bound - self.slope * limit

    def proven(self, limit: float) -> float:
        """The height of the line at a limit, less what may be rounding: where prices are high, small is large."""
        scale = (
            abs(self.state.bound) + self.slope * limit
            if np.isfinite(limit)
            else abs(self.state.bound)
        )
        return self.at(limit) - _ROUNDING * scale

    @property
    def middle(self) -> float:
        """The limit at which the line is about the best."""
        return float(self.use.max(initial=0.0))


class DualCurve:
    """Good choices of a problem, and bounds, within whatever memory limit is asked for, once it is drawn.

    `wanted` is asked now and then whether to go on. Unless it `begins`, there is no line yet.

    Raises:
      Infeasible: if forbidden entries leave a node no strategy.
    """

    passes = 2, 2
    """Forests at each line's prices: from what is decoded there, from the best choice of the line before."""

    def __init__(
        self,
        problem: Problem,
        options: SolveOptions,
        wanted: Callable[[], bool] = lambda: True,
        *,
        begins: bool = True,
    ) -> None:
        self.problem = _within(problem, 0.0)
        self.options = options
        self.wanted = wanted
        cheaply = unchanged(self.problem).then(partial(reduce_cheaply, options=options.presolve))
        self.reduction = cheaply.then(merge_usages).then(partial(contract_chains, options=options))
        self.rows = memory_rows(self.reduction.problem)
        self.dual = Dual(self.reduction.problem, self.rows)
        self.dual.is_accelerated = options.trws.acceleration
        self._weights, self._use = np.zeros(self.rows.count), np.zeros(self.rows.count)
        self._seen = np.zeros(len(self.dual.flat.cost), dtype=bool)
        self._most = 0.0  # the peak of what is decoded without prices
        self._lines: list[Line] = []
        self._rising = 1  # lines while prices rose, and the first
        self._pareto = Pareto()
        self._relinkings = 0  # each draws other forests
        self._lift = partial(lifted_from, self.reduction.lift, self.dual.rank)

        if begins:
            self._begin()

    def draw(self) -> None:
        """Meets choices and proves bounds for all limits."""
        self.prove()
        self.choose()

    def prove(self) -> None:
        """Proves bounds for all limits; meets the choices that are decoded on the way."""
        if not self._most:
            return
        scale = self._scale
        highest = self._climb(scale / self._most)
        self._rising = len(self._lines)
        self._sink(highest, self._most)
        if self.options.parametric.filling:
            self._fill(scale)

    def choose(self) -> None:
        """Meets better choices, once bounds are proven."""
        is_wanted = self._pareto.met and self.options.primal.path_relinking
        if is_wanted and self._lines[self._rising :]:  # what was seen has a choice
            self._relink(self._lines[self._rising :], self._few())

    def bound(self, limit: float) -> float:
        """No choice within the limit costs less, rounding errors included."""
        return self.highest(limit).proven(limit) + self.reduction.offset

    @property
    def least_peak(self) -> float:
        """No choice peaks below this.

        It costs at most what all nodes and edges do at their dearest; what a line proves beyond that is memory.
        """
        return max(map(self._least_of, self._priced()), default=0.0)

    def _least_of(self, line: Line) -> float:
        return (line.proven(0.0) + self.reduction.offset - self._dearest) / line.slope

    @cached_property
    def _dearest(self) -> float:
        """No choice that is not forbidden costs more."""
        return dearest(self.problem)

    def choices(self) -> list[Met]:
        """The choices met, the smallest first: each costs less than all before."""
        return self._pareto.by_peak()

    def best(self, limit: float) -> Met | None:
        """The cheapest choice met within the limit; None if none was met."""
        return self._pareto.best(limit)

    def solved(self, met: Met) -> Solution:
        """A choice of the whole problem, without a bound."""
        choice = met.whole
        return Solution(
            choice, objective(self.problem, choice), -np.inf, peak(self.problem, choice)
        )

    def bounded(self, solution: Solution, limit: float) -> Solution:
        """A choice within the limit, with the limit's bound and its witness; verified but for the witness."""
        held = self.highest(limit)
        cost = solution.objective
        certificate = self.dual.certificate(held.state)
        bound = (
            min(certificate.bound - held.slope * limit, held.proven(limit)) + self.reduction.offset
        )
        bound = cost if bound >= cost - TOLERANCE * abs(cost) else bound
        found = replace(
            solution, lower_bound=bound, witness=self.reduction.steps + certificate.proof()
        )
        verify_choice(_within(self.problem, limit), found)
        return found

    def _begin(self) -> None:
        """Draws the line without prices."""
        self.dual.set_prices(np.zeros(self.rows.count))
        self._settle()
        self._note()
        self._use = self._decoded()
        self._most = float(self._use.max(initial=0.0))

    def _settle(self) -> None:
        """Sweeps until the bound without prices hardly rises any more: all lines go on from its messages."""
        before = -np.inf
        for _ in range(_MOST_FIRST):
            for _ in range(_FIRST_SWEEPS):
                self.dual.sweep()
            now = self.dual.state().bound + self.reduction.offset
            if now - before <= _RISE * abs(now):
                return
            before = now

    def _climb(self, price: float) -> float:
        """Higher and higher prices until choices get no smaller: the sum after the last that made them smaller."""
        least = np.inf
        waited = 0
        best = price
        for _ in range(_MOST_UP):
            self._step(price)
            now = min((met.peak for met in self._pareto.met), default=np.inf)
            waited, best = (0, price) if now < _SMALLER * least else (waited + 1, best)
            least = min(least, now)
            if waited >= _PATIENCE or not self.wanted():
                break
            price *= _UP
        return min(price, _UP * best)

    def _sink(self, price: float, most: float) -> None:
        """Lower and lower prices, until memory of `most` costs little, and its bound hardly rises any more."""
        times = _DOWN if self._room == _MOST_LINES else _FEW_DOWN
        for _ in range(_MOST_DOWN):
            if not self.wanted():
                return
            self._step(price)
            before = self._lines[-2].at(most)
            now = self._lines[-1].at(most)
            scale = abs(now + self.reduction.offset)
            if now - before <= _NEARLY * scale and price * most <= _LITTLE * scale:
                return
            price /= times

    def _fill(self, scale: float) -> None:
        """Prices between those of lines that meet far below the curve, which is convex, as a share of `scale`."""
        tried = set[float]()

        while len(self._lines) < self._room and self.wanted():
            gaps = [
                (short, price, line) for short, price, line in self._corners() if price not in tried
            ]
            short, price, line = max(
                gaps, key=lambda gap: gap[0], default=(0.0, 0.0, self._lines[0])
            )
            if short <= _SHORT * scale:
                return
            tried.add(price)
            self.dual.restore(line.state)
            self._use = line.use
            self._weights = np.log(np.maximum(line.state.prices / line.slope, _LEAST_SHARE))
            self._step(price)

    @property
    def _room(self) -> int:
        """How many lines may be kept: each has all messages."""
        return min(_MOST_LINES, _MOST_NUMBERS // max(1, self.dual.flat.size))

    @property
    def _scale(self) -> float:
        """What is proven without prices."""
        return abs(self._lines[0].state.bound + self.reduction.offset) or 1.0

    def _priced(self) -> list[Line]:
        """The lines that have prices, the highest first."""
        return sorted(
            (line for line in self._lines if line.slope > 0), key=lambda line: -line.slope
        )

    def _corners(self) -> list[tuple[float, float, Line]]:
        """For lines next to each other: how far below the chord they meet, its slope, and one of the two.

        The chord is that between the middles of both.
        """
        found: list[tuple[float, float, Line]] = []
        for steep, flat in pairwise(self._priced()):
            wide = flat.middle - steep.middle
            if wide > 0 and steep.slope > _APART * flat.slope:
                price = (steep.at(steep.middle) - flat.at(flat.middle)) / wide
                meet = (steep.state.bound - flat.state.bound) / (steep.slope - flat.slope)
                short = steep.at(steep.middle) - price * (meet - steep.middle) - steep.at(meet)
                if flat.slope < price < steep.slope:
                    found.append((short, price, steep))

        return found

    def _step(self, price: float) -> None:
        """Sweeps at prices of this sum, on the rows that decoded choices use the most."""
        for _ in range(_UPDATES):
            shares = np.exp(self._weights - self._weights.max(initial=0.0))
            self.dual.set_prices(price * shares / float(shares.sum()))
            for _ in range(_SWEEPS):
                self.dual.sweep()
            self._use = (1 - _RECENT) * self._use + _RECENT * self._decoded()
            self._weights = _FORGOTTEN * self._weights + _SHARPNESS * (
                self._use / (self._use.max() or 1.0) - 1
            )
        self._note()

    def _few(self) -> Reduction:
        """The problem of the strategies that were decoded. To reduce it takes longer than to search it once."""
        start = self.dual.flat.start
        seen = [self._seen[start[rank] : start[rank + 1]] for rank in self.dual.rank.tolist()]
        return with_few(self.reduction, seen, self.options)

    def _relink(self, lines: Sequence[Line], few: Reduction) -> bool:
        """Meets better choices out of `few` strategies, at the prices of these lines; whether there may be others."""
        every = [line.state.prices for line in sorted(lines, key=lambda line: -line.slope)]
        options = replace(self.options, seed=self.options.seed + self._relinkings)
        self._relinkings += 1
        relinking = PathRelinking(few, options, self._pareto)
        if relinking.list_all():
            return False

        relinking.descend(self.rows, every, self.passes, self.wanted)
        relinking.splice(self.wanted)
        return True

    def highest(self, limit: float) -> Line:
        """The line that proves the most of a limit."""
        return max(self._lines, key=lambda line: line.at(limit))

    def prices_at(self, limit: float) -> Prices:
        """The prices, by the problem's times, that prove the most of a limit."""
        found = self.rows.at_times(self.highest(limit).state.prices)
        looks = [step.times for step in self.reduction.steps if isinstance(step, Look)]
        for times in reversed(looks):
            found = replace(found, times=times[found.times])
        return found

    def _note(self) -> None:
        """Keeps the line of this moment."""
        state = self.dual.state()
        self._lines.append(Line(state, float(state.prices.sum()), self._use))

    def _decoded(self) -> Floats:
        """Meets the choice that the messages decode; the bytes that it uses in every row."""
        choice = self.dual.decode()
        cost = self._cost_of(choice)
        if not np.isfinite(cost) and self.options.trws.consistent_decoding:
            allowed = self.dual.decode_allowed()
            choice, cost = (choice, cost) if allowed is None else (allowed, self._cost_of(allowed))
        used = self.dual.used(choice)
        ranked = choice[self.dual.order]
        self._seen[self.dual.flat.start[:-1] + ranked] = True
        if np.isfinite(cost):
            whole = cost + self.reduction.offset
            self._pareto.meet(Met(ranked, whole, float(used.max(initial=0.0)), self._lift))
        return used

    def _cost_of(self, choice: Ints) -> float:
        return cost_of(self.dual.flat, self.dual.flat.cost, choice[self.dual.order])


def _within(problem: Problem, limit: float) -> Problem:
    """The problem under this limit."""
    return derived(problem.node_costs, problem.edges, problem.usages, limit)
