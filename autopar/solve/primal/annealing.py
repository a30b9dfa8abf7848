"""Choices by annealing: a random forest of nodes is solved exactly, the others held, at costs with noise that cools.

Memory is priced, so that the search goes back and forth across the limit; the cheapest choice that fits is kept.
Prices move in one of two ways. Together: one factor on all rises while a row exceeds the limit and falls while all fit,
and a row that exceeds it becomes dearer for good (good where thousands of rows have a price). Each: a row's price rises
by its own excess and falls by what it leaves free (good where a few rows decide).

S. Kirkpatrick, C. Gelatt, M. Vecchi, "Optimization by simulated annealing", Science 220 (1983).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from autopar.solve.primal.tree_moves import desk_for, grow_forest, solve_forest
from autopar.solve.problem.problem import Floats
from autopar.solve.problem.reduction import Ints
from autopar.solve.trws.arrays import Flat
from autopar.solve.trws.kernels import add_prices, cost_of, use_of

_COOLED = 1e-3  # of the first temperature, at the end
_UP, _DOWN = 1.02, 0.995
_DEARER = 0.1
_EACH, _EACH_UP, _EACH_DOWN = 0.1, 0.2, 0.1  # of the highest price, a whole limit in excess; the most excess, slack
_FIRST_EXCESS = 0.05  # of the limit: an excess that is to cost as much as a node, where nothing has a price yet


@dataclass(frozen=True, eq=False)
class Schedule:
    """Where an annealing starts, how hot (in costs), for how many passes, its random numbers, how prices move."""

    choice: Ints
    heat: float
    passes: int
    seed: int
    each: bool = False


def anneal(
    flat: Flat, prices: Floats, schedule: Schedule, wanted: Callable[[float], bool]
) -> tuple[Ints | None, float]:
    """The cheapest choice met that fits, and its cost; None and inf if none fits.

    `wanted` is told the cost of the best after every pass, and ends the annealing by saying False.
    """
    random = np.random.default_rng(schedule.seed)
    choice, control = schedule.choice.copy(), _Control(flat, prices, schedule)
    desk = desk_for(flat)
    best, least = None, np.inf
    for n in range(schedule.passes):
        desk.costs[:] = flat.cost
        add_prices(flat, control.prices * control.factor, desk.costs)
        heat = schedule.heat * _COOLED ** (n / schedule.passes)
        desk.costs[:] -= random.gumbel(scale=heat, size=len(desk.costs))
        order = random.permutation(len(choice))
        grow_forest(flat, order, desk)
        solve_forest(flat, order, choice, desk)
        if control.fits(choice):
            cost = cost_of(flat, flat.cost, choice)
            if cost < least:
                best, least = choice.copy(), cost
        if not wanted(least):
            break
    return best, least


class _Control:
    """The prices of memory and the factor on all of them."""

    def __init__(self, flat: Flat, prices: Floats, schedule: Schedule) -> None:
        self.memory, self.each = flat.memory, schedule.each
        self.prices, self.factor = prices.copy(), 1.0
        self.used = np.zeros(flat.memory.rows)
        self.scale = flat.memory.limit or 1.0
        least = schedule.heat / (_FIRST_EXCESS * self.scale) if flat.memory.rows else 0.0
        self.unit = max(float(prices.max(initial=0.0)), least)

    def fits(self, choice: Ints) -> bool:
        """Whether the choice is within the limit; the prices follow."""
        if not self.memory.rows:
            return True
        use_of(self.memory, choice, self.used)
        excess = (self.used - self.memory.limit) / self.scale
        hot = self.used > self.memory.limit
        if self.each:
            steps = _EACH * self.unit * np.clip(excess, -_EACH_DOWN, _EACH_UP)
            self.prices = np.maximum(0.0, self.prices + steps)
        elif hot.any():
            self.factor *= _UP
            self.prices[hot] += _DEARER * excess[hot] * max(float(self.prices.max()), self.unit)
        else:
            self.factor *= _DOWN
        return not hot.any()
