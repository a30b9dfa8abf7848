"""schedule: when each instruction of a program runs, with computing and communicating side by side."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autopar.core.program import Compute, Convert, Instruction, Move, ShardedProgram
from autopar.memory.account import OpCost
from autopar.passes.issue_order import in_issue_order
from cost_models import Item, Overlap, Timing, simulate

Bytes = NDArray[np.int64]
Timed = Compute | Move


class Event(NamedTuple):
    """One run of an instruction, or of a move inside an operator: when it starts and ends in the step.

    Of a loop the first round is shown, and what runs with a probability of 1/2 half as long; `runs` is how often it
    runs in a step, on average. `time_s` is the price of one run with nothing beside it. `weight_s` is the part of the
    step that is due to all its runs: it says by how much the step takes longer if they do (`cost_models.Timing`).
    """

    instruction: Timed
    communicates: bool
    start_s: float
    end_s: float
    time_s: float
    runs: float
    weight_s: float
    region: int | None


class LoopSpan(NamedTuple):
    """From when to when a loop or a branch runs: all its rounds. Inside of it events are those of the first round."""

    region: int
    communicates: bool
    start_s: float
    end_s: float
    rounds: float


@dataclass(frozen=True)
class StepSchedule:
    """A step: its events in the order of the program, its regions, and how long it takes.

    `slowed_s`: by how much the step takes longer if both slowdowns are larger, as in `cost_models.Timing`.
    """

    events: tuple[Event, ...]
    spans: tuple[LoopSpan, ...]
    makespan_s: float
    slowed_s: tuple[float, float] = (0.0, 0.0)


def schedule(
    program: ShardedProgram,
    op_cost: OpCost,
    overlap: Overlap | None,
    held_bytes: Sequence[int] = (),
    in_flight_bytes: int = 0,
) -> StepSchedule:
    """The step that `program` is on one device, on two streams: all devices do the same at once.

    Operators and local moves compute, collectives communicate; each stream keeps the order of the program. A
    collective is issued as soon as its operands are there, and what reads its results waits for it, as a compiler
    does that hides latencies: gradients are reduced behind the backward pass, parameters gathered ahead of their use.

    The peak of memory stays what it is, but for `in_flight_bytes` more. What is
    issued ahead of its place holds its results longer, what ends behind its place its operands: only as far as that
    fits beside what is held there (`held_bytes`) anyway. Collectives take what is free in the order of the program.

    A loop or branch in which anything is communicated starts when all before it has ended, each round when the one
    before has, and what is behind it when it has: nothing is issued across its bounds. One that only computes is as
    one operator. What operators exchange inside is waited for on the spot.

    Args:
      program: routed (no Convert left).
      op_cost: seconds of an operator under a strategy.
      overlap: how the streams slow each other; None: one runs after the other, in the order of the program.
      held_bytes: what one device holds at each instruction (`Account.held_bytes`); (): nothing is issued ahead of its
        place or ends behind it.
      in_flight_bytes: what collectives may hold beyond the most of these (`Account.in_flight_bytes`).
    """
    held = np.asarray(held_bytes, dtype=np.int64)
    issued = program
    if overlap is not None and held.size:
        issued, held = in_issue_order(program, held)
    made = _Maker(issued, op_cost, overlap, held.max(initial=0) + in_flight_bytes - held)
    block = made.block(range(len(issued.instructions)), None)
    events = _in_order(block.events, program)
    return StepSchedule(events, block.spans, block.time_s, block.slowed_s)


def _in_order(events: Sequence[Event], program: ShardedProgram) -> tuple[Event, ...]:
    """The events in the order of the program; those of one operator as they are."""
    places: dict[int, int] = {}
    for place, one in enumerate(program.instructions):
        places[id(one)] = place
        if isinstance(one, Compute):
            places.update((id(move), place) for move in one.exchanges)
    return tuple(sorted(events, key=lambda event: places[id(event.instruction)]))


@dataclass(frozen=True)
class _Block:
    """The instructions of one region in its first round, from 0 s on."""

    events: tuple[Event, ...]
    spans: tuple[LoopSpan, ...]
    time_s: float
    slowed_s: tuple[float, float]

    @property
    def communicates(self) -> bool:
        """Whether anything crosses a link."""
        return any(event.communicates for event in self.events)

    def at(self, start_s: float, rounds: float, weight: float) -> _Block:
        """Moved to `start_s` in the region around it, where a second of all rounds weighs `weight`."""
        shown = min(1.0, rounds)
        share = rounds * weight

        def then(time_s: float) -> float:
            return start_s + shown * time_s

        events = tuple(
            e._replace(start_s=then(e.start_s), end_s=then(e.end_s), weight_s=share * e.weight_s)
            for e in self.events
        )
        spans = tuple(s._replace(start_s=then(s.start_s), end_s=then(s.end_s)) for s in self.spans)
        return _Block(
            events, spans, self.time_s, (share * self.slowed_s[0], share * self.slowed_s[1])
        )


class _Unit(NamedTuple):
    """What stands side by side in a block: an instruction, or an inner region with all that is in it.

    `first` and `stop` are its positions in the program.
    """

    first: int
    stop: int
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    instruction: Timed | None = None
    region: int | None = None
    inner: _Block | None = None

    @property
    def is_barrier(self) -> bool:
        return self.inner is not None and self.inner.communicates


class _Window(NamedTuple):
    """A collective may be issued before unit `issued` runs, and has ended before unit `needed` does."""

    issued: int
    needed: int


Windows = Mapping[int, _Window]
"""Of the collectives, by the numbers of their units."""


@dataclass(frozen=True)
class _Maker:
    """Makes blocks of `program`; `free` are the bytes that are left at each instruction, and are taken up."""

    program: ShardedProgram
    op_cost: OpCost
    overlap: Overlap | None
    free: Bytes

    def block(self, positions: range, region: int | None) -> _Block:
        """What runs at these positions, which are all of `region`."""
        units = list(self._units(positions, region))
        moves = [
            n
            for n, unit in enumerate(units)
            if isinstance(unit.instruction, Move) and unit.instruction.is_collective
        ]
        if self.overlap is not None and self.free.size:
            windows = self._open_windows(units, moves)
        else:
            windows = {n: _Window(n, n + 1) for n in moves}

        pieces = _queued(units, windows, list(self._pieces(units)))
        timing = simulate(_items(units, windows, pieces), self.overlap)
        return self._timed(units, pieces, timing)

    def _units(self, positions: range, region: int | None) -> Iterator[_Unit]:
        if not self.program.regions:
            for n in positions:
                one = self._at(n)
                yield _Unit(n, n + 1, one.ins, one.outs, one)
            return

        for inner, group in groupby(
            positions,
            key=lambda n: self.program.tree.control_towards(region, self._at(n).region),
        ):
            members = list(group)
            if inner is None:
                for n in members:
                    one = self._at(n)
                    yield _Unit(n, n + 1, one.ins, one.outs, one)
            else:
                span = range(members[0], members[-1] + 1)
                reads, makes = (
                    tuple({v for n in span for v in side(self._at(n))}) for side in (_ins, _outs)
                )
                yield _Unit(
                    span.start, span.stop, reads, makes, region=inner, inner=self.block(span, inner)
                )

    def _at(self, position: int) -> Timed:
        instruction = self.program.instructions[position]
        assert not isinstance(instruction, Convert)
        return instruction

    def _open_windows(self, units: Sequence[_Unit], moves: Sequence[int]) -> Windows:
        """When each collective may be issued and has to have ended, in the order of the program.

        Regions that communicate are no bounds here: they take both streams, so nothing passes them. Of two collectives,
        one of which reads what the other makes, no computing waits for the first but what waits for the second: they
        are on one stream, in this order.
        """
        read = {v for n in moves for v in units[n].reads}
        made = {
            v: n
            for n, unit in enumerate(units)
            if not read.isdisjoint(unit.makes)
            for v in unit.makes
        }
        needed = _first_waiting(units, moves)
        found: dict[int, _Window] = {}
        for n in moves:
            makers = [made[v] for v in units[n].reads if v in made]
            ready = max((found[m].issued if m in found else m + 1 for m in makers), default=0)
            found[n] = _Window(self._ahead(units, n, ready), self._behind(units, n, needed[n]))

        for n in reversed(moves):  # memory may have one end sooner: so do those that it reads
            for m in (made[v] for v in units[n].reads if made.get(v) in found):
                found[m] = found[m]._replace(needed=min(found[m].needed, found[n].needed))
        return found

    def _ahead(self, units: Sequence[_Unit], number: int, ready: int) -> int:
        """From which unit on, `ready` at the earliest, the results have room; it is taken."""
        unit = units[number]
        size = self._size({*unit.makes}.difference(self.program.outputs)) + _copied_bytes(unit)
        short = np.flatnonzero(self.free[units[ready].first : unit.first] < size)
        first = units[ready].first + int(short[-1]) + 1 if short.size else units[ready].first
        issued = bisect_left(units, first, ready, number, key=_first)
        self.free[units[issued].first : unit.first] -= size
        return issued

    def _behind(self, units: Sequence[_Unit], number: int, needed: int) -> int:
        """Up to which unit, `needed` at the latest, the operands have room; it is taken. An all-reduce needs none."""
        unit = units[number]
        assert isinstance(unit.instruction, Move)
        if unit.instruction.kind == "all_reduce":
            return needed
        size = self._size({*unit.reads}.difference(self.program.inputs)) + _copied_bytes(unit)
        stop = units[needed - 1].stop
        short = np.flatnonzero(self.free[unit.stop : stop] < size)
        last = unit.stop + int(short[0]) if short.size else stop
        ended = bisect_right(units, last, number, needed, key=_stop)
        self.free[unit.stop : units[ended - 1].stop] -= size
        return ended

    def _size(self, values: set[int]) -> int:
        return sum(self.program.local_bytes(value) for value in values)

    def _pieces(self, units: Sequence[_Unit]) -> Iterator[_Piece]:
        """What runs of each unit, one after the other."""
        for number, unit in enumerate(units):
            one = unit.instruction
            if isinstance(one, Move):
                yield _Piece(number, one, one.is_collective, one.time_s)
            elif one is not None and not one.exchanges:
                yield _Piece(number, one, False, self.op_cost(one.op, one.strategy))
            elif one is not None:
                before = [move for move in one.exchanges if move.ins[0] in one.ins]
                behind = [move for move in one.exchanges if move.ins[0] not in one.ins]
                for move in before:
                    yield _Piece(number, move, True, move.time_s)
                yield _Piece(number, one, False, self.op_cost(one.op, one.strategy))
                for move in behind:
                    yield _Piece(number, move, True, move.time_s)
            elif unit.inner is not None and unit.region is not None:
                yield _Piece(
                    number, None, False, unit.inner.time_s * self.program.tree[unit.region].trips
                )

    def _timed(self, units: Sequence[_Unit], pieces: Sequence[_Piece], timing: Timing) -> _Block:
        events: list[Event] = []
        spans: list[LoopSpan] = []
        slowed = timing.slowed_s
        tree = self.program.tree
        times = zip(timing.starts_s, timing.ends_s, timing.weights_s, strict=True)
        for (number, one, communicates, time_s), (start, end, weight) in zip(
            pieces, times, strict=True
        ):
            if one is not None:
                region = one.region
                events.append(
                    Event(
                        one, communicates, start, end, time_s, tree.weight(region), weight, region
                    )
                )
                continue
            unit = units[number]
            assert unit.inner is not None
            assert unit.region is not None
            rounds = tree[unit.region].trips
            spans.append(LoopSpan(unit.region, unit.inner.communicates, start, end, rounds))
            moved = unit.inner.at(start, rounds, weight / time_s if time_s else 0.0)
            events += moved.events
            spans += moved.spans
            slowed = slowed[0] + moved.slowed_s[0], slowed[1] + moved.slowed_s[1]

        return _Block(tuple(events), tuple(spans), timing.makespan_s, slowed)


def _first_waiting(units: Sequence[_Unit], moves: Sequence[int]) -> dict[int, int]:
    """The first unit that waits for each of `moves`, itself or for another collective that reads it."""
    sent = set(moves)
    awaited = {v for n in moves for v in units[n].makes}
    needed: dict[int, int] = {}
    found: dict[int, int] = {}
    for n in reversed(range(len(units))):
        waits = n
        if n in sent:
            waits = min([len(units), *(needed[v] for v in units[n].makes if v in needed)])
            found[n] = waits
        if not awaited.isdisjoint(units[n].reads):
            needed.update((v, min(needed.get(v, len(units)), waits)) for v in units[n].reads)

    return found


class _Piece(NamedTuple):
    """What runs of a unit, by its number: all at once (None: a region), or one of the moves inside an operator."""

    unit: int
    one: Timed | None
    communicates: bool
    time_s: float


def _queued(units: Sequence[_Unit], windows: Windows, pieces: Sequence[_Piece]) -> list[_Piece]:
    """The pieces in the order of both streams: of the collectives that may run next, the one that is needed first does.

    Which those are is seen from the times of all pieces with nothing beside them.
    """
    issued: dict[int, list[_Piece]] = {}
    of_unit: dict[int, list[_Piece]] = {}
    for piece in pieces:
        if piece.communicates and piece.unit in windows:
            issued.setdefault(windows[piece.unit].issued, []).append(piece)
        else:
            of_unit.setdefault(piece.unit, []).append(piece)

    queue = _Queue(windows)
    for n, unit in enumerate(units):
        for piece in issued.get(n, ()):
            queue.issue(piece)
        queue.await_those(lambda piece, n=n: windows[piece.unit].needed <= n)
        if unit.is_barrier:
            queue.await_those(lambda piece, n=n: piece.unit < n)
        for piece in of_unit.get(n, ()):
            queue.compute(piece, alone=piece.communicates or unit.is_barrier)

    queue.await_those(lambda _: True)
    return queue.order


@dataclass(eq=False)
class _Queue:
    """Two streams while their order is found: until when each is busy, and what is issued, needed first on top."""

    windows: Windows
    order: list[_Piece] = field(default_factory=list["_Piece"])
    _waiting: list[tuple[int, int, float, _Piece]] = field(
        default_factory=list[tuple[int, int, float, "_Piece"]]
    )
    _computing_s: float = 0.0
    _communicating_s: float = 0.0

    def issue(self, piece: _Piece) -> None:
        """From now on the collective may run."""
        entry = (self.windows[piece.unit].needed, piece.unit, self._computing_s, piece)
        heappush(self._waiting, entry)

    def await_those(self, due: Callable[[_Piece], bool]) -> None:
        """Runs what has been issued until all that is `due` has ended, and lets computing wait for it."""
        left = sum(due(entry[-1]) for entry in self._waiting)
        while left:
            left -= due(self._run_next())
            self._computing_s = max(self._computing_s, self._communicating_s)

    def compute(self, piece: _Piece, *, alone: bool) -> None:
        """Runs a piece of computing, beside it what has been issued; none if it needs both streams."""
        if alone:
            self._computing_s = max(self._computing_s, self._communicating_s)
        self.order.append(piece)
        self._computing_s += piece.time_s
        if alone:
            self._communicating_s = self._computing_s
        while self._waiting and self._communicating_s < self._computing_s:
            self._run_next()

    def _run_next(self) -> _Piece:
        _, _, issued_s, piece = heappop(self._waiting)
        self._communicating_s = max(self._communicating_s, issued_s) + piece.time_s
        self.order.append(piece)
        return piece


def _items(units: Sequence[_Unit], windows: Windows, pieces: Sequence[_Piece]) -> list[Item]:
    """The pieces as items of the simulation, each after what it waits for on the other stream."""
    needed = [-1] * (
        len(units) + 1
    )  # by unit, the last collective that has to have ended before it
    seen = 0  # of these the units looked at
    awaited = -1
    computed: list[int] = []  # the items of computing, and their units
    units_of: list[int] = []
    items: list[Item] = []
    for position, (n, one, communicates, time_s) in enumerate(pieces):
        window = windows.get(n) if communicates else None
        if window is not None:
            before = bisect_left(units_of, window.issued)
            items.append(Item("communication", time_s, computed[before - 1] if before else -1))
            needed[window.needed] = position
            continue

        awaited = max([awaited, *needed[seen : n + 1]])
        seen = n + 1
        if communicates:
            items.append(Item("communication", time_s, computed[-1] if computed else -1))
            awaited = position
        else:
            is_barrier = one is None and units[n].is_barrier
            items.append(
                Item("both", time_s) if is_barrier else Item("computation", time_s, awaited)
            )
            computed.append(position)
            units_of.append(n)

    return items


def _copied_bytes(unit: _Unit) -> int:
    """What a collective may hold beside operands and results: a copy with its dim in front, or side by side."""
    move = unit.instruction
    assert isinstance(move, Move)
    return 0 if move.kind == "all_reduce" else move.size_bytes


def _ins(instruction: Instruction) -> tuple[int, ...]:
    return instruction.ins


def _outs(instruction: Instruction) -> tuple[int, ...]:
    return instruction.outs


def _first(unit: _Unit) -> int:
    return unit.first


def _stop(unit: _Unit) -> int:
    return unit.stop
