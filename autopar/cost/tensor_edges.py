"""Links: the edges of a Problem as arrays, each with the number of its kind: a matrix is made once for each kind.

A tensor is seen at *slots*: inputs, copies, outputs, then the operands and results of operators one by one. An edge
leads from the slot that is read to the slot that reads, or to a copy that is made. What it costs depends on the
placements at both slots, and on what is the same on every mesh: shape and type, how often the way is gone, whether
collectives are shared. That part is worked out once for each graph; the placements are looked up in arrays.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from autopar.core.dataflow import Dataflow, Use
from autopar.core.graph import OpGraph, TensorInfo
from autopar.cost.buckets import ready, waiting
from autopar.cost.local_steps import in_loops
from autopar.ops.recurrences import written_out

Ints = NDArray[np.int64]
NO_COPY = -1


class TensorEdge(NamedTuple):
    """A tensor on its way from where `source` says (a copy; None: as it was made) to a copy that is made, or to a use.

    It is made in region `made_in` and wanted in `reader`, where `uses` read it.
    """

    tensor: TensorInfo
    source: int | None
    copy: int | None
    made_in: int | None
    reader: int | None
    uses: tuple[Use, ...]


@dataclass(frozen=True, eq=False)
class TensorEdges:
    """Every link in the order of the Problem's edges, as arrays by link.

    Attributes:
      links: the links.
      source: the slot that each is read from.
      target: the slot that it leads to.
      copy: the copy that it makes; `NO_COPY` where it makes none.
      origin: the copy that it is read from; `NO_COPY` where that is what an operator made, or an input.
      looks: numbers: equal where all is equal but placements and which copies are doubled.
      slots: how many slots each operator has.
    """

    links: tuple[TensorEdge, ...]
    source: Ints
    target: Ints
    copy: Ints
    origin: Ints
    looks: Ints
    slots: Ints


_KNOWN: WeakKeyDictionary[OpGraph, WeakKeyDictionary[Dataflow, TensorEdges]] = WeakKeyDictionary()


def links_of(graph: OpGraph, flow: Dataflow) -> TensorEdges:
    """The links of a graph read by a dataflow, worked out once for both."""
    known = _KNOWN.setdefault(graph, WeakKeyDictionary())
    if flow not in known:
        known[flow] = _links(graph, flow)
    return known[flow]


def kinds_of(keys: tuple[Ints, ...]) -> tuple[Ints, Ints]:
    """The first position of each kind, and the kind of each position: one kind where all `keys` are equal."""
    kind = np.zeros(len(keys[0]), dtype=np.int64)
    first = np.zeros(0, dtype=np.int64)
    for key in keys:
        _, number = np.unique(key, return_inverse=True)
        pairs = kind * (int(number.max(initial=0)) + 1) + number
        _, first, kind = np.unique(pairs, return_index=True, return_inverse=True)
    return first, kind


def _links(graph: OpGraph, flow: Dataflow) -> TensorEdges:
    links = [*_of_copies(graph, flow), *_of_uses(graph, flow)]
    slots = _Slots(graph, flow)
    looks = _looks(graph, flow, links)
    return TensorEdges(
        tuple(links),
        _array([slots.read(link) for link in links]),
        _array([slots.reading(link) for link in links]),
        _array([NO_COPY if link.copy is None else link.copy for link in links]),
        _array([NO_COPY if link.source is None else link.source for link in links]),
        looks,
        slots.counts,
    )


def _array(numbers: list[int]) -> Ints:
    return np.array(numbers, dtype=np.int64)


def _of_copies(graph: OpGraph, flow: Dataflow) -> list[TensorEdge]:
    """What each copy is made from."""
    found: list[TensorEdge] = []
    for copy in flow.copies:
        made_in = (
            graph.made_in(copy.tensor) if copy.source is None else flow.copies[copy.source].region
        )
        found.append(TensorEdge(copy.tensor, copy.source, copy.id, made_in, copy.region, copy.uses))
    return found


def _of_uses(graph: OpGraph, flow: Dataflow) -> list[TensorEdge]:
    """What each use reads."""
    found: list[TensorEdge] = []
    for use, source in flow.source.items():
        tensor = (
            graph.outputs[use.position] if use.op is None else graph.ops[use.op].ins[use.position]
        )
        made_in = graph.made_in(tensor) if source is None else flow.copies[source].region
        found.append(TensorEdge(tensor, source, None, made_in, use.region, (use,)))
    return found


class _Slots:
    """Numbers the slots of a graph."""

    def __init__(self, graph: OpGraph, flow: Dataflow) -> None:
        self.first_copy = len(graph.inputs)
        self.first_output = self.first_copy + len(flow.copies)
        self.counts = _array([len(op.ins) + len(op.outs) for op in graph.ops])
        first = self.first_output + len(graph.outputs) + np.cumsum(self.counts) - self.counts
        self._of_op: list[int] = first.tolist()
        self._made = {tensor.id: slot for slot, tensor in enumerate(graph.inputs)}
        for op, slot in zip(graph.ops, self._of_op, strict=True):
            self._made.update(
                (tensor.id, slot + len(op.ins) + n) for n, tensor in enumerate(op.outs)
            )

    def read(self, link: TensorEdge) -> int:
        """The slot that a link is read from."""
        return self._made[link.tensor.id] if link.source is None else self.first_copy + link.source

    def reading(self, link: TensorEdge) -> int:
        """The slot that a link leads to."""
        if link.copy is not None:
            return self.first_copy + link.copy
        (use,) = link.uses
        return (
            self.first_output + use.position
            if use.op is None
            else self._of_op[use.op] + use.position
        )


def _looks(graph: OpGraph, flow: Dataflow, links: list[TensorEdge]) -> Ints:
    """A number for each link: equal where routes are, given the placements."""
    numbers: dict[Hashable, int] = {}
    weights: dict[tuple[int | None, int | None], float] = {}
    wait = waiting(graph)
    at_once = ready(graph)
    again = written_out(graph)
    found: list[int] = []
    for link in links:
        tensor = link.tensor
        sides = (link.made_in, link.reader)
        if sides not in weights:
            weights[sides] = graph.tree.weight(graph.tree.site(*sides))
        is_fused = in_loops(graph, graph.tree.site(*sides), link.uses)
        is_cut = (
            link.copy is None and link.source is not None and flow.copies[link.source].is_sliced
        )
        is_stored = link.copy is not None and flow.copies[link.copy].stored
        look = (
            tensor.shape,
            tensor.itemsize,
            tensor.residence,
            weights[sides],
            tensor.id in wait,
            tensor.id in at_once,
            tensor.id in again,
            is_fused,
        )
        found.append(numbers.setdefault((*look, is_cut, is_stored), len(numbers)))

    return _array(found)
