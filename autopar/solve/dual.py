"""A lower bound by message passing (TRW-S as a reparametrisation), with prices on memory rows.

    cost'_v = cost_v + prices on v's bytes + sum over edges e of m_e,v        cost'_uv = cost_uv - m_uv,u - m_uv,v
    bound = sum over v of min cost'_v + sum over edges of min cost'_uv - sum over rows of price * limit

Every choice costs the same under cost' as before, so any messages and any prices >= 0 prove a bound. `certificate`
computes it from the messages alone. In a sweep, a node collects the row minima of its edges to earlier nodes and hands
equal shares to its edges to later nodes; then the same backwards. No step of a sweep lowers the bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from autopar.solve.problem import Floats, Problem
from autopar.solve.reduction import Bools
from autopar.solve.rows import Rows


@dataclass(frozen=True, eq=False)
class Certificate:
    """Messages and prices, and the bound that they prove.

    `excess[v][s]` is what a choice with strategy s at node v costs above the bound, at least.
    """

    problem: Problem
    rows: Rows
    messages: tuple[tuple[Floats, Floats], ...]
    prices: Floats
    bound: float
    node_costs: tuple[Floats, ...]
    excess: tuple[Floats, ...]

    def edge_costs(self) -> Iterator[Floats]:
        """Cost' of every edge less its minimum: >= 0."""
        for edge, (to_u, to_v) in zip(self.problem.edges, self.messages, strict=True):
            cost = edge.cost - to_u[:, None] - to_v
            yield cost - cost.min()

    def keep(self, window: float) -> list[Bools]:
        """The strategies that can be part of a choice within `window` of the bound, up to rounding."""
        tolerance = rounding_error(self)
        return [excess <= window + tolerance for excess in self.excess]


def rounding_error(certificate: Certificate) -> float:
    """More than the rounding error of the certificate's sums."""
    scale = sum(float(np.abs(cost).max()) for cost in certificate.node_costs)
    return 1e-12 * (scale + abs(certificate.bound) + float(certificate.prices.sum()) * _finite(certificate.rows.limit))


def _finite(limit: float) -> float:
    return limit if np.isfinite(limit) else 0.0


def certify(
    problem: Problem,
    rows: Rows,
    messages: list[tuple[Floats, Floats]] | tuple[tuple[Floats, Floats], ...],
    prices: Floats,
) -> Certificate:
    """The bound of the messages and prices, computed from scratch."""
    nodes = rows.priced(prices, problem.node_costs)
    nodes = [cost.copy() for cost in nodes]
    for edge, (to_u, to_v) in zip(problem.edges, messages, strict=True):
        nodes[edge.u] += to_u
        nodes[edge.v] += to_v
    least = [float(cost.min()) for cost in nodes]
    nodes = [cost - low for cost, low in zip(nodes, least, strict=True)]
    bound = sum(least) - (float(prices.sum()) * rows.limit if rows.count else 0.0)
    excess = [cost.copy() for cost in nodes]
    for edge, (to_u, to_v) in zip(problem.edges, messages, strict=True):
        cost = edge.cost - to_u[:, None] - to_v
        low = float(cost.min())
        bound += low
        excess[edge.u] += cost.min(axis=1) - low
        excess[edge.v] += cost.min(axis=0) - low
    return Certificate(problem, rows, tuple(messages), prices, bound, tuple(nodes), tuple(excess))


class Dual:
    """Messages that improve by sweeps, and prices that may be set at any time. Costs of nodes must be finite."""

    def __init__(self, problem: Problem, rows: Rows) -> None:
        self.problem, self.rows = problem, rows
        self.prices = np.zeros(rows.count)
        self.nodes = [cost.copy() for cost in problem.node_costs]
        self.ends = [edge.u if edge.u < edge.v else edge.v for edge in problem.edges]
        self.matrices = [edge.cost if edge.u < edge.v else edge.cost.T for edge in problem.edges]
        self.to_low = [np.zeros(len(cost)) for cost in self.matrices]
        self.to_high = [np.zeros(cost.shape[1]) for cost in self.matrices]
        self.later: list[list[int]] = [[] for _ in self.nodes]
        self.earlier: list[list[int]] = [[] for _ in self.nodes]
        for e, edge in enumerate(problem.edges):
            self.later[min(edge.u, edge.v)].append(e)
            self.earlier[max(edge.u, edge.v)].append(e)
        self.share = [1.0 / max(1, len(a), len(b)) for a, b in zip(self.earlier, self.later, strict=True)]

    def set_prices(self, prices: Floats) -> None:
        """Changes the node costs by the change of the prices of their bytes."""
        sums = np.concatenate([[0.0], np.cumsum(prices - self.prices)])
        for segment in self.rows.segments:
            change = sums[segment.high] - sums[segment.low]
            if change:
                self.nodes[segment.node] += change * segment.size_bytes
        self.prices = prices

    def sweep(self) -> None:
        """Forwards and backwards once."""
        for v in range(len(self.nodes)):
            for e in self.earlier[v]:
                gain = (self.matrices[e] - self.to_low[e][:, None]).min(axis=0) - self.to_high[e]
                self.nodes[v] += gain
                self.to_high[e] += gain
            self._hand_on(v, self.later[v], self.to_low)
        for v in reversed(range(len(self.nodes))):
            for e in self.later[v]:
                gain = (self.matrices[e] - self.to_high[e]).min(axis=1) - self.to_low[e]
                self.nodes[v] += gain
                self.to_low[e] += gain
            self._hand_on(v, self.earlier[v], self.to_high)

    def _hand_on(self, v: int, edges: list[int], messages: list[Floats]) -> None:
        if edges:
            part = self.share[v] * self.nodes[v]
            for e in edges:
                messages[e] -= part
            self.nodes[v] -= len(edges) * part

    def decode(self) -> list[int]:
        """A choice, node by node after a sweep: the cheapest given the earlier ones and the bound of the later."""
        choice = [0] * len(self.nodes)
        for v, cost in enumerate(self.nodes):
            total = cost
            for e in self.earlier[v]:
                low = choice[self.ends[e]]
                total = total + (self.matrices[e][low] - self.to_low[e][low] - self.to_high[e])
            choice[v] = int(total.argmin())
        return choice

    def certificate(self) -> Certificate:
        """What the messages prove now."""
        pairs = [
            (low.copy(), high.copy()) if edge.u < edge.v else (high.copy(), low.copy())
            for edge, low, high in zip(self.problem.edges, self.to_low, self.to_high, strict=True)
        ]
        return certify(self.problem, self.rows, pairs, self.prices)
