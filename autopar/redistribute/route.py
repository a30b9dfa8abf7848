"""Router: the cheapest sequence of steps from one placement of a tensor to another.

In: a mesh, a price of steps, a tensor's shape and item size, placements. Out: costs and routes. A route is a shortest
path in the graph of all placements, so it is never dearer than any other sequence of the steps in `steps`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from autopar.core.graph import TensorInfo
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Kind, Placement, StepKind
from autopar.errors import AutoparError
from autopar.redistribute.alike import alike, dim_classes, turned
from autopar.redistribute.collective import size_bytes
from autopar.redistribute.graph import Floats, Quote, StateGraph, state_graph, weigh
from autopar.redistribute.sequences import Ints
from autopar.redistribute.shortest import ShortestPaths
from autopar.redistribute.step import Step, StepPrice, TurnPrice, no_turn
from autopar.redistribute.steps import steps_from

CACHE_BYTES = 2**28
"""What a router keeps of priced graphs and distances before it forgets them all."""


_SUM: frozenset[Kind] = frozenset({"sum"})


class NoRoute(AutoparError, ValueError):
    """No sequence of steps with finite prices leads from the source to the target."""


class Tensor(NamedTuple):
    """What routes of one tensor are found by.

    `paths` are those of a tensor with the dims in another order; `state[n]` is what state n of `graph` is there.
    """

    graph: StateGraph
    paths: ShortestPaths
    state: Ints


@dataclass(eq=False)
class Side:
    """Placements at one end of routes, and which states they are in each graph."""

    placements: tuple[Placement, ...]
    _states: dict[int, tuple[StateGraph, Ints]] = field(
        default_factory=dict[int, tuple[StateGraph, Ints]]
    )

    @cached_property
    def kinds(self) -> frozenset[Kind]:
        """The kinds of the placements."""
        return frozenset({placement.kind for placement in self.placements})

    def states(self, graph: StateGraph) -> Ints:
        """The states that the placements are; -1 for what is none."""
        if id(graph) not in self._states:
            index = graph.index
            found = np.array(
                [index.get(placement, -1) for placement in self.placements], dtype=np.int64
            )
            self._states[id(graph)] = graph, found  # the graph keeps its id
        return self._states[id(graph)][1]


class Router:
    """Cheapest redistributions on one mesh under one price, with caches.

    A step whose price is infinite does not exist. The cost is 0 from a placement to itself and obeys the triangle
    inequality; where prices do not fall as bytes grow, costs do not either. `shared` has the routes of what shares its
    collectives with others, at the price of that, `fused` those to readers that take local steps into their loops, and
    `joined` those of what waits for nothing, whose gathers the compiler joins; without such a price each is this one.
    `hidden` has those of what runs beside computing: without it, this one too.
    """

    def __init__(
        self,
        mesh: DeviceMesh,
        price: StepPrice,
        turn: TurnPrice = no_turn,
        shared: StepPrice | None = None,
        fused: StepPrice | None = None,
        hidden: Router | None = None,
        joined: StepPrice | None = None,
    ) -> None:
        self.mesh = mesh
        self.hidden = self if hidden is None else hidden
        self.shared = self if shared is None else Router(mesh, shared, turn)
        self.fused = self if fused is None else Router(mesh, fused, turn)
        self.joined = self if joined is None else Router(mesh, joined, turn)

        self._price = price
        self.joined_price = joined
        self._turn = turn
        self._prices: dict[tuple[StepKind, tuple[str, ...], int], float] = {}
        self._routes: dict[tuple[tuple[int, ...], int, Placement, Placement], tuple[Step, ...]] = {}
        self._paths: dict[tuple[int, frozenset[Kind], int, tuple[int, ...]], ShortestPaths] = {}
        self._sides: dict[int, Side] = {}
        self._without: dict[frozenset[str], Router] = {}

    def of(self, tensor: TensorInfo) -> Router:
        """The routes of this tensor: none along axes where it is placed by hand, none if nothing is sent for it."""
        return self.without(self.mesh.names if tensor.on_host or tensor.fixed else tensor.manual)

    def without(self, axes: Iterable[str]) -> Router:
        """The routes of a tensor that no step may touch along `axes`: there it is placed by hand."""
        barred = frozenset(axes)
        if not barred:
            return self

        if barred not in self._without:
            shared, fused, joined = (
                None if other is self else _barred(other._price, barred)
                for other in (self.shared, self.fused, self.joined)
            )
            hidden = None if self.hidden is self else self.hidden.without(barred)
            self._without[barred] = Router(
                self.mesh, _barred(self._price, barred), self._turn, shared, fused, hidden, joined
            )
        return self._without[barred]

    @cached_property
    def unmasked(self) -> Router:
        """The routes on which nothing becomes a part of a sum."""
        shared, fused, joined = (
            None if other is self else _without_masks(other._price)
            for other in (self.shared, self.fused, self.joined)
        )
        hidden = None if self.hidden is self else self.hidden.unmasked
        price = _without_masks(self._price)
        return Router(self.mesh, price, self._turn, shared, fused, hidden, joined)

    def cost_matrix(
        self,
        shape: Sequence[int],
        itemsize: int,
        sources: Sequence[Placement],
        targets: Sequence[Placement],
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
        ends = self._side(sources), self._side(targets)
        graph, paths, state = self._tensor(shape, itemsize, ends[0].kinds | ends[1].kinds)
        return paths.distances(*(state[_fitting(graph, shape, side)] for side in ends))

    def route(
        self, shape: Sequence[int], itemsize: int, source: Placement, target: Placement
    ) -> tuple[Step, ...]:
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

    def _route(
        self, shape: Sequence[int], itemsize: int, source: Placement, target: Placement
    ) -> tuple[Step, ...]:
        graph, paths, state = self._tensor(shape, itemsize, frozenset({source.kind, target.kind}))
        start, end = state[_fitting(graph, shape, Side((source, target)))].tolist()
        number = np.argsort(state)
        states = paths.path(start, end, number)
        if not states:
            raise NoRoute(
                f"no step of finite price leads on from {source} to {target} for shape {tuple(shape)}"
            )
        stops = [graph.placements[int(number[n])] for n in states]
        return tuple(
            self._cheapest_step(shape, itemsize, before, after) for before, after in pairwise(stops)
        )

    def step_cost(self, step: Step, shape: Sequence[int], itemsize: int) -> float:
        """The price of one step for a tensor of global `shape`."""
        return self._quote(
            (step.kind, step.axes, size_bytes(step, shape, itemsize, self.mesh), step.is_inner)
        )

    def _cheapest_step(
        self, shape: Sequence[int], itemsize: int, before: Placement, after: Placement
    ) -> Step:
        steps = steps_from(before, shape, self.mesh, (after.kind,))
        links = [step for step in steps if step.after == after]
        return min(links, key=lambda step: self.step_cost(step, shape, itemsize))

    def _quote(self, quote: Quote) -> float:
        kind, axes, size, is_inner = quote
        plain = self._plain(kind, axes, size)
        if not is_inner or self._turn is no_turn:
            return plain
        return _checked(plain + float(self._turn(kind, size)), kind, axes, size)

    def _plain(self, kind: StepKind, axes: tuple[str, ...], size: int) -> float:
        key = kind, axes, size
        if key not in self._prices:
            self._prices[key] = _checked(float(self._price(kind, axes, size)), kind, axes, size)
        return self._prices[key]

    def _side(self, placements: Sequence[Placement]) -> Side:
        """What is known of placements that are asked for again and again: those that are one tuple."""
        if not isinstance(placements, tuple):
            return Side(tuple(placements))
        if id(placements) not in self._sides:
            self._sides[id(placements)] = Side(placements)  # which keeps its id
        return self._sides[id(placements)]

    def _tensor(self, shape: Sequence[int], itemsize: int, kinds: frozenset[Kind]) -> Tensor:
        """The routes of a tensor between placements that are unreduced by these `kinds` or sum."""
        # Sum is always there: routes must not depend on what else is asked for, or the triangle inequality breaks.
        # The other kinds have no step that sum lacks, so they matter only to placements that hold them.
        kinds |= _SUM
        graph = state_graph(self.mesh, len(shape), kinds)
        apart = self._turn is not no_turn
        classes = dim_classes(graph, shape, first_is_apart=apart)
        order = tuple(
            sorted(range(len(shape)), key=lambda dim: (dim > 0 or not apart, classes[dim]))
        )
        classes = tuple(classes[dim] for dim in order)
        total_bytes = math.prod(shape) * itemsize
        key = (len(shape), kinds, total_bytes, classes)
        if key not in self._paths:
            if sum(paths.nbytes for paths in self._paths.values()) > CACHE_BYTES:
                self._paths.clear()
            weights = weigh(
                graph, graph.fits([shape[dim] for dim in order]), total_bytes, self._quote
            )
            self._paths[key] = ShortestPaths(alike(graph, classes), weights)

        return Tensor(graph, self._paths[key], turned(graph, order))


def _without_masks(price: StepPrice) -> StepPrice:
    """`price` under which there are no masks."""

    def finite(kind: StepKind, axes: tuple[str, ...], size_bytes: int) -> float:
        return math.inf if kind == "mask" else price(kind, axes, size_bytes)

    return finite


def _barred(price: StepPrice, barred: frozenset[str]) -> StepPrice:
    """`price`, without the steps along some axes."""

    def finite(kind: StepKind, axes: tuple[str, ...], size_bytes: int) -> float:
        return price(kind, axes, size_bytes) if barred.isdisjoint(axes) else math.inf

    return finite


def _checked(price: float, kind: StepKind, axes: tuple[str, ...], size: int) -> float:
    if math.isnan(price) or price < 0:
        raise ValueError(
            f"the price of {kind} over {axes} of {size} bytes is {price}; prices are >= 0"
        )
    return price


def _fitting(graph: StateGraph, shape: Sequence[int], side: Side) -> Ints:
    """The states that the placements of a tensor are.

    Raises:
      ValueError: if one is none, or does not divide the tensor evenly.
    """
    found = side.states(graph)
    if (found < 0).any():
        unknown = side.placements[int(np.argmax(found < 0))]
        raise ValueError(
            f"{unknown} is no placement of a tensor of shape {tuple(shape)} on this mesh"
        )
    uneven = (np.asarray(shape, dtype=np.int64) % graph.states.parts[found]).any(axis=1)
    if uneven.any():
        raise ValueError(
            f"{side.placements[int(np.argmax(uneven))]} does not divide shape {tuple(shape)} evenly"
        )
    return found
