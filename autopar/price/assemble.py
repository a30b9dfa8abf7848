"""Assemble: a graph, its space and a pricing in, the mathematical program out.

Variables are inputs, operators, copies and outputs, in the order of `Space.counts`. An operator's cost is that of
computing and of what it exchanges inside; an edge is a tensor on its way from where it is made to where it is used, its
cost the cheapest route.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from autopar.core.dataflow import Copy, Dataflow, until
from autopar.core.graph import OpGraph, OpNode, TensorInfo
from autopar.core.placement import Placement
from autopar.core.space import Space
from autopar.price.anew import Anew, Longer, least
from autopar.price.columns import Column, Columns
from autopar.price.held import Held, held
from autopar.price.pricing import Layout, Pricing, costs_of
from autopar.price.work import beside_bytes, materialised
from autopar.redistribute.route import Router
from autopar.solve import Edge, Problem, Usage

Floats = NDArray[np.float64]
Placements = tuple[Placement, ...]


def assemble(
    graph: OpGraph,
    flow: Dataflow,
    space: Space,
    pricing: Pricing,
    router: Router,
    limit_bytes: float | None = None,
    *,
    tensors_only: bool = False,
    detailed: bool = True,
) -> Problem:
    """The Problem of choosing from `space`.

    With a limit, a copy that is not stored has every candidate twice: as an alias of its source, which takes no
    memory and must have the source's placement, and fresh (`placement_choice` undoes this). So has a stored copy under
    which operands are held longer (`price.anew`): as its operator makes it, and otherwise. With `tensors_only` the
    memory is that of tensors between their making and their last use, and nothing else; what is not `detailed` counts
    as a Problem with recomputation does.
    """
    build = Builder(graph, flow, space, router, limit_bytes is not None, detailed)
    usages = build.usages(tensors_only) if limit_bytes is not None else ()
    return Problem(build.node_costs(pricing), build.edges(), usages, limit_bytes)


def placement_choice(space: Space, choice: Sequence[int]) -> tuple[int, ...]:
    """A choice of the Problem as a choice of `space`: alias or fresh is no difference there."""
    return tuple(s % count for s, count in zip(choice, space.counts, strict=True))


@dataclass(eq=False)
class Builder:
    """What the parts of one assembly share. Matrices, columns and sizes are cached by the identity of their makers."""

    graph: OpGraph
    flow: Dataflow
    space: Space
    router: Router
    limited: bool
    detailed: bool = True
    _columns: dict[tuple[object, ...], Column] = field(default_factory=dict[tuple[object, ...], Column])
    _weights: dict[tuple[int | None, int | None], float] = field(
        default_factory=dict[tuple[int | None, int | None], float]
    )
    _layouts: dict[int, Layout] = field(default_factory=dict[int, Layout])
    _matrices: dict[tuple[object, ...], Floats] = field(default_factory=dict[tuple[object, ...], Floats])

    def __post_init__(self) -> None:
        graph, space = self.graph, self.space
        self.columns = Columns(space.mesh)
        own = [op for op, strategies in enumerate(space.strategies) if strategies]
        self.op_node = {op: len(space.inputs) + n for n, op in enumerate(own)}
        self.op_node |= {op: self.op_node[entering] for op, entering in space.loop_carries}
        self.entering = dict(space.loop_carries)
        self.first_copy = len(space.inputs) + len(own)
        first_output = self.first_copy + len(space.copies)
        free = [i for i, candidates in enumerate(space.outputs) if candidates]
        carried = dict(space.carry)
        self.output_node = {i: first_output + n for n, i in enumerate(free)} | carried
        self.input_node = {t.id: n for n, t in enumerate(graph.inputs)}
        self.made_by = {t.id: (op.id, k) for op in graph.ops for k, t in enumerate(op.outs)}

    @cached_property
    def in_memory(self) -> frozenset[int]:
        """The ids of the tensors that reach memory."""
        return materialised(self.graph)

    @cached_property
    def held(self) -> Held:
        """How long what is made is surely held."""
        return held(self.graph, self.flow, self.in_memory)

    def node_costs(self, pricing: Pricing) -> tuple[Floats, ...]:
        """The costs of every variable."""
        free: dict[int, Floats] = {}

        def none(count: int) -> Floats:
            return free[count] if count in free else free.setdefault(count, np.zeros(count))

        costs: list[Floats] = [none(len(candidates)) for candidates in self.space.inputs]
        known: dict[tuple[object, ...], Floats] = {}
        for op, strategies in zip(self.graph.ops, self.space.strategies, strict=True):
            if op.id in self.entering:
                continue
            weight = self.graph.tree.weight(op.region)
            key = (id(strategies), self.graph.alike[op.id], pricing.context(op), weight)
            if key not in known:
                known[key] = weight * costs_of(pricing, op, strategies, self._layout(op))
            costs.append(known[key])
        costs += [none(len(c) * (2 if self._doubled(copy) else 1)) for copy, c in self._copies()]
        costs += [none(len(candidates)) for candidates in self.space.outputs if candidates]
        return tuple(costs)

    def _layout(self, op: OpNode) -> Layout:
        """The arrays of an operator's strategies; shared by all operators that share these."""
        strategies = self.space.strategies[op.id]
        if id(strategies) not in self._layouts:
            columns = [self._placed(op.id, "ins", n) for n in range(len(op.ins))]
            columns += [self._placed(op.id, "outs", n) for n in range(len(op.outs))]
            parts = np.array([column.parts for column in columns]).reshape(len(columns), len(strategies))
            split = np.array([strategy.split for strategy in strategies])
            exchanging = tuple(n for n, strategy in enumerate(strategies) if strategy.exchanges)
            self._layouts[id(strategies)] = Layout(parts, split, exchanging)
        return self._layouts[id(strategies)]

    def edges(self) -> tuple[Edge, ...]:
        """The routes between variables, and which copies may be aliases."""
        found: list[Edge] = []
        for copy, candidates in self._copies():
            node, made, region = self._source(copy.tensor, copy.source)
            wanted = self._candidates(candidates)
            cost = self._matrix(copy.tensor, made, wanted, self._weight(region, copy.region))
            if self._doubled(copy):
                cost = self._aliased(cost, made, wanted, copy.stored)
            found.append(self._widened(Edge(node, self.first_copy + copy.id, cost), copy.source))
        for (op, position, _, reader), source in self.flow.source.items():
            if op is not None:
                tensor = self.graph.ops[op].ins[position]
                target = self.op_node[op]
                wanted = self._sides[op][0][position]
            else:
                tensor = self.graph.outputs[position]
                target = self.output_node[position]
                wanted = self._candidates(self.space.outputs[position] or self.space.inputs[target])
            node, made, region = self._source(tensor, source)
            if node != target:
                cost = self._matrix(tensor, made, wanted, self._weight(region, reader))
                edge = Edge(node, target, cost)
                found.append(edge if source is None else self._widened(edge, source))
        return tuple(found)

    def _weight(self, source: int | None, reader: int | None) -> float:
        """How often a value of one region is redistributed for a reader in another."""
        key = (source, reader)
        if key not in self._weights:
            self._weights[key] = self.graph.tree.weight(self.graph.tree.site(source, reader))
        return self._weights[key]

    def usages(self, tensors_only: bool) -> tuple[Usage, ...]:
        """The bytes of every variable over time."""
        if tensors_only:
            return *self._inputs(whole=False), *self._made(frozenset()), *self._of_copies(frozenset())
        if self.detailed:
            results = (usage for _, usage in self._results())
            return *self._inputs(whole=True), *results, *self._held_values(), *self._beside()
        taken = frozenset(t.id for n, t in enumerate(self.graph.outputs) if self._may_be_taken(n))
        return *self._inputs(whole=True), *self._made(taken), *self._of_copies(taken), *self._ahead(), *self._beside()

    def _inputs(self, *, whole: bool) -> Iterator[Usage]:
        """Of inputs: they have memory from beginning to end; where not `whole`, donated ones to their last use."""
        end = len(self.graph.ops) + 1
        for n, (tensor, candidates) in enumerate(zip(self.graph.inputs, self.space.inputs, strict=True)):
            stop = end if whole or n not in self.graph.donated else self._last_use(tensor) + 1
            yield Usage(n, 0, stop, self._bytes(tensor, self._candidates(candidates)))

    def _made(self, left_out: frozenset[int]) -> Iterator[Usage]:
        """Of what operators make, but of some tensors: until it is stored in a copy, or to its last use."""
        graph, stored = self.graph, {copy.tensor.id for copy in self.flow.copies if copy.stored}
        for op in graph.ops:
            for k, tensor in enumerate(op.outs):
                if tensor.id in self.in_memory and tensor.id not in left_out:
                    stop = graph.ready_at(op) + 1 if tensor.id in stored else self._last_use(tensor, op.id) + 1
                    size = self._bytes(tensor, self._placed(op.id, "outs", k))
                    yield Usage(self.op_node[op.id], self._start(op), self._until(op, stop), size)

    def _of_copies(self, left_out: frozenset[int]) -> Iterator[Usage]:
        """Of copies, but of some tensors, to their last use."""
        for copy, candidates in self._copies():
            if copy.tensor.id not in left_out:
                node, size = self.first_copy + copy.id, self._sizes_of(copy, self._candidates(candidates))
                yield Usage(node, copy.start, copy.stop, size)

    def _held_values(self) -> Iterator[Usage]:
        """Of what operators make and of copies, as long as `held` says, but of results of the function."""
        graph, held = self.graph, self.held
        results = {tensor.id for tensor in graph.outputs}
        stored = {copy.tensor.id for copy in self.flow.copies if copy.stored}
        for op in graph.ops:
            for k, tensor in enumerate(op.outs):
                if tensor.id in self.in_memory and tensor.id not in results:
                    ready = graph.ready_at(op) + 1
                    stop = ready if tensor.id in stored else max(ready, held.end[tensor.id])
                    size = self._bytes(tensor, self._placed(op.id, "outs", k))
                    yield Usage(self.op_node[op.id], self._start(op), self._until(op, stop), size)
        for copy, candidates in self._copies():
            if copy.tensor.id not in results:
                yield from self._held_copy(copy, self._candidates(candidates))
        for longer in self.longer:
            yield self._longer_usage(longer)

    def _longer_usage(self, longer: Longer) -> Usage:
        if longer.copy is None:
            return Usage(self.op_node[longer.op], longer.start, longer.stop, longer.sizes)
        tensor = self.flow.copies[longer.copy].tensor
        made = self._placed(longer.op, "outs", self.made_by[tensor.id][1])
        sizes = least(made, longer.sizes, self._candidates(self.space.copies[longer.copy]))
        sizes = np.concatenate([np.where(np.isfinite(sizes), sizes, 0.0), np.zeros(len(sizes))])
        return Usage(self.first_copy + longer.copy, longer.start, longer.stop, sizes)

    def _sizes_of(self, copy: Copy, candidates: Column) -> Floats:
        """The bytes of a copy under each candidate; an alias takes none, a stored copy has its bytes either way."""
        size = self._bytes(copy.tensor, candidates, self._doubled(copy) and not copy.stored)
        return np.concatenate([size, size]) if self._doubled(copy) and copy.stored else size

    def _held_copy(self, copy: Copy, candidates: Column) -> Iterator[Usage]:
        node, end = self.first_copy + copy.id, self.held.end.get(copy.tensor.id, 0)
        if copy.stored and copy.start < end:
            yield Usage(node, copy.start, end, self._sizes_of(copy, candidates))
        fresh, alias = self.held.fresh.get(copy.id), self.held.alias.get(copy.id)
        size = self._bytes(copy.tensor, candidates)
        none = np.zeros(len(size))
        if fresh is not None:
            yield Usage(node, fresh.start, fresh.stop, np.concatenate([none, size]))
        if alias is not None:
            yield Usage(node, alias.start, alias.stop, np.concatenate([size, none]))

    def _results(self) -> Iterator[tuple[int, Usage]]:
        """Of the function's results, by position, but of those that may take a donated input's memory: all along."""
        for position, tensor in enumerate(self.graph.outputs):
            if tensor.literal is None and not self._may_be_taken(position):
                node = self.output_node[position]
                candidates = self.space.outputs[position] or self.space.inputs[node]
                size = self._bytes(tensor, self._candidates(candidates))
                yield position, Usage(node, 0, len(self.graph.ops) + 1, size)

    def _ahead(self) -> Iterator[Usage]:
        """The same until they are made: from then on their tensors count."""
        for position, usage in self._results():
            producer = self.graph.producers.get(self.graph.outputs[position].id)
            stop = usage.stop if producer is None else self._start(producer)
            if stop > 0:
                yield replace(usage, stop=stop)

    def _may_be_taken(self, position: int) -> bool:
        """Whether a result may lie in the memory of a donated input of its shape and type: its own, or any that is not
        another's.
        """
        graph, tensor, carry = self.graph, self.graph.outputs[position], dict(self.space.carry)
        if position in carry and carry[position] in graph.donated:
            return True
        free = [graph.inputs[n] for n in graph.donated if n not in carry.values()]
        return any((tensor.shape, tensor.dtype) == (other.shape, other.dtype) for other in free)

    def _beside(self) -> Iterator[Usage]:
        """What operators hold while they run, besides results and what others still need: operands that are read last,
        workspace, and what they exchange.
        """
        known: dict[tuple[object, ...], Floats] = {}
        for op, strategies in zip(self.graph.ops, self.space.strategies, strict=True):
            if not strategies:
                continue
            read = tuple(tensor.id in self.in_memory for tensor in op.ins)
            last = self.held.last.get(op.id, ()) if self.detailed else ()
            key = (id(strategies), self.graph.alike[op.id], read, last)
            if key not in known:
                sizes = [beside_bytes(op, strategy, self.space.mesh, read) for strategy in strategies]
                operands = [self._bytes(op.ins[n], self._placed(op.id, "ins", n)) for n in last]
                known[key] = sum(operands, np.array(sizes, dtype=np.float64))
            if known[key].any():
                yield Usage(self.op_node[op.id], op.id, op.id + 1, known[key])

    def _start(self, op: OpNode) -> int:
        """When the memory of the results is taken: that of a scan's stack before its first round."""
        return self.graph.spans[op.region][0] if op.kind == "scan_stack" and op.region is not None else op.id

    def _until(self, op: OpNode, stop: int) -> int:
        """When it is free again: that of a carry when its loop ends."""
        return self.graph.spans[op.region][1] + 1 if op.kind == "carry_in" and op.region is not None else stop

    def _copies(self) -> list[tuple[Copy, Placements]]:
        return list(zip(self.flow.copies, self.space.copies, strict=True))

    def _doubled(self, copy: Copy) -> bool:
        return self.limited and (not copy.stored or copy.id in self._held_longer)

    @cached_property
    def longer(self) -> tuple[Longer, ...]:
        """What operands hold longer than is counted of them elsewhere."""
        if not self.limited or not self.detailed:
            return ()
        return tuple(Anew(self.graph, self.flow, self.held, self.in_memory, self._placed).longer())

    @cached_property
    def _held_longer(self) -> frozenset[int]:
        """The stored copies under which something is held longer."""
        return frozenset(longer.copy for longer in self.longer if longer.copy is not None)

    def _widened(self, edge: Edge, source: int | None) -> Edge:
        """The edge with its rows twice, if it starts at a copy with alias and fresh candidates."""
        if source is None or not self._doubled(self.flow.copies[source]):
            return edge
        key = (id(edge.cost), "twice")
        if key not in self._matrices:
            self._matrices[key] = np.vstack([edge.cost, edge.cost])
        return Edge(edge.u, edge.v, self._matrices[key])

    def _aliased(self, cost: Floats, made: Column, candidates: Column, apart: bool = False) -> Floats:
        """`cost` behind the columns of aliases: 0 where a copy may be its source itself, forbidden elsewhere.

        With `apart` what may be an alias may not be anything else.
        """
        key = (id(cost), id(made), id(candidates), "aliased", apart)
        if key not in self._matrices:
            same = made.numbers[:, None] == candidates.numbers
            fresh = np.where(same, np.inf, cost) if apart else cost
            self._matrices[key] = np.hstack([np.where(same, 0.0, np.inf), fresh])
        return self._matrices[key]

    def _source(self, tensor: TensorInfo, copy: int | None) -> tuple[int, Column, int | None]:
        """The node that a use reads `tensor` from, the placements it may have there, and the region it is made in."""
        if copy is not None:
            return self.first_copy + copy, self._candidates(self.space.copies[copy]), self.flow.copies[copy].region
        if tensor.id in self.input_node:
            node = self.input_node[tensor.id]
            return node, self._candidates(self.space.inputs[node]), None
        op, position = self.made_by[tensor.id]
        region = None if self.graph.ops[op].region is None else self.graph.made_in(tensor)
        return self.op_node[op], self._sides[op][1][position], region

    def _placed(self, op: int, side: Literal["ins", "outs"], position: int) -> Column:
        """The placements of an operand or result under each strategy; a carry_out's are those of its carry_in."""
        ins, outs = self._sides[op]
        return (ins if side == "ins" else outs)[position]

    @cached_property
    def _sides(self) -> list[tuple[tuple[Column, ...], tuple[Column, ...]]]:
        """The columns of the operands and the results of every operator, made once for those that share strategies."""
        known: dict[int, tuple[tuple[Column, ...], tuple[Column, ...]]] = {}
        for strategies in self.space.strategies:
            if strategies and id(strategies) not in known:
                ins, outs = zip(*[(s.ins, s.outs) for s in strategies], strict=True)
                known[id(strategies)] = self._columns_of(ins), self._columns_of(outs)
        found = [known.get(id(strategies), ((), ())) for strategies in self.space.strategies]
        for leaving, entering in self.entering.items():
            found[leaving] = found[entering][1], found[entering][1]
        return found

    def _columns_of(self, sides: Sequence[Placements]) -> tuple[Column, ...]:
        return tuple(self.columns.of(placements) for placements in zip(*sides, strict=True))

    def _candidates(self, placements: Placements) -> Column:
        key = (id(placements),)
        if key not in self._columns:
            self._columns[key] = self.columns.of(placements)
        return self._columns[key]

    def _matrix(self, tensor: TensorInfo, made: Column, wanted: Column, weight: float) -> Floats:
        key = (tensor.shape, tensor.itemsize, id(made), id(wanted), weight)
        if key not in self._matrices:
            routes = self._routes(tensor, made.distinct, wanted.distinct)
            self._matrices[key] = weight * routes[made.index[:, None], wanted.index]
        return self._matrices[key]

    def _routes(self, tensor: TensorInfo, sources: Placements, targets: Placements) -> Floats:
        key = (tensor.shape, tensor.itemsize, id(sources), id(targets), "routes")
        if key not in self._matrices:
            self._matrices[key] = self.router.cost_matrix(tensor.shape, tensor.itemsize, sources, targets)
        return self._matrices[key]

    def _last_use(self, tensor: TensorInfo, default: int = 0) -> int:
        made_in = self.graph.made_in(tensor)
        return max((until(self.graph, made_in, use) for use in self.flow.uses.get(tensor.id, ())), default=default)

    def _bytes(self, tensor: TensorInfo, column: Column, doubled: bool = False) -> Floats:
        """The bytes on one device under each candidate; doubled ones are aliases first, which take none."""
        key = (tensor.size_bytes, id(column), doubled)
        if key not in self._matrices:
            size = column.local_bytes(tensor.size_bytes)
            self._matrices[key] = np.concatenate([np.zeros(len(size)), size]) if doubled else size
        return self._matrices[key]
