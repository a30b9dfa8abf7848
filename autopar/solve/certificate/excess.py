"""What a choice with a given strategy costs at least: from prices and messages, or from prices and elimination.

    cost(choice)  >=  cost(choice) + sum over times of price * (use - limit)

for all choices within the limit and all prices >= 0.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from autopar.solve.certificate.proof import Messages, Prices
from autopar.solve.certificate.tables import Floats, Scope, Tables, aligned, least
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


def by_elimination(tables: Tables, prices: Prices, order: Sequence[int], wanted: Sequence[int]) -> Mapping[int, Floats]:
    """For the wanted nodes, the least cost at these prices of a choice with each strategy: exact.

    Nodes are eliminated in order; then what the rest of the problem adds to each one's tables comes back from the last
    to the first:

        outside_child = min over whom its scope lacks of (all tables of its parent + outside_parent - what child left)
    """
    if sorted(order) != sorted(tables.names):
        raise InvalidSolution("an elimination does not have every node once")
    added, constant = priced(tables, prices)
    waiting: dict[int, list[tuple[Scope, Floats]]] = {v: [] for v in order}
    rank = {v: i for i, v in enumerate(order)}
    for scope, table in tables.tables.items():
        first = min(scope, key=lambda v: rank[v])
        waiting[first].append((scope, table + added.get(first, 0.0) if len(scope) == 1 else table))
    left: dict[int, tuple[Scope, Floats]] = {}
    total = [constant, *tables.constants]
    for v in order:
        scope = tuple(sorted({u for part, _ in waiting[v] for u in part} - {v}))
        table = _least(tables, v, scope, waiting[v])
        left[v] = (scope, table)
        if scope:
            waiting[min(scope, key=lambda u: rank[u])].append((scope, table))
        else:
            total.append(float(table))
    if math.isinf(bound := math.fsum(total)):
        return {v: np.full(tables.count(v), np.inf) for v in wanted}
    error = rounding([constant, *(float(cost.max()) for cost in added.values())], len(order))
    return _back(tables, order, waiting, left, bound - error, wanted)


def _least(tables: Tables, v: int, scope: Scope, parts: list[tuple[Scope, Floats]]) -> Floats:
    places = tuple(tuple(-1 if u == v else scope.index(u) for u in part) for part, _ in parts)
    return tables.once(least, tuple(tables.count(u) for u in scope), places, *(table for _, table in parts))


def _back(
    tables: Tables,
    order: Sequence[int],
    parts: Mapping[int, list[tuple[Scope, Floats]]],
    left: Mapping[int, tuple[Scope, Floats]],
    total: float,
    wanted: Sequence[int],
) -> dict[int, Floats]:
    """The marginals of the wanted nodes. A node's parent is the first of its scope to be eliminated."""
    rank = {v: i for i, v in enumerate(order)}
    children: dict[int, list[int]] = {}
    needed = set(wanted)
    for v in order:
        scope, _ = left[v]
        if v in needed and scope:
            parent = min(scope, key=lambda u: rank[u])
            children.setdefault(parent, []).append(v)
            needed.add(parent)
    outside: dict[int, Floats] = {}
    result: dict[int, Floats] = {}
    for v in (v for v in reversed(order) if v in needed):
        scope, mine = left[v]
        axes = (v, *scope)
        joint = np.zeros([tables.count(u) for u in axes])
        joint += outside.pop(v) if scope else total - float(mine)
        for part, table in parts[v]:
            joint += aligned(table, [axes.index(u) - 1 for u in part], len(axes))
        result[v] = joint.reshape(len(joint), -1).min(axis=1)
        for child in children.get(v, ()):
            outside[child] = _outside(axes, joint, *left[child])
    return {v: result[v] for v in wanted}


def _outside(axes: Scope, joint: Floats, scope: Scope, left: Floats) -> Floats:
    """What a child's scope costs without what the child left on it; anything where that is infinite."""
    best = joint.min(axis=tuple(i for i, u in enumerate(axes) if u not in scope))
    here = [u for u in axes if u in scope]
    best = best.transpose([here.index(u) for u in scope])
    finite = np.isfinite(left)
    return np.where(finite, best - np.where(finite, left, 0.0), 0.0)
