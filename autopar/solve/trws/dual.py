"""A lower bound by message passing (TRW-S as a reparametrisation), with prices on memory rows.

    cost'_v = cost_v + prices on v's bytes + sum over edges e of m_e,v        cost'_uv = cost_uv - m_uv,u - m_uv,v
    bound = sum over v of min cost'_v + sum over edges of min cost'_uv - sum over rows of price * limit

Every choice costs the same under cost' as before, so any messages and any prices >= 0 prove a bound. `certificate`
computes it from the messages alone. In a sweep, a node collects the row minima of its edges to earlier nodes and hands
equal shares to its edges to later nodes; then the same backwards. No step of a sweep lowers the bound.

Over large matrices the first passes are in single precision (`Single`): half the bytes, which they wait for. They end
where the bound hardly rises; what their messages prove is computed in double precision, after one such pass.

V. Kolmogorov, "Convergent tree-reweighted message passing for energy minimization", PAMI 28 (2006).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar, overload

import numpy as np

from autopar.solve.certificate.proof import Exceed, Messages, Pass, Price, Prices, Proof
from autopar.solve.problem.problem import Floats, Problem
from autopar.solve.problem.reduction import Bools, Ints
from autopar.solve.problem.rows import Rows
from autopar.solve.trws.acceleration import Momentum
from autopar.solve.trws.arrays import (
    Flat,
    Pool,
    entries_read,
    flatten,
    per_edge,
    sweep_order,
    with_messages,
)
from autopar.solve.trws.consistent_decoding import decode_allowed
from autopar.solve.trws.kernels import (
    NOTHING,
    add_prices,
    bound_after,
    bound_of,
    decode,
    reparametrise,
    sweep,
    use_of,
)

_MOST_MOMENTUM = 0.9  # of the way of the last sweep, at most


T = TypeVar("T")


class Late(Sequence[T]):
    """What `make` gives, which is called when it is first looked at: of most certificates only the bound is."""

    def __init__(self, make: Callable[[], Sequence[T]]) -> None:
        self._make = make

    @cached_property
    def _all(self) -> Sequence[T]:
        return self._make()

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...

    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        return self._all[index]

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[T]:
        return iter(self._all)


@dataclass(frozen=True, eq=False)
class Certificate:
    """Messages and prices, and the bound that they prove.

    `excess[v][s]` is what a choice with strategy s at node v costs above the bound, at least.
    """

    problem: Problem
    rows: Rows
    messages: Sequence[tuple[Floats, Floats]]
    prices: Floats
    bound: float
    node_costs: Sequence[Floats]
    excess: Sequence[Floats]

    def edge_costs(self) -> Iterator[Floats]:
        """Cost' of every edge less its minimum: >= 0."""
        for edge, (to_u, to_v) in zip(self.problem.edges, self.messages, strict=True):
            cost = edge.cost - to_u[:, None] - to_v
            yield cost - cost.min()

    def parts(self) -> tuple[Prices, Messages]:
        """The prices by time and the messages by edge."""
        return self.rows.at_times(self.prices), Messages(self.problem.ends, self.messages)

    def proof(self) -> Proof:
        """Of the bound."""
        prices, messages = self.parts()
        return (Price(prices), Pass(messages)) if len(prices.times) else (Pass(messages),)

    def exceed(self, left: Mapping[int, Ints]) -> Exceed:
        """The step of a proof that leaves these strategies, those within a window of the bound."""
        return Exceed(left, *self.parts())

    def keep(self, window: float) -> list[Bools]:
        """The strategies that can be part of a choice within `window` of the bound, up to rounding.

        Those of which nothing is known, as they have no finite partner (NaN), stay.
        """
        tolerance = rounding_error(self)
        return [~(excess > window + tolerance) for excess in self.excess]


def rounding_error(certificate: Certificate) -> float:
    """More than the rounding error of the certificate's sums."""
    scale = sum(float(np.abs(cost).max()) for cost in certificate.node_costs)
    return 1e-12 * (
        scale
        + abs(certificate.bound)
        + float(certificate.prices.sum()) * _finite(certificate.rows.limit)
    )


def _finite(limit: float) -> float:
    return limit if np.isfinite(limit) else 0.0


@dataclass(frozen=True, eq=False)
class State:
    """The messages of a moment, the prices, and their bound."""

    messages: Floats
    prices: Floats
    bound: float


