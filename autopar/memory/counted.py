"""Usages: the bytes of every variable of the Problem over time, never more than the program holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from autopar.core.columns import Column
from autopar.core.dataflow import Copy
from autopar.core.graph import OpNode
from autopar.core.in_place import in_arguments, updated_carries
from autopar.core.strategy import Strategy
from autopar.memory.duplicated import Longer, least
from autopar.memory.intervals import TimeSpan
from autopar.memory.variables import Variables
from autopar.ops.workspace import beside_bytes
from autopar.solve import Usage

Floats = NDArray[np.float64]


@dataclass(eq=False)
class Usages(Variables):
    """The variables with what they hold when."""

    def usages(self, tensors_only: bool) -> tuple[Usage, ...]:
        """The bytes of every variable over time."""
        if tensors_only:
            return *self._inputs(whole=False), *self._made(), *self._of_copies()
        return *self._inputs(whole=True), *self._results(), *self._held_values(), *self._beside()

    def _inputs(self, *, whole: bool) -> Iterator[Usage]:
        """Of inputs: they have memory from beginning to end; where not `whole`, donated ones to their last use."""
        end = len(self.graph.ops) + 1
        for n, (tensor, candidates) in enumerate(
            zip(self.graph.inputs, self.space.inputs, strict=True)
        ):
            stop = end if whole or n not in self.graph.donated else self._last_use(tensor) + 1
            reads = self.held.read.get(tensor.id, ()) if whole else ()
            for start, later in zip(
                (0, *(time + 1 for time in reads)), (*reads, stop), strict=True
            ):
                if start < later:
                    yield Usage(n, start, later, self._bytes(tensor, self._candidates(candidates)))

    def _made(self) -> Iterator[Usage]:
        """Of what operators make: until it is stored in a copy, or to its last use."""
        graph = self.graph
        stored = {copy.tensor.id for copy in self.flow.copies if copy.stored}
        for op in graph.ops:
            for k, tensor in enumerate(op.outs):
                if tensor.id in self.in_memory:
                    stop = (
                        graph.ready_at(op) + 1
                        if tensor.id in stored
                        else self._last_use(tensor, op.id) + 1
                    )
                    size = self._bytes(tensor, self._placed(op.id, "outs", k))
                    yield Usage(self.op_node[op.id], self._start(op), self._until(op, stop), size)

    def _of_copies(self) -> Iterator[Usage]:
        """Of copies, to their last use; stored ones of what stays in registers take none."""
        for copy, candidates in self._copies():
            if copy.stored and copy.tensor.id not in self.in_memory:
                continue
            node = self.first_copy + copy.id
            size = self._sizes_of(copy, self._candidates(candidates))
            yield Usage(node, copy.start, copy.stop, size)

    def _held_values(self) -> Iterator[Usage]:
        """Of what operators make and of copies, as long as `held` says, but of results of the function, and of what may
        lie in the memory of arguments.
        """
        graph = self.graph
        held = self.held
        there = in_arguments(self.graph)
        updated = updated_carries(self.graph)
        results = {tensor.id for tensor in graph.outputs}
        stored = {copy.tensor.id for copy in self.flow.copies if copy.stored}
        for op in graph.ops:
            for k, tensor in enumerate(op.outs):
                if tensor.id not in self.in_memory or tensor.id in there:
                    continue
                column = self._placed(op.id, "outs", k)
                ready = graph.ready_at(op) + 1
                stop = ready if tensor.id in stored else max(ready, held.end[tensor.id])
                size = self._bytes(tensor, column)
                if tensor.id in results:  # counted already, but for what is still to be reduced
                    stop = ready
                    size = self._unreduced(column, size)
                if self._is_any(size):
                    until = stop if tensor.id in updated else self._until(op, stop)
                    yield Usage(self.op_node[op.id], self._start(op), until, size)

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
        candidates = self._candidates(self.space.copies[longer.copy])
        key = (id(made), id(longer.sizes), id(candidates), "under")
        sizes = self._once(key, lambda: _under(least(made, longer.sizes, candidates)))
        return Usage(self.first_copy + longer.copy, longer.start, longer.stop, sizes)

    def _held_copy(self, copy: Copy, candidates: Column) -> Iterator[Usage]:
        node = self.first_copy + copy.id
        end = self.held.end.get(copy.tensor.id, 0)
        is_there = copy.tensor.id in in_arguments(self.graph)
        waits = copy.tensor.id not in self.in_memory
        if copy.stored and copy.start < end and not is_there and not waits:
            yield Usage(node, copy.start, end, self._sizes_of(copy, candidates))

        fresh = self.held.fresh.get(copy.id)
        alias = self._alias(copy)
        size = self._bytes(copy.tensor, candidates)
        if fresh is not None:
            yield Usage(node, fresh.start, fresh.stop, self._behind_none(size))

        if alias is not None and not is_there and not waits:
            before = self._once(
                (id(size), "before none"), lambda: np.concatenate([size, np.zeros(len(size))])
            )
            yield Usage(node, alias.start, alias.stop, before)

    def _alias(self, copy: Copy) -> TimeSpan | None:
        """When the memory of a copy that is an alias is still taken although that of its source need not be."""
        return self.held.alias.get(copy.id)

    def _sizes_of(self, copy: Copy, candidates: Column) -> Floats:
        """The bytes of a copy under each candidate; an alias takes none, a stored copy has its bytes either way."""
        size = self._bytes(copy.tensor, candidates, self._doubled(copy) and not copy.stored)
        if not copy.stored or not self._doubled(copy):
            return size
        return self._once((id(size), "either way"), lambda: np.concatenate([size, size]))

    def _unreduced(self, column: Column, size: Floats) -> Floats:
        """The bytes of what is still to be reduced; nothing of what is not."""
        return self._once(
            (id(column), id(size), "unreduced"), lambda: np.where(column.unreduced, size, 0.0)
        )

    def _is_any(self, size: Floats) -> bool:
        """Whether any of `size`, which is kept, is not 0."""
        known = self._any.get(id(size))
        if known is None:
            known = self._any[id(size)] = bool(size.any())
        return known

    @cached_property
    def _any(self) -> dict[int, bool]:
        return {}

    def _results(self) -> Iterator[Usage]:
        """Of the function's results, but of those that may take a donated input's memory: all along."""
        for position, tensor in enumerate(self.graph.outputs):
            if tensor.literal is None and not self._may_be_taken(position):
                node = self.output_node[position]
                candidates = self.space.outputs[position] or self.space.inputs[node]
                size = self._bytes(tensor, self._candidates(candidates))
                yield Usage(node, 0, len(self.graph.ops) + 1, size)

    def _may_be_taken(self, position: int) -> bool:
        """Whether a result may lie in the memory of a donated input of its shape and type: its own, or any that is not
        another's.
        """
        own, free = self._offered
        tensor = self.graph.outputs[position]
        return position in own or (tensor.shape, tensor.dtype) in free

    @cached_property
    def _offered(self) -> tuple[frozenset[int], frozenset[tuple[tuple[int, ...], str]]]:
        """The results whose carried input is donated, and the shapes and types of donated inputs that none carries."""
        graph = self.graph
        donated = set(self.graph.donated)
        carried = {source for _, source in self.space.carry}
        own = frozenset(position for position, source in self.space.carry if source in donated)
        free = [graph.inputs[n] for n in donated - carried]
        return own, frozenset((tensor.shape, tensor.dtype) for tensor in free)

    def _beside(self) -> Iterator[Usage]:
        """What operators hold while they run, besides results and what others still need: operands that are read last,
        workspace, and what they exchange.
        """
        for op, strategies in zip(self.graph.ops, self.space.strategies, strict=True):
            if not strategies:
                continue
            read = tuple([tensor.id in self.in_memory for tensor in op.ins])
            last = self.held.last.get(op.id, ())
            key = (id(strategies), self.graph.alike[op.id], read, last, "beside")
            size = self._arrays.get(key)
            if size is None:
                size = self._arrays[key] = self._beside_of(op, strategies, read, last)
            if self._is_any(size):
                yield Usage(self.op_node[op.id], op.id, op.id + 1, size)

    def _beside_of(
        self, op: OpNode, strategies: Sequence[Strategy], read: Sequence[bool], last: Sequence[int]
    ) -> Floats:
        sizes = [beside_bytes(op, strategy, self.space.mesh, read) for strategy in strategies]
        operands = [self._bytes(op.ins[n], self._placed(op.id, "ins", n)) for n in last]
        return sum(operands, np.array(sizes, dtype=np.float64))

    def _start(self, op: OpNode) -> int:
        """When the memory of the results is taken: that of a scan's stack before its first round."""
        return (
            self.graph.spans[op.region][0]
            if op.kind == "scan_stack" and op.region is not None
            else op.id
        )

    def _until(self, op: OpNode, stop: int) -> int:
        """When it is free again: that of a carry when its loop ends."""
        return (
            self.graph.spans[op.region][1] + 1
            if op.kind == "carry_in" and op.region is not None
            else stop
        )


def _under(sizes: Floats) -> Floats:
    """What is held under a stored copy that is as its operator left it (`inf`: it never is); else nothing."""
    return np.concatenate([np.where(np.isfinite(sizes), sizes, 0.0), np.zeros(len(sizes))])
