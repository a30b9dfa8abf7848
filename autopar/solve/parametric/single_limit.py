"""One problem about single memory limits: as a curve within all of them (`dual_curve`), but drawn only near those asked
for.

The sum of the prices goes up until choices keep within the limit, and once more; then down in steps until they exceed
it; then by halves to where they just do. Messages that come from high prices decode better choices than those that come
from low ones. Of what was decoded on the way, choices about the limit are made (`path_relinking`).
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from autopar.solve.parametric.dual_curve import DualCurve

# of the sum of prices at which memory costs as much as all else: where prices begin
_FIRST = 1 / 256
_UP = 4.0
_MOST_UP = 14
_MORE_UP = 1  # times the sum of prices; until choices keep within the limit, and from there on
_DOWN = 3.0
_LITTLE = 1e-3  # the sum over the next; of the first: where prices end
_HALVES = 6
_APART = 1.05  # of the way between two sums of prices, as ratios; what is close enough
_NEARLY_LEAST = 1.01  # of what is proven of all peaks
_FALLS = 3  # of the bound, one after another
_FEWEST = 8  # lines that are kept
_BESIDE = 6  # lines on each side of a limit, at whose prices choices descend
_MOST_LIKE = 4
_RISE = 1e-3  # of the bound: while it rises by as much, steps at prices known from another problem; at most so many
_QUICK = 3  # such steps, where all is to be refuted: messages begin at nothing
_MIXES = 2  # as long as the best is farther from the bound than may be


class Focus(DualCurve):
    """Good choices of a problem, and bounds, within the memory limits that it was turned to."""

    passes = 12, 6  # its lines are few
    _limit = 0.0

    def turn_to(self, limit: float) -> None:
        """Meets choices about a limit, and proves bounds."""
        self._limit = limit
        if not self._most:
            return
        if self._is_above(limit):
            self._sink_to(limit)
        self._halve(limit)

    def prove_like(self, other: Focus, limit: float, wanted: float = np.inf) -> None:
        """Proves bounds at the sum of prices at which another problem, much like this one, proved the most.

        Where that proves clearly less here, prices are looked for from there on. A bound of `wanted` is enough.
        """
        self._limit = limit
        price = other.highest(limit).slope
        enough = other.bound(limit)
        enough = min(wanted, enough - self.options.gap_tolerance * abs(enough))
        if not self._lines and self._refutes(price, limit, wanted):
            return

        for _ in range(_MOST_LIKE if price and self._most else 0):
            before = self.bound(limit)
            self._step(price)
            now = self.bound(limit)
            if now >= wanted or now - before <= _RISE * abs(now) or not self.wanted():
                break

        if self._most and self.bound(limit) < enough and self.wanted():
            self._sink_to(limit)
            self._halve(limit)

    def _refutes(self, price: float, limit: float, wanted: float) -> bool:
        """Whether a few steps at a sum of prices prove as much as is wanted; if not, there is the first line."""
        for _ in range(_QUICK if price and self.rows.count else 0):
            self._step(price)
            if self.bound(limit) >= wanted or not self.wanted():
                return True

        self._weights = np.zeros(self.rows.count)
        self._begin()
        return False

    def mix(self, limit: float) -> None:
        """Meets choices that are made of those about a limit."""
        if not self._pareto.met or not self.options.primal.path_relinking:
            return

        lines = self._priced()
        within = sum(line.middle <= limit for line in lines)
        few = self._few()
        for _ in range(_MIXES):
            goes_on = self._relink(lines[max(0, within - _BESIDE) : within + _BESIDE], few)
            best = self.best(limit)
            is_near = best is not None and self.bound(limit) >= best.cost * (
                1 - self.options.gap_tolerance
            )
            if is_near or not goes_on or not self.wanted():
                return

    def _note(self) -> None:
        """Keeps the line of this moment; where there is no room, the one that proves the least of the limit goes."""
        super()._note()
        if len(self._lines) > max(_FEWEST, self._room):
            self._lines.remove(min(self._lines[1:-1], key=lambda line: line.at(self._limit)))

    def _is_above(self, limit: float) -> bool:
        """Whether none of the choices decoded at prices are as small."""
        return all(line.middle > limit for line in self._priced())

    def _sink_to(self, limit: float) -> None:
        """Up to prices at which choices are small, and down to where they exceed the limit."""
        price = max((line.slope for line in self._priced()), default=self._first / _UP)
        more = 1 + _MORE_UP
        for _ in range(_MOST_UP):
            price *= _UP
            self._step(price)
            more -= not self._is_above(limit)
            if not more or self._is_refused(limit) or self._is_vain(limit) or not self.wanted():
                break
        while self._is_too_dear(price, limit) and price > _LITTLE * self._first and self.wanted():
            price /= _DOWN
            self._step(price)

    def _is_too_dear(self, price: float, limit: float) -> bool:
        """Whether choices keep within the limit at these prices, the last met, or did at lower ones.

        What is decoded where prices were raised much may be anything.
        """
        lower = any(line.middle <= limit for line in self._priced() if line.slope < price)
        return lower or self._lines[-1].middle <= limit

    def _is_refused(self, limit: float) -> bool:
        """Whether it is proven that no choice keeps within the limit, and a choice of about the least peak is met."""
        least = self.least_peak
        met = self.choices()
        return least > limit and bool(met) and met[0].peak <= _NEARLY_LEAST * least

    def _is_vain(self, limit: float) -> bool:
        """Whether no choice was met yet, and higher prices prove less and less: the bound is concave in them."""
        last = [line.at(limit) for line in self._lines[-_FALLS - 1 :]]
        return not self._pareto.met and len(last) > _FALLS and all(a > b for a, b in pairwise(last))

    @property
    def _first(self) -> float:
        """The sum of prices to begin with: messages follow small steps, and lose their way where prices jump."""
        return _FIRST * self._scale / self._most

    def _halve(self, limit: float) -> None:
        """Prices between those at which choices exceed the limit and those at which they do not."""
        for _ in range(_HALVES):
            high = min(
                (line.slope for line in self._priced() if line.middle <= limit), default=np.inf
            )
            low = max((line.slope for line in self._priced() if line.middle > limit), default=0.0)
            if high == np.inf or not low or high <= _APART * low or not self.wanted():
                return
            self._step(float(np.sqrt(low * high)))
