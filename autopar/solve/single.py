"""First sweeps in single precision, by two processors: half the bytes, which sweeps over large matrices wait for.

They end where the bound hardly rises. What they found are messages like any others: what these prove is computed in
double precision, after one such sweep.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autopar.solve.dual import Dual
from autopar.solve.flat import Flat, flatten, messages_in, with_messages
from autopar.solve.halves import halved, sweep
from autopar.solve.kernels import decode
from autopar.solve.momentum import Momentum
from autopar.solve.problem import Floats
from autopar.solve.reduction import Ints

_LARGE = 4_000_000  # entries that a sweep reads: fewer stay near the processor
_SWEEPS_PER_CHECK = 5
_HEAD_START = 5  # sweeps: from nothing messages go one way for long, and with more momentum sooner
_STALLED, _STALLED_OF_GAP = 2e-4, 0.02  # of the bound; of the gap, where it is known; per check


def is_worth_it(flat: Flat) -> bool:
    """Whether a sweep reads so much that half of it takes noticeably less."""
    return int((flat.tall * flat.wide).sum()) >= _LARGE


class Single:
    """A dual's messages in single precision; memory has no prices there."""

    def __init__(self, dual: Dual) -> None:
        places, halves = halved(dual.flat)
        order = dual.order[places]
        flat = flatten(dual.problem, dual.rows, order, dual.pool) if halves[1] else dual.flat
        self.flat: Flat = flat._replace(pool=dual.flat_in_single.pool, halves=halves)
        self._place = messages_in(flat, dual.flat)
        self.messages: NDArray[Any] = dual.messages[self._place].astype(np.float32)
        self.nodes: NDArray[Any] = with_messages(flat, self.messages).astype(np.float32)
        self.prices, self._rank = dual.prices, np.argsort(order)
        self._momentum = Momentum(self, risen=_HEAD_START)

    def set_prices(self, prices: Floats) -> None:
        """Only none."""
        self.prices = prices

    def settled(
        self,
        most: int,
        is_wanted: Callable[[], bool],
        meet: Callable[[Ints], None] | None = None,
        upper: float = np.inf,
        share: float = 1.0,
    ) -> Floats:
        """The messages after sweeps until the bound hardly rises, `most` of them, or until no more are wanted.

        `meet` is told what they decode on the way. Where a cost `upper` is known, what is hardly anything of the gap
        counts; `share` of what counts else.
        """
        if any(self.flat.halves) and not self.messages.any():  # from nothing all is news, which an eager sweep spreads
            sweep(self.flat, True, self.nodes, self.messages)
            self._momentum = Momentum(self, risen=_HEAD_START)
        held, best = self.messages.copy(), -np.inf
        for n in range(1, most + 1):
            bound = self.sweep()
            if meet is not None:
                meet(self.decode())
            if n % _SWEEPS_PER_CHECK:
                continue
            last, best = best, max(best, bound)
            held = self.messages.copy() if bound > last else held
            little = share * _STALLED * abs(best) if upper == np.inf else _STALLED_OF_GAP * max(0.0, upper - best)
            if best - last <= little or not is_wanted():
                break
        found = np.empty(len(held))
        found[self._place] = held
        return found

    def decode(self) -> Ints:
        """As a dual does."""
        choice = np.zeros(len(self._rank), dtype=np.intp)
        decode(self.flat, self.nodes, self.messages, choice)
        return choice[self._rank]

    def sweep(self) -> float:
        """Upwards and downwards once, on in the direction of the last one unless the bound fell; the bound.

        That is the sum of what is least at nodes: right after a sweep the least of every edge is 0.
        """
        self._momentum.go_on(self, with_prices=False)
        sweep(self.flat, False, self.nodes, self.messages)
        least = np.minimum.reduceat(self.nodes, self.flat.start[:-1])
        bound = float(least.sum(dtype=np.float64))
        self._momentum.rises(bound)
        return bound
