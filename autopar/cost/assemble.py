"""Assemble: a graph, its space and a pricing in, the mathematical program out.

Variables are inputs, operators, copies and outputs, in the order of `Space.counts`. An operator's cost is that of
computing and of what it exchanges inside; an edge is a tensor on its way from where it is made to where it is used, its
cost the cheapest route; what can wait for others (`cost.buckets`) costs its share of one collective with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from autopar.backends.known import backend_of
from autopar.core.columns import Column
from autopar.core.dataflow import Dataflow, Use
from autopar.core.graph import CONSTANT, OpGraph, OpNode, TensorInfo
from autopar.core.placement import Placement
from autopar.core.space import Space
from autopar.core.strategy import StrategyArrays
from autopar.cost.buckets import ready, waiting
from autopar.cost.hiding import may_hide
from autopar.cost.local_steps import in_loops
from autopar.cost.pricing import Pricing, arrival_cost, compiler_of, costs_of
from autopar.cost.tensor_edges import Ints, TensorEdge, TensorEdges, kinds_of, links_of
from autopar.memory.counted import Usages
from autopar.memory.variables import Caches
from autopar.ops.recurrences import written_out
from autopar.redistribute.route import Router
from autopar.solve import Edge, Problem
from autopar.solve.problem.factored_matrix import Matrix, matrix_of, part, twice
from autopar.solve.problem.problem import EdgesByMatrix, joined
from autopar.solve.problem.rows import least_use

Floats = NDArray[np.float64]
Placements = tuple[Placement, ...]
Source = tuple[int, Column, int | None]
"""The node that a tensor is read from, the placements it may have there, and the region it is made in."""


def assemble(
    graph: OpGraph,
    flow: Dataflow,
    space: Space,
    pricing: Pricing,
    router: Router,
    limit_bytes: float | None = None,
    *,
    tensors_only: bool = False,
    caches: Caches | None = None,
) -> Problem:
    """The Problem of choosing from `space`.

    With a limit, a copy that is not stored has every candidate twice: as an alias of its source, which takes no
    memory and must have the source's placement, and fresh (`placement_choice` undoes this). So has a stored copy under
    which operands are held longer (`memory.duplicated`): as its operator makes it, and otherwise. With `tensors_only`
    the memory is that of tensors between their making and their last use, and nothing else. `caches` are what
    assemblies of this space at these prices share.
    """
    fusing = backend_of(compiler_of(pricing)).counting
    build = Builder(graph, flow, space, router, limit_bytes is not None, caches, fusing)
    return build.problem(pricing, limit_bytes, tensors_only)


def least_bytes(
    graph: OpGraph, flow: Dataflow, space: Space, pricing: Pricing, router: Router
) -> float:
    """What every choice from `space` holds on a device at some time, found without what choices cost."""
    fusing = backend_of(compiler_of(pricing)).counting
    return least_use(Usages(graph, flow, space, router, True, fusing=fusing).usages(False))


def placement_choice(space: Space, choice: Sequence[int]) -> tuple[int, ...]:
    """A choice of the Problem as a choice of `space`: alias or fresh is no difference there."""
    return tuple(s % count for s, count in zip(choice, space.counts, strict=True))


def arriving(graph: OpGraph) -> frozenset[int]:
    """The positions of the inputs that a device is given anew with every call."""
    kept = {*graph.resident, *(position for _, position in graph.carry)}
    return frozenset(
        position
        for position, tensor in enumerate(graph.inputs)
        if not (position in kept or tensor.name.startswith(CONSTANT) or tensor.on_host)
    )


def most_arrival_cost(graph: OpGraph, pricing: Pricing) -> float:
    """What it costs at most to be given them: all of each."""
    return sum(arrival_cost(pricing, graph.inputs[n].size_bytes) for n in arriving(graph))


@dataclass(eq=False)
class Builder(Usages):
    """The variables with what they cost, and what lies between them."""

    def problem(self, pricing: Pricing, limit_bytes: float | None, tensors_only: bool) -> Problem:
        """The Problem; with `tensors_only` the memory is that of tensors between their making and their last use."""
        usages = self.usages(tensors_only) if limit_bytes is not None else ()
        costs = self.node_costs(pricing)
        return joined(costs, self.edges(), usages, limit_bytes, self._periods(len(costs)))

    def node_costs(self, pricing: Pricing) -> tuple[Floats, ...]:
        """The costs of every variable."""
        free: dict[int, Floats] = {}

        def none(count: int) -> Floats:
            return free[count] if count in free else free.setdefault(count, np.zeros(count))

        costs = self._arrivals(pricing)
        known = self._costs
        weigh = self.graph.tree.weight
        for op, strategies, alike in zip(
            self.graph.ops, self.space.strategies, self.graph.alike, strict=True
        ):
            if op.id in self.entering:
                continue
            weight = 1.0 if op.region is None else weigh(op.region)
            key = (id(strategies), alike, pricing.context(op), weight)
            cost = known.get(key)
            if cost is None:
                cost = known[key] = weight * costs_of(pricing, op, strategies, self._layout(op))
            costs.append(cost)

        costs += [none(len(c) * (2 if self._doubled(copy) else 1)) for copy, c in self._copies()]
        costs += [none(len(candidates)) for candidates in self.space.outputs if candidates]
        return tuple(costs)

    def _periods(self, count: int) -> NDArray[np.intp]:
        """For each of so many variables its place in what repeats; -1 where it has none."""
        found = np.full(count, -1, dtype=np.intp)
        for op, first in enumerate(self._repeats):
            if self.space.strategies[op]:
                found[self.op_node[op]] = first
        return found

    @property
    def _repeats(self) -> Sequence[int]:
        """See `OpGraph.repeats`."""
        return self.graph.repeats

    def _arrivals(self, pricing: Pricing) -> list[Floats]:
        """What it costs to be given the inputs in each placement; the state of the call before is there."""
        mesh = self.space.mesh
        new = arriving(self.graph)
        known: dict[tuple[int, tuple[int, ...], int, bool], Floats] = {}
        found: list[Floats] = []
        for position, (tensor, candidates) in enumerate(
            zip(self.graph.inputs, self.space.inputs, strict=True)
        ):
            key = id(candidates), tensor.shape, tensor.itemsize, position in new
            if key not in known:
                sizes = [
                    placement.local_size(tensor.shape, mesh) * tensor.itemsize
                    for placement in candidates
                ]
                prices = [arrival_cost(pricing, size) if position in new else 0.0 for size in sizes]
                known[key] = np.array(prices, dtype=np.float64)
            found.append(known[key])

        return found

    def _layout(self, op: OpNode) -> StrategyArrays:
        """The arrays of an operator's strategies; shared by all operators that share these."""
        strategies = self.space.strategies[op.id]
        if id(strategies) not in self._layouts:
            columns = [self._placed(op.id, "ins", n) for n in range(len(op.ins))]
            columns += [self._placed(op.id, "outs", n) for n in range(len(op.outs))]
            parts = np.array([column.parts for column in columns]).reshape(
                len(columns), len(strategies)
            )
            split = np.array([strategy.split for strategy in strategies])
            exchanging = tuple(n for n, strategy in enumerate(strategies) if strategy.exchanges)
            self._layouts[id(strategies)] = StrategyArrays(parts, split, exchanging)
        return self._layouts[id(strategies)]

    def edges(self) -> EdgesByMatrix:
        """The routes between variables, and which copies may be aliases: one matrix for each kind of link."""
        links = links_of(self.graph, self.flow)
        node = self._slot_nodes(links)
        column = self._slot_columns()
        u = node[links.source]
        v = node[links.target]
        there = np.flatnonzero(u != v)

        # the last one: where there is no copy
        doubled = np.array([*map(self._doubled, self.flow.copies), False])
        keys = (
            links.looks,
            column[links.source],
            column[links.target],
            doubled[links.origin],
            doubled[links.copy],
            self._hides(links),
        )
        first, kind = kinds_of(tuple(key[there] for key in keys))
        examples: list[int] = there[first].tolist()
        matrices = [self._matrix_of(links.links[n]) for n in examples]

        return EdgesByMatrix.of(np.stack([u[there], v[there]], axis=1), matrices, kind)

    def _hides(self, links: TensorEdges) -> Ints:
        """1 for the links whose collectives count as hidden."""
        if self.router.hidden is self.router:
            return np.zeros(len(links.links), dtype=np.int64)
        found = [may_hide(self.graph, link.tensor.id, link.uses) for link in links.links]
        return np.array(found, dtype=np.int64)

    def _slot_nodes(self, links: TensorEdges) -> Ints:
        """The variable that says where a tensor lies, by slot; -1 for results that are literals."""
        outputs = [
            self.output_node.get(position, -1) for position in range(len(self.graph.outputs))
        ]
        free = [
            *range(len(self.graph.inputs)),
            *range(self.first_copy, self.first_copy + len(self.flow.copies)),
        ]
        of_op = np.array([self.op_node[op.id] for op in self.graph.ops], dtype=np.int64)
        return np.concatenate(
            [np.array([*free, *outputs], dtype=np.int64), np.repeat(of_op, links.slots)]
        )

    def _slot_columns(self) -> Ints:
        """What tells apart the columns of placements at slots: equal ones are one object."""
        space = self.space
        candidates = self._candidates
        found = [id(candidates(placements)) for placements in (*space.inputs, *space.copies)]
        for position, placements in enumerate(space.outputs):
            own = placements or (
                space.inputs[self.output_node[position]] if position in self.output_node else ()
            )
            found.append(id(candidates(own)) if own else 0)

        known: dict[int, list[int]] = {}
        for sides in self._sides:
            if id(sides) not in known:
                known[id(sides)] = [id(column) for side in sides for column in side]

        found += chain.from_iterable([known[id(sides)] for sides in self._sides])
        return np.array(found, dtype=np.int64)

    def _matrix_of(self, link: TensorEdge) -> Matrix:
        """What a link costs by the candidates at both ends."""
        _, made, region = self._source(link.tensor, link.source)
        if link.copy is None:
            (use,) = link.uses
            cost = self._read(
                link.tensor, link.source, made, self._wanted(use), region, link.reader, link.uses
            )
        else:
            copy = self.flow.copies[link.copy]
            wanted = self._candidates(self.space.copies[link.copy])
            cost = self._matrix(link.tensor, made, wanted, region, link.reader, link.uses)
            cost = self._aliased(cost, made, wanted, copy.stored) if self._doubled(copy) else cost
        return self._widened(Edge(0, 1, cost), link.source).matrix

    def _wanted(self, use: Use) -> Column:
        """The placements that a use reads its tensor in."""
        if use.op is not None:
            return self._placed(use.op, "ins", use.position)
        own = self.space.outputs[use.position] or self.space.inputs[self.output_node[use.position]]
        return self._candidates(own)

    def _weight(self, source: int | None, reader: int | None) -> float:
        """How often a value of one region is redistributed for a reader in another."""
        if source is None and reader is None:
            return 1.0
        key = (source, reader)
        if key not in self._weights:
            self._weights[key] = self.graph.tree.weight(self.graph.tree.site(source, reader))
        return self._weights[key]

    def _widened(self, edge: Edge, source: int | None) -> Edge:
        """The edge with its rows twice, if it starts at a copy with alias and fresh candidates."""
        if source is None or not self.limited or not self._doubled(self.flow.copies[source]):
            return edge
        key = (id(edge.matrix), "twice")
        if key not in self._matrices:
            self._matrices[key] = twice(edge.matrix)
        return Edge(edge.u, edge.v, self._matrices[key])

    def _aliased(self, cost: Matrix, made: Column, candidates: Column, apart: bool) -> Matrix:
        """`cost` behind the columns of aliases: 0 where a copy may be its source itself, forbidden elsewhere.

        With `apart` what may be an alias may not be anything else.
        """
        key = (id(cost), id(made), id(candidates), "aliased", apart)
        if key not in self._matrices:
            some = made.first
            others = candidates.first  # one candidate of each placement
            same = made.numbers[some][:, None] == candidates.numbers[others]
            fresh = part(cost, some, others)
            both = np.hstack(
                [np.where(same, 0.0, np.inf), np.where(same, np.inf, fresh) if apart else fresh]
            )
            columns = np.concatenate([candidates.index, candidates.index + len(others)])
            self._matrices[key] = matrix_of(both, made.index, columns)
        return self._matrices[key]

    def _source(self, tensor: TensorInfo, copy: int | None) -> Source:
        """Where a use reads `tensor`."""
        if copy is None:
            return self._maker(tensor)
        return (
            self.first_copy + copy,
            self._candidates(self.space.copies[copy]),
            self.flow.copies[copy].region,
        )

    def _maker(self, tensor: TensorInfo) -> Source:
        """Where a tensor is read as it was made."""
        op = self.graph.producers.get(tensor.id)
        if op is None:
            node = self.input_node[tensor.id]
            return node, self._candidates(self.space.inputs[node]), None
        column = self._placed(op.id, "outs", op.outs.index(tensor))
        region = None if op.region is None else self.graph.made_in(tensor)
        return self.op_node[op.id], column, region

    @cached_property
    def _waiting(self) -> frozenset[int]:
        return waiting(self.graph)

    @cached_property
    def _made_again(self) -> frozenset[int]:
        return written_out(self.graph)

    @cached_property
    def _ready(self) -> frozenset[int]:
        return ready(self.graph)

    def _matrix(
        self,
        tensor: TensorInfo,
        made: Column,
        wanted: Column,
        source: int | None,
        reader: int | None,
        uses: Sequence[Use] = (),
    ) -> Matrix:
        """The routes of a value of region `source` to a placement of region `reader`, from which `uses` read it."""
        weight = self._weight(source, reader)
        router = self._router(tensor, weight, self.graph.tree.site(source, reader), uses)
        key = (tensor.shape, tensor.itemsize, id(made), id(wanted), weight, id(router))
        found = self._matrices.get(key)
        if found is None:
            routes = self._routes(tensor, made.distinct, wanted.distinct, router)
            found = self._matrices[key] = matrix_of(weight * routes, made.index, wanted.index)
        return found

    def _router(
        self, tensor: TensorInfo, weight: float, region: int | None, uses: Sequence[Use]
    ) -> Router:
        """What waits for others is shared; what all readers can is done in their loops."""
        router = self.router.of(tensor)
        if tensor.id in self._made_again:
            router = router.unmasked
        if router.hidden is not router and may_hide(self.graph, tensor.id, uses):
            router = router.hidden
        if weight == 1 and tensor.id in self._waiting:
            return router.shared
        if weight == 1 and tensor.id in self._ready and router.joined is not router:
            return router.joined
        return router.fused if in_loops(self.graph, region, uses) else router

    def _read(
        self,
        tensor: TensorInfo,
        copy: int | None,
        made: Column,
        wanted: Column,
        source: int | None,
        reader: int | None,
        uses: Sequence[Use],
    ) -> Matrix:
        """What a use pays that reads `copy`, or the tensor as it was made."""
        if copy is not None and self.flow.copies[copy].is_sliced:
            return self._same(made, wanted)
        return self._matrix(tensor, made, wanted, source, reader, uses)

    def _same(self, made: Column, wanted: Column) -> Matrix:
        """0 where both are one placement, forbidden elsewhere."""
        key = (id(made), id(wanted), "same")
        if key not in self._matrices:
            same = made.numbers[made.first][:, None] == wanted.numbers[wanted.first]
            self._matrices[key] = matrix_of(np.where(same, 0.0, np.inf), made.index, wanted.index)
        return self._matrices[key]

    def _routes(
        self, tensor: TensorInfo, sources: Placements, targets: Placements, router: Router
    ) -> Floats:
        key = (tensor.shape, tensor.itemsize, id(sources), id(targets), "routes", id(router))
        return self._once(
            key, lambda: router.cost_matrix(tensor.shape, tensor.itemsize, sources, targets)
        )