class Dual:
    """Messages that improve by sweeps, and prices that may be set at any time.

    To sweep, costs of nodes must be finite, and every strategy have a finite partner on every edge (`drop_forbidden`):
    elsewhere bounds are NaN.

    `messages` are those to start from, as `state` gives them for a problem of the same edges and strategies; `pool` is
    that of a dual of a problem with much the same matrices. While
    `eager` is set, nodes hand on all their costs in a sweep, and keep nothing for the way back: news travels further,
    and on training steps half as many sweeps are enough. Elsewhere the bound may stall earlier.

    While `is_accelerated` is set, messages go on as they went before each sweep (`momentum`): a fourth of the sweeps
    is enough on training steps. The bound may fall then; who finds that it does goes back to the best (`restore`).
    """

    eager = False
    is_accelerated = False

    def __init__(
        self, problem: Problem, rows: Rows, messages: Floats | None = None, pool: Pool | None = None
    ) -> None:
        self.order = sweep_order(problem)
        self.pool = pool or Pool()
        self.rank = np.argsort(self.order)
        self.problem, self.rows, self.flat = (
            problem,
            rows,
            flatten(problem, rows, self.order, self.pool),
        )
        self.prices = np.zeros(rows.count)
        self.messages = np.zeros(self.flat.size) if messages is None else messages.copy()
        self.nodes = (
            self.flat.cost.copy() if messages is None else with_messages(self.flat, messages)
        )

        self._momentum: Momentum | None = None

    @cached_property
    def flat_in_single(self) -> Flat:
        """`flat` with matrices in single precision."""
        return self.flat._replace(pool=self.flat.pool.astype(np.float32))

    def in_single(self) -> Dual:
        """The same in single precision, to sweep: half the bytes. What its messages prove, a dual in double says."""
        single = copy(self)
        single.flat = self.flat_in_single
        single.restore(State(self.messages, self.prices, -np.inf))
        return single

    def start_from(self, messages: Floats) -> None:
        """Takes these messages, as `state` gives them, in place of its own; prices stay."""
        self.restore(State(messages, self.prices, -np.inf))

    def set_prices(self, prices: Floats) -> None:
        """Changes the node costs by the change of the prices of their bytes."""
        add_prices(self.flat, prices - self.prices, self.nodes)
        self.prices = prices

    def sweep(self) -> None:
        """Upwards and downwards once."""
        if self.is_accelerated:
            self._momentum = self._momentum or Momentum(self, _MOST_MOMENTUM)
            self._momentum.go_on(self, with_prices=False)
            self._momentum.rises()
        sweep(self.flat, self.eager, self.nodes, self.messages, NOTHING)

    def state(self) -> State:
        """The messages and prices, with the bound they prove up to rounding."""
        limit = float(self.prices.sum()) * self.rows.limit if self.rows.count else 0.0
        bound = bound_of(self.flat, self.nodes, self.messages) - limit
        return State(self.messages.copy(), self.prices, bound)

    def swept(self) -> State:
        """As `state`, right after a sweep: the least cost' of every edge is 0 then, which saves half a sweep."""
        limit = float(self.prices.sum()) * self.rows.limit if self.rows.count else 0.0
        return State(self.messages.copy(), self.prices, bound_after(self.flat, self.nodes) - limit)

    def restore(self, state: State) -> None:
        """Goes back to the messages and prices of an earlier moment."""
        kind = self.flat.pool.dtype
        self.messages = state.messages.astype(kind)
        self.prices = state.prices
        self._momentum = None
        self.nodes = with_messages(self.flat, self.messages).astype(kind, copy=False)
        add_prices(self.flat, self.prices, self.nodes)

    def decode(self) -> Ints:
        """A choice, node by node: the cheapest given the lower ones and the bound of the higher."""
        choice = np.zeros(len(self.problem.node_costs), dtype=np.intp)
        decode(self.flat, self.nodes, self.messages, choice)
        return choice[self.rank]

    def decode_allowed(self) -> Ints | None:
        """As `decode`, but without forbidden entries; None where it meets no such choice."""
        choice = np.zeros(len(self.problem.node_costs), dtype=np.intp)
        return (
            choice[self.rank]
            if decode_allowed(self.flat, self.nodes, self.messages, choice)
            else None
        )

    def used(self, choice: Ints) -> Floats:
        """The bytes in use in every row."""
        used = np.zeros(self.rows.count)
        use_of(self.flat.memory, choice[self.order], used)
        return used

    def certificate(self, state: State) -> Certificate:
        """What the state proves, from its messages and prices alone."""
        flat = self.flat
        limit = float(state.prices.sum()) * self.rows.limit if self.rows.count else 0.0
        nodes = with_messages(flat, state.messages)
        excess = np.zeros(len(flat.cost))
        add_prices(flat, state.prices, nodes)
        bound = reparametrise(flat, nodes, state.messages, excess) - limit
        # a strategy has no finite partner: messages say nothing
        bound = -np.inf if np.isnan(bound) else bound
        messages = Late(lambda: per_edge(flat, state.messages))
        by_node = Late(lambda: self._by_node(nodes))
        over = Late(lambda: self._by_node(excess))
        return Certificate(self.problem, self.rows, messages, state.prices, bound, by_node, over)

    def _by_node(self, values: Floats) -> tuple[Floats, ...]:
        """The parts of a flat vector, for the problem's nodes in their own order."""
        ends: list[int] = self.flat.start.tolist()
        ranks: list[int] = self.rank.tolist()
        return tuple(values[ends[i] : ends[i + 1]] for i in ranks)


_LARGE = 4_000_000  # entries that a sweep reads: fewer stay near the processor
_SWEEPS_PER_CHECK = 5  # the bound of one sweep and the next differ by little
_HEAD_START = 5  # sweeps: from nothing messages go one way for long, and with more momentum sooner
_STALLED = 2e-4
_STALLED_OF_GAP = 0.02  # of the bound; of the gap, where it is known; per check


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
        held = dual.messages.copy()
        best = -np.inf
        for n in range(1, most + 1):
            bound = self.sweep()
            if meet is not None:
                meet(dual.decode())
            if n % _SWEEPS_PER_CHECK:
                continue
            last = best
            best = max(best, bound)
            held = dual.messages.copy() if bound > last else held
            little = (
                share * _STALLED * abs(best)
                if upper == np.inf
                else _STALLED_OF_GAP * max(0.0, upper - best)
            )
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
