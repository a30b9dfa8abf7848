"""Alike: tensors and placements that differ only in the order of their dims have the same routes.

A step's price knows how many bytes go over which axes, and nothing of the dims, but for the first one where copies in
another order are priced (`TurnPrice`). What tells dims apart is which numbers of parts divide them evenly. So shortest
paths are looked for with the dims in one order, and from one of the placements that are each other's under an exchange
of dims that nothing tells apart. The sums of prices along a path are the very same.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from autopar.redistribute.graph import StateGraph
from autopar.redistribute.sequences import Ints


class Alike(NamedTuple):
    """For every state the one that stands for it, `first[state]`, and the order of dims `turn[state]` that makes it.

    `turned[n]` says what every state becomes under the n-th order of dims.
    """

    first: Ints
    turn: Ints
    turned: tuple[Ints, ...]


def dim_classes(
    graph: StateGraph, shape: Sequence[int], *, first_is_apart: bool
) -> tuple[int, ...]:
    """A number for each dim of `shape`: equal where the same numbers of parts divide the dims evenly.

    With `first_is_apart` no other dim has that of the first.
    """
    classes = [_divided_by(graph.numbers_of_parts, size) for size in shape]
    return tuple([number + int(first_is_apart and dim == 0) for dim, number in enumerate(classes)])


@lru_cache(maxsize=65536)
def _divided_by(parts: tuple[int, ...], size: int) -> int:
    """Which of the numbers divide `size` evenly, as an even number."""
    return sum(2 << n for n, part in enumerate(parts) if size % part == 0)


@lru_cache(maxsize=1024)
def turned(graph: StateGraph, order: tuple[int, ...]) -> Ints:
    """For every state the one whose dim d is split as its dim `order[d]` is."""
    states = graph.states
    return states.at(states.code_of(states.split[:, list(order)], states.unreduced, states.kind))


@lru_cache(maxsize=1024)
def alike(graph: StateGraph, classes: tuple[int, ...]) -> Alike:
    """The states where dims of equal numbers in `classes`, which stand side by side, may be exchanged."""
    split = graph.states.split
    order = np.tile(np.arange(len(classes)), (len(split), 1))
    for number in set(classes):
        first = classes.index(number)
        count = classes.count(number)
        order[:, first : first + count] = first + np.argsort(
            split[:, first : first + count], axis=1, kind="stable"
        )
    orders, turn = np.unique(order, axis=0, return_inverse=True)
    turns = tuple(turned(graph, tuple(row)) for row in orders.tolist())
    turn = turn.reshape(-1)
    return Alike(np.array(turns).reshape(len(turns), -1)[turn, np.arange(len(split))], turn, turns)
