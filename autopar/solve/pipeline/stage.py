"""Stages: what is tried on a problem, one after the other, and what is known between two of them.

A technique that proves a bound or finds choices is a `SolveStage`: a name, the switch that turns it off, whether it
applies to what is known, and what is known after it. `stages.STAGES` is the tuple of all, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

import numpy as np

from autopar.solve.certificate.proof import Prices
from autopar.solve.elimination.bucket_elimination import weight
from autopar.solve.periodic.few_periods import Few
from autopar.solve.problem.incumbent import Watch, offer
from autopar.solve.problem.options import SolveOptions
from autopar.solve.problem.problem import Problem
from autopar.solve.trws.ascent import Answer, Ascent, better, is_closed
from autopar.solve.trws.dual import Certificate

MAX_DEPTH = 12  # of windows in windows
_NARROW = 1_000_000  # edge entries

Search = Callable[[Problem, SolveOptions, Watch, float, int, Prices], Answer]
"""What looks for a choice that costs less than a cost, at a depth of windows, from memory prices by time."""


@dataclass(frozen=True)
class Bracket:
    """The best choice, the bound, the cost below which choices are wanted, and who wants them."""

    best: Answer
    low: float
    upper: float
    watch: Watch

    @property
    def cutoff(self) -> float:
        """The cost below which a choice would be news."""
        return min(self.upper, self.watch.news(self.best.objective))

    @property
    def is_left(self) -> bool:
        """Whether there is a gap, and time."""
        return not is_closed(self.low, self.cutoff) and self.watch.left_s() > 0

    @property
    def enough(self) -> float:
        """What a choice may cost whose gap may be left."""
        return self.watch.allowed(self.low)

    def met(self, found: Answer) -> Bracket:
        """With an answer whose bound says nothing of all choices."""
        return replace(self, best=better(self.best, found))

    def after(self, found: Answer) -> Bracket:
        """With an answer whose bound is about what is cheaper than the cutoff."""
        return replace(self.met(found), low=max(self.low, min(found.bound, self.cutoff)))

    def closed(self) -> Answer:
        """The answer where all below the cutoff is ruled out."""
        return answer(self.best, max(self.low, self.cutoff), self.upper)

    def answer(self) -> Answer:
        """The best choice with the bound; nothing if all below `upper` is ruled out."""
        return answer(self.best, self.low, self.upper)


def answer(best: Answer, low: float, upper: float) -> Answer:
    """`best` with a bound; nothing if all below `upper` is ruled out."""
    if best.choice is None:
        return replace(best, bound=np.inf if low >= upper else low)
    return replace(best, bound=min(low, best.objective))


def is_large(problem: Problem, options: SolveOptions) -> bool:
    """Whether it is too large for CP-SAT."""
    return weight(problem) > options.max_cp_sat_entries


def edge_entries(problem: Problem) -> int:
    """The pairs of strategies of all edges."""
    return sum(edge.matrix.size for edge in problem.edges)


def is_narrow(problem: Problem) -> bool:
    """Whether reductions and sweeps are cheap beside what they save."""
    return edge_entries(problem) <= _NARROW


class Searched(Protocol):
    """What stages are run on."""

    @property
    def options(self) -> SolveOptions:
        """Limits on work, and the switches."""
        ...

    @property
    def is_left(self) -> bool:
        """Whether there is anything left to be found or proven, and time."""
        ...

    def tell(self) -> None:
        """Tells the watch what was found."""
        ...


S = TypeVar("S", bound=Searched)


@dataclass(frozen=True, eq=False)
class SolveState:
    """What a search knows of a problem.

    Attributes:
      problem: what is to be minimised.
      options: limits on work, and the switches.
      known: the best choice, the bound, and the cost below which choices are wanted; its watch keeps the incumbent of
        the whole problem, the proof of the bound, and the clock.
      ascent: messages, and the choices that were decoded on their way.
      rest: what searches a smaller problem, by all means.
      anew: what runs all stages on another state.
      depth: of windows in windows.
      is_first: whether no choice is known of the whole problem, and any is wanted.
      is_few: whether it is a problem of few of the periods of another, whose messages are all that is wanted.
      swept: what messages prove, once they were passed.
      few: a problem of few of the periods, if enough repeats.
    """

    problem: Problem
    options: SolveOptions
    known: Bracket
    ascent: Ascent
    rest: Search
    anew: Callable[[SolveState], Answer]
    depth: int = 0
    is_first: bool = False
    is_few: bool = False
    swept: Certificate | None = None
    few: Few | None = None

    @property
    def watch(self) -> Watch:
        """Who keeps the incumbent, the proof and the clock."""
        return self.known.watch

    @property
    def is_left(self) -> bool:
        """Whether there is a gap, and time."""
        return self.known.is_left

    def tell(self) -> None:
        """Offers the best choice."""
        offer(self.known.best.choice, self.watch)

    @property
    def certificate(self) -> Certificate:
        """What messages prove; only after they were passed."""
        assert self.swept is not None
        return self.swept

    @property
    def is_priced(self) -> bool:
        """Whether memory has a price."""
        return bool(self.certificate.prices.any())

    @property
    def is_narrow(self) -> bool:
        """Whether reductions and sweeps are cheap beside what they save."""
        return is_narrow(self.problem)

    @property
    def is_large(self) -> bool:
        """Whether it is too large for CP-SAT."""
        return is_large(self.problem, self.options)

    @property
    def is_free(self) -> bool:
        """Whether there is no memory to share, and windows above the bound can be held as a whole."""
        return (
            not self.problem.usages and edge_entries(self.problem) <= self.options.max_total_entries
        )

    @property
    def settles(self) -> bool:
        """Whether memory has to be shared and sweeps take long, so that messages and prices move together."""
        return bool(self.problem.usages) and not self.is_narrow

    @property
    def may_stop(self) -> bool:
        """Whether a gap may be left, on a problem too large for CP-SAT."""
        return self.options.gap_tolerance > 0 and self.is_large

    def met(self, found: Answer) -> SolveState:
        """With an answer whose bound says nothing of all choices."""
        return replace(self, known=self.known.met(found))

    def after(self, found: Answer) -> SolveState:
        """With an answer whose bound is about what is cheaper than the cutoff."""
        return replace(self, known=self.known.after(found))


@dataclass(frozen=True)
class SolveStage(Generic[S]):
    """A technique as a step of the search.

    Attributes:
      name: the field's.
      switch: that of `SolveOptions` which turns it off, `room.technique`; "" where nothing does.
      applies: whether there is something to do for it.
      run: what is known after it.
      is_last: whether it has something to do also where nothing is wanted any more, or the time is up.
    """

    name: str
    switch: str
    applies: Callable[[S], bool]
    run: Callable[[S], S]
    is_last: bool = False


def run_stages(stages: Sequence[SolveStage[S]], state: S) -> S:
    """What is known after the stages that are on and apply, in order, until nothing is left to be found or proven."""
    for stage in stages:
        is_on = not stage.switch or state.options.switches[stage.switch]
        if is_on and (stage.is_last or state.is_left) and stage.applies(state):
            state = stage.run(state)
            state.tell()
    return state
