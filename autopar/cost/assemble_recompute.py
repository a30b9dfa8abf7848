"""Assemble with recomputation: the Problem in which operators are chosen to keep their results or to run once more.

The graph holds a twin of every operator that may be recomputed (`core.recompute`, with residuals). On top of what
`cost.assemble` has:

    twin                 its strategies, or absent
    join                 the stored copy of a twin's result, from which all that needs it reads: every placement twice,
                         recomputed (the twin is there; the bytes are taken from then on) and kept (the twin is absent;
                         the placement is the one in which its original was left; the bytes are taken all along)
    residual, original   a stack and its slice that only a twin's readers read, and an operator whose result only these
                         and twins read, may be absent too; what is absent is read by nothing that is not
    hold                 what only twins read so late is held for them, or is not: a variable for each such stretch

Copies of a phase under a join belong to the readers that are always there; twins read the join itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from autopar.backends.known import backend_of
from autopar.core.columns import Column
from autopar.core.dataflow import Copy, Dataflow, Use, until
from autopar.core.graph import TensorInfo
from autopar.core.recompute import Rewritten
from autopar.core.space import Space
from autopar.cost.assemble import Builder
from autopar.cost.pricing import Pricing, compiler_of
from autopar.memory.duplicated import Duplicated
from autopar.memory.intervals import HeldTimes, TimeSpan, held
from autopar.memory.twins import clipped, is_join, is_twin, lasting, read_once
from autopar.ops.fusion import recomputed
from autopar.redistribute.route import Router
from autopar.solve import Edge, Problem, Usage
from autopar.solve.problem.factored_matrix import part, twice
from autopar.solve.problem.problem import EdgesByMatrix
from autopar.solve.problem.rows import least_use

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RecomputeProblem:
    """The Problem, and how many of its first variables are those of the space."""

    problem: Problem
    builder: RecomputeBuilder

    def is_present(self, op: int, choice: Sequence[int]) -> bool:
        """Whether operator `op` runs."""
        return choice[self.builder.op_node[op]] < len(self.builder.space.strategies[op])


@dataclass(frozen=True, eq=False)
class Hold:
    """A stretch of time, `start` to `stop`, in which only the twins of `uses` still need what `source` makes."""

    tensor: TensorInfo
    source: int | None
    uses: tuple[Use, ...]
    start: int
    stop: int


def assemble_recompute(
    rewritten: Rewritten,
    flow: Dataflow,
    space: Space,
    pricing: Pricing,
    router: Router,
    limit_bytes: float,
    *,
    tensors_only: bool = False,
) -> RecomputeProblem:
    """The Problem of choosing from `space` and of what to recompute, within `limit_bytes`.

    Args:
      rewritten: the graph with every twin, and with residuals.
      flow: its copies.
      space: its candidates; those of a tensor's copy and of its join are the same.
      pricing: of that graph.
      router: the routes under the pricing.
      limit_bytes: what a device may use.
      tensors_only: count tensors between their making and their last use, and nothing else.
    """
    build = _builder(rewritten, flow, space, pricing, router, tensors_only)
    return RecomputeProblem(build.problem(pricing, limit_bytes, tensors_only), build)


def least_bytes_recomputed(
    rewritten: Rewritten, flow: Dataflow, space: Space, pricing: Pricing, router: Router
) -> float:
    """What every choice holds on a device at some time, whatever it recomputes, found without what choices cost."""
    return least_use(_builder(rewritten, flow, space, pricing, router).usages(False))


def _builder(
    rewritten: Rewritten,
    flow: Dataflow,
    space: Space,
    pricing: Pricing,
    router: Router,
    may_keep: bool = False,
) -> RecomputeBuilder:
    args = rewritten.graph, clipped(rewritten.graph, flow), space, router, True
    fusing = backend_of(compiler_of(pricing)).counting
    return RecomputeBuilder(*args, fusing=fusing, rewritten=rewritten, may_keep=may_keep)


@dataclass(eq=False, kw_only=True)
class RecomputeBuilder(Builder):
    """The Builder of the graph with every twin. If `may_keep`, what only an absent twin would read may be kept."""

    rewritten: Rewritten
    may_keep: bool = False
    holds: list[Hold] = field(default_factory=list[Hold])

    def __post_init__(self) -> None:
        super().__post_init__()
        graph = self.graph
        self.twins = {twin.op: twin for twin in self.rewritten.twins}
        self.joins = {copy.id for copy in self.flow.copies if is_join(graph, copy)}
        self.stored = {copy.tensor.id: copy for copy in self.flow.copies if copy.stored}
        self.join_of = {
            kept.id: self.stored[new.id].id
            for twin in self.rewritten.twins
            for kept, new in zip(twin.kept, graph.ops[twin.op].outs, strict=True)
            if kept is not None and new.id in self.stored
        }
        originals = [twin.original for twin in self.rewritten.twins if twin.original is not None]
        self.repeated = {tensor.id for op in originals for tensor in graph.ops[op].outs}
        self.optional = self._optional_ops()
        self.optional_copies = {
            copy.id for copy in self.flow.copies if self._is_optional_copy(copy)
        }
        self.holds = self._holds()

        self.first_hold = len(self.space.counts)

    def _optional_ops(self) -> frozenset[int]:
        """Twins, residuals that nobody else reads, and originals that only these read."""
        graph = self.graph
        outputs = {tensor.id for tensor in graph.outputs}
        may = {
            op
            for twin in self.rewritten.twins
            for op in (twin.original, *twin.residuals)
            if op is not None
        }
        found = set(self.twins)
        for op in sorted(may, reverse=True):
            readers = {use.op for t in graph.ops[op].outs for use in self.flow.uses.get(t.id, ())}
            if readers <= found and outputs.isdisjoint(t.id for t in graph.ops[op].outs):
                found.add(op)

        return frozenset(found)

    def _is_optional_copy(self, copy: Copy) -> bool:
        producer = self.graph.producers.get(copy.tensor.id)
        is_sure = producer is None or producer.id not in self.optional
        return not is_sure and all(use.op in self.optional for use in copy.uses)

    @property
    def _repeats(self) -> Sequence[int]:
        return self.rewritten.repeats

    def node_costs(self, pricing: Pricing) -> tuple[Floats, ...]:
        """Seconds of every candidate; what is absent costs nothing."""
        costs = list(super().node_costs(pricing))
        longer: dict[int, Floats] = {}
        for op in self.optional:
            cost = costs[self.op_node[op]]
            costs[self.op_node[op]] = longer.setdefault(id(cost), np.append(cost, 0.0))

        for copy in self.flow.copies:
            node = self.first_copy + copy.id
            count = len(costs[node]) * (2 if copy.id in self.joins else 1) + (
                copy.id in self.optional_copies
            )
            costs[node] = np.zeros(count)

        costs += [np.zeros(len(self._from(hold.tensor, hold.source)[1]) + 1) for hold in self.holds]
        return tuple(costs)

    def edges(self) -> EdgesByMatrix:
        """Routes; what is absent is read by nothing that is there; joins and holds."""
        found: list[Edge] = []
        for copy, candidates in self._copies():
            node, made, region = self._source(copy.tensor, copy.source)
            wanted = self._candidates(candidates)
            cost = self._matrix(copy.tensor, made, wanted, region, copy.region, copy.uses)
            target = self.first_copy + copy.id
            if copy.id in self.joins:
                found += self._join(copy, Edge(node, target, cost), wanted)
                continue
            if (
                copy.tensor.id in self.repeated
                and copy.stored
                and self._lasting_uses(copy.tensor) < 2
            ):
                cost = self._same(made, wanted)
            if self._doubled(copy):
                cost = self._aliased(cost, made, wanted, copy.stored)
            edge = self._widened(Edge(node, target, cost), copy.source)
            found.append(
                self._with_absent(edge, copy.tensor, copy.source, copy.id in self.optional_copies)
            )

        for use, source in self.flow.source.items():
            edge = self._use_edge(use, source)
            if edge is not None:
                found.append(edge)

        found += self._hold_edges()
        ends = np.array([(edge.u, edge.v) for edge in found], dtype=np.intp).reshape(-1, 2)
        return EdgesByMatrix.of(ends, [edge.matrix for edge in found], np.arange(len(found)))

    def _use_edge(self, use: Use, source: int | None) -> Edge | None:
        if use.op is not None:
            tensor = self.graph.ops[use.op].ins[use.position]
            target = self.op_node[use.op]
            wanted = self._placed(use.op, "ins", use.position)
        else:
            tensor = self.graph.outputs[use.position]
            target = self.output_node[use.position]
            wanted = self._candidates(self.space.outputs[use.position] or self.space.inputs[target])

        if self._needs_kept(tensor, use):
            return self._kept_edge(tensor, use, wanted)

        node, made, region = self._source(tensor, source)
        if node == target:
            return None

        cost = self._read(tensor, source, made, wanted, region, use.region, (use,))
        return self._with_absent(
            self._widened(Edge(node, target, cost), source), tensor, source, use.op in self.optional
        )

    def _needs_kept(self, tensor: TensorInfo, use: Use) -> bool:
        """Whether a twin reads what is computed anew only later: it needs it kept, or made where it reads it."""
        if tensor.id not in self.join_of or not is_twin(self.graph, use):
            return False
        return self._kept(self.flow.copies[self.join_of[tensor.id]]) is not None

    def _kept_edge(self, tensor: TensorInfo, use: Use, wanted: Column) -> Edge:
        """From the join of what is kept to a twin that reads it early."""
        join = self.join_of[tensor.id]
        made = self._candidates(self.space.copies[join])
        cost = part(
            self._matrix(tensor, made, wanted, self.flow.copies[join].region, use.region, (use,))
        )
        both = np.vstack([np.full(cost.shape, np.inf), cost])
        rows = np.pad(
            both, ((0, int(join in self.optional_copies)), (0, 1)), constant_values=np.inf
        )
        rows[:, -1] = 0.0
        return Edge(self.first_copy + join, self.op_node[use.op or 0], rows)

    def _widened(self, edge: Edge, source: int | None) -> Edge:
        if source not in self.joins:
            return super()._widened(edge, source)
        key = (id(edge.matrix), "twice")
        if key not in self._matrices:
            # keys are identities: it must outlive them
            self._matrices[id(edge.matrix), "alive"] = edge.matrix
            self._matrices[key] = twice(edge.matrix)
        return Edge(edge.u, edge.v, self._matrices[key])

    def _with_absent(
        self, edge: Edge, tensor: TensorInfo, source: int | None, reader: bool
    ) -> Edge:
        """The edge with a last row for an absent source, and with a last column for an absent reader."""
        producer = self.graph.producers.get(tensor.id)
        made = (
            source in self.optional_copies
            if source is not None
            else producer and producer.id in self.optional
        )
        if not made and not reader:
            return edge

        alone = source is not None and self._serves_one(self.flow.copies[source])
        key = (id(edge.matrix), "absent", bool(made), reader, alone)
        if key not in self._matrices:
            self._matrices[id(edge.matrix), "alive"] = edge.matrix
            cost = np.pad(
                part(edge.matrix), ((0, int(bool(made))), (0, int(reader))), constant_values=np.inf
            )
            if reader:
                cost[:, -1] = 0.0
            if reader and alone:
                cost[:-1, -1] = np.inf
            self._matrices[key] = cost

        return Edge(edge.u, edge.v, self._matrices[key])

    def _serves_one(self, copy: Copy) -> bool:
        """Whether a copy is there for one reader only: without that it is absent, and so is what makes it."""
        is_such = not self.may_keep and copy.id in self.joins and copy.id in self.optional_copies
        return (
            is_such
            and len(copy.uses) == len(self.graph.ops[self.made_by[copy.tensor.id][0]].outs) == 1
        )

    def _join(self, copy: Copy, made: Edge, candidates: Column) -> list[Edge]:
        """A join between its twin and what would be kept."""
        count = len(candidates)
        absent = copy.id in self.optional_copies
        cost = np.full((len(made.cost) + 1, 2 * count + absent), np.inf)
        cost[:-1, :count] = made.cost
        cost[-1, count:] = 0.0
        found = [Edge(made.u, made.v, cost)]
        kept = self._kept(copy)
        if kept is None:
            forbidden = np.zeros((len(cost), 2 * count + absent))
            forbidden[:, count : 2 * count] = np.inf
            return [Edge(made.u, made.v, cost + forbidden)]

        source, placements, optional = self._from(kept, None)
        keeping = self._matrix_of_kept(kept, placements, candidates)
        rows = np.zeros((len(placements) + optional, 2 * count + absent))
        rows[: len(placements), count : 2 * count] = keeping
        rows[len(placements) :, count : 2 * count] = np.inf
        return [*found, Edge(source, made.v, rows)]

    def _matrix_of_kept(self, kept: TensorInfo, placements: Column, candidates: Column) -> Floats:
        """What is kept stays as it is; where only later readers need it, it is put right as soon as it is made."""
        is_slice = self.graph.producers[kept.id].kind == "scan_slice"
        if kept.id in self.stored or is_slice or self._lasting_uses(kept) < 2:
            return part(self._same(placements, candidates))
        return part(
            self._matrix(
                kept, placements, candidates, self.graph.made_in(kept), self.graph.made_in(kept)
            )
        )

    def _lasting_uses(self, tensor: TensorInfo) -> int:
        """How many uses a tensor has that are always there, those of its join included: of several a copy is stored."""
        join = self.join_of.get(tensor.id)
        later = () if join is None else self.flow.copies[join].uses
        uses = (*self.flow.uses.get(tensor.id, ()), *later)
        return sum(not is_twin(self.graph, use) for use in uses)

    def _kept(self, copy: Copy) -> TensorInfo | None:
        """What a join reads where nothing is recomputed; None where there is no such tensor, or none in memory."""
        twin = self.twins[self.made_by[copy.tensor.id][0]]
        kept = twin.kept[self.made_by[copy.tensor.id][1]]
        return kept if copy.tensor.id in self.in_memory else None

    def _from(self, tensor: TensorInfo, source: int | None) -> tuple[int, Column, bool]:
        """The node that makes `tensor` or stores it, its placements candidate by candidate, and whether it may go."""
        if source is None and tensor.id in self.stored:
            source = self.stored[tensor.id].id
        node, placements, _ = self._source(tensor, source)
        if source is not None:
            return node, placements, source in self.optional_copies
        producer = self.graph.producers.get(tensor.id)
        return node, placements, producer is not None and producer.id in self.optional

    def _holds(self) -> list[Hold]:
        """The stretches at the end of a tensor's life in which only twins read it, if those are there."""
        late: dict[tuple[int, int | None], list[Use]] = {}
        for use, source in self.flow.source.items():
            if use.op is None or not is_twin(self.graph, use):
                continue
            if self.graph.ops[use.op].ins[use.position].id not in self.join_of:
                late.setdefault((self.graph.ops[use.op].ins[use.position].id, source), []).append(
                    use
                )

        tensors = {t.id: t for op in self.graph.ops for t in op.ins}
        return [
            h
            for (t, source), uses in late.items()
            if (h := self._hold(tensors[t], source, uses)) is not None
        ]

    def _hold(self, tensor: TensorInfo, source: int | None, uses: Sequence[Use]) -> Hold | None:
        graph = self.graph
        node = self.input_node.get(tensor.id)
        if (node is not None and node not in graph.donated) or tensor.id not in self.in_memory:
            return None
        if source is not None and not self.flow.copies[source].stored:
            return None

        producer = graph.producers.get(tensor.id)
        start = self._last_use(tensor, 0 if producer is None else graph.ready_at(producer)) + 1
        start = start if source is None else self.flow.copies[source].stop
        made_in = graph.made_in(tensor)
        needed = tuple(use for use in uses if until(graph, made_in, use) >= start)
        stop = max((until(graph, made_in, use) for use in needed), default=start - 1) + 1
        return Hold(tensor, source, needed, start, stop) if needed else None

    def _last_use(self, tensor: TensorInfo, default: int = 0) -> int:
        """The last use that is always there."""
        made_in = self.graph.made_in(tensor)
        uses = (use for use in self.flow.uses.get(tensor.id, ()) if not is_twin(self.graph, use))
        return max((until(self.graph, made_in, use) for use in uses), default=default)

    def _hold_edges(self) -> list[Edge]:
        """A hold is of the placement that is held; a twin that reads then needs it."""
        found: list[Edge] = []
        for n, hold in enumerate(self.holds):
            node, placements, optional = self._from(hold.tensor, hold.source)
            same = part(self._same(placements, placements))
            rows = np.vstack([same, same]) if hold.source in self.joins else same
            rows = np.pad(rows, ((0, int(optional)), (0, 1)), constant_values=np.inf)
            rows[:, -1] = 0.0
            found.append(Edge(node, self.first_hold + n, rows))
            for op in sorted({use.op for use in hold.uses if use.op is not None}):
                needs = np.zeros((len(placements) + 1, len(self.space.strategies[op]) + 1))
                needs[-1, :-1] = np.inf
                if len(hold.uses) == 1 and not self.may_keep:
                    needs[:-1, -1] = np.inf
                found.append(Edge(self.first_hold + n, self.op_node[op], needs))

        return found

    def usages(self, tensors_only: bool) -> tuple[Usage, ...]:
        """Bytes over time: of inputs, operators and copies while they are surely needed, of joins and holds."""
        optional = {self.op_node[op] for op in self.optional}
        optional |= {self.first_copy + copy for copy in self.optional_copies}
        written = self.in_memory
        joins = self.joins  # what is not in memory, or counts otherwise, is apart
        apart = {
            self.first_copy + c.id
            for c in self.flow.copies
            if c.id in joins or c.tensor.id not in written
        }
        found = [
            replace(usage, size_bytes=np.append(usage.size_bytes, 0.0))
            if usage.node in optional
            else usage
            for usage in super().usages(tensors_only)
            if usage.node not in apart
        ]
        for copy, candidates in self._copies():
            if copy.id in self.joins and copy.tensor.id in self.in_memory:
                found += self._join_usages(
                    copy, self._bytes(copy.tensor, self._candidates(candidates)), tensors_only
                )

        for n, hold in enumerate(self.holds):
            if not tensors_only and hold.tensor.id in self.input_node:
                continue  # inputs have memory all along
            start = hold.start if tensors_only else self._anew.until[hold.tensor.id]
            if start < hold.stop:
                size = np.append(
                    self._bytes(hold.tensor, self._from(hold.tensor, hold.source)[1]), 0.0
                )
                found.append(Usage(self.first_hold + n, start, hold.stop, size))

        return tuple(found)

    def _join_usages(self, copy: Copy, size: Floats, tensors_only: bool) -> Iterator[Usage]:
        """Of a join: recomputed, from the twin on; kept, from when on nobody else counts what is kept."""
        node = self.first_copy + copy.id
        kept = self._kept(copy)
        stop = copy.stop if tensors_only else self.held.end[copy.tensor.id]
        since = (
            stop
            if kept is None
            else self._kept_since(kept)
            if tensors_only
            else self._anew.until[kept.id]
        )
        zeros = np.zeros(len(size))
        absent = np.zeros(int(copy.id in self.optional_copies))
        if copy.start < stop:
            yield Usage(node, copy.start, stop, np.concatenate([size, zeros, absent]))

        if since < stop:
            yield Usage(node, since, stop, np.concatenate([zeros, size, absent]))

    def _alias(self, copy: Copy) -> TimeSpan | None:
        """Of what a join keeps, from when on nobody else counts that."""
        found = super()._alias(copy)
        kept = self._kept(self.flow.copies[copy.source]) if copy.source in self.joins else None
        if found is None or kept is None:
            return found
        start = max(found.start, self._anew.until[kept.id])
        return TimeSpan(start, found.stop) if start < found.stop else None

    def _kept_since(self, kept: TensorInfo) -> int:
        """When the last reader that is always there was reached."""
        return (
            self.stored[kept.id].stop
            if kept.id in self.stored
            else self.graph.producers[kept.id].id + 1
        )

    @cached_property
    def held(self) -> HeldTimes:
        """How long what is made is surely held: by readers that are always there."""
        return held(self.graph, self._sure, self.in_memory)

    @cached_property
    def _anew(self) -> Duplicated:
        kept = {
            hold.tensor.id for hold in self.holds if hold.tensor.id not in self.input_node
        } | self.join_of.keys()
        known = (
            self.graph,
            self._sure,
            self.held,
            self.in_memory,
            recomputed(self.graph, self.fusing),
            self._placed,
            self._once,
            self._may_go,
        )

        return Duplicated(*known, kept, read_once(self.flow, self.join_of))

    @cached_property
    def _sure(self) -> Dataflow:
        return lasting(self.graph, self.flow, self._may_go, frozenset(self.join_of))

    @cached_property
    def _may_go(self) -> frozenset[int]:
        """The operators that some choices leave out."""
        return self.optional | {op for op, key in enumerate(self.rewritten.keys) if key[0] != "op"}
