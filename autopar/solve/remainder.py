"""Remainder: the nodes that elimination leaves, a problem of pairs of its own, solved by messages that are kept.

Any messages prove a bound, so those of before are where the sweeps start after a change: few are needed where little
changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autopar.solve.ascent import Ascent
from autopar.solve.buckets import Bucket
from autopar.solve.flat import owners
from autopar.solve.forbid import possible
from autopar.solve.minplus import MinSum
from autopar.solve.options import SolveOptions
from autopar.solve.problem import Edge, Floats, Problem, derived
from autopar.solve.proof import Forbid, Proof
from autopar.solve.reduction import Bools, Choice, restrict
from autopar.solve.verifier import TOLERANCE
from autopar.solve.watch import Best

Given = tuple[Floats | int, bool]
"""A matrix, or the node whose bucket left one; and whether it is to be transposed."""


@dataclass(frozen=True, eq=False)
class Remainder:
    """Which nodes are left (ascending), whose buckets left something on each alone, and what is between pairs of them.

    `pairs` are of positions in `nodes`; the first matrix between a pair is never to be transposed.
    """

    nodes: tuple[int, ...]
    alone: tuple[tuple[int, ...], ...]
    pairs: tuple[tuple[int, int], ...]
    between: tuple[tuple[Given, ...], ...]

    @cached_property
    def holds(self) -> frozenset[int]:
        """The nodes that are left."""
        return frozenset(self.nodes)

    def problem(self, costs: Mapping[int, Floats], left: Mapping[int, Floats]) -> Problem:
        """The problem that is left, given the costs of nodes and what buckets left; equal sums are one array."""
        kernel = MinSum()

        def sum_of(parts: tuple[Given, ...]) -> Floats:
            found: Floats | None = None
            for part, flipped in parts:
                table = left[part] if isinstance(part, int) else part
                found = table if found is None else kernel.add(found, table, flipped)
            assert found is not None
            return found

        nodes = list[Floats]()
        for v, children in zip(self.nodes, self.alone, strict=True):
            cost = costs[v]
            for child in children:
                cost = cost + left[child]
            nodes.append(cost)
        edges = (Edge(u, v, sum_of(parts)) for (u, v), parts in zip(self.pairs, self.between, strict=True))
        return derived(tuple(nodes), tuple(edges))


@dataclass(frozen=True, eq=False)
class Settled:
    """A choice of the nodes that are left, its cost, a bound and its proof, and the messages (0: of what is ruled out).

    These are in the order of `flat` for the problem with all its strategies.
    """

    choice: Choice
    cost: float
    bound: float
    proof: Proof
    messages: Floats

    @property
    def is_proven(self) -> bool:
        """Whether the bound is the cost, up to the rounding of sums over many layers."""
        return self.bound >= self.cost - TOLERANCE * abs(self.cost)


NOTHING = Settled((), 0.0, 0.0, (), np.zeros(0))
"""Where no nodes are left."""


def remainder_of(edges: Sequence[Edge], buckets: Sequence[Bucket], nodes: Sequence[int]) -> Remainder:
    """What `buckets` leave of the problem with `edges`: `nodes`."""
    place = {v: n for n, v in enumerate(nodes)}
    alone: dict[int, list[int]] = {}
    between: dict[tuple[int, int], list[Given]] = {}

    def put(u: int, v: int, table: Floats | int) -> None:
        flipped = (v, u) in between
        between.setdefault((v, u) if flipped else (u, v), []).append((table, flipped))

    for edge in edges:
        if edge.u in place and edge.v in place:
            put(edge.u, edge.v, edge.cost)
    for bucket in buckets:
        if not bucket.scope or any(u not in place for u in bucket.scope):
            continue
        if len(bucket.scope) == 1:
            alone.setdefault(bucket.scope[0], []).append(bucket.node)
        else:
            u, v = bucket.scope
            put(u, v, bucket.node)
    return Remainder(
        tuple(nodes),
        tuple(tuple(alone.get(v, ())) for v in nodes),
        tuple((place[u], place[v]) for u, v in between),
        tuple(map(tuple, between.values())),
    )


def settle(problem: Problem, options: SolveOptions, messages: Floats | None = None) -> Settled | None:
    """The best choice and bound that sweeps give, starting from `messages`; None if they decode no finite choice.

    Raises:
      Infeasible: if forbidden entries leave a node no strategy.
    """
    keep = possible(problem)
    small = restrict(problem, keep, Forbid)
    mask = None if small.problem is problem else _kept_messages(problem, keep)
    start = messages if messages is None or mask is None else messages[mask]
    ascent = Ascent(small.problem, options, start, eager=True)
    found, certificate = ascent.sweeps(np.inf, Best(problem, options.time_limit_s, None))
    if found.choice is None or not np.isfinite(found.objective):
        return None
    kept = ascent.held.messages
    if mask is not None:
        kept = np.zeros(len(mask))
        kept[mask] = ascent.held.messages
    proof = small.steps + certificate.proof()
    return Settled(small.lift(found.choice), found.objective, certificate.bound, proof, kept)


def _kept_messages(problem: Problem, keep: Sequence[Bools]) -> Bools:
    """Which messages of all are those of strategies that are kept."""
    own = [keep[int(v)] for v in owners(problem)]
    return np.concatenate([np.zeros(0, dtype=np.bool_), *own])
