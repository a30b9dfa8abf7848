"""Held: how long a program surely holds every tensor, whatever is chosen, and who holds it when it is read last.

A tensor with several uses is held in its stored copy until its last use, but for the last use itself: there it may
have been redistributed for the reader, and only what the reader wanted is left. So what is read last is counted with
the reader, in the placement in which that wants it; between readers of one phase, with their copy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from autopar.core.dataflow import Copy, Dataflow, Use, until
from autopar.core.graph import OpGraph, TensorInfo
from autopar.core.in_place import writes_over_first
from autopar.core.memo import once_per_graph
from autopar.core.regions import BOUNDARY


@dataclass(frozen=True, eq=False)
class TimeSpan:
    """A stretch of time, start <= t < stop."""

    start: int
    stop: int


@dataclass(frozen=True, eq=False)
class HeldTimes:
    """Of every tensor that an operator makes, and of every copy, when it is held.

    `end` is when the value that its readers share may be gone, by tensor id: its stored copy, or it as it is made.
    `fresh` is the same of a copy of some of them that is not an alias, `alias` when the memory of one that is an alias
    is still taken although that of its source need not be: both by copy id. `last` are the operands that operators hold
    while they run, by operator and position: those that nobody reads later. `gone` is when nobody holds a tensor any
    longer, `sure` when the last near reader of the shared value, or copy of it, is reached: both by tensor id. `read`
    are the times at which the reader of an argument counts in its place, by tensor id: what the reader wanted is there
    too, unless it is the argument itself.
    """

    end: Mapping[int, int]
    fresh: Mapping[int, TimeSpan]
    alias: Mapping[int, TimeSpan]
    last: Mapping[int, tuple[int, ...]]
    gone: Mapping[int, int]
    sure: Mapping[int, int]
    read: Mapping[int, tuple[int, ...]]


@dataclass(eq=False)
class _Work:
    """`HeldTimes` as far as it is known."""

    end: dict[int, int] = field(default_factory=dict[int, int])
    fresh: dict[int, TimeSpan] = field(default_factory=dict[int, TimeSpan])
    alias: dict[int, TimeSpan] = field(default_factory=dict[int, TimeSpan])
    last: dict[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    gone: dict[int, int] = field(default_factory=dict[int, int])
    sure: dict[int, int] = field(default_factory=dict[int, int])
    read: dict[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])


@once_per_graph
def held(graph: OpGraph, flow: Dataflow, in_memory: frozenset[int]) -> HeldTimes:
    """When what `graph` makes is held, if its tensors lie in memory (`in_memory`) and are read from the copies of
    `flow`.
    """
    found = _Work()
    copies: dict[int, list[Copy]] = {}
    for copy in flow.copies:
        if not copy.stored:
            copies.setdefault(copy.tensor.id, []).append(copy)

    for op in graph.ops:
        for tensor in op.outs:
            _tensor(graph, flow, tensor, copies.get(tensor.id, []), found, tensor.id in in_memory)

    for tensor in graph.inputs:
        _argument(graph, flow, tensor, found)
        for copy in copies.get(tensor.id, []):
            stop = max(stop for stop, _ in _events(graph, copy.region, copy.uses))
            if stop > copy.start:
                found.fresh[copy.id] = TimeSpan(copy.start, stop)

    return HeldTimes(
        found.end, found.fresh, found.alias, found.last, found.gone, found.sure, found.read
    )


def _argument(graph: OpGraph, flow: Dataflow, tensor: TensorInfo, found: _Work) -> None:
    """Who reads an argument as it is passed, or what it is redistributed to for that reader alone."""
    for use in flow.uses.get(tensor.id, ()):
        op = None if use.op is None or flow.source[use] is not None else graph.ops[use.op]
        if (
            op is None
            or op.region is not None
            or op.phase == "update"
            or op.kind in BOUNDARY
            or not tensor.ndim
        ):
            continue
        if _may_be_written_over(graph, use):
            continue
        if op.id not in found.read.get(tensor.id, ()):
            found.read[tensor.id] = (*found.read.get(tensor.id, ()), op.id)
            found.last[op.id] = (*found.last.get(op.id, ()), use.position)


def _tensor(
    graph: OpGraph,
    flow: Dataflow,
    tensor: TensorInfo,
    copies: list[Copy],
    found: _Work,
    in_memory: bool,
) -> None:
    """What is to be said of one tensor that an operator makes."""
    made = graph.made_in(tensor)
    ready = graph.ready_at(graph.producers[tensor.id]) + 1
    shared = {copy.id for copy in copies}
    direct = [use for use in flow.uses.get(tensor.id, ()) if flow.source[use] not in shared]
    ends = list(_events(graph, made, direct))
    near = [
        use.time for use in direct if use.region == made and until(graph, made, use) == use.time
    ]
    near += [copy.start for copy in copies if copy.region == made]
    found.sure[tensor.id] = max(near, default=0)
    for copy in copies:
        if copy.region == made:
            ends.append((copy.start, None))
        else:
            ends.append((max(until(graph, made, use) for use in copy.uses) + 1, None))

    stops = {
        copy.id: max(_events(graph, copy.region, copy.uses), key=lambda event: event[0])
        for copy in copies
    }
    end, use = max([*ends, (ready, None)], key=lambda event: event[0])
    found.end[tensor.id] = end
    for copy in copies:
        if stops[copy.id][0] > copy.start:
            found.fresh[copy.id] = TimeSpan(copy.start, stops[copy.id][0])

    latest = max(copies, key=lambda copy: stops[copy.id][0], default=None)
    if latest is not None and stops[latest.id][0] >= end:
        others = [stops[copy.id][0] for copy in copies if copy is not latest]
        start = max([end, latest.start, *others])
        if start < stops[latest.id][0]:
            found.alias[latest.id] = TimeSpan(start, stops[latest.id][0])
        end, use = stops[latest.id]

    found.gone[tensor.id] = end
    if use is not None and use.op is not None and in_memory:
        found.gone[tensor.id] = end + 1
        found.last[use.op] = (*found.last.get(use.op, ()), use.position)


def _events(
    graph: OpGraph, made: int | None, uses: Collection[Use]
) -> Iterator[tuple[int, Use | None]]:
    """For each use of a value of region `made`: until when it is surely held, and the use if its reader holds it then.

    One that is read in another region is held there too; one that the reader may write its result over is not beside
    that.
    """
    for use in uses:
        is_near = use.region == made and until(graph, made, use) == use.time
        if not is_near:
            yield until(graph, made, use) + 1, None
        elif (
            use.op is None or graph.ops[use.op].kind in BOUNDARY or _may_be_written_over(graph, use)
        ):
            yield use.time, None
        else:
            yield use.time, use


def _may_be_written_over(graph: OpGraph, use: Use) -> bool:
    """Whether the reader may write its result over what it reads."""
    return use.op is not None and use.position == 0 and writes_over_first(graph.ops[use.op])
