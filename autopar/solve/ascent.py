"""The dual ascent: sweeps and memory prices in turn, with choices decoded and repaired on the way.

Prices follow the use of an average of the decoded choices above the limit, with Polyak's step towards a target above
the bound; the step is halved when the bound stalls. Any prices >= 0 prove a bound, so the schedule is free.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from autopar.solve.dual import Certificate, Dual
from autopar.solve.options import SolveOptions
from autopar.solve.polish import LocalSearch
from autopar.solve.problem import Floats, Problem
from autopar.solve.reduction import Choice
from autopar.solve.rows import Rows, memory_rows

_SWEEPS_PER_CHECK = 5
_STALLED = 1e-4  # of the gap, per check
_MAX_STALLS = 3
_PATIENCE = 6  # price steps without a better bound before going back, with half the step
_LEAST_EXCESS = 0.05  # of the limit: smaller excesses do not lengthen the step
_FIRST_PRICE = 6  # sweeps before it
_AVERAGE = 0.3
_TARGET = 0.05
CLOSED = 1e-12


@dataclass(frozen=True)
class Answer:
    """The cheapest choice found (None: none), its cost, and a bound on the choices that were asked for."""

    choice: Choice | None
    objective: float
    bound: float


def better(a: Answer, b: Answer) -> Answer:
    """The cheaper of two; the first if they cost the same."""
    return b if b.objective < a.objective else a


def is_closed(bound: float, cost: float) -> bool:
    """Whether nothing worth having lies between the bound and the cost."""
    return bound >= cost or (math.isfinite(cost) and cost - bound <= CLOSED * abs(cost))


class Prices:
    """The schedule of prices: steps from the best so far, that shrink when the bound does not grow."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.average: Floats | None = None
        self.step, self.waited = 1.0, 0

    def next(
        self, prices: Floats, used: Floats, bound: float, upper: float, best_bound: float, best_prices: Floats
    ) -> Floats:
        """The prices after one step from `prices`, which gave `bound` and a choice that uses `used`."""
        self.waited = 0 if bound >= best_bound else self.waited + 1
        if self.waited >= _PATIENCE:
            self.step, self.waited, self.average = self.step / 2, 0, None
            return best_prices
        self.average = used if self.average is None else (1 - _AVERAGE) * self.average + _AVERAGE * used
        excess = self.average - self.rows.limit
        active = excess * ((excess > 0) | (prices > 0))
        norm = max(float(active @ active), (_LEAST_EXCESS * self.rows.limit) ** 2)
        if norm == 0:
            return prices
        target = min(upper, best_bound + _TARGET * abs(best_bound))
        return np.maximum(0.0, prices + self.step * max(target - bound, 0.0) / norm * active)


def ascend(problem: Problem, options: SolveOptions, upper: float) -> tuple[Certificate, Answer]:
    """The best bound found within the sweeps allowed, and the best choice met."""
    rows = memory_rows(problem)
    search, dual = LocalSearch(problem, rows, options), Dual(problem, rows)
    best, certificate = Answer(None, np.inf, -np.inf), dual.certificate()
    prices, stalls, last = Prices(rows), 0, certificate.bound
    for sweep in range(1, options.max_sweeps + 1):
        dual.sweep()
        check = sweep % _SWEEPS_PER_CHECK == 0 or sweep == options.max_sweeps
        if not check and not rows.count:
            continue
        now = dual.certificate()
        improved = now.bound > certificate.bound
        certificate = now if improved else certificate
        choice = dual.decode()
        used = rows.used(choice)
        if check:
            best = better(best, Answer(*search.improve(choice), bound=-np.inf))
            cutoff = min(upper, best.objective)
            if is_closed(certificate.bound, cutoff):
                break
            gap = cutoff - certificate.bound if np.isfinite(cutoff) else abs(certificate.bound)
            stalls = stalls + 1 if certificate.bound - last <= _STALLED * gap else 0
            last = certificate.bound
            if stalls >= _MAX_STALLS * (3 if rows.count else 1):
                break
        if rows.count and sweep >= _FIRST_PRICE:
            cutoff = min(upper, best.objective)
            following = prices.next(dual.prices, used, now.bound, cutoff, certificate.bound, certificate.prices)
            dual.set_prices(following)
    return certificate, _polished(search, best, certificate, min(upper, best.objective), options)


def _polished(
    search: LocalSearch, best: Answer, certificate: Certificate, cutoff: float, options: SolveOptions
) -> Answer:
    """The best choice after forest moves."""
    if best.choice is None:
        return best
    choice, cost = best.choice, best.objective
    for _ in range(options.max_forest_moves):
        if is_closed(certificate.bound, min(cutoff, cost)):
            break
        choice, cost = search.forest_move(choice, certificate.prices)
    return Answer(choice, cost, best.bound)
