"""The graph of all placements of a tensor of one rank, with a step on every edge; no shape and no price yet.

Every placement is a state, with every order of the axes on a dim, because an order is reached by some steps and not
by others. On a mesh of three axes that is 176 states and 2,552 steps at rank 3, 458 and 9,368 at rank 5; on four
axes, 4,256 and 164,250 at rank 5. It is built once; `weigh` then gives it a tensor's sizes and prices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Kind, Placement, StepKind
from autopar.redistribute.steps import moves_from

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]
Bools = NDArray[np.bool_]
Quote = tuple[StepKind, tuple[str, ...], int, bool]


@dataclass(frozen=True, eq=False)
class StateGraph:
    """Placements as states 0, 1, ... and steps as edges, ordered by tail and then by head.

    `parts[state, dim]` is the number of parts that the state cuts the dim into. Edge e goes from state `tail[e]` to
    state `head[e]` and has the price of `quotes[quote[e]]`: a step's kind and axes, the number that divides the
    tensor's bytes to give the step's size, and whether it is along a dim other than the first. Where two steps link
    the same states, both edges are there.
    """

    placements: tuple[Placement, ...]
    index: dict[Placement, int]
    parts: NDArray[np.int64]
    tail: Ints
    head: Ints
    quote: Ints
    quotes: tuple[Quote, ...]

    def fits(self, shape: Sequence[int]) -> Bools:
        """For every state, whether it divides `shape` evenly."""
        return (np.asarray(shape, dtype=np.int64) % self.parts == 0).all(axis=1)


@dataclass(frozen=True, eq=False)
class Weights:
    """The edges that a tensor may take, with what they cost: finite, at most one edge between two states.

    Ordered by tail and then by head, as in `StateGraph`.
    """

    tail: Ints
    head: Ints
    cost: Floats


@lru_cache(maxsize=64)
def state_graph(mesh: DeviceMesh, rank: int, kinds: frozenset[Kind]) -> StateGraph:
    """The graph of all placements of a tensor of `rank` dims on `mesh`, unreduced ones of these `kinds`."""
    start = Placement.replicated(rank)
    index = {start: 0}
    placements = [start]
    quotes: dict[Quote, int] = {}
    edges: list[tuple[int, int, int]] = []
    shards = [1]  # of each state, the number of parts of the whole tensor
    wanted = sorted(kinds)
    for tail, before in enumerate(placements):  # grows while it is read: every state is reached from the first
        for step in moves_from(before, mesh, wanted):
            head = index.setdefault(step.after, len(placements))
            if head == len(placements):
                placements.append(step.after)
                shards.append(mesh.product(step.after.split_axes))
            quote = quotes.setdefault(
                (step.kind, step.axes, min(shards[tail], shards[head]), step.is_inner), len(quotes)
            )
            edges.append((tail, head, quote))
    columns = np.array(sorted(edges), dtype=np.int32).reshape(-1, 3).T
    parts = [[mesh.product(axes) for axes in placement.dims] for placement in placements]
    return StateGraph(
        placements=tuple(placements),
        index=index,
        parts=np.array(parts, dtype=np.int64).reshape(len(placements), rank),
        tail=columns[0],
        head=columns[1],
        quote=columns[2],
        quotes=tuple(quotes),
    )


def weigh(graph: StateGraph, fits: Bools, total_bytes: int, price: Callable[[Quote], float]) -> Weights:
    """The edges between the states that fit, priced for a tensor of `total_bytes`; infinite prices are left out.

    Args:
      graph: the graph.
      fits: for every state, whether the tensor divides evenly.
      total_bytes: bytes of the whole tensor.
      price: the price of (kind, axes, size in bytes, whether along an inner dim); asked once for each that occurs.
    """
    legal = fits[graph.tail] & fits[graph.head]
    costs = np.full(len(graph.quotes), np.inf)
    used = np.zeros(len(graph.quotes), dtype=np.bool_)
    used[graph.quote[legal]] = True
    for quote in np.flatnonzero(used).tolist():
        kind, axes, divisor, is_inner = graph.quotes[quote]
        costs[quote] = price((kind, axes, total_bytes // divisor, is_inner))
    legal &= np.isfinite(costs[graph.quote])
    tail, head, cost = graph.tail[legal], graph.head[legal], costs[graph.quote[legal]]
    first = np.flatnonzero((np.diff(tail, prepend=-1) != 0) | (np.diff(head, prepend=-1) != 0))
    return Weights(tail[first], head[first], np.minimum.reduceat(cost, first) if len(first) else cost)
