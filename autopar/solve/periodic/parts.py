"""Parts of a problem in a row as problems of their own: equal ones once, with costs moved to where they meet.

A part has its own nodes and *visitors*: nodes of lower parts that it has edges to, at no cost of their own. What is
moved from such edges to visitors is added to their costs at home. So costs of all parts add up to the cost of the
whole, and so do their bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autopar.solve.certificate.proof import Messages
from autopar.solve.periodic.part_tables import labels
from autopar.solve.periodic.separators import Layers
from autopar.solve.problem.problem import Edge, Floats, Problem, derived
from autopar.solve.problem.reduction import Bools, Choice, Ints
from autopar.solve.problem.rows import memory_rows
from autopar.solve.trws.arrays import Pool, with_per_edge
from autopar.solve.trws.dual import Certificate, Dual, State

_SWEEPS = 10

Pair = tuple[Floats, Floats]
"""What is moved from an edge to the node in the lower part, and to the other."""


@dataclass(frozen=True, eq=False)
class Part:
    """Part `number` of a row, and the `copies` - 1 like it that follow.

    Nodes are positions, in order, its own before its visitors; the problem numbers them so. `kept` are those, as the
    problem numbers them, that other parts have edges to, and the visitors. `messages` are to begin with, by edge.
    `pool` has most of the matrices.
    """

    number: int
    copies: int
    nodes: Ints
    own: int
    edges: Ints
    kept: tuple[int, ...]
    problem: Problem
    messages: tuple[Pair, ...]
    pool: Pool

    @cached_property
    def certificate(self) -> Certificate:
        """What its messages prove after some sweeps."""
        dual = _at(self.problem, self.messages, self.pool, _SWEEPS)
        return dual.certificate(State(dual.messages, dual.prices, -np.inf))


def _at(problem: Problem, messages: Sequence[Pair], pool: Pool, sweeps: int) -> Dual:
    """The dual at these messages, by edge, and after so many sweeps more."""
    dual = Dual(problem, memory_rows(problem), pool=pool)
    dual.start_from(with_per_edge(dual.flat, messages))
    for _ in range(sweeps):
        dual.sweep()
    return dual


def _turned(pair: Pair) -> Pair:
    return pair[1], pair[0]


def _lost(arrays: Sequence[Floats], count: int) -> float:
    """How much less the arrays of `count` equal parts are than those of the first, at most, added up."""
    total, known, size = 0.0, dict[tuple[int, int], float](), len(arrays) // count
    for i in range(size, len(arrays)):
        one, two = arrays[i % size], arrays[i]
        if one is two:
            continue
        key = (id(one), id(two))
        if key not in known:
            known[key] = max(0.0, float(np.where(one == two, 0.0, one - two).max()))
        total += known[key]
    return total


@dataclass(frozen=True, eq=False)
class Row:
    """A problem's parts, and messages to begin with, `start`, of its edges. `pool` has the problem's matrices."""

    problem: Problem
    layers: Layers
    start: tuple[Pair, ...]
    pool: Pool

    @property
    def order(self) -> Ints:
        """The problem's nodes, by position."""
        return self.layers.order

    @cached_property
    def messages(self) -> dict[int, Pair]:
        """What is moved from edges, alike in all parts of a run: as it is in the middle one."""
        found = {e: self._by_position(e) for e in range(len(self.start))}
        for run in self.layers.runs:
            middle = self.layers.of(run.first + run.count // 2).tolist()
            for p in range(run.first, run.first + run.count):
                found |= dict(zip(self.layers.of(p).tolist(), [found[e] for e in middle], strict=True))
            after = self.layers.across(run.first + run.count).tolist()
            for e, like in zip(after, self.layers.across(run.first).tolist(), strict=True):
                found[e] = found[like][0], found[e][1]
        return found

    @cached_property
    def sent(self) -> dict[int, Floats]:
        """What is moved to visitors, by edge."""
        low, part = self.layers.ends.low, self.layers.part
        is_sent: Bools = part[low] != part[self.layers.ends.high]
        return {e: self.messages[e][0] for e in np.flatnonzero(is_sent).tolist()}

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The different ones, in order."""
        copies = {run.first: run.count for run in self.layers.runs}
        found, p = list[Part](), 0
        while p < self.layers.count:
            found.append(self._part(p, copies.get(p, 1)))
            p += found[-1].copies
        return tuple(found)

    def nodes(self, p: int) -> tuple[Ints, int]:
        """The positions of a part's nodes, its own first, and how many are its own."""
        own, low = self.layers.nodes(p), self.layers.ends.low[self.layers.of(p)]
        visitors = np.unique(low[self.layers.part[low] != p])
        return np.concatenate([own, visitors]), len(own)

    def costs(self, position: int) -> Floats:
        """A node's costs, with what other parts' edges send it."""
        cost = self.problem.node_costs[int(self.order[position])]
        return cost if position not in self._to else np.sum([cost, *self._to[position]], axis=0)

    @cached_property
    def _to(self) -> dict[int, list[Floats]]:
        result: dict[int, list[Floats]] = {}
        for e, to_low in self.sent.items():
            result.setdefault(int(self.layers.ends.low[e]), []).append(to_low)
        return result

    def _part(self, p: int, copies: int) -> Part:
        nodes, own = self.nodes(p)
        name = {position: i for i, position in enumerate(nodes.tolist())}
        ids: list[int] = self.layers.of(p).tolist()
        costs = [self.costs(i) for i in nodes[:own].tolist()]
        costs += [np.zeros_like(self.problem.node_costs[self.order[i]]) for i in nodes[own:].tolist()]
        edges, messages = list[Edge](), list[Pair]()
        for e in ids:
            cost, (to_low, to_high) = self.problem.edges[e].cost, self.messages[e]
            low, high, is_turned = (
                name[int(self.layers.ends.low[e])],
                name[int(self.layers.ends.high[e])],
                self._is_turned(e),
            )
            if e in self.sent:
                cost, to_low = cost - (to_low if is_turned else to_low[:, None]), np.zeros_like(to_low)
            edges.append(Edge(high, low, cost) if is_turned else Edge(low, high, cost))
            messages.append((to_high, to_low) if is_turned else (to_low, to_high))
        kept = tuple(i for i, position in enumerate(nodes.tolist()) if i >= own or position in self._to)
        problem = derived(tuple(costs), tuple(edges))
        problem = derived(problem.node_costs, problem.edges, labels(problem, kept))
        return Part(p, copies, nodes, own, np.array(ids, dtype=np.intp), kept, problem, tuple(messages), self.pool)

    def cost(self, e: int) -> Floats:
        """An edge's matrix, with rows for the node of the lower position."""
        cost = self.problem.edges[e].cost
        return self._transposed(cost) if self._is_turned(e) else cost

    def _is_turned(self, e: int) -> bool:
        """Whether an edge's matrix has rows for the node of the higher position."""
        return self._turned[e]

    @cached_property
    def _turned(self) -> list[bool]:
        u = np.array([edge.u for edge in self.problem.edges], dtype=np.intp)
        return (self.order[self.layers.ends.low] != u).tolist()

    def _transposed(self, cost: Floats) -> Floats:
        if id(cost) not in self._known:
            self._known[id(cost)] = cost.T
        return self._known[id(cost)]

    @cached_property
    def _known(self) -> dict[int, Floats]:
        return {}

    def _by_position(self, e: int) -> Pair:
        return _turned(self.start[e]) if self._is_turned(e) else self.start[e]

    def cost_of(self, p: int, choice: Choice) -> float:
        """What a choice of the whole costs in a part."""
        nodes, own = self.nodes(p)
        at = np.array(choice, dtype=np.intp)[self.order]
        cost = sum(float(self.costs(i)[at[i]]) for i in nodes[:own].tolist())
        for e in self.layers.of(p).tolist():
            low, high = at[self.layers.ends.low[e]], at[self.layers.ends.high[e]]
            cost += float(self.cost(e)[low, high]) - (float(self.sent[e][low]) if e in self.sent else 0.0)
        return cost

    @cached_property
    def lost(self) -> float:
        """How much less than the parts that they are like the others may cost: equal ones are so up to rounding."""
        costs, matrices = self.problem.node_costs, [edge.cost for edge in self.problem.edges]
        total = 0.0
        for run in self.layers.runs:
            first, stop = self.layers.bounds[[run.first, run.first + run.count]].tolist()
            nodes: list[int] = self.order[first:stop].tolist()
            edges: list[int] = self.layers.ends.into(first, stop).tolist()
            total += _lost([costs[v] for v in nodes], run.count) + _lost([matrices[e] for e in edges], run.count)
        return total

    def moved(self) -> Messages:
        """What is moved to visitors, as messages of the whole."""
        edges: list[int] = sorted(self.sent)
        ends = np.stack([self.order[self.layers.ends.low[edges]], self.order[self.layers.ends.high[edges]]], axis=1)
        counts = self.problem.counts
        none = {n: np.zeros(n) for n in set(counts)}
        return Messages(ends, tuple((self.sent[e], none[counts[v]]) for e, v in zip(edges, ends[:, 1], strict=True)))
