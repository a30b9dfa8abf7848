"""What a lower bound rests on: steps that make a problem smaller, written down so that `check` can replay them.

The search writes steps, nothing here computes. Each turns a problem into one whose optimum is no higher (of the choices
that matter: see `Exceed`), so that whatever bounds the last from below bounds the first. At the end that is

    constant + sum over nodes of min cost_v + sum over edges of min cost_uv

Numbers of nodes and strategies are those of the problem that the step is applied to; what it leaves is renumbered in
order. Edges between the same two nodes are one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_Ints = NDArray[np.intp]
_Floats = NDArray[np.float64]

Kept = Mapping[int, _Ints]
"""The strategies that stay, in order, for every node that loses some."""


@dataclass(frozen=True, eq=False)
class Prices:
    """Prices (>= 0) of a byte at some times; 0 at all others."""

    times: _Ints
    values: _Floats


FREE = Prices(np.zeros(0, dtype=np.intp), np.zeros(0))


@dataclass(frozen=True, eq=False)
class Messages:
    """What is moved from each edge (u, v) = edges[e] to its nodes: to[e] = (to u's strategies, to v's)."""

    edges: _Ints
    to: Sequence[tuple[_Floats, _Floats]]


@dataclass(frozen=True, eq=False)
class Forbid:
    """Strategies go that arc consistency on infinite entries rules out."""

    keep: Kept


@dataclass(frozen=True, eq=False)
class Overflow:
    """Strategies go that exceed the limit at some time, although all other nodes take the least there."""

    keep: Kept


@dataclass(frozen=True, eq=False)
class Dominate:
    """Strategies go that another of the node can replace: rows (which goes, which replaces it), in this order."""

    pairs: Mapping[int, _Ints]


@dataclass(frozen=True, eq=False)
class Exceed:
    """Strategies go that are dear: with them a choice costs more than what prices and messages say, at least.

    What follows holds for the other choices only: the least cost of those with such a strategy caps the bound. The
    messages are those of what is left once the nodes in `without` are eliminated at these prices.
    """

    keep: Kept
    prices: Prices
    messages: Messages
    without: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Bar:
    """As `Exceed`, but pairs of strategies go: with both a choice costs more than what prices say, at least.

    `pairs` are, for edges (u, v), the bits (`np.packbits`) of a matrix with rows of u: 1 for the pairs that go.
    """

    pairs: Mapping[tuple[int, int], NDArray[np.uint8]]
    prices: Prices


@dataclass(frozen=True, eq=False)
class Exhaust:
    """As `Exceed` and `Pass`; what is left costs no less than prices and messages say of all choices, plus `beyond`.

    That is the word of the search that `by` names: nothing here proves it.
    """

    keep: Kept
    prices: Prices
    messages: Messages
    beyond: float
    by: str


@dataclass(frozen=True, eq=False)
class Follow:
    """Nodes go whose strategies follow from another's: (who goes, whom it follows, its strategy for each of that)."""

    followers: tuple[tuple[int, int, _Ints], ...]


@dataclass(frozen=True, eq=False)
class Join:
    """Two nodes (u, v, s, t) become one, u: its strategy i is s[i] at u and t[i] at v. Other pairs are forbidden."""

    pairs: tuple[tuple[int, int, _Ints, _Ints], ...]


@dataclass(frozen=True, eq=False)
class Fold:
    """Edges (u, v) go: their row minima are added to u's costs, the column minima of the rest to v's."""

    edges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class Eliminate:
    """Nodes go, one after the other: each leaves its neighbours the least that it and its edges can cost."""

    nodes: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Unlimit:
    """The limit goes."""


@dataclass(frozen=True, eq=False)
class Look:
    """The limit holds at these times only (ascending), which become 0, 1, ..."""

    times: _Ints


@dataclass(frozen=True, eq=False)
class Price:
    """The limit goes, and its bytes have prices instead: price * (use - limit) is added to the cost."""

    prices: Prices


@dataclass(frozen=True, eq=False)
class Pass:
    """Costs move between edges and nodes as messages say; those of no choice change."""

    messages: Messages


@dataclass(frozen=True, eq=False)
class Cases:
    """Every choice takes one of the strategies of some case at the node, and costs what the case's proof proves."""

    node: int
    cases: tuple[tuple[_Ints, Proof], ...]


Step = (
    Forbid
    | Overflow
    | Dominate
    | Exceed
    | Bar
    | Exhaust
    | Follow
    | Join
    | Fold
    | Eliminate
    | Unlimit
    | Look
    | Price
    | Pass
    | Cases
)
Proof = tuple[Step, ...]
