"""The first choice: any one that keeps the limit, before the bounds are worth anything.

The choice that a few sweeps decode seldom fits where memory is scarce. Nodes in rows that exceed the limit move, those
first that pay least for a byte of excess that goes. Where single moves do not do it, annealing whose prices rise
together until all rows fit, cool first, as what it finds then is cheaper; last of all, from few bytes whatever they
cost. Ten thousand nodes take a second or two.
"""

from __future__ import annotations

import numpy as np

from autopar._jit import compiled, compiled_inner
from autopar.solve.primal.tree_moves import Cooling, anneal, desk_for, grow_forest, solve_forest
from autopar.solve.problem.incumbent import Watch
from autopar.solve.problem.options import SolveOptions
from autopar.solve.problem.problem import Floats
from autopar.solve.problem.reduction import Choice, Ints
from autopar.solve.trws.arrays import Flat
from autopar.solve.trws.dual import Dual
from autopar.solve.trws.kernels import add_prices, add_row, cost_of, use_of

_SWEEPS = 5  # what is decoded after these is no longer better for more
_HEATS = (0.1, 1.0, 10.0)  # of a node's share of the bound
_SHARE = 0.2  # of the passes that annealing may have, for each heat
_CHEAPEST = 1e-3
_DEARER = 4.0
_STEPS = 16  # what relief may cost: a node's share for a limit's excess, times 4, ...
_STEADY = 3  # tries at the dearest
_HIGH = 1e6  # shares of a node, for a whole limit: a price beside which costs are nothing
_FEWEST_PASSES = 20  # of forests towards few bytes


def first_choice(dual: Dual, options: SolveOptions, watch: Watch) -> Choice | None:
    """A choice that keeps the limit and takes no forbidden entry; None if none was met. Leaves `dual` as it was."""
    before = dual.state()
    flat = dual.flat
    for _ in range(_SWEEPS):
        dual.sweep()

    decoded = dual.decode()[dual.order]
    unit = abs(dual.state().bound) / len(dual.order)
    dual.restore(before)
    found = _relieved(flat, decoded, unit, watch)
    for number, heat in enumerate(_HEATS):
        if found is not None or watch.left_s() <= 0:
            break
        found = _annealed(flat, decoded, heat * unit, options, number, watch)

    if found is None:
        found = _relieved(flat, _of_few_bytes(flat, decoded, unit, options, watch), unit, watch)

    return None if found is None else tuple(found[dual.rank].tolist())


def _annealed(
    flat: Flat, start: Ints, heat: float, options: SolveOptions, number: int, watch: Watch
) -> Ints | None:
    """The first choice that fits and annealing meets."""

    def wanted(cost: float) -> bool:
        return not np.isfinite(cost) and watch.left_s() > 0

    schedule = Cooling(start, heat, int(_SHARE * options.anneal_passes), options.seed + number)
    return anneal(flat, np.zeros(flat.memory.rows), schedule, wanted)[0]


def _of_few_bytes(
    flat: Flat, start: Ints, unit: float, options: SolveOptions, watch: Watch
) -> Ints:
    """A choice whose bytes are few: random forests are solved one after the other, at one high price of all rows."""
    choice = start.copy()
    desk = desk_for(flat)
    random = np.random.default_rng(options.seed)
    prices = np.full(flat.memory.rows, _HIGH * unit / (flat.memory.limit or 1.0))
    add_prices(flat, prices, desk.costs)
    for _ in range(_FEWEST_PASSES):
        order = random.permutation(len(choice))
        grow_forest(flat, order, desk)
        solve_forest(flat, order, choice, desk)
        if watch.left_s() <= 0:
            break
    return choice


def _relieved(flat: Flat, start: Ints, unit: float, watch: Watch) -> Ints | None:
    """The choice after moves of single nodes; None if it still does not fit, or takes a forbidden entry."""
    choice = start.copy()
    used = np.zeros(flat.memory.rows)
    dearest = _CHEAPEST * unit / (flat.memory.limit or 1.0)
    for step in range(_STEPS + _STEADY):
        use_of(flat.memory, choice, used)
        if (used <= flat.memory.limit).all():
            return choice if np.isfinite(cost_of(flat, flat.cost, choice)) else None
        if watch.left_s() <= 0:
            return None
        relieve(flat, dearest * _DEARER**step if step < _STEPS else np.inf, choice, used)
    return None


@compiled
def relieve(p: Flat, dearest: float, choice: Ints, used: Floats) -> None:
    """Moves every node to where it takes away most excess for its cost, up to `dearest` a byte of excess."""
    m = p.memory
    total = np.empty(p.widest)

    for v in range(len(p.start) - 1):
        if not is_hot(p, v, used):
            continue
        first = p.start[v]
        count = p.start[v + 1] - p.start[v]
        total[:count] = p.cost[first : first + count]
        for k in range(p.near[v], p.near[v + 1]):
            add_row(p, k, int(choice[p.other[k]]), total[:count])
        now = choice[v]
        best = choice[v]
        least = dearest
        for s in range(count):
            if s == now or not np.isfinite(total[s]):
                continue
            relief = relief_of(p, v, now, s, used)
            rise = total[s] - total[now] if np.isfinite(total[now]) else -np.inf
            if relief > 0 and (rise <= 0 or rise / relief <= least):
                best = s
                least = min(least, max(rise, 0.0) / relief)
        if best != now:
            choice[v] = best
            for i in range(m.of[v], m.of[v + 1]):
                used[m.low[i] : m.high[i]] += m.size[m.at[i] + best] - m.size[m.at[i] + now]


@compiled_inner
def is_hot(p: Flat, v: int, used: Floats) -> bool:
    """Whether the node is live in a row that exceeds the limit."""
    m = p.memory
    for i in range(m.of[v], m.of[v + 1]):
        for r in range(m.low[i], m.high[i]):
            if used[r] > m.limit:
                return True
    return False


@compiled_inner
def relief_of(p: Flat, v: int, now: int, s: int, used: Floats) -> float:
    """By how much the excess of all rows together falls when v goes from a strategy to another."""
    m = p.memory
    relief = 0.0
    for i in range(m.of[v], m.of[v + 1]):
        change = m.size[m.at[i] + s] - m.size[m.at[i] + now]
        if change != 0.0:
            for r in range(m.low[i], m.high[i]):
                relief += max(used[r] - m.limit, 0.0) - max(used[r] + change - m.limit, 0.0)
    return relief
