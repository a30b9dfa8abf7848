"""The graph of all placements of a tensor of one rank, with a step on every edge; no shape and no price yet.

Every placement is a state, with every order of the axes on a dim, because an order is reached by some steps and not
by others. On a mesh of three axes that is 176 states and 2,552 steps at rank 3, 458 and 9,368 at rank 5; on four
axes, 4,256 and 164,250 at rank 5. It is built once; `weigh` then gives it a tensor's sizes and prices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import cast

import numpy as np
from numpy.typing import NDArray

from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Kind, Placement, StepKind
from autopar.redistribute.sequences import Ints
from autopar.redistribute.states import MOVES, Moves, States, all_states

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Quote = tuple[StepKind, tuple[str, ...], int, bool]


@dataclass(frozen=True, eq=False)
class StateGraph:
    """Placements as states 0, 1, ... and steps as edges, ordered by tail and then by head.

    Edge e goes from state `tail[e]` to state `head[e]` and has the price of `quotes[quote[e]]`: a step's kind and axes,
    the number that divides the tensor's bytes to give the step's size, and whether it is along a dim other than the
    first. Where two steps link the same states, both edges are there. States are numbered as they are reached from the
    replicated one, the first.
    """

    states: States
    tail: Ints
    head: Ints
    quote: Ints
    quotes: tuple[Quote, ...]

    @cached_property
    def placements(self) -> tuple[Placement, ...]:
        """The placement that each state is."""
        return self.states.placements()

    @cached_property
    def index(self) -> dict[Placement, int]:
        """The state of each placement."""
        return {placement: state for state, placement in enumerate(self.placements)}

    @cached_property
    def numbers_of_parts(self) -> tuple[int, ...]:
        """The numbers of parts that axes may split a dim in, in order."""
        return tuple(np.unique(self.states.sequences.parts).tolist())

    def fits(self, shape: Sequence[int]) -> Bools:
        """For every state, whether it divides `shape` evenly."""
        return (np.asarray(shape, dtype=np.int64) % self.states.parts == 0).all(axis=1)


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
    """The graph of all placements of a tensor of `rank` dims on `mesh`, unreduced ones of sum and these `kinds`."""
    states = all_states(mesh, rank, kinds)
    moves = states.moves()
    reached = _as_reached(moves, len(states.code))
    number = np.argsort(reached)
    states = states.taken(reached)
    tail = number[moves.tail]
    head = number[moves.head]
    order = np.argsort(tail * len(number) + head, kind="stable")
    tail = tail[order]
    head = head[order]
    quotes, quote = _quotes(states, Moves(tail, head, moves.kind[order], moves.axes[order]))
    return StateGraph(states, tail, head, quote, quotes)


def _as_reached(moves: Moves, count: int) -> Ints:
    """The states in the order in which a search in breadth reaches them from state 0, step by step as listed."""
    starts = np.searchsorted(moves.tail, np.arange(count + 1))
    known = np.zeros(count, dtype=np.bool_)
    frontier = np.zeros(1, dtype=np.int64)
    found = [np.zeros(1, dtype=np.int64)]
    known[0] = True
    while len(frontier):
        steps = starts[frontier + 1] - starts[frontier]
        edges = np.repeat(starts[frontier] - np.cumsum(steps) + steps, steps) + np.arange(
            int(steps.sum())
        )
        heads = moves.head[edges]
        heads = heads[~known[heads]]
        _, first = np.unique(heads, return_index=True)
        frontier = heads[np.sort(first)]
        known[frontier] = True
        found.append(frontier)

    return np.concatenate(found)


def _quotes(states: States, moves: Moves) -> tuple[tuple[Quote, ...], Ints]:
    """The distinct quotes of the steps, and which of them each has."""
    shards = states.parts.prod(axis=1)
    sequences = states.sequences
    divisor = np.minimum(shards[moves.tail], shards[moves.head])
    is_inner = states.inside[moves.tail] != states.inside[moves.head]
    largest = int(shards.max(initial=1)) + 1
    what = (moves.kind * len(sequences.every) + moves.axes) * 2 + is_inner
    distinct, quote = np.unique(what * largest + divisor, return_inverse=True)
    names = states.mesh.names
    codes = cast(list[int], distinct.tolist())
    found = list[Quote]()
    for code in codes:
        step, size_divisor = divmod(code, largest)
        kind, axes = divmod(step // 2, len(sequences.every))
        found.append(
            (
                MOVES[kind],
                tuple(names[a] for a in sequences.every[axes]),
                size_divisor,
                bool(step % 2),
            )
        )

    return tuple(found), quote.reshape(-1)


def weigh(
    graph: StateGraph, fits: Bools, total_bytes: int, price: Callable[[Quote], float]
) -> Weights:
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
    tail = graph.tail[legal]
    head = graph.head[legal]
    cost = costs[graph.quote[legal]]
    first = np.flatnonzero((np.diff(tail, prepend=-1) != 0) | (np.diff(head, prepend=-1) != 0))
    return Weights(
        tail[first], head[first], np.minimum.reduceat(cost, first) if len(first) else cost
    )
