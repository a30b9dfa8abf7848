"""The conditions under which strategies and nodes may go: arc consistency, dominance, following. For `check`."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from autopar.solve.certificate.tables import Floats, Ints, Scope, Tables
from autopar.solve.problem.problem import InvalidSolution

Bools = NDArray[np.bool_]

_SAME_BYTES = 1e-12
_MORE_BYTES = 1 + 1e-12


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
        (first, last, np.sum(sizes, axis=0)) for first, last, sizes in zip(ends, ends[1:], live, strict=False) if sizes
    ]


def replacing_costs(tables: Tables, v: int, a: Ints, b: Ints) -> Floats:
    """How much dearer a choice can be with strategy a of v than with b; -inf where none with b is finite."""
    excess = np.zeros(len(a))
    for scope in tables.around(v):
        table = tables.tables[scope]
        rows = table[:, None] if len(scope) == 1 else tables.beside(v, scope)
        excess = excess + tables.once(_worst, rows, a, b) if len(scope) < 3 else np.full(len(a), np.inf)
    return np.where(np.isnan(excess), np.inf, excess)


def _worst(rows: Floats, a: Ints, b: Ints) -> Floats:
    """Max over t of rows[a, t] - rows[b, t], among the t where row b is finite."""
    replaced = np.isfinite(rows[b])
    return np.where(replaced, rows[a] - np.where(replaced, rows[b], 0.0), -math.inf).max(axis=1)


def check_bytes(tables: Tables, v: int, a: Ints, b: Ints) -> None:
    """Raises if a strategy of `a` uses more at some time than the one of `b` that it replaces."""
    usages = tables.usages[v]
    for time in {end for start, stop, _ in usages for end in (start, stop)}:
        used = sum((size for start, stop, size in usages if start <= time < stop), start=np.zeros(tables.count(v)))
        if (used[a] > used[b] * (1 + _SAME_BYTES)).any():
            raise InvalidSolution(f"node {v}: a strategy goes whose replacement uses more memory at time {time}")


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
