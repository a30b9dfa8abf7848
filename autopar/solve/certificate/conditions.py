"""The conditions under which strategies and nodes may go: arc consistency, dominance, following, cost. For `check`.

What a choice with a given strategy costs at least comes from prices and messages:

    cost(choice)  >=  cost(choice) + sum over times of price * (use - limit)

for all choices within the limit and all prices >= 0.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from autopar.solve.certificate.proof import Messages, Prices
from autopar.solve.certificate.tables import Floats, Ints, Scope, Tables
from autopar.solve.problem.problem import InvalidSolution

Bools = NDArray[np.bool_]

_SAME_BYTES = 1e-12  # of the bytes: sums of a node's usages differ by their rounding
_MORE_BYTES = 1 + 1e-12  # times the limit: what exceeds it by less may be rounding


def consistent(tables: Tables) -> dict[int, Bools]:
    """The strategies that are finite and have, on every edge, a finite entry with one of these."""
    alive = {v: np.isfinite(tables.tables[v,]) for v in tables.names}
    finite: dict[Scope, Bools] = {
        s: tables.once(np.isfinite, table) for s, table in tables.tables.items() if len(s) == 2
    }
    partial = {scope for scope, mask in finite.items() if not tables.once(np.all, mask)}
    waiting = set(partial)
    while waiting:
        u, v = scope = waiting.pop()
        mask = finite[scope]
        for w, supported in ((u, mask[:, alive[v]].any(axis=1)), (v, mask[alive[u]].any(axis=0))):
            if (alive[w] & ~supported).any():
                alive[w] = alive[w] & supported
                waiting |= tables.near[w] & partial

    return alive


def overflowing(tables: Tables) -> dict[int, Bools]:
    """The strategies whose bytes exceed the limit at some time, those of all other nodes being the least there."""
    if tables.limit is None:
        raise InvalidSolution("nothing exceeds a limit that is not there")
    sizes = {v: _over_time(tables.usages[v]) for v in tables.names}
    least = np.zeros(max((stop for parts in sizes.values() for _, stop, _ in parts), default=0))
    for start, stop, size in (part for parts in sizes.values() for part in parts):
        least[start:stop] += size.min()
    result = {v: np.zeros(tables.count(v), dtype=bool) for v in tables.names}
    for v, parts in sizes.items():
        for start, stop, size in parts:
            result[v] |= least[start:stop].max() + (size - size.min()) > tables.limit * _MORE_BYTES
    return result


def _over_time(parts: list[tuple[int, int, Floats]]) -> list[tuple[int, int, Floats]]:
    """A node's bytes from each of its usages' ends to the next."""
    ends = sorted({end for start, stop, _ in parts for end in (start, stop)})
    live = [[size for start, stop, size in parts if start <= first < stop] for first in ends[:-1]]
    return [
        (first, last, np.sum(sizes, axis=0))
        for first, last, sizes in zip(ends, ends[1:], live, strict=False)
        if sizes
    ]


def replacing_costs(tables: Tables, v: int, a: Ints, b: Ints) -> Floats:
    """How much dearer a choice can be with strategy a of v than with b; -inf where none with b is finite."""
    excess = np.zeros(len(a))
    for scope in tables.around(v):
        table = tables.tables[scope]
        rows = table[:, None] if len(scope) == 1 else tables.beside(v, scope)
        excess = (
            excess + tables.once(_worst, rows, a, b) if len(scope) < 3 else np.full(len(a), np.inf)
        )
    return np.where(np.isnan(excess), np.inf, excess)


def _worst(rows: Floats, a: Ints, b: Ints) -> Floats:
    """Max over t of rows[a, t] - rows[b, t], among the t where row b is finite."""
    replaced = np.isfinite(rows[b])
    return np.where(replaced, rows[a] - np.where(replaced, rows[b], 0.0), -math.inf).max(axis=1)


def check_bytes(tables: Tables, v: int, a: Ints, b: Ints) -> None:
    """Raises if a strategy of `a` uses more at some time than the one of `b` that it replaces."""
    usages = tables.usages[v]
    for time in {end for start, stop, _ in usages for end in (start, stop)}:
        used = sum(
            (size for start, stop, size in usages if start <= time < stop),
            start=np.zeros(tables.count(v)),
        )
        if (used[a] > used[b] * (1 + _SAME_BYTES)).any():
            raise InvalidSolution(
                f"node {v}: a strategy goes whose replacement uses more memory at time {time}"
            )


def decides(rows: Floats, to_v: Ints) -> bool:
    """Whether no row is finite elsewhere than at to_v[row]."""
    others = np.isfinite(rows)
    others[np.arange(len(rows)), to_v] = False
    return not others.any()


def taken(rows: Floats, to_v: Ints) -> Floats:
    """The entry of every row at to_v[row]."""
    return rows[np.arange(len(rows)), to_v]


def folded(table: Floats) -> tuple[Floats, Floats]:
    """The row minima, and the column minima of the rest."""
    rows = table.min(axis=1)
    return rows, (table - np.where(np.isfinite(rows), rows, 0.0)[:, None]).min(axis=0)


_LARGEST = 1e100  # of prices and messages: sums of them do not overflow


def priced(tables: Tables, prices: Prices) -> tuple[dict[int, Floats], float]:
    """The prices of the bytes of every node that has any, and the constant: less price * limit."""
    times = prices.times
    values = prices.values
    if not len(times):
        return {}, 0.0

    if (
        tables.limit is None
        or len(times) != len(values)
        or not ((values >= 0) & (values < _LARGEST)).all()
    ):
        raise InvalidSolution(
            "prices: negative, infinite, not one for each time, or for a limit that is not there"
        )

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
        u = tables.name(i)
        v = tables.name(j)
        scope, pair = ((u, v), (to_i, to_j)) if u < v else ((v, u), (to_j, to_i))
        if (
            scope not in tables.tables
            or tables.tables[scope].shape != pair[0].shape + pair[1].shape
        ):
            raise InvalidSolution(
                f"messages of edge {scope}, which is not there or of another shape"
            )
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


def by_messages(
    tables: Tables, prices: Prices, messages: Messages
) -> tuple[dict[int, Floats], float]:
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

    error = rounding_of(sent) + rounding(
        [constant, *(float(cost.max()) for cost in added.values())], 4
    )
    bound = math.fsum(lows) - error
    return {v: bound + excess for v, excess in beyond.items()}, bound


def of_pairs(table: Floats, beyond_u: Floats, beyond_v: Floats) -> Floats:
    """What pairs of strategies cost beyond the bound, at least, given what each alone does and the table of both."""
    over = table - table.min()
    return over + (beyond_u - over.min(axis=1))[:, None] + (beyond_v - over.min(axis=0))
