"""The Lagrangian relaxation of a memory limit at given prices: a problem without one, whose optimum bounds the limit.

    cost'_v = cost_v + sum over usages of v of (sum of prices while it lasts) * bytes_v
    bound(limit) = min over choices of cost' - limit * sum of prices

Prices that proved a limit for one problem prove it for another like it, of more nodes. There is no row left then, so
that what repeats is reduced once for all of its layers, and messages begin at those of few of them.

A. Geoffrion, "Lagrangean relaxation for integer programming", Mathematical Programming Study 2 (1974).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from autopar.errors import Unsolved
from autopar.solve.certificate.proof import Price, Prices, Proof
from autopar.solve.pipeline.driver import NothingCheaper, solve
from autopar.solve.problem.options import SolveOptions
from autopar.solve.problem.problem import Floats, Infeasible, Problem, derived
from autopar.solve.problem.verifier import TOLERANCE

_LEAST = 1e-3
"""Of all prices: with lower ones, equal layers would cost next to the same, not the same."""

Part = tuple[float, int]
"""What a byte of a usage costs while it lasts, and the identity of its bytes."""


def relaxed(problem: Problem, prices: Prices) -> Problem:
    """The problem without its limit, in which bytes have prices; costs that are equal are one object if they were."""
    end = max((use.stop for use in problem.usages), default=0)
    at_times = np.zeros(end)
    inside = prices.times < end
    at_times[prices.times[inside]] = prices.values[inside]
    until: list[float] = np.concatenate([[0.0], np.cumsum(at_times)]).tolist()

    parts: dict[int, list[Part]] = {}
    sizes: dict[int, Floats] = {}
    for node, start, stop, size in (
        (use.node, use.start, use.stop, use.size_bytes) for use in problem.usages
    ):
        price = until[stop] - until[start]
        if price > 0:
            parts.setdefault(node, []).append((price, id(size)))
            sizes[id(size)] = size

    known: dict[tuple[object, ...], Floats] = {}
    costs = list(problem.node_costs)
    for node, own in parts.items():
        key = (id(costs[node]), *own)
        if key not in known:
            known[key] = costs[node] + sum(price * sizes[size] for price, size in own)
        costs[node] = known[key]

    free = derived(tuple(costs), problem.edges, periods=problem.periods)
    free.__dict__.update({name: getattr(problem, name) for name in ("counts", "ends", "matrices")})
    return free


@dataclass(frozen=True, eq=False)
class PricedBound:
    """What no choice within a limit costs less than, with its proof."""

    bound: float
    proof: Proof = ()


UNBOUNDED = PricedBound(0.0)
"""Where nothing is proven: no cost is negative."""


def _highest(prices: Prices) -> Prices:
    """Those that matter, of the same sum: any prices prove a bound. Where each is too little by itself, all of them."""
    total = float(prices.values.sum())
    kept = prices.values >= _LEAST * total
    if not total or not kept.any():
        return prices

    values = prices.values[kept]
    return Prices(prices.times[kept], values * (total / float(values.sum())))


def bounded_at(
    problem: Problem, prices: Prices, limit: float, below: float, options: SolveOptions
) -> PricedBound:
    """What no choice within the limit costs less than, by these prices; nothing where the work does not suffice.

    That none costs less than `below`, but for the gap that options allow, is enough.
    """
    if not len(prices.times) or not options.parametric.relaxation:
        return PricedBound(-np.inf)

    prices = _highest(prices)
    share = limit * float(prices.values.sum())
    total = below + share
    allowed = options.gap_tolerance * max(0.0, below)
    tolerance = allowed / total - 2 * TOLERANCE if total > 0 else 0.0
    options = replace(options, gap_tolerance=max(0.0, tolerance))
    try:
        found = solve(relaxed(problem, prices), options=options, below=total)
        low = found.lower_bound
        witness = found.witness
    except NothingCheaper as nothing:  # which is not kept: it holds all that led to it
        low = nothing.lower_bound
        witness = nothing.witness
    except (Infeasible, Unsolved):
        return PricedBound(-np.inf)

    bound = low - share - TOLERANCE * abs(total)  # up to which the solver proves
    return PricedBound(bound, (Price(prices), *(witness or ())))
