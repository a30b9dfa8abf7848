"""Recomputable: which operators may run once more in the backward pass, and where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

from autopar.core.dataflow import Use, until, uses_of
from autopar.core.graph import OpGraph, OpNode, TensorInfo
from autopar.core.memo import once_per_graph
from autopar.core.recompute import (
    Recomputed,
    Rewritten,
    counterpart,
    sliced_anew,
    with_recomputed,
)
from autopar.ops.fusion import materialised
from autopar.ops.traits import traits_of

_EXACT = frozenset({"eq", "ne"})
_SPANS = 7
_SMALL = 1e-3


@once_per_graph
def recomputable(graph: OpGraph) -> tuple[Recomputed, ...]:
    """What may be recomputed: operators of the forward pass whose results the backward pass reads, and what these need.

    An operator runs again before the first that reads its result late, be that another that runs again: but not by more
    than a span of operators before its own late readers; who needs it earlier needs it kept. So a chain of layers is
    cut into stretches, each computed anew from what is kept where it begins. Of several spans the one is taken with
    which the peak is smallest if all of it is computed anew.

    Left out are results that rounding may turn (`eq` marks where a maximum was; orders, places of the largest), those
    that outputs or the update read, callbacks, and what is small.
    """
    if not any(op.phase == "backward" for op in graph.ops):
        return ()
    count = sum(op.phase == "backward" for op in graph.ops)
    found = {_Choosing(graph, count >> k).chosen(): None for k in range(_SPANS) if count >> k}
    return min(found, key=lambda some: _peak_bytes(with_recomputed(graph, some)), default=())


def live_peak_bytes(graph: OpGraph) -> int:
    """The most bytes that whole tensors take at once, each from where it is made until it is read for the last time."""
    return _live_peak_bytes(graph, materialised(graph))


def _peak_bytes(rewritten: Rewritten) -> int:
    """As `live_peak_bytes`: what is made again is written if it was before (`fusion.materialised`)."""
    graph = rewritten.graph
    written = set(materialised(rewritten.before))
    for twin in rewritten.twins:
        kept = rewritten.before.ops[int(str(rewritten.keys[twin.op][1]))].outs
        written |= {
            new.id
            for old, new in zip(kept, graph.ops[twin.op].outs, strict=True)
            if old.id in written
        }
    return _live_peak_bytes(graph, written)


def _live_peak_bytes(graph: OpGraph, written: Collection[int]) -> int:
    uses = uses_of(graph)
    change = Counter[int]()
    for op in graph.ops:
        for tensor in op.outs:
            if tensor.id in written:
                made_in = graph.made_in(tensor)
                is_stack = op.kind == "scan_stack" and op.region is not None
                change[graph.spans[op.region or 0][0] if is_stack else op.id] += tensor.size_bytes
                last = max(
                    (until(graph, made_in, use) for use in uses.get(tensor.id, ())), default=op.id
                )
                change[last + 1] -= tensor.size_bytes

    return max(accumulate(change[time] for time in range(len(graph.ops) + 2)), default=0)


@dataclass(eq=False)
class _Choosing:
    """What was chosen so far, last operator first: for each the operator before which it runs again."""

    graph: OpGraph
    span: int
    before: dict[int, int] = field(default_factory=dict[int, int])

    def __post_init__(self) -> None:
        self.uses = uses_of(self.graph)
        self.written = materialised(self.graph)

    def chosen(self) -> tuple[Recomputed, ...]:
        """All that may be recomputed."""
        for op in reversed(self.graph.ops):
            place = self._place(op) if self._may(op) else None
            if place is not None:
                self.before[op.id] = place
        self._drop_without_operands()
        self._drop_unread()
        return tuple(Recomputed(op, before) for op, before in sorted(self.before.items()))

    def _may(self, op: OpNode) -> bool:
        kinds = {op.kind} if op.body is None else {inner.kind for inner in op.body.ops}
        exact = op.kind in _EXACT and not any("float" in tensor.dtype for tensor in op.ins)
        inside = op.region is None or self.graph.tree.kind(op.region) == "body"
        repeats = exact or all(traits_of(kind).is_recomputable for kind in kinds)
        return op.phase == "forward" and op.effect is None and inside and repeats

    def _place(self, op: OpNode) -> int | None:
        """The first operator that reads a result late; None if that is none, or if it may not be recomputed."""
        real: list[int] = []
        for tensor in op.outs:
            late = self._late_readers(op, tensor)
            if late is None:
                return None
            real += late

        twins = self._twins(op)
        if not twins and not any(
            self._is_large(tensor) for tensor in op.outs if self._late_readers(op, tensor)
        ):
            return None

        places = [*real, *twins]
        if len({self.graph.ops[place].region for place in places}) != 1:
            return None
        if self.graph.ops[places[0]].region is not None:
            return min(places)

        own = min(real) if real else max(twins)
        return min(place for place in places if place >= own - self.span)

    def _twins(self, op: OpNode) -> list[int]:
        """Where those that read a result of `op` run again."""
        readers = (use.op for tensor in op.outs for use in self.uses.get(tensor.id, ()))
        return [self.before[reader] for reader in readers if reader in self.before]

    def _late_readers(self, op: OpNode, tensor: TensorInfo) -> list[int] | None:
        """The operators of the backward pass that read `tensor`, or slices of its stack; None if others might."""
        uses = self.uses.get(tensor.id, ())
        if op.region is None:
            return self._readers(uses, None)

        stacks = [
            use
            for use in uses
            if use.op is not None and self.graph.ops[use.op].kind == "scan_stack"
        ]
        if any(use.op is None for use in uses) or len(stacks) > 1:
            return None
        if not stacks:
            return []

        sliced = self.uses.get(self.graph.ops[stacks[0].op or 0].outs[0].id, ())
        readers = [None if use.op is None else self.graph.ops[use.op] for use in sliced]
        if len(readers) != 1 or readers[0] is None or readers[0].kind != "scan_slice":
            return None

        region = readers[0].region
        (body,) = [r.id for r in self.graph.tree.children(region or 0) if r.kind == "body"]
        if readers[0].phase != "backward" or counterpart(self.graph, tensor, body) is None:
            return None

        return self._readers(self.uses.get(readers[0].outs[0].id, ()), body)

    def _readers(self, uses: Collection[Use], region: int | None) -> list[int] | None:
        """The late ones among `uses`, if all of these are in `region` and none is of the update or exact."""
        late: list[int] = []
        early: list[int] = []
        for use in uses:
            op = None if use.op is None else self.graph.ops[use.op]
            if op is None or op.phase == "update":
                return None
            if op.phase == "forward":
                early.append(op.id)
            elif op.region != region or op.kind in _EXACT:
                return None
            else:
                late.append(op.id)

        return None if late and early and max(early) > min(late) else late

    def _is_large(self, tensor: TensorInfo) -> bool:
        return tensor.id in self.written and tensor.size_bytes >= _SMALL * self._largest_bytes

    @cached_property
    def _largest_bytes(self) -> int:
        tensors = (tensor for op in self.graph.ops for tensor in op.outs if op.phase == "forward")
        return max((tensor.size_bytes for tensor in tensors), default=0)

    def _drop_without_operands(self) -> None:
        """Drops those whose operands are not to be had where they run again."""
        made: set[int] = set()
        for op in self.graph.ops:
            if op.id not in self.before:
                continue
            region = self.graph.ops[self.before[op.id]].region
            if all(tensor.id in made or self._is_there(tensor, region) for tensor in op.ins):
                made.update(tensor.id for tensor in op.outs)
            else:
                del self.before[op.id]

    def _is_there(self, tensor: TensorInfo, region: int | None) -> bool:
        found = counterpart(self.graph, tensor, region)
        if found is None:
            return sliced_anew(self.graph, tensor, region) is not None
        return found.literal is not None or found.id in self.written

    def _drop_unread(self) -> None:
        """Drops those that only dropped ones would read."""
        for op in reversed(self.graph.ops):
            if op.id not in self.before:
                continue
            if not self._twins(op) and not any(
                self._late_readers(op, tensor) for tensor in op.outs
            ):
                del self.before[op.id]
