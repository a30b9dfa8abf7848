"""Nesterov acceleration: before a sweep, messages and prices go on in the direction that the last one took them.

    the next sweep begins at  now + k / (k + 3) (now - before),    k = sweeps since the bound last fell

A fourth to a tenth of the sweeps is enough with it, but the bound may fall: then it is lost.

Y. Nesterov, "A method for solving a convex programming problem with convergence rate O(1/k^2)" (1983).
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from autopar.solve.problem.problem import Floats
from autopar.solve.trws.arrays import Flat
from autopar.solve.trws.kernels import push

_SLOW = 3  # k / (k + 3), as in the paper
_FALLEN = 1e-9  # of the bound: less may be rounding


class Moving(Protocol):
    """What has messages and prices, and the costs of nodes with both."""

    flat: Flat
    messages: Floats
    prices: Floats
    nodes: Floats

    def set_prices(self, prices: Floats) -> None:
        """Changes the prices, and the costs of nodes with them."""
        ...


class Momentum:
    """Takes a dual on in the direction that its messages, or messages and prices, took since the last time.

    `most`: of that way, at most. It begins as if the bound had risen so often already. It does not hold the dual, which
    may hold it: no cycle keeps all matrices as long as nothing is collected.
    """

    def __init__(self, dual: Moving, most: float = 1.0, risen: int = 0) -> None:
        self.most = most
        self.stop_at(dual, -np.inf)
        self._risen = risen

    def stop_at(self, dual: Moving, bound: float) -> None:
        """Begins anew at where the dual is, which proves `bound`."""
        self._messages = dual.messages.copy()
        self._prices = dual.prices
        self._risen = 0
        self._last = bound

    def rises(self, bound: float | None = None) -> bool:
        """Whether the bound after a sweep is no lower than after the last one; where it is, momentum is lost.

        One that is not known is taken to rise.
        """
        bound = self._last if bound is None else bound
        rises = bound >= self._last - _FALLEN * abs(self._last)
        self._risen = self._risen + 1 if rises else 0
        self._last = bound
        return rises

    def go_on(self, dual: Moving, *, with_prices: bool) -> None:
        """Moves messages, and prices if asked for, on. Without, prices may be set before the next sweep."""
        share = min(self._risen / (self._risen + _SLOW), self.most)
        before = self._prices
        self._prices = dual.prices
        push(dual.flat, share, self._messages, dual.nodes, dual.messages)
        if with_prices:
            dual.set_prices(np.maximum(0.0, dual.prices + share * (dual.prices - before)))
