"""Recomputable: which operators may run once more in the backward pass, and where."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from math import inf
from typing import NamedTuple

from autopar.core.dataflow import Use, until, uses_of
from autopar.core.graph import OpGraph, OpNode, TensorInfo
from autopar.core.memo import once_per_graph
from autopar.core.recompute import Recomputed, counterpart, sliced_anew
from autopar.ops.fusion import materialised
from autopar.ops.traits import traits_of

_EXACT = frozenset({"eq", "ne"})
_SPANS = 7
_FINER = 4  # by how many times less may be kept where a stretch begins than was tried before
_FAR = 1.5  # times the least peak: with longer stretches it is not looked for any more
_SMALL = 1e-3


@once_per_graph
def recomputable(graph: OpGraph) -> tuple[Recomputed, ...]:
    """What may be recomputed: operators of the forward pass whose results the backward pass reads, and what these need.

    An operator runs again before the first that reads its result late, be that another that runs again. So a chain of
    layers would be computed anew all at once. It is cut into stretches, each computed anew from what is kept where it
    begins: what is not larger than `cut`, and is needed earlier by more than `span` operators than its own late readers
    need it, is needed kept. Spans and sizes are tried from small to large, and from large to small: those are taken
    with which the peak is smallest if all of it is computed anew.

    Left out are results that rounding may turn (`eq` marks where a maximum was; orders, places of the largest), those
    that outputs or the update read, callbacks, and what is small.
    """
    count = sum(op.phase == "backward" for op in graph.ops)
    spans = [count >> k for k in reversed(range(_SPANS)) if count >> k]
    cut = _largest_bytes(graph)
    best = _Chosen((), inf)
    while spans:
        found = _of_cut(graph, spans, cut)
        if found.peak_bytes >= best.peak_bytes:
            break
        best = found
        cut //= _FINER
    return best.ops


class _Chosen(NamedTuple):
    """What may be recomputed, and the peak if all of it is."""

    ops: tuple[Recomputed, ...]
    peak_bytes: float


def _of_cut(graph: OpGraph, spans: Sequence[int], cut: int) -> _Chosen:
    """The best of some spans, from the shortest to the longest, where what is no larger than `cut` may be kept."""
    best = _Chosen((), inf)
    for span in spans:
        choosing = _Choosing(graph, span, cut)
        ops = choosing.chosen()
        peak = choosing.peak_bytes()
        if peak < best.peak_bytes:
            best = _Chosen(ops, peak)
        elif peak > _FAR * best.peak_bytes:
            break
    return best


@once_per_graph
def _largest_bytes(graph: OpGraph) -> int:
    """Of what an operator of the forward pass makes."""
    tensors = (tensor for op in graph.ops for tensor in op.outs if op.phase == "forward")
    return max((tensor.size_bytes for tensor in tensors), default=0)


def live_peak_bytes(graph: OpGraph) -> int:
    """The most bytes that whole tensors take at once, each from where it is made until it is read for the last time."""
    return _Choosing(graph, 0, 0).peak_bytes()


@dataclass(eq=False)
class _Choosing:
    """What was chosen so far, last operator first: for each the operator before which it runs again."""

    graph: OpGraph
    span: int
    cut: int
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

        if max(tensor.size_bytes for tensor in op.outs) > self.cut:
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
        return tensor.id in self.written and tensor.size_bytes >= _SMALL * _largest_bytes(
            self.graph
        )

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

    # the peak, if all that was chosen is computed anew ----------------------------------------------------------------

    def peak_bytes(self) -> int:
        """The most bytes that whole tensors take at once: what is made again is written if it was before."""
        change = Counter[int]()
        for op in self.graph.ops:
            for tensor in op.outs:
                for start, last in self._lives(op, tensor) if tensor.id in self.written else ():
                    change[start] += tensor.size_bytes
                    change[last + 1] -= tensor.size_bytes

        return max(accumulate(change[time] for time in sorted(change)), default=0)

    def _lives(self, op: OpNode, tensor: TensorInfo) -> Iterator[tuple[int, int]]:
        """From when to when a tensor is there, and what is made again of it, in the order in which all then runs."""
        if op.id in self._gone:
            return
        made_in = self.graph.made_in(tensor)
        uses = self.uses.get(tensor.id, ())
        again = self.before.get(op.id)
        late = () if again is None else self._late_readers(op, tensor) or ()
        read = [
            self._at(until(self.graph, made_in, use))
            for use in uses
            if use.op not in late and use.op not in self._unmade
        ]
        twins = [self._twin_at[use.op] for use in uses if use.op in self._twin_at]
        start = self._twin_at.get(op.id, inf)
        if op.id not in self._unmade:
            is_stack = op.kind == "scan_stack" and op.region is not None
            begin = self._at(self.graph.spans[op.region or 0][0] if is_stack else op.id)
            yield begin, max([begin, *read, *(time for time in twins if time < start)])

        if again is not None:
            first = self._twin_at[op.id]
            yield first, max([first, *map(self._at, late), *(t for t in twins if t > first)])

    def _at(self, time: int) -> int:
        """The place of an operator behind all that runs again before it, or before an earlier one."""
        return time + bisect_right(self._places, time)

    @cached_property
    def _places(self) -> list[int]:
        return sorted(self.before.values())

    @cached_property
    def _twin_at(self) -> dict[int, int]:
        """The place of what runs again, by its original."""
        order = sorted((before, op) for op, before in self.before.items())
        return {op: before + n for n, (before, op) in enumerate(order)}

    @cached_property
    def _unmade(self) -> frozenset[int]:
        """The originals that nobody reads any more."""
        found: set[int] = set()
        for op in reversed(self.graph.ops):
            if op.id in self.before and all(
                self._is_read_again(op, use, found)
                for tensor in op.outs
                for use in self.uses.get(tensor.id, ())
            ):
                found.add(op.id)
        return frozenset(found)

    def _is_read_again(self, op: OpNode, use: Use, unmade: Collection[int]) -> bool:
        """Whether what is made again, or nobody, is read in place of a result of `op`."""
        if use.op is None:
            return False
        reader = self.graph.ops[use.op]
        is_unread = reader.id in unmade and self.before[reader.id] >= self.before[op.id]
        return reader.phase == "backward" or reader.id in self._gone or is_unread

    @cached_property
    def _gone(self) -> frozenset[int]:
        """The stacks of what runs again, and their slices."""
        found: set[int] = set()
        for op in self.graph.ops:
            maker = self.graph.producers.get(op.ins[0].id) if op.ins else None
            if maker is None:
                continue
            is_stack = op.kind == "scan_stack" and maker.id in self.before
            is_slice = op.kind == "scan_slice" and maker.id in found
            if is_stack or is_slice:
                found.add(op.id)
        return frozenset(found)
