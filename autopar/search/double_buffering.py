"""Double buffering: which collectives of a plan's loops run a round ahead or behind, by the time of its step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from autopar.core.plan import DoubleBuffered
from autopar.core.program import ShardedProgram
from autopar.errors import PlanFileError
from autopar.passes.double_buffer import (
    Prices,
    double_buffered,
    in_flight_bytes,
    largest_in_flight,
    most_buffered,
)
from autopar.passes.schedule import StepSchedule
from autopar.search.limited_solve import account_of
from autopar.search.task import Planned

Schedule = Callable[[Planned], StepSchedule]
_WORTH = 1e-3
"""Of a step: what room and double buffering have to save, and what a loop has to expose for them to be tried."""
_DEPTHS = (1, 2, 4)
"""How many of the largest collectives may be in flight beside what the program holds in order."""


def with_double_buffers(planned: Planned, schedule: Schedule | None) -> Planned:
    """`planned`, its loops double buffered as its plan says, or as makes its step shortest where that says nothing.

    Where a scan exposes communication, collectives get room for a few more in flight than fit in the peak, then more
    and more of each scan's are taken a round behind, and ahead: as much as saves time and fits in the memory limit.
    What the search has proven is not touched: no operator lies otherwise.

    Args:
      planned: not double buffered yet.
      schedule: when what of a plan runs; None: nothing runs beside anything.
    """
    plan = planned.plan
    if plan.double_buffered is not None:
        return _buffered(planned, plan.double_buffered, plan.in_flight_bytes)
    most = most_buffered(planned.program) if schedule is not None else ()
    if schedule is None or not most:
        return planned

    step = schedule(planned)
    worth_s = _WORTH * step.makespan_s
    loops = [one for one in most if _exposed_s(planned, step, one.region) > worth_s]
    best = _Best(planned, step.makespan_s, schedule)
    for depth in _DEPTHS if loops else ():
        best.try_room(depth * largest_in_flight(planned.program))

    for one in loops:
        best.try_counts(one, "behind")
        best.try_counts(one, "ahead")
    return best.found


@dataclass(eq=False)
class _Best:
    """The best so far of what was made of `planned`, and how long its step is."""

    planned: Planned
    least_s: float
    schedule: Schedule

    def __post_init__(self) -> None:
        self.found = self.planned
        self.room = 0
        self.chosen: dict[int, DoubleBuffered] = {}
        self.worth_s = _WORTH * self.least_s

    def try_room(self, room: int) -> None:
        """With so many bytes for collectives in flight."""
        if self._take(self.chosen, room):
            self.room = room

    def try_counts(self, most: DoubleBuffered, side: Literal["ahead", "behind"]) -> None:
        """With 1, 2, 4, ... and all of a scan's collectives ahead, or behind."""
        start = self.chosen.get(most.region, DoubleBuffered(most.region, 0, 0))
        for count in _counts(getattr(most, side)):
            tried = {**self.chosen, most.region: start._replace(**{side: count})}
            if self._take(tried, self.room):
                self.chosen = tried

    def _take(self, chosen: Mapping[int, DoubleBuffered], room: int) -> bool:
        """Whether that is better."""
        buffers = tuple(chosen.values())
        flying = in_flight_bytes(self.planned.program, buffers)
        other = _buffered(self.planned, buffers, room + flying)
        limit = other.task.memory_limit_bytes
        if limit is not None and other.account.peak_memory_bytes > limit:
            return False

        other_s = self.schedule(other).makespan_s
        if other_s >= self.least_s - self.worth_s:
            return False
        self.found = other
        self.least_s = other_s
        return True


def check_stated(program: ShardedProgram, stated: Sequence[DoubleBuffered]) -> None:
    """That a scan has as many collectives to be run ahead and behind as a plan's file says.

    Raises:
      PlanFileError: if not, or a scan is stated twice.
    """
    most = {one.region: one for one in most_buffered(program)}
    for one in stated:
        own = most.pop(one.region, DoubleBuffered(one.region, 0, 0))
        if one.ahead > own.ahead or one.behind > own.behind:
            raise PlanFileError(
                f"the plan runs {one.ahead} collectives of loop {one.region} a round ahead and {one.behind} behind, of "
                f"{own.ahead} and {own.behind} that can be: the file is damaged. Plan again."
            )


def _counts(most: int) -> Iterator[int]:
    """1, 2, 4, ... and `most`."""
    count = 1
    while count < most:
        yield count
        count *= 2
    if most:
        yield most


def _buffered(planned: Planned, chosen: Sequence[DoubleBuffered], flying: int) -> Planned:
    prices = Prices(planned.pricing.step_cost, planned.pricing.op_cost)
    program = double_buffered(planned.program, chosen, prices)
    plan = replace(planned.plan, double_buffered=tuple(chosen), in_flight_bytes=flying)
    spent = account_of(planned.graph, program, planned.pricing)
    spent = replace(
        spent, peak_memory_bytes=spent.peak_memory_bytes + flying, in_flight_bytes=flying
    )
    return replace(planned, plan=plan, program=program, account=spent)


def _exposed_s(planned: Planned, step: StepSchedule, region: int) -> float:
    """How much shorter the step would be if nothing were communicated in a region."""
    tree = planned.program.tree
    return sum(
        event.weight_s
        for event in step.events
        if event.communicates and region in tree.path(event.region)
    )
