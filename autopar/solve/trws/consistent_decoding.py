"""Consistent decoding: a choice without forbidden entries, decoded as messages say.

Plain decoding (`kernels.decode`) looks back only: a node takes what is cheapest beside the lower ones, and two of these
may have left it nothing that is allowed. Where many entries are forbidden, as where operators may be absent, hardly a
choice comes of it. Here what a strategy forbids is told on at once: every node keeps those open that some open strategy
of each neighbour allows, and what would leave any node none is not taken.

D. Sabin and E. C. Freuder, "Contradicting conventional wisdom in constraint satisfaction", ECAI 1994 (maintaining arc
consistency). Differs: no strategy of a lower node is taken back.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autopar._jit import compiled, compiled_inner
from autopar.solve.problem.problem import Floats
from autopar.solve.problem.reduction import Bools, Ints
from autopar.solve.trws.arrays import Flat
from autopar.solve.trws.kernels import add_lower


class Open(NamedTuple):
    """Which strategies are open, and those `closed`, in order: so many first ones as its users say.

    waiting: a ring of the nodes whose neighbours are still to be told; is_waiting: whether each is in it. rows and
    columns: room for the classes of one arc.
    """

    is_open: Bools
    closed: Ints
    waiting: Ints
    is_waiting: Bools
    rows: Bools
    columns: Bools


@compiled
def decode_allowed(p: Flat, nodes: Floats, messages: Floats, choice: Ints) -> bool:
    """As `kernels.decode`, of what is open; whether there was something for every node."""
    total = np.empty(p.widest)
    count = len(p.start) - 1
    o = Open(
        np.ones(len(p.cost), dtype=np.bool_),
        np.empty(len(p.cost), dtype=np.intp),
        np.arange(count),
        np.ones(count, dtype=np.bool_),
        np.empty(p.widest, dtype=np.bool_),
        np.empty(p.widest, dtype=np.bool_),
    )
    ended, fits = told(p, -1, o, count, 0)
    for v in range(count if fits else 0):
        add_lower(p, v, nodes, messages, choice, total)
        while True:
            best = cheapest(p, v, total, o)
            if best < 0:
                return False
            since = ended
            ended, fits = taken(p, v, best, o, ended)
            if fits:
                break
            while ended > since:
                ended -= 1
                o.is_open[o.closed[ended]] = True
            o.is_open[p.start[v] + best] = False
            o.closed[ended] = p.start[v] + best
            ended += 1
        choice[v] = best

    return fits


@compiled_inner
def cheapest(p: Flat, v: int, total: Floats, o: Open) -> int:
    """The open strategy of v that costs the least in `total`; -1 if none is open."""
    best = -1
    for t in range(p.start[v + 1] - p.start[v]):
        if o.is_open[p.start[v] + t] and (best < 0 or total[t] < total[best]):
            best = t
    return best


@compiled_inner
def taken(p: Flat, v: int, s: int, o: Open, ended: int) -> tuple[int, bool]:
    """Closes all other strategies of v, and of the higher nodes what that forbids: returns as `told`."""
    for t in range(p.start[v], p.start[v + 1]):
        if o.is_open[t] and t != p.start[v] + s:
            o.is_open[t] = False
            o.closed[ended] = t
            ended += 1
    o.waiting[0] = v
    o.is_waiting[v] = True
    return told(p, v, o, 1, ended)


@compiled_inner
def told(p: Flat, v: int, o: Open, count: int, ended: int) -> tuple[int, bool]:
    """Closes what the first `count` nodes that wait forbid those above v, and so on, until one has nothing left.

    Returns how many strategies are closed then, and whether each node has one left. What lower nodes took is supported
    by all that is open, so they need not be told.
    """
    first = 0
    fits = True
    while count:
        u = o.waiting[first]
        first = (first + 1) % len(o.waiting)
        count = count - 1
        o.is_waiting[u] = False
        for k in range(p.near[u], p.near[u + 1]):
            w = p.other[k]
            if w <= v or not fits:
                continue
            before = ended
            ended, fits = narrowed(p, p.back[k], w, o, ended)
            if ended > before and not o.is_waiting[w]:
                o.waiting[(first + count) % len(o.waiting)] = w
                o.is_waiting[w] = True
                count += 1

    return ended, fits


@compiled_inner
def narrowed(p: Flat, k: int, w: int, o: Open, ended: int) -> tuple[int, bool]:
    """Closes the strategies of w that no open one at the other end of arc k, which goes into w, allows.

    Returns as `taken`, of w alone.
    """
    u = p.other[k]
    tall = p.tall[k]
    wide = p.wide[k]
    rows = o.rows[:tall]
    columns = o.columns[:wide]
    allowed = 0
    rows[:] = False
    columns[:] = False
    for s in range(p.start[u + 1] - p.start[u]):
        row = p.class_of[p.rows_at[k] + s]
        if not o.is_open[p.start[u] + s] or rows[row]:
            continue
        rows[row] = True
        base = p.thin[k] + row * wide
        for c in range(wide):
            if not columns[c] and np.isfinite(p.pool[base + c]):
                columns[c] = True
                allowed += 1
        if allowed == wide:
            return ended, True

    fits = False
    for t in range(p.start[w + 1] - p.start[w]):
        if not o.is_open[p.start[w] + t]:
            continue
        if columns[p.class_of[p.columns_at[k] + t]]:
            fits = True
        else:
            o.is_open[p.start[w] + t] = False
            o.closed[ended] = p.start[w] + t
            ended += 1

    return ended, fits
