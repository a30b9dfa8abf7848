"""Dataflow: who reads which tensor when, and which copies of a tensor several readers share.

A tensor with several uses is stored once, in a placement of its own choice (a `Copy`), and read from there; uses in
the forward pass, the backward pass and the update may share a further copy each, which is dropped between them. So
an all-reduce is paid once however many operators read its result, and a gathered parameter has a beginning and an end.
What a loop slices in every round has a copy even if nothing else reads it: what is redistributed for a loop is held to
its end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from autopar.core.graph import OpGraph, TensorInfo
from autopar.core.memo import once_per_graph
from autopar.core.regions import CONTROL


class Use(NamedTuple):
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

    @property
    def is_sliced(self) -> bool:
        """Whether it is made for one loop alone, which slices it as it lies."""
        return not self.stored and len(self.uses) == 1


@dataclass(frozen=True, eq=False)
class Dataflow:
    """The copies of a graph, and for every use the copy that it reads (None: the tensor itself).

    `uses` maps a tensor id to its uses in time order.
    """

    copies: tuple[Copy, ...]
    source: Mapping[Use, int | None]
    uses: Mapping[int, tuple[Use, ...]]

    @cached_property
    def by_op(self) -> Mapping[int, Mapping[int, int]]:
        """For every operator that reads copies, by id: which one each operand, by position, is read from.

        Operands that are left out are read as they are.
        """
        found: dict[int, dict[int, int]] = {}
        for use, copy in self.source.items():
            if copy is not None and use.op is not None:
                found.setdefault(use.op, {})[use.position] = copy
        return found

    @cached_property
    def by_output(self) -> Mapping[int, int | None]:
        """As `by_op`, for the outputs of the graph."""
        return {use.position: copy for use, copy in self.source.items() if use.op is None}

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
    found: defaultdict[int, list[Use]] = defaultdict(list)
    reads_in = graph.tree.reads_in
    for op in graph.ops:
        for position, tensor in enumerate(op.ins):
            if tensor.literal is None:
                region = None if op.region is None else reads_in(op.kind, op.region, position)
                found[tensor.id].append(Use(op.id, position, op.id, region))
    for position, tensor in enumerate(graph.outputs):
        if tensor.literal is None:
            found[tensor.id].append(Use(None, position, len(graph.ops)))
    return {tensor: tuple(uses) for tensor, uses in found.items()}


def until(graph: OpGraph, source: int | None, use: Use) -> int:
    """When a value of region `source` has been read by `use` for the last time: a loop reads it again and again."""
    if not graph.regions:
        return use.time
    op = None if use.op is None else graph.ops[use.op]
    reader = None if op is None else graph.tree.reads_on_in(op.kind, op.region, use.position)
    loop = graph.tree.loop_around(source, reader)
    return use.time if loop is None else graph.spans[loop][1]


def dataflow(graph: OpGraph) -> Dataflow:
    """The copies of `graph`.

    A result with several uses gets a stored copy; where uses fall into several phases (outputs count as their own),
    those of one phase, if there are several, get a copy together, and so does one alone that slices for a loop. An
    input is stored already, as it is passed.
    What a loop or choice is entered with is stored already too; each of its inner regions gets a copy if it has several
    uses. A scalar input has one placement only and needs no copies.

    A tensor that is recomputed, and what is computed anew, get a stored copy however few their uses are: where either
    may be read, that is where they meet. What recomputes reads there too, not from the copies of a phase; of inputs it
    is one more reader of the backward pass.
    """
    uses = uses_of(graph)
    joined = _joined(graph)
    copies: list[Copy] = []
    source: dict[Use, int | None] = {}
    results = [tensor for op in graph.ops for tensor in op.outs]
    for tensor in (*graph.inputs, *results):
        mine = uses.get(tensor.id, ())
        if (
            len(mine) < 2
            and tensor.id not in joined
            and not any(_slices(graph, use) for use in mine)
        ):
            for use in mine:
                source[use] = None
            continue
        made_in = graph.made_in(tensor)
        producer = graph.producers.get(tensor.id)
        entered = graph.tree.kind(made_in) in CONTROL
        stored = None
        if producer is not None and not entered and len(mine) > (0 if tensor.id in joined else 1):
            stored = len(copies)
            stop = max(until(graph, made_in, use) for use in mine) + 1
            copies.append(
                Copy(stored, tensor, None, mine, graph.ready_at(producer) + 1, stop, True, made_in)
            )
        source.update(dict.fromkeys(mine, stored))
        sharing = (
            mine
            if _is_input(graph, tensor)
            else [use for use in mine if not _recomputes(graph, use)]
        )
        for group in _shared(graph, sharing, made_in if entered else None) if tensor.ndim else ():
            if (
                stored is not None
                and group == mine
                and not (tensor.id in joined and _is_read_early(graph, uses, tensor))
            ):
                continue
            copy = _copy(graph, len(copies), tensor, stored, group)
            copies.append(copy)
            source.update(dict.fromkeys(group, copy.id))

    return Dataflow(tuple(copies), source, uses)


def _joined(graph: OpGraph) -> frozenset[int]:
    """The ids of what is recomputed, and of what is computed anew."""
    twins = [op for op in graph.ops if op.recomputes is not None]
    found = {tensor.id for op in twins for tensor in op.outs}
    for op in twins:
        original = graph.original(op)
        seen = graph.tree.path(op.region)
        found.update(
            t.id for t in original.outs if (made_in := graph.made_in(t)) is None or made_in in seen
        )
    return frozenset(found)


def _is_read_early(graph: OpGraph, uses: Mapping[int, tuple[Use, ...]], tensor: TensorInfo) -> bool:
    """Whether what is recomputed, or computed anew, has readers on both sides; in a loop it is held to have."""
    producer = graph.producers[tensor.id]
    if producer.recomputes is None or producer.region is not None:
        return True
    original = graph.original(producer)
    return original is not producer and any(t.id in uses for t in original.outs)


def _recomputes(graph: OpGraph, use: Use) -> bool:
    return use.op is not None and graph.ops[use.op].recomputes is not None


def _is_input(graph: OpGraph, tensor: TensorInfo) -> bool:
    """Whether the tensor is an input, or what a scan slices of one."""
    producer = graph.producers.get(tensor.id)
    return producer is None or (
        producer.kind == "scan_slice" and producer.ins[0].id not in graph.producers
    )


def _copy(
    graph: OpGraph, number: int, tensor: TensorInfo, source: int | None, group: tuple[Use, ...]
) -> Copy:
    """The copy that the uses of `group` share, made where all of them can see it, after its tensor, before the first.

    What a loop slices first is made before all that the loop is entered with. Where the tensor is made in the same
    rematerialised block as the first use it is made in there too: such a block hides nothing.
    """
    tree = graph.tree
    made_in = graph.made_in(tensor)
    region = tree.site(made_in, tree.common(use.region for use in group))
    inner = tree.child_towards(region, group[0].region)
    while inner is not None and inner in tree.path(made_in):
        region = inner
        inner = tree.child_towards(inner, group[0].region)
    if inner is None and _slices(graph, group[0]):
        inner = graph.ops[group[0].time].region
    start = group[0].time if inner is None else graph.spans[inner][0]
    stop = max(until(graph, region, use) for use in group) + 1
    return Copy(number, tensor, source, group, start, stop, False, region)


def _shared(graph: OpGraph, uses: Iterable[Use], entered: int | None) -> list[tuple[Use, ...]]:
    """The uses of one phase, if there are several or a loop slices for one; of what the control region `entered` was
    entered with, those of one inner region.
    """
    groups: dict[object, list[Use]] = {}
    for use in uses:
        if use.op is not None:
            groups.setdefault(_group(graph, use, entered), []).append(use)
    return [tuple(group) for group in groups.values() if len(group) > 1 or _slices(graph, group[0])]


def _slices(graph: OpGraph, use: Use) -> bool:
    """Whether a loop reads a part of the tensor in every round."""
    return use.op is not None and graph.ops[use.op].kind == "scan_slice"


def _group(graph: OpGraph, use: Use, entered: int | None) -> object:
    inner = None if entered is None else graph.tree.child_towards(entered, use.region)
    return inner if use.op is None or inner is not None else graph.ops[use.op].phase


def group_of(graph: OpGraph, copy: Copy) -> object:
    """What the readers of `copy` have in common: their phase, or a loop's or choice's inner region; None if stored."""
    made_in = graph.made_in(copy.tensor)
    entered = made_in if graph.tree.kind(made_in) in CONTROL else None
    return None if copy.stored else _group(graph, copy.uses[0], entered)
