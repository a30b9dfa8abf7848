"""What a choice with a given strategy costs at least: from prices and messages.

    cost(choice)  >=  cost(choice) + sum over times of price * (use - limit)

for all choices within the limit and all prices >= 0.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np

from autopar.solve.certificate.proof import Messages, Prices
from autopar.solve.certificate.tables import Floats, Scope, Tables
from autopar.solve.problem.problem import InvalidSolution

_LARGEST = 1e100  # of prices and messages: sums of them do not overflow


def priced(tables: Tables, prices: Prices) -> tuple[dict[int, Floats], float]:
    """The prices of the bytes of every node that has any, and the constant: less price * limit."""
    times, values = prices.times, prices.values
    if not len(times):
        return {}, 0.0
    if tables.limit is None or len(times) != len(values) or not ((values >= 0) & (values < _LARGEST)).all():
        raise InvalidSolution("prices: negative, infinite, not one for each time, or for a limit that is not there")
    added: dict[int, Floats] = {}
    for v in tables.names:
        for start, stop, size in tables.usages[v]:
            price = float(values[(times >= start) & (times < stop)].sum())
            if price:
                added[v] = added.get(v, 0.0) + price * size
    return added, -math.fsum(values) * tables.limit


def moved(tables: Tables, messages: Messages) -> dict[Scope, tuple[Floats, Floats]]:
    """The messages by scope, those of equal scope added up."""
    result: dict[Scope, tuple[Floats, Floats]] = {}
    if len(messages.edges) != len(messages.to):
        raise InvalidSolution(f"{len(messages.to)} messages for {len(messages.edges)} edges")
    for (i, j), (to_i, to_j) in zip(messages.edges.tolist(), messages.to, strict=True):
        u, v = tables.name(i), tables.name(j)
        scope, pair = ((u, v), (to_i, to_j)) if u < v else ((v, u), (to_j, to_i))
        if scope not in tables.tables or tables.tables[scope].shape != pair[0].shape + pair[1].shape:
            raise InvalidSolution(f"messages of edge {scope}, which is not there or of another shape")
        if not all((np.abs(part) < _LARGEST).all() for part in pair):  # NaN too
            raise InvalidSolution(f"messages of edge {scope} are too large, or not numbers")
        before = result.get(scope)
        result[scope] = pair if before is None else (before[0] + pair[0], before[1] + pair[1])
    return result


def rounding(magnitudes: Iterable[float], terms: int) -> float:
    """More than the rounding error of sums of at most `terms` terms each, of these magnitudes."""
    return float(np.finfo(np.float64).eps) * (terms + 4) * math.fsum(map(abs, magnitudes))


def rounding_of(messages: Mapping[Scope, tuple[Floats, Floats]]) -> float:
    """More than the rounding error of adding messages to nodes and taking them off edges."""
    degree = Counter(v for scope in messages for v in scope)
    largest = (float(np.abs(part).max()) for pair in messages.values() for part in pair)
    return rounding(largest, max(degree.values(), default=0))


def by_messages(tables: Tables, prices: Prices, messages: Messages) -> tuple[dict[int, Floats], float]:
    """For every node, what a choice with each of its strategies costs at least; and what any choice costs at least."""
    added, constant = priced(tables, prices)
    costs = {v: tables.tables[v,] for v in tables.names}
    for v, cost in added.items():
        costs[v] = costs[v] + cost
    sent = moved(tables, messages)
    for (u, v), (to_u, to_v) in sent.items():
        costs[u] = costs[u] + to_u
        costs[v] = costs[v] + to_v
    lows = [constant, *tables.constants]
    beyond = {v: cost - cost.min() for v, cost in costs.items()}
    lows += [float(cost.min()) for cost in costs.values()]
    for scope, table in tables.tables.items():
        if len(scope) == 2:
            rest = table
            if scope in sent:
                rest = table - sent[scope][0][:, None] - sent[scope][1]
            low = float(rest.min())
            beyond[scope[0]] = beyond[scope[0]] + (rest.min(axis=1) - low)
            beyond[scope[1]] = beyond[scope[1]] + (rest.min(axis=0) - low)
            lows.append(low)
        elif len(scope) > 2:
            lows.append(float(table.min()))
    error = rounding_of(sent) + rounding([constant, *(float(cost.max()) for cost in added.values())], 4)
    bound = math.fsum(lows) - error
    return {v: bound + excess for v, excess in beyond.items()}, bound


def of_pairs(table: Floats, beyond_u: Floats, beyond_v: Floats) -> Floats:
    """What pairs of strategies cost beyond the bound, at least, given what each alone does and the table of both."""
    over = table - table.min()
    return over + (beyond_u - over.min(axis=1))[:, None] + (beyond_v - over.min(axis=0))
