"""Race: several searches for the cheapest of one kind of thing; the one that promises most goes on, the rest wait.

Each entrant tells a bound below all that it may find, which grows as it works, and what it has found. One step is
always taken by the entrant of the smallest bound; who cannot find anything cheaper than what is there is ruled out.
So the least bound of all holds for all of them, whether they ran to their end or not.

    bound over all = min over entrants of bound      an entrant's bound >= that of every entrant that contains it
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass, field
from itertools import compress
from math import inf
from typing import Generic, TypeVar

from autopar.errors import AutoparError
from autopar.solve.problem.stop import StopToken

TIE = 1e-9
"""Sums of equal costs in another order differ by rounding: within this share two objectives are equal."""

Found = TypeVar("Found")


@dataclass(frozen=True)
class Progress(Generic[Found]):
    """What an entrant knows after a step: `bound` holds for all that it may find; `found`, if any, costs `objective`.

    `make` makes it where that takes long, or says that it is nothing after all (None). `misfit` is why it will find
    nothing.
    """

    bound: float
    objective: float = inf
    found: Found | None = None
    misfit: AutoparError | None = None
    make: Callable[[], Found | None] | None = None


Entrant = Generator[Progress[Found], float, None]
"""Gives its progress step by step, until it has nothing more to try; each step is sent what is to be undercut.

What costs no less need not be found, only bounded. The first step is sent nothing, so it may do nothing.
"""


@dataclass(frozen=True)
class RaceResult(Generic[Found]):
    """How a race ended: the cheapest found and whose it is, every entrant's bound, who got to the end, misfits.

    Invariant: the least of `bounds` and `objective` bounds all that any entrant may find.
    """

    winner: int | None
    found: Found | None
    objective: float
    bounds: tuple[float, ...]
    finished: tuple[bool, ...]
    misfits: tuple[AutoparError, ...] = ()


def race(
    entrants: Sequence[Entrant[Found]],
    contained: Sequence[Collection[int]],
    below: float = inf,
    bounds: Sequence[float] | None = None,
    stop: StopToken | None = None,
    gap_tolerance: float = 0.0,
    ruled_out: Callable[[int], None] = lambda _: None,
    order: Sequence[int] = (),
) -> RaceResult[Found]:
    """The cheapest that any entrant finds, if it is cheaper than `below`; of equals the first found.

    It ends early where `stop` says so, or the keyboard, once anything is found.

    Args:
      entrants: what raises ends the race.
      contained: for every entrant those whose findings are all among its own, by position.
      bounds: what is known of every entrant before; None: nothing.
      below: what is to be undercut.
      stop: what may end it early; None: nothing.
      gap_tolerance: the share of its cost that the cheapest may cost more than another for all that is proven.
      ruled_out: told the position of every entrant that cannot find anything cheaper, and found nothing that stands.
      order: all positions, the first of equal bounds first; (): as they stand.

    Raises:
      KeyboardInterrupt: interrupted before anything was found.
    """
    stop = stop or StopToken()
    known = list(bounds) if bounds is not None else [-inf] * len(entrants)
    enough = max(TIE, gap_tolerance)
    turn = {n: place for place, n in enumerate(order or range(len(entrants)))}
    started = [False] * len(entrants)
    finished = [False] * len(entrants)
    cheapest = _Cheapest[Found](below)
    last: Sequence[int] = range(len(entrants))

    while True:
        running = [
            n
            for n, bound in enumerate(known)
            if not finished[n] and not reaches(bound, cheapest.objective, enough)
        ]
        kept = (*running, cheapest.winner, *compress(last, (finished[n] for n in last)))
        for n in {*last}.difference(kept):
            ruled_out(n)
        last = running
        is_over = not running or (cheapest.is_any and stop.is_over)
        leader = min(running, key=lambda n: (known[n], turn[n]), default=0)
        if cheapest.unmade and (is_over or started[leader]):
            for n in cheapest.made(stop):
                finished[n] = False
            continue
        if is_over:
            return cheapest.result(known, finished)
        try:
            best = cheapest.objective
            progress = entrants[leader].send(best) if started[leader] else next(entrants[leader])
        except KeyboardInterrupt:
            if not cheapest.is_any:
                raise
            stop.note("keyboard")
            continue
        except StopIteration:
            finished[leader] = True
            continue
        started[leader] = True
        objective = cheapest.met(leader, progress)
        finished[leader] = reaches(progress.bound, objective, enough)
        for n in (leader, *contained[leader]):
            known[n] = max(known[n], progress.bound)


@dataclass(eq=False)
class _Cheapest(Generic[Found]):
    """The cheapest so far, and whose it is. `unmade` are cheaper and cheaper ones that are still to be made.

    There are some only once anything was found: as a rule all that is found then can be made, and the last is all that
    is wanted. `before` is what stands if none of them can.
    """

    objective: float
    winner: int | None = None
    found: Found | None = None
    unmade: list[tuple[float, int, Callable[[], Found | None]]] = field(
        default_factory=list[tuple[float, int, Callable[[], Found | None]]]
    )
    before: tuple[float, int | None] = (inf, None)
    misfits: dict[int, AutoparError] = field(default_factory=dict[int, AutoparError])

    @property
    def is_any(self) -> bool:
        """Whether anything was found."""
        return self.found is not None

    def met(self, entrant: int, progress: Progress[Found]) -> float:
        """Takes up what an entrant found, if that is cheaper; what that costs, `inf` if it turned out to be nothing."""
        objective = progress.objective
        if progress.misfit is not None:
            self.misfits[entrant] = progress.misfit
        if reaches(objective, self.objective):
            return objective

        found = progress.found
        if progress.make is not None:
            if self.is_any:
                self.before = self.before if self.unmade else (self.objective, self.winner)
                self.unmade.append((objective, entrant, progress.make))
                self.objective = objective
                self.winner = entrant
                return objective
            found = progress.make()
        if found is None:
            return inf if progress.make is not None else objective
        self._take(objective, entrant, found)
        return objective

    def made(self, stop: StopToken) -> list[int]:
        """Makes the cheapest of what is still to be made; whose were nothing after all."""
        nothing: list[int] = []
        try:
            while self.unmade:
                objective, entrant, make = self.unmade.pop()
                found = make()
                if found is not None:
                    self._take(objective, entrant, found)
                    return nothing
                nothing.append(entrant)
        except KeyboardInterrupt:
            stop.note("keyboard")
            self.unmade.clear()

        self.objective, self.winner = self.before
        return nothing

    def _take(self, objective: float, entrant: int, found: Found) -> None:
        self.unmade.clear()
        self.objective = objective
        self.winner = entrant
        self.found = found

    def result(self, bounds: Sequence[float], finished: Sequence[bool]) -> RaceResult[Found]:
        """How the race ended."""
        misfits = tuple(self.misfits[n] for n in sorted(self.misfits))
        return RaceResult(
            self.winner, self.found, self.objective, tuple(bounds), tuple(finished), misfits
        )


def reaches(bound: float, best: float, tolerance: float = TIE) -> bool:
    """Whether nothing that costs at least `bound` is cheaper than `best` by more than this share; as such, rounding."""
    return bound >= best - tolerance * abs(best) if best < inf else bound == inf
