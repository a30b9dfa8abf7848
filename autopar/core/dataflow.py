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
from autopar.core.memo import once_per_graph
from autopar.core.regions import CONTROL


@dataclass(frozen=True)
class Use:
    """One reading of a tensor: operand `position` of operator `op`, or output `position` of the graph (op None).

    `time` is the operator's position; for outputs the number of operators. `region` is where it reads.
    """

    op: int | None
    position: int
    time: int
    region: int | None = None


@dataclass(frozen=True)
class Copy:
    """A tensor in a placement of its own.

    `source` is the copy that it is made from, None if that is the tensor as its producer left it. `stored` copies
    take the place of the tensor from its production on; the others live from `start` to `stop` beside their source.
    `region` is where it is made.
    """

    id: int
    tensor: TensorInfo
    source: int | None
    uses: tuple[Use, ...]
    start: int
    stop: int
    stored: bool
    region: int | None = None


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
        found: dict[int, list[Copy]] = {copy.id: [] for copy in self.copies}
        for copy in self.copies:
            if copy.source is not None:
                found[copy.source].append(copy)
        return {source: tuple(copies) for source, copies in found.items()}


@once_per_graph
def uses_of(graph: OpGraph) -> Mapping[int, tuple[Use, ...]]:
    """The uses of every tensor that is not a literal, in time order, by tensor id."""
    found: dict[int, list[Use]] = {}
    for op in graph.ops:
        for position, tensor in enumerate(op.ins):
            if tensor.literal is None:
                region = graph.tree.reads_in(op.kind, op.region, position)
                found.setdefault(tensor.id, []).append(Use(op.id, position, op.id, region))
    for position, tensor in enumerate(graph.outputs):
        if tensor.literal is None:
            found.setdefault(tensor.id, []).append(Use(None, position, len(graph.ops)))
    return {tensor: tuple(uses) for tensor, uses in found.items()}


def until(graph: OpGraph, source: int | None, use: Use) -> int:
    """When a value of region `source` has been read by `use` for the last time: a loop reads it again and again."""
    op = None if use.op is None else graph.ops[use.op]
    reader = None if op is None else graph.tree.reads_on_in(op.kind, op.region, use.position)
    loop = graph.tree.loop_around(source, reader)
    return use.time if loop is None else graph.spans[loop][1]


def dataflow(graph: OpGraph) -> Dataflow:
    """The copies of `graph`.

    A result with several uses gets a stored copy; where uses fall into several phases (outputs count as their own),
    those of one phase, if there are several, get a copy together. An input is stored already, as it is passed.
    What a loop or choice is entered with is stored already too; each of its inner regions gets a copy if it has several
    uses. A scalar input has one placement only and needs no copies.
    """
    uses = uses_of(graph)
    copies: list[Copy] = []
    source: dict[Use, int | None] = {}
    results = [tensor for op in graph.ops for tensor in op.outs]
    for tensor in (*graph.inputs, *results):
        mine = uses.get(tensor.id, ())
        made_in = graph.made_in(tensor)
        producer = graph.producers.get(tensor.id)
        entered = graph.tree.kind(made_in) in CONTROL
        stored = None
        if producer is not None and not entered and len(mine) > 1:
            stored = len(copies)
            stop = max(until(graph, made_in, use) for use in mine) + 1
            copies.append(Copy(stored, tensor, None, mine, graph.ready_at(producer) + 1, stop, True, made_in))
        source.update(dict.fromkeys(mine, stored))
        for group in _shared(graph, mine, made_in if entered else None) if tensor.ndim else ():
            if stored is not None and group == mine:
                continue
            copy = _copy(graph, len(copies), tensor, stored, group)
            copies.append(copy)
            source.update(dict.fromkeys(group, copy.id))
    return Dataflow(tuple(copies), source, uses)


def _copy(graph: OpGraph, number: int, tensor: TensorInfo, source: int | None, group: tuple[Use, ...]) -> Copy:
    """The copy that the uses of `group` share, made where all of them can see it, after its tensor, before the first.

    Where the tensor is made in the same rematerialised block as the first use it is made in there too: such a block
    hides nothing.
    """
    tree, made_in = graph.tree, graph.made_in(tensor)
    region = tree.site(made_in, tree.common(use.region for use in group))
    inner = tree.child_towards(region, group[0].region)
    while inner is not None and inner in tree.path(made_in):
        region, inner = inner, tree.child_towards(inner, group[0].region)
    start = group[0].time if inner is None else graph.spans[inner][0]
    stop = max(until(graph, region, use) for use in group) + 1
    return Copy(number, tensor, source, group, start, stop, False, region)


def _shared(graph: OpGraph, uses: Iterable[Use], entered: int | None) -> list[tuple[Use, ...]]:
    """The uses of one phase; of what the control region `entered` was entered with, those of one inner region."""
    groups: dict[object, list[Use]] = {}
    for use in uses:
        if use.op is not None:
            inner = None if entered is None else graph.tree.child_towards(entered, use.region)
            groups.setdefault(graph.ops[use.op].phase if inner is None else inner, []).append(use)
    return [tuple(group) for group in groups.values() if len(group) > 1]
