"""Tuning: the reading that keeps a step from waiting for data, found by trying some while the loop runs.

A trial is a number of steps with one `Reading`. Where the loop waited, batches take longer to make than a step takes,
so as many are made at a time as that ratio says: by threads, which is enough if what is waited for is not Python, else
by processes. What did not help is not kept: of all trials that with the shortest steps is, or a cheaper one if that is
as good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

from autopar.data.reading import Reading
from autopar.data.waits import Waits

ENOUGH = 0.05
"""A loop that waits for less than this part of its time is not starved."""
_HEADROOM = 1.25
"""Rows differ in how long they take: so many times the batches at a time that would do if they did not."""
_HELPED = 0.8
"""Threads helped if steps got as short as this part of what they were: Python runs in one at a time."""
_AS_GOOD = 1.05
_MOST_THREADS = 16
_WINDOW = 8
FIRST = Reading(workers=0, threads=1, buffer=2)


@dataclass(frozen=True)
class Limits:
    """The most processes, and batches made ahead in each, that the machine has cores and memory for."""

    workers: int
    buffer: int


@dataclass(frozen=True)
class Trial:
    """What the waits were over some steps with a reading."""

    reading: Reading
    waits: Waits

    @property
    def step_s(self) -> float:
        """Seconds of a step, waiting and all."""
        return (self.waits.waited_s + self.waits.busy_s) / self.waits.batches


def next_reading(trials: Sequence[Trial], limits: Callable[[], Limits]) -> Reading | None:
    """What to try after these trials, the first of them of `FIRST`; None: nothing, the `best` of them will do."""
    if trials[-1].waits.share <= ENOUGH:
        return None
    tried = {trial.reading for trial in trials}
    return next((one for one in _rungs(trials, limits()) if one not in tried), None)


def best(trials: Sequence[Trial]) -> Reading:
    """That with the shortest steps; an earlier one, which is cheaper, if it is as good."""
    shortest = min(trial.step_s for trial in trials)
    return next(trial.reading for trial in trials if trial.step_s <= _AS_GOOD * shortest)


def _rungs(trials: Sequence[Trial], limits: Limits) -> Iterator[Reading]:
    """From cheap to dear, by the ratio of a batch's making to the rest of a step; each knows the trials before it."""
    first = trials[0]
    needed = _needed(first, most=max(_MOST_THREADS, limits.workers))
    threads = min(needed, _MOST_THREADS, limits.buffer)
    threaded = Reading(0, threads, max(threads, FIRST.buffer))
    yield threaded

    times = {trial.reading: trial.step_s for trial in trials}
    kept = threads if times.get(threaded, first.step_s) <= _HELPED * first.step_s else 0
    workers = min(needed, limits.workers)
    if workers:
        yield Reading(workers, kept, max(kept, FIRST.buffer))
        yield Reading(limits.workers, kept, max(kept, FIRST.buffer))

    fastest = best(trials)
    yield replace(fastest, buffer=max(fastest.buffer, min(4 * fastest.buffer, limits.buffer)))


def _needed(first: Trial, most: int) -> int:
    """How many batches have to be made at a time, where one at a time takes all of a step."""
    busy_s = first.waits.busy_s / first.waits.batches
    return (
        most
        if first.step_s >= most * busy_s
        else min(most, ceil(_HEADROOM * first.step_s / busy_s))
    )


class Tuner:
    """Tries readings one after the other, by the waits of each step, until one will do."""

    def __init__(self, limits: Callable[[], Limits], depth: int) -> None:
        self.reading = FIRST
        self.trials: tuple[Trial, ...] = ()
        self.is_done = False
        self._limits = limits
        self._depth = depth
        self._begin(FIRST)

    def sees(self, step: Waits) -> bool:
        """Takes the waits of a step; whether `reading` is another one from now on."""
        if self.is_done:
            return False
        if self._skipped:
            self._skipped -= 1
            return False
        self._window = self._window + step
        return self._window.batches == self._length and self._decided()

    def _decided(self) -> bool:
        before = self.reading
        self.trials = (*self.trials, Trial(before, self._window))
        following = next_reading(self.trials, self._limits)
        self.is_done = following is None
        self._begin(best(self.trials) if following is None else following)
        return self.reading != before

    def _begin(self, reading: Reading) -> None:
        """A trial: its first steps are left out, in which lanes get going, and what was made meanwhile is used up."""
        self.reading = reading
        self._window = Waits()
        self._skipped = 2 * (1 + reading.lanes) + self._depth
        self._length = max(_WINDOW, 2 * reading.lanes)
