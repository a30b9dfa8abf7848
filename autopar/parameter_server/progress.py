"""Progress: who takes part, how far each worker is, and when gradients become an update. No clock, no network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autopar.parameter_server.records import Commit, Saved, Turn, Update


@dataclass(frozen=True)
class Push:
    """A gradient that all servers have: of how many examples, and their mean loss."""

    step: int
    examples: int
    loss: float


class Progress:
    """The steps of a job: `version` updates were made; `clocks` has the steps that each worker which is there has
    finished.

    Synchronous (`staleness` None): a step has members, all workers that are there when it begins. It becomes an update
    once every member has pushed or is gone. Asynchronous: every push is an update, and a worker has its turn for a step
    once every other has finished all steps up to `staleness` before it.
    """

    def __init__(self, steps: int, staleness: int | None, save_every: int) -> None:
        self.steps = steps
        self.staleness = staleness
        self.save_every = save_every
        self.version = 0
        self.generation = 0
        self.clocks: dict[int, int] = {}
        self.updates: list[Update] = []
        self._restored = Saved(0, {})
        self._members: tuple[int, ...] = ()
        self._pushed: dict[int, Push] = {}
        self._leads: dict[int, int] = {}
        self._joined = 0

    @property
    def is_synchronous(self) -> bool:
        """Whether all workers make one update together."""
        return self.staleness is None

    def join(self) -> int:
        """A new worker: as far as the one of its number was in what is continued, or else as the slowest is."""
        worker = self._joined
        self._joined += 1
        self.clocks[worker] = self._clock_of(worker)
        return worker

    def leave(self, worker: int) -> list[Commit]:
        """The updates that waited for this worker alone. What it has pushed to all servers counts."""
        del self.clocks[worker]
        return self._finished_steps()

    def turn(self, worker: int) -> Turn | None:
        """The worker's next step; None: it has to wait, or has no step left."""
        if self.is_synchronous:
            return self._next_together(worker)
        lead = self._lead(worker)
        if self.clocks[worker] >= self.steps or lead > (self.staleness or 0):
            return None
        self._leads[worker] = lead
        return self._turn(worker, self.clocks[worker], tuple(sorted(self.clocks)))

    @property
    def is_over(self) -> bool:
        """Whether no worker that is there has a step left, and one is there or the last update was made."""
        if self.is_synchronous:
            return self.version >= self.steps
        return bool(self.clocks) and min(self.clocks.values()) >= self.steps

    def push(self, worker: int, push: Push) -> list[Commit]:
        """The updates that follow from a gradient that all servers have."""
        if self.is_synchronous:
            self._pushed[worker] = push
            return self._finished_steps()
        self.clocks[worker] += 1
        return [self._commit({worker: push}, self._leads[worker])]

    def roll_back(self, saved: Saved) -> None:
        """All is as it was when that was saved; workers that are there stay."""
        self.generation += 1
        self.version = saved.version
        self._restored = saved
        self._pushed.clear()
        self._members = ()
        self.updates = [update for update in self.updates if update.version <= saved.version]
        live = sorted(self.clocks)
        self.clocks.clear()
        for worker in live:
            self.clocks[worker] = self._clock_of(worker)

    def _clock_of(self, worker: int) -> int:
        if self.is_synchronous:
            return self.version
        if self.version == self._restored.version and worker in self._restored.clocks:
            return self._restored.clocks[worker]
        slowest = min(self._restored.clocks.values(), default=0)
        return min(self.clocks.values(), default=slowest)

    def _lead(self, worker: int) -> int:
        """How many steps the worker has finished that the slowest has not."""
        return self.clocks[worker] - min(self.clocks.values())

    def _next_together(self, worker: int) -> Turn | None:
        if self.version >= self.steps:
            return None
        if not any(member in self.clocks for member in self._members):
            self._members = tuple(sorted(self.clocks))
        if worker not in self._members or worker in self._pushed:
            return None
        return self._turn(worker, self.version, self._members)

    def _turn(self, worker: int, step: int, members: tuple[int, ...]) -> Turn:
        return Turn(step, members.index(worker), len(members), self.version, self.generation)

    def _finished_steps(self) -> list[Commit]:
        """The update of this step, if no member is waited for any more."""
        if not self._pushed or not set(self._members) & set(self.clocks) <= set(self._pushed):
            return []
        commit = self._commit(self._pushed, 0)
        self._pushed = {}
        self._members = ()
        for worker in self.clocks:
            self.clocks[worker] = self.version
        return [commit]

    def _commit(self, pushed: Mapping[int, Push], lead: int) -> Commit:
        self.version += 1

        examples = sum(push.examples for push in pushed.values())
        shares = tuple(
            ((worker, push.step), push.examples / examples)
            for worker, push in sorted(pushed.items())
        )
        loss = sum(
            push.loss * share
            for (_, push), (_, share) in zip(sorted(pushed.items()), shares, strict=True)
        )
        self.updates.append(Update(self.version, tuple(sorted(pushed)), loss, lead))
        saves = self.version % self.save_every == 0
        return Commit(self.version, shares, frozenset(self.clocks), saves)
