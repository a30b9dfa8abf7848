"""A higher bound from messages and memory prices that move together, smoothly, on a course of their own momentum.

    use_r = sum over segments of row r and over s of w_v[s] size[s],    w_v[s] in proportion to exp(-belief_v[s] / heat)
    price_r  rises by  rate * (average over sweeps of use_r / limit - 1)

A single choice uses a byte or does not, so prices that follow choices shake, and messages, which need hundreds of
sweeps to settle, never do. The soft use of all strategies that cost nearly the least changes as little as prices do;
so both can keep their direction (`acceleration`), which takes a tenth of the sweeps. The rate grows while the
bound rises; where it falls, all goes back to the best with half the rate. It works where many nodes share the memory;
where few strategies decide, their soft use says little, and the bound soon stalls.

B. Savchynskyy et al., "Efficient MRF energy minimization via adaptive diminishing smoothing", UAI 2012.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from autopar._jit import compiled
from autopar.solve.problem.incumbent import Watch
from autopar.solve.problem.problem import Floats
from autopar.solve.problem.reduction import Ints
from autopar.solve.trws.acceleration import Momentum
from autopar.solve.trws.arrays import Flat
from autopar.solve.trws.dual import Dual, State
from autopar.solve.trws.kernels import add_up, bound_after, sweep

_HEAT = 0.2  # of a node's share of the gap
_FIRST_RATE = 2.5e-3  # of the gap, for a whole limit in excess
_FASTER = 1.02
_SLOWER = 0.5  # times the rate: after a rise, after a fall
_AVERAGE = 0.1  # the last sweep's share in the use that prices follow
_FIRST_PRICE = 6  # sweeps before it
_LEAST_NORM = 1e-9  # of the squared excess, as a share of the limit: below, steps would have no end
_TARGET = 0.05  # of the bound: the gap where none is known
_SWEEPS_PER_CHECK = 25  # a course rises in waves of about as many
_STALLED = 5e-4  # of the gap, per check
_MAX_STALLS = 8  # momentum takes a while to build up
_SWEEPS_PER_ROUGH_CHECK = 10
_CREEPING = 5e-4  # and of the bound, per rough check
_SWEEPS_PER_CHOICE = 3  # those of one sweep and the next hardly differ
_COLD = 30.0  # times the heat: dearer strategies weigh nothing


def ascend_smoothly(
    dual: Dual,
    held: State,
    most_sweeps: int,
    upper: float,
    watch: Watch,
    meet: Callable[[Ints], None] | None = None,
) -> State:
    """The best state met on the way from `held`, or that; it ends when the bound stalls. The dual is left there.

    `upper`: the cost of a known choice, or inf. `meet`, if it is given, is told what is decoded on the way; a bound
    that creeps has stalled then.
    """
    dual.restore(held)
    course = _Course(dual, upper)
    last = held.bound
    stalls = 0
    for count in range(1, most_sweeps + 1):
        held = course.after_sweep(held)
        if meet is not None and count % _SWEEPS_PER_CHOICE == 0:
            meet(dual.decode())
        if meet is not None and count % _SWEEPS_PER_ROUGH_CHECK == 0:
            if held.bound - last <= _CREEPING * abs(last):
                break
            last = held.bound
        if meet is None and count % _SWEEPS_PER_CHECK == 0:
            stalls = stalls + 1 if held.bound - last <= _STALLED * course.gap(held.bound) else 0
            last = held.bound
            if stalls >= _MAX_STALLS:
                break
        if held.bound >= upper or watch.left_s() <= 0:
            break
        course.momentum.go_on(dual, with_prices=True)

    dual.restore(held)
    return held


class _Course:
    """How a dual moves, and how fast its prices do."""

    def __init__(self, dual: Dual, upper: float) -> None:
        self.dual = dual
        self.upper = upper
        self.scale = dual.rows.limit or 1.0
        self.belief = np.zeros(len(dual.flat.cost))
        self.use = np.zeros(dual.rows.count)
        self.average = np.zeros(dual.rows.count)
        self.averaged = 0
        self.rate = _FIRST_RATE
        self.sweeps = 0
        self.momentum = Momentum(dual)

    def gap(self, bound: float) -> float:
        """What is left to rise."""
        return min(self.upper, bound + _TARGET * abs(bound)) - bound

    def after_sweep(self, held: State) -> State:
        """The better of the state after one sweep and the one held; prices move, or all goes back to the one held."""
        dual = self.dual
        sweep(dual.flat, False, dual.nodes, dual.messages, self.belief)
        low = bound_after(dual.flat, dual.nodes) - float(dual.prices.sum()) * dual.rows.limit
        self.sweeps += 1
        held = State(dual.messages.copy(), dual.prices, low) if low > held.bound else held
        if not self.momentum.rises(low):
            self.rate *= _SLOWER
            dual.restore(held)
            self.momentum.stop_at(dual, held.bound)
            return held

        self.rate *= _FASTER
        if self.sweeps >= _FIRST_PRICE:
            self._reprice(held.bound)

        return held

    def _reprice(self, bound: float) -> None:
        dual = self.dual
        gap = self.gap(bound)
        if gap <= 0:
            return
        soft_use(dual.flat, self.belief, _HEAT * gap / len(dual.flat.start), self.use)
        self.average += _AVERAGE * (self.use / self.scale - 1.0 - self.average)
        self.averaged += 1
        excess = self.average / (1 - (1 - _AVERAGE) ** self.averaged)
        active = excess * ((excess > 0) | (dual.prices > 0))
        norm = max(float(np.sum(active * active)), _LEAST_NORM)
        step = min(self.rate, 1.0 / norm) * gap / self.scale
        dual.set_prices(np.maximum(0.0, dual.prices + step * excess))


@compiled
def soft_use(p: Flat, belief: Floats, heat: float, used: Floats) -> None:
    """Writes the bytes in use in every row, strategies weighted by how little they cost above the least."""
    m = p.memory
    share = np.zeros(p.widest)
    change = np.zeros(m.rows + 1)
    for v in range(len(p.start) - 1):
        first = p.start[v]
        count = p.start[v + 1] - p.start[v]
        least = belief[first : first + count].min()
        total = 0.0
        for s in range(count):
            above = (belief[first + s] - least) / heat
            share[s] = np.exp(-above) if above < _COLD else 0.0
            total += share[s]
        for i in range(m.of[v], m.of[v + 1]):
            use = 0.0
            for s in range(count):
                use += share[s] / total * m.size[m.at[i] + s]
            change[m.low[i]] += use
            change[m.high[i]] -= use

    add_up(change, used)
