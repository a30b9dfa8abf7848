"""Router: the cheapest sequence of steps from one placement of a tensor to another.

In: a mesh, a price of steps, a tensor's shape and item size, placements. Out: costs and routes. A route is a shortest
path in the graph of all placements, so it is never dearer than any other sequence of the steps in `steps`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Kind, Placement, StepKind
from autopar.errors import AutoparError
from autopar.redistribute.collective import size_bytes
from autopar.redistribute.graph import Bools, Floats, Quote, StateGraph, state_graph, weigh
from autopar.redistribute.shortest import ShortestPaths
from autopar.redistribute.step import Step, StepPrice, TurnPrice, no_turn
from autopar.redistribute.steps import steps_from

CACHE_BYTES = 2**28
"""What a router keeps of priced graphs and distances before it forgets them all."""


class NoRoute(AutoparError, ValueError):
    """No sequence of steps with finite prices leads from the source to the target."""


class Router:
    """Cheapest redistributions on one mesh under one price, with caches.

    A step whose price is infinite does not exist. The cost is 0 from a placement to itself and obeys the triangle
    inequality; where prices do not fall as bytes grow, costs do not either.
    """

    def __init__(self, mesh: DeviceMesh, price: StepPrice, turn: TurnPrice = no_turn) -> None:
        self.mesh = mesh
        self._price = price
        self._turn = turn
        self._prices: dict[tuple[StepKind, tuple[str, ...], int], float] = {}
        self._routes: dict[tuple[tuple[int, ...], int, Placement, Placement], tuple[Step, ...]] = {}
        self._paths: dict[tuple[int, frozenset[Kind], int, bytes], ShortestPaths] = {}

    def cost_matrix(
        self, shape: Sequence[int], itemsize: int, sources: Sequence[Placement], targets: Sequence[Placement]
    ) -> Floats:
        """The cost of the cheapest route from every source to every target; inf where there is none.

        Args:
          shape: the tensor's global shape.
          itemsize: bytes of one element.
          sources: placements that divide `shape` evenly.
          targets: the same.

        Returns:
          cost[source, target], in the unit of the price.

        Raises:
          ValueError: if a placement is not one of this shape on this mesh, or a price is negative or NaN.
        """
        _, paths, states = self._solved(shape, itemsize, (*sources, *targets))
        rows = paths.rows(states[: len(sources)])
        return rows[:, states[len(sources) :]]

    def route(self, shape: Sequence[int], itemsize: int, source: Placement, target: Placement) -> tuple[Step, ...]:
        """The cheapest steps from `source` to `target`; among equals the fewest, and always the same.

        Its cost is the entry of `cost_matrix`.

        Args:
          shape: the tensor's global shape.
          itemsize: bytes of one element.
          source: a placement that divides `shape` evenly.
          target: the same.

        Raises:
          NoRoute: if no sequence of steps with finite prices leads to `target`.
          ValueError: as `cost_matrix`.
        """
        key = (tuple(shape), itemsize, source, target)
        if key not in self._routes:
            self._routes[key] = self._route(shape, itemsize, source, target)
        return self._routes[key]

    def _route(self, shape: Sequence[int], itemsize: int, source: Placement, target: Placement) -> tuple[Step, ...]:
        graph, paths, (start, end) = self._solved(shape, itemsize, (source, target))
        states = paths.path(start, end)
        if not states:
            raise NoRoute(f"no step of finite price leads on from {source} to {target} for shape {tuple(shape)}")
        stops = [graph.placements[state] for state in states]
        return tuple(self._cheapest_step(shape, itemsize, before, after) for before, after in pairwise(stops))

    def step_cost(self, step: Step, shape: Sequence[int], itemsize: int) -> float:
        """The price of one step for a tensor of global `shape`."""
        return self._quote((step.kind, step.axes, size_bytes(step, shape, itemsize, self.mesh), step.is_inner))

    def _cheapest_step(self, shape: Sequence[int], itemsize: int, before: Placement, after: Placement) -> Step:
        steps = steps_from(before, shape, self.mesh, (after.kind,))
        links = [step for step in steps if step.after == after]
        return min(links, key=lambda step: self.step_cost(step, shape, itemsize))

    def _quote(self, quote: Quote) -> float:
        kind, axes, size, is_inner = quote
        plain = self._plain(kind, axes, size)
        return _checked(plain + float(self._turn(kind, size)), kind, axes, size) if is_inner else plain

    def _plain(self, kind: StepKind, axes: tuple[str, ...], size: int) -> float:
        key = kind, axes, size
        if key not in self._prices:
            self._prices[key] = _checked(float(self._price(kind, axes, size)), kind, axes, size)
        return self._prices[key]

    def _solved(
        self, shape: Sequence[int], itemsize: int, placements: Sequence[Placement]
    ) -> tuple[StateGraph, ShortestPaths, list[int]]:
        """The graph of all placements, the shortest paths in it, and the states that `placements` are."""
        # Sum is always there: routes must not depend on what else is asked for, or the triangle inequality breaks.
        # The other kinds have no step that sum lacks, so they matter only to placements that hold them.
        kinds: frozenset[Kind] = frozenset({"sum", *(placement.kind for placement in placements)})
        graph = state_graph(self.mesh, len(shape), kinds)
        fits = graph.fits(shape)
        states = _states(graph, fits, shape, placements)
        total_bytes = math.prod(shape) * itemsize
        key = (len(shape), kinds, total_bytes, fits.tobytes())
        if key not in self._paths:
            if sum(paths.nbytes for paths in self._paths.values()) > CACHE_BYTES:
                self._paths.clear()
            self._paths[key] = ShortestPaths(len(graph.placements), weigh(graph, fits, total_bytes, self._quote))
        return graph, self._paths[key], states


def _checked(price: float, kind: StepKind, axes: tuple[str, ...], size: int) -> float:
    if math.isnan(price) or price < 0:
        raise ValueError(f"the price of {kind} over {axes} of {size} bytes is {price}; prices are >= 0")
    return price


def _states(graph: StateGraph, fits: Bools, shape: Sequence[int], placements: Sequence[Placement]) -> list[int]:
    found, legal = [graph.index.get(placement, -1) for placement in placements], fits.tolist()
    for state, placement in zip(found, placements, strict=True):
        if state < 0:
            raise ValueError(f"{placement} is no placement of a tensor of shape {tuple(shape)} on this mesh")
        if not legal[state]:
            raise ValueError(f"{placement} does not divide shape {tuple(shape)} evenly")
    return found
