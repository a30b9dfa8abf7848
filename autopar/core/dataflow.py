"""Dataflow: who reads which tensor when, and which copies of a tensor several readers share.

A tensor with several uses is stored once, in a placement of its own choice (a `Copy`), and read from there; uses in
the forward pass, the backward pass and the update may share a further copy each, which is dropped between them. So
an all-reduce is paid once however many operators read its result, and a gathered parameter has a beginning and an end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from autopar.core.graph import OpGraph, TensorInfo


@dataclass(frozen=True)
class Use:
    """One reading of a tensor: operand `position` of operator `op`, or output `position` of the graph (op None).

    `time` is the operator's position; for outputs the number of operators.
    """

    op: int | None
    position: int
    time: int


@dataclass(frozen=True)
class Copy:
    """A tensor in a placement of its own.

    `source` is the copy that it is made from, None if that is the tensor as its producer left it. `stored` copies
    take the place of the tensor from its production on; the others live from `start` to `stop` beside their source.
    """

    id: int
    tensor: TensorInfo
    source: int | None
    uses: tuple[Use, ...]
    start: int
    stop: int
    stored: bool


@dataclass(frozen=True, eq=False)
class Dataflow:
    """The copies of a graph, and for every use the copy that it reads (None: the tensor itself).

    `uses` maps a tensor id to its uses in time order.
    """

    copies: tuple[Copy, ...]
    source: Mapping[Use, int | None]
    uses: Mapping[int, tuple[Use, ...]]

    @cached_property
    def children(self) -> Mapping[int, tuple[Copy, ...]]:
        """The copies made from the copy of each id."""
        return {c.id: tuple(d for d in self.copies if d.source == c.id) for c in self.copies}


def uses_of(graph: OpGraph) -> dict[int, tuple[Use, ...]]:
    """The uses of every tensor that is not a literal, in time order, by tensor id."""
    found: dict[int, list[Use]] = {}
    for op in graph.ops:
        for position, tensor in enumerate(op.ins):
            if tensor.literal is None:
                found.setdefault(tensor.id, []).append(Use(op.id, position, op.id))
    for position, tensor in enumerate(graph.outputs):
        if tensor.literal is None:
            found.setdefault(tensor.id, []).append(Use(None, position, len(graph.ops)))
    return {tensor: tuple(uses) for tensor, uses in found.items()}


def dataflow(graph: OpGraph) -> Dataflow:
    """The copies of `graph`.

    A result with several uses gets a stored copy; where uses fall into several phases (outputs count as their own),
    those of one phase, if there are several, get a copy together. An input is stored already, as it is passed.
    A scalar input has one placement only and needs no copies.
    """
    uses = uses_of(graph)
    copies: list[Copy] = []
    source: dict[Use, int | None] = {}
    results = [tensor for op in graph.ops for tensor in op.outs]
    produced = {tensor.id: op.id for op in graph.ops for tensor in op.outs}
    for tensor in (*graph.inputs, *results):
        mine = uses.get(tensor.id, ())
        stored = None
        if tensor.id in produced and len(mine) > 1:
            stored = len(copies)
            copies.append(Copy(stored, tensor, None, mine, produced[tensor.id] + 1, mine[-1].time + 1, True))
        source.update(dict.fromkeys(mine, stored))
        for group in _shared(graph, mine) if tensor.ndim else ():
            if stored is not None and group == mine:
                continue
            copy = Copy(len(copies), tensor, stored, group, group[0].time, group[-1].time + 1, False)
            copies.append(copy)
            source.update(dict.fromkeys(group, copy.id))
    return Dataflow(tuple(copies), source, uses)


def _shared(graph: OpGraph, uses: Iterable[Use]) -> list[tuple[Use, ...]]:
    by_phase: dict[str, list[Use]] = {}
    for use in uses:
        if use.op is not None:
            by_phase.setdefault(graph.ops[use.op].phase, []).append(use)
    return [tuple(group) for group in by_phase.values() if len(group) > 1]
