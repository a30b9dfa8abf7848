"""Replays a proof on the problem it is about, and says which lower bound it proves. Shares no code with the search.

Nothing in a proof is taken on trust but what it says is only stated. A step either cannot raise the optimum of the
choices that are left, whatever its arrays hold, or its condition is checked. What it loses to rounding is taken off the
bound, and so is the excess of a strategy over the one it replaces. Strategies that go for being dear cap the bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autopar.solve.certificate.conditions import (
    by_messages,
    check_bytes,
    consistent,
    decides,
    folded,
    moved,
    of_pairs,
    overflowing,
    priced,
    replacing_costs,
    rounding,
    rounding_of,
    taken,
)
from autopar.solve.certificate.exhaust import none_below
from autopar.solve.certificate.proof import (
    Bar,
    Cases,
    Dominate,
    Eliminate,
    Exceed,
    Exhaust,
    Fold,
    Follow,
    Forbid,
    Join,
    Kept,
    Look,
    Messages,
    Overflow,
    Pass,
    Price,
    Prices,
    Proof,
    Unlimit,
)
from autopar.solve.certificate.tables import Floats, Ints, Scope, Tables
from autopar.solve.problem.problem import InvalidSolution, Problem

Bools = NDArray[np.bool_]

_NO_TIMES = np.zeros(0, dtype=np.intp)
_UNMOVED = Messages(np.zeros((0, 2), dtype=np.intp), ())
_ROUNDING = 1e-9  # of a bound that is searched for again


@dataclass(frozen=True)
class Proven:
    """A lower bound, the searches whose word it rests on, and those that were done anew; none where none are needed."""

    bound: float
    stated_by: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()


def proven(problem: Problem, proof: Proof, search_work: float = 0.0) -> Proven:
    """The lower bound that a proof proves: of every choice within the limit; inf if there is none.

    What a search only stated is searched through again by CP-SAT, with a model of its own, for `search_work` of its
    deterministic seconds (roughly seconds) at most; 0: not at all.

    Sums are of 64-bit floats: the bound is right up to their rounding. Where one strategy replaces another, or a node
    follows another, bytes are compared to 1e-12, relative.

    Raises:
      InvalidSolution: if a step's condition does not hold, with the step.
    """
    with np.errstate(invalid="ignore"):  # inf - inf, where every choice costs infinity
        return _replayed(_Replay(Tables(problem), search_work), proof)


def _replayed(replay: _Replay, proof: Proof) -> Proven:
    for number, step in enumerate(proof):
        if not replay.tables.live:
            break
        try:
            _RULES[type(step)](replay, step)
        except (ValueError, IndexError, KeyError) as error:
            raise InvalidSolution(
                f"step {number} of the proof, {type(step).__name__}: {error!s}"
            ) from error
    return replay.proven()


class _Replay:
    """The problem as far as the steps have taken it, and what they lost."""

    def __init__(self, tables: Tables, search_work: float) -> None:
        self.tables = tables
        self.search_work = search_work
        self.lost: list[float] = []
        self.cap = math.inf
        self.stated_bound = -math.inf
        self.stated: tuple[str, ...] = ()
        self.repeated: tuple[str, ...] = ()

    def copy(self) -> _Replay:
        """The same problem, with nothing lost, capped or stated."""
        return _Replay(self.tables.copy(), self.search_work)

    def proven(self) -> Proven:
        """What is proven of the first problem."""
        checked = min(self.tables.bound(), self.cap)
        bound = max(checked, min(self.stated_bound, self.cap))
        lost = math.fsum(self.lost)
        words = (self.stated, self.repeated) if bound > checked else ()
        return Proven(bound - lost if math.isfinite(lost) else -math.inf, *words)

    def restrict(self, keep: Kept) -> None:
        """Only the strategies that stay are left."""
        for i, ids in keep.items():
            if ids.ndim != 1 or ids.dtype != np.intp:
                raise InvalidSolution(
                    f"strategies that stay are not a list of indices: {ids.dtype}{ids.shape}"
                )
            self.tables.keep(self.tables.name(i), ids)

    def dropped(self, keep: Kept) -> dict[int, Bools]:
        """Which strategies go, by node."""
        result: dict[int, Bools] = {}
        for i, ids in keep.items():
            v = self.tables.name(i)
            result[v] = np.ones(self.tables.count(v), dtype=bool)
            result[v][ids] = False
        return result

    def lower_cap(self, keep: Kept, least: Mapping[int, Floats]) -> None:
        """No choice with a strategy that goes costs less than the cap."""
        for v, gone in self.dropped(keep).items():
            self.cap = min(self.cap, float(least[v][gone].min(initial=math.inf)))


def _forbid(replay: _Replay, step: Forbid) -> None:
    alive = consistent(replay.tables)
    for v, gone in replay.dropped(step.keep).items():
        if (gone & alive[v]).any():
            raise InvalidSolution(
                f"node {v}: a strategy goes that arc consistency does not rule out"
            )
    replay.restrict(step.keep)


def _overflow(replay: _Replay, step: Overflow) -> None:
    over = overflowing(replay.tables)
    for v, gone in replay.dropped(step.keep).items():
        if (gone & ~over[v]).any():
            raise InvalidSolution(f"node {v}: a strategy goes that keeps within the limit")
    replay.restrict(step.keep)


def _dominate(replay: _Replay, step: Dominate) -> None:
    tables = replay.tables
    left: dict[int, Ints] = {}
    for i, pairs in step.pairs.items():
        v = tables.name(i)
        gone = np.zeros(tables.count(v), dtype=bool)
        for b, a in pairs.tolist():
            if min(a, b) < 0 or a == b or gone[a]:
                raise InvalidSolution(
                    f"node {v}: strategy {b} is replaced by {a}, which is gone or none"
                )
            gone[b] = True
        excess = replacing_costs(tables, v, pairs[:, 1], pairs[:, 0])
        replay.lost.append(float(np.maximum(excess, 0.0).sum()))
        if tables.limit is not None:
            check_bytes(tables, v, pairs[:, 1], pairs[:, 0])
        left[i] = np.flatnonzero(~gone)

    replay.restrict(left)


def _exceed(replay: _Replay, step: Exceed) -> None:
    if step.without:
        least = _least_without(replay.copy(), step)
    else:
        least, _ = by_messages(replay.tables, step.prices, step.messages)
    replay.lower_cap(step.keep, least)
    replay.restrict(step.keep)


def _least_without(replay: _Replay, step: Exceed) -> dict[int, Floats]:
    """What a choice with each strategy of the nodes that are not eliminated costs at least."""
    _price(replay, Price(step.prices))
    _eliminate(replay, Eliminate(step.without))
    least, _ = by_messages(replay.tables, Prices(_NO_TIMES, np.zeros(0)), step.messages)
    return {v: costs - math.fsum(replay.lost) for v, costs in least.items()}


def _bar(replay: _Replay, step: Bar) -> None:
    tables = replay.tables
    before = replay.tables.copy()  # pairs may also go as those of an edge (j, i)
    least, bound = by_messages(before, step.prices, _UNMOVED)

    for (i, j), bits in step.pairs.items():
        u = tables.name(i)
        v = tables.name(j)
        scope = min(u, v), max(u, v)
        table = before.beside(u, scope)
        if len(bits) != (table.size + 7) // 8:
            raise InvalidSolution(
                f"edge ({i}, {j}): {len(bits)} bytes of bits for {table.size} pairs"
            )
        gone = np.unpackbits(bits, count=table.size).reshape(table.shape).astype(
            bool
        ) & np.isfinite(table)
        if math.isfinite(bound):
            dear = of_pairs(table, least[u] - bound, least[v] - bound)[gone]
            replay.cap = min(replay.cap, bound + float(dear.min(initial=math.inf)))
        left = np.where(gone if u < v else gone.T, np.inf, tables.tables[scope])
        tables.tables[scope] = np.ascontiguousarray(left)


def _exhaust(replay: _Replay, step: Exhaust) -> None:
    if math.isnan(step.beyond):
        raise InvalidSolution("what is stated is not a number")

    least, bound = by_messages(replay.tables, step.prices, step.messages)
    replay.lower_cap(step.keep, least)
    _pass(replay, Pass(step.messages))
    replay.restrict(step.keep)
    stated = bound + step.beyond
    replay.stated_bound = max(replay.stated_bound, stated)
    most = stated - _ROUNDING * abs(stated) if math.isfinite(stated) else stated
    if _is_repeated(replay, step, most):
        replay.repeated += (step.by,)
    else:
        replay.stated += (step.by,)


def _is_repeated(replay: _Replay, step: Exhaust, most: float) -> bool:
    """Whether another search, of what is left, finds nothing that costs as little as `most` either."""
    work = replay.search_work
    times = step.prices.times.tolist()
    return work > 0 and (not replay.tables.live or none_below(replay.tables, most, times, work))


def _follow(replay: _Replay, step: Follow) -> None:
    tables = replay.tables
    for i, j, to_v in step.followers:
        v = tables.name(i)
        u = tables.name(j)
        edge = (min(u, v), max(u, v))
        rows = tables.beside(u, edge)
        if len(to_v) != len(rows) or not tables.once(decides, rows, to_v):
            raise InvalidSolution(
                f"node {v} has a finite cost beside node {u} that it does not follow"
            )
        for scope in tables.around(v):
            table = tables.pop(scope)
            if scope == edge:
                tables.add((u,), tables.once(taken, rows, to_v))
                continue
            if u in scope:
                raise InvalidSolution(
                    "a table of more than two nodes is left: nodes can only be eliminated"
                )
            table = tables.once(np.take, table, to_v, scope.index(v))
            tables.add(tuple(u if w == v else w for w in scope), table)
        tables.usages[u] += [(start, stop, size[to_v]) for start, stop, size in tables.usages[v]]

    tables.forget([tables.name(i) for i, _, _ in step.followers])


def _join(replay: _Replay, step: Join) -> None:
    tables = replay.tables
    for i, j, s, t in step.pairs:
        u = tables.name(i)
        v = tables.name(j)
        rows = tables.beside(u, (min(u, v), max(u, v)))
        if not s.ndim == t.ndim == 1 or len(s) != len(t):
            raise InvalidSolution(
                f"nodes {u} and {v} are joined by what are not two lists as long: {s.shape}, {t.shape}"
            )
        left = np.isfinite(rows)
        left[s, t] = False
        if left.any():
            raise InvalidSolution(f"nodes {u} and {v} are joined without a pair that is allowed")
        tables.pop((min(u, v), max(u, v)))
        if any(u in scope for scope in tables.around(v)):
            raise InvalidSolution(
                "a table of more than two nodes is left: nodes can only be eliminated"
            )
        tables.keep(u, s)
        tables.add((u,), rows[s, t])
        for scope in tables.around(v):
            tables.add(
                tuple(u if w == v else w for w in scope),
                np.take(tables.pop(scope), t, scope.index(v)),
            )
        tables.usages[u] += [(start, stop, size[t]) for start, stop, size in tables.usages[v]]

    tables.forget([tables.name(j) for _, j, _, _ in step.pairs])


def _fold(replay: _Replay, step: Fold) -> None:
    tables = replay.tables
    for i, j in step.edges:
        u, v = sorted((tables.name(i), tables.name(j)))
        to_u, to_v = tables.once(folded, tables.pop((u, v)))
        tables.add((u,), to_u)
        tables.add((v,), to_v)


def _eliminate(replay: _Replay, step: Eliminate) -> None:
    nodes = [replay.tables.name(i) for i in step.nodes]
    for v in nodes:
        replay.tables.eliminate(v)
    replay.tables.forget(nodes)


def _unlimit(replay: _Replay, _: Unlimit) -> None:
    replay.tables.take_limit()


def _look(replay: _Replay, step: Look) -> None:
    if (np.diff(step.times) <= 0).any():
        raise InvalidSolution("times are not ascending")
    for v in replay.tables.names:
        seen: list[tuple[int, int, Floats]] = []
        for start, stop, size in replay.tables.usages[v]:
            first, last = (int(np.searchsorted(step.times, end)) for end in (start, stop))
            seen += [(first, last, size)] if first < last else []
        replay.tables.usages[v] = seen


def _price(replay: _Replay, step: Price) -> None:
    added, constant = priced(replay.tables, step.prices)
    for v, cost in added.items():
        replay.tables.add((v,), cost)
    replay.tables.constants.append(constant)
    replay.lost.append(rounding([constant, *(float(cost.max()) for cost in added.values())], 4))
    replay.tables.take_limit()


def _pass(replay: _Replay, step: Pass) -> None:
    tables: dict[Scope, Floats] = replay.tables.tables
    sent = moved(replay.tables, step.messages)
    replay.lost.append(rounding_of(sent))
    for (u, v), (to_u, to_v) in sent.items():
        tables[u,] = tables[u,] + to_u
        tables[v,] = tables[v,] + to_v
        tables[u, v] = tables[u, v] - to_u[:, None] - to_v


def _cases(replay: _Replay, step: Cases) -> None:
    v = replay.tables.name(step.node)
    left = np.ones(replay.tables.count(v), dtype=bool)
    low = math.inf
    for ids, proof in step.cases:
        left[ids] = False
        case = replay.copy()
        case.restrict({step.node: ids})
        found = _replayed(case, proof)
        low = min(low, found.bound)
        replay.stated += found.stated_by
        replay.repeated += found.repeated

    if left.any():
        raise InvalidSolution(
            f"node {v}: strategies {np.flatnonzero(left).tolist()} are in no case"
        )

    replay.stated_bound = max(replay.stated_bound, low)


_RULES: dict[type, Callable[[_Replay, Any], None]] = {
    Forbid: _forbid,
    Overflow: _overflow,
    Dominate: _dominate,
    Exceed: _exceed,
    Bar: _bar,
    Exhaust: _exhaust,
    Follow: _follow,
    Join: _join,
    Fold: _fold,
    Eliminate: _eliminate,
    Unlimit: _unlimit,
    Look: _look,
    Price: _price,
    Pass: _pass,
    Cases: _cases,
}
