"""First sweeps in single precision: half the bytes, which sweeps over large matrices wait for.

They end where the bound hardly rises. What they found are messages like any others: what these prove is computed in
double precision, after one such sweep.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from autopar.solve.problem.problem import Floats
from autopar.solve.problem.reduction import Ints
from autopar.solve.trws.acceleration import Momentum
from autopar.solve.trws.arrays import Flat, entries_read
from autopar.solve.trws.dual import Dual
from autopar.solve.trws.kernels import NOTHING, bound_after, sweep

_LARGE = 4_000_000  # entries that a sweep reads: fewer stay near the processor
_SWEEPS_PER_CHECK = 5
_HEAD_START = 5  # sweeps: from nothing messages go one way for long, and with more momentum sooner
_STALLED, _STALLED_OF_GAP = 2e-4, 0.02  # of the bound; of the gap, where it is known; per check


def is_worth_it(flat: Flat) -> bool:
    """Whether a sweep reads so much that half of it takes noticeably less."""
    return entries_read(flat) >= _LARGE


class Single:
    """A dual's messages in single precision; memory has no prices there."""

    def __init__(self, dual: Dual) -> None:
        self.dual = dual.in_single()
        self._momentum = Momentum(self.dual, risen=_HEAD_START)

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
        dual = self.dual
        held, best = dual.messages.copy(), -np.inf
        for n in range(1, most + 1):
            bound = self.sweep()
            if meet is not None:
                meet(dual.decode())
            if n % _SWEEPS_PER_CHECK:
                continue
            last, best = best, max(best, bound)
            held = dual.messages.copy() if bound > last else held
            little = share * _STALLED * abs(best) if upper == np.inf else _STALLED_OF_GAP * max(0.0, upper - best)
            if best - last <= little or not is_wanted():
                break
        return held.astype(np.float64)

    def sweep(self) -> float:
        """Upwards and downwards once, on in the direction of the last one unless the bound fell; the bound."""
        dual = self.dual
        self._momentum.go_on(dual, with_prices=False)
        sweep(dual.flat, False, dual.nodes, dual.messages, NOTHING)
        bound = bound_after(dual.flat, dual.nodes)
        self._momentum.rises(bound)
        return bound
