"""The memory loop: from the bytes that the Problem counts to a program that keeps within the limit.

A program holds more than the Problem counts: buffers of redistributions on their way to a single operator, and what
lowering shares. So one loop runs within a limit:

    choose within what may be counted -> make the program -> account it -> count what it hides, or count less

`Tried` is its state. Here prices of memory choose (`solve.parametric`): those of one `Focus` serve all limits near the
one asked for. Bounds come of the limit itself, never of what was learnt of programs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import inf, isfinite

from autopar.errors import NoFeasiblePlan, Unsolved
from autopar.search.equal_layers import equally
from autopar.search.explain_infeasible import NothingFits
from autopar.search.hidden_bytes import HiddenBytes
from autopar.search.limited_solve import FEW_ENTRIES, LimitedSolve
from autopar.search.task import Planned, quickly
from autopar.search.tried import (
    Tried,
    chosen_at_prices,
    descend,
    entries_of,
    focused,
    may_ask_cp_sat,
    peak_of,
)
from autopar.solve import Infeasible, NothingCheaper, Solution
from autopar.solve.cp_sat.bottleneck import LeastPeak, least_peak
from autopar.solve.parametric.archive import Met, met_as
from autopar.solve.parametric.single_limit import Focus
from autopar.solve.problem.problem import objective
from autopar.solve.problem.reduction import Choice
from autopar.solve.problem.rows import least_use
from autopar.solve.problem.verifier import TOLERANCE

_AIMS = 2  # peaks as the Problem counts that choices are made for; ...
_MOST_AIMS = 6
_LOWER = 0.03  # ... as long as no program fits, each at least this share below the one before
_PROGRAMS = 5  # for each
_WORTH = 1e-3  # of the cost: what another program has to save
_ENOUGH = (
    5e-3  # of the bound of what the Problem counts: a choice as close is not worth another aim
)
_CLOSE = 1e-2  # of a peak: another that is as close is not aimed at
_LESSONS = 8
_MOST_LESSONS = 12  # programs that are learnt from; where none fits
_DESCENT_LESSONS = 3  # within each limit on the way to the least memory
_LEARNT = 12_000_000
_MOST_LEARNT = 32_000_000  # entries of all large Problems on which is focused anew for these
_MOST_PRICED = 1_000_000  # entries of a Problem on which is focused anew
_FEW_SOLVED = 10_000
_MOST_SOLVED = 300_000  # entries of a Problem that is solved within the limit; ...
_FAR = 0.05
_VERY_FAR = 0.1  # of the cost: ... of a larger one than few where the gap is more; of a large one
_OPERATORS = 60_000
_FEWEST = 2
_FEWEST_UNMET = (
    4  # of all programs that are made; programs that may be made in any case; where none fits
)
_ENTRIES_ANEW = 12_000
_MOST_ANEW = 6  # entries of all solves with what is learnt counted; solves


@dataclass(eq=False)
class MemoryLoop(Tried):
    """The loop in which prices of memory choose, and what programs hide is learnt.

    Choices about the limit are made first, then those that count as much as programs there do. Where a gap or nothing
    is left, hidden bytes are counted, and it is chosen anew; Problems that are not large are solved within the limit.
    """

    prices: Focus | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.solved: Solution | None = None  # within the limit, with the bound's witness

    @cached_property
    def focus(self) -> Focus:
        """On the Problem.

        Raises:
          Infeasible: proven: there is no choice at all.
        """
        return self.prices or focused(self.attempt, self.attempt.problem(0.0))

    def plan(self) -> Planned:
        """The cheapest plan met whose program keeps within the limit, with its bound.

        Raises:
          NoFeasiblePlan: proven that none fits.
          Unsolved: none was met that fits.
          NothingCheaper: proven that none costs less than `below`.
        """
        self._refute(self._least_use)
        try:
            self.search()
            self._learn(self._lessons)
            self._solve()
            if not self.fitting and not self.attempt.is_one_of_several:
                self._search_smallest()
        except Infeasible as proof:
            raise nothing_fits(
                self.attempt, self.limit, self.smallest, proof.least_peak_bytes
            ) from None
        except KeyboardInterrupt:
            self.attempt.task.stop.note("keyboard")
            if not self.fitting:
                raise

        best = min(self.fitting, key=lambda met: met.cost, default=None)
        if best is None:
            raise self.unknown()

        return self._bounded(best)

    def searched(self) -> MemoryLoop:
        """After programs at prices were made; where none is smaller than all before, a few were learnt from.

        Raises:
          Infeasible: proven: there is no choice at all.
        """
        before = peak_of(self.smallest)
        self.search()
        if self._entries <= _MOST_PRICED and peak_of(self.smallest) >= before:
            self._learn(_DESCENT_LESSONS)
        return self

    def turn_to_limit(self) -> None:
        """Turns prices to the limit, and takes up what that proves of it.

        Raises:
          NothingCheaper: proven that no plan costs less than `below`.
        """
        self.focus.turn_to(self.limit)
        self._prove()

    def prove_like(self, other: Focus) -> None:
        """Proves the limit at the prices that did so for a problem much like this one.

        Raises: as `turn_to_limit`.
        """
        limit = float(self.limit)
        wanted = self.below * (1 - self.attempt.task.options.gap_tolerance)
        is_refuted = other.bound(limit) >= wanted  # there, so it may well be here
        self.prices = focused(self.attempt, self.attempt.problem(0.0), begins=not is_refuted)
        self.focus.prove_like(other, limit, wanted)
        self._prove()

    def _prove(self) -> None:
        """Takes up what prices prove of the limit."""
        self.prove(self.focus.bound(float(self.limit)))

    def _refute(self, least: float) -> None:
        """Raises NoFeasiblePlan where no choice peaks below `least`, and that is above the limit."""
        if least > self.limit * (1 + TOLERANCE):
            least_bytes = least if isfinite(least) else None
            raise nothing_fits(self.attempt, self.limit, self.smallest, least_bytes)

    @cached_property
    def _entries(self) -> int:
        return entries_of(self.attempt)

    @cached_property
    def _least_use(self) -> float:
        """No choice peaks below this."""
        return least_use(self.attempt.problem(float(self.limit)).usages)

    @property
    def _least_peak(self) -> float:
        """As `_least_use`, also by what prices prove."""
        return max(self._least_use, self.focus.least_peak)

    @property
    def _is_spent(self) -> bool:
        """Whether enough programs were made, the fewer the larger they are."""
        fewest = _FEWEST if self.fitting else _FEWEST_UNMET
        return len(self.made) >= max(
            fewest, _OPERATORS // max(1, len(self.attempt.ground.graph.ops))
        )

    # choices at prices ------------------------------------------------------------------------------------------------

    def search(self) -> None:
        """Makes programs of choices about the limit, then of those that count what programs there do.

        Raises:
          NoFeasiblePlan: proven that none keeps within the limit.
          NothingCheaper: proven that no plan costs less than `below`.
        """
        self.turn_to_limit()
        self._refute(self.focus.least_peak)
        self._make_next()
        aimed = inf

        for n in range(_MOST_AIMS):
            aim = self._aim() if self.fitting else min(self._aim(), aimed * (1 - _LOWER))
            is_enough = self.fitting and (n >= _AIMS or abs(aim - aimed) <= _CLOSE * aim)
            is_over = self.attempt.task.stop.is_over or self._is_spent
            if is_over or is_enough or aim < self._least_peak:
                return
            self.focus.turn_to(aim)
            self._prove()
            if self.focus.bound(aim) >= min(self.below, self.cost) / (1 + _WORTH):
                return
            self.focus.mix(aim)
            for _ in range(_PROGRAMS):
                if not self._make_next(inf if self.fitting else aim):
                    break
            if self.cost <= self.focus.bound(self._aim()) * (1 + _ENOUGH):
                return
            aimed = aim

    def _aim(self) -> float:
        """What the Problem is to count."""
        return self.counted(max(0.0, self._least_peak))

    def _make_next(self, most: float = inf) -> bool:
        """Makes the program that promises most, of those that count at most that much; whether there was one."""
        met = self.focus.best(min(most, self._aim()))
        if met is None or met in self.made or met.cost > self.cost / (1 + _WORTH) or self._is_spent:
            return False
        self._make(met)
        return True

    def _make(self, met: Met) -> None:
        self.make(met, self.focus.solved(met))

    # hidden bytes, learnt ---------------------------------------------------------------------------------------------

    def _learn(self, lessons: int) -> None:
        """Makes the programs of the cheapest choices beside what programs were seen to hide, until one fits."""
        hidden = HiddenBytes(self.attempt)
        for _ in range(lessons):
            is_last = not self.fitting and self.attempt.is_last(self.free, inf)
            choice = chosen_at_prices(self.attempt, hidden, float(self.limit), is_last)
            if choice is None or self.attempt.task.stop.is_over or self._is_spent:
                return
            cost = objective(hidden.problem(float(self.limit)), choice)
            if not self._is_news(cost) or self._is_learnt(hidden, choice):
                return

    @property
    def _lessons(self) -> int:
        """How many programs are learnt from: few of large Problems, on which each takes long; more where none fits."""
        is_last = partial(self.attempt.is_last, self.free)
        more = 0
        if not self.fitting and is_last(inf):
            more = min(_MOST_LESSONS, _MOST_LEARNT // max(1, self._entries))
        if self._entries <= (_MOST_PRICED if self._is_far(0.0) else FEW_ENTRIES):
            return _LESSONS + more
        is_wanted = self._is_far(_VERY_FAR) and is_last(self.cost)
        usual = min(_LESSONS, _LEARNT // self._entries) if is_wanted else 0
        return usual + more if usual else 0

    def _is_news(self, cost: float) -> bool:
        """Whether it is enough less than what the cheapest costs."""
        return cost <= self.cost / (1 + _WORTH)

    def _is_learnt(self, hidden: HiddenBytes, choice: Choice) -> bool:
        """Whether the program of a choice fits; if not, what it hides is taken up."""
        met = met_as(self.attempt.problem(float(self.limit)), choice)
        self._make(met)
        if not self.fits(met):
            hidden.learn(self.made[met], self.limit)
        return self.fits(met)

    # solves -----------------------------------------------------------------------------------------------------------

    def _solve(self) -> None:
        """Proves more of the limit, and makes what costs the least there, or with what is hidden counted."""
        attempt = self.attempt
        limit = float(self.limit)
        best = self.focus.best(self.limit)
        if best is None or not self._is_worth_solving():
            return

        options = quickly(attempt.task.options.solver)
        messages = replace(options, max_elimination_work=1.0)  # bounds do not matter
        hidden = HiddenBytes(attempt)
        self.solved = attempt.solved_by(attempt.problem(limit), self.focus.solved(best), options)
        self.prove(self.solved.lower_bound)
        choice = self.solved.choice
        for _ in range(min(_MOST_ANEW, max(1, _ENTRIES_ANEW // max(1, self._entries)))):
            if not self._is_news(objective(hidden.problem(limit), choice)) or self._is_learnt(
                hidden, choice
            ):
                return
            try:
                choice = attempt.solved_by(
                    hidden.problem(limit), None, messages, self.cost / (1 + _WORTH)
                ).choice
            except (Infeasible, NothingCheaper, Unsolved):
                return

    def _is_worth_solving(self) -> bool:
        """Whether a gap is left, and the Problem is small enough, and this is the last that is looked into."""
        is_far = self._is_far(0.0 if self._entries <= _FEW_SOLVED else _FAR)
        is_small = self._entries <= min(_MOST_SOLVED, _MOST_PRICED)
        is_wanted = is_far and is_small and not self.attempt.task.stop.is_over
        return is_wanted and self.attempt.is_last(self.free, self.cost)

    def _is_far(self, gap: float) -> bool:
        """Whether a larger gap is left, and more than may be."""
        return self.bound < self.cost * (
            1 - max(gap, self.attempt.task.options.solver.gap_tolerance)
        )

    # the least memory -------------------------------------------------------------------------------------------------

    def _search_smallest(self) -> None:
        """Makes the programs of the smallest choices there are.

        Raises:
          NoFeasiblePlan: proven that none keeps within the limit.
        """
        smallest = self.focus.choices()[: _FEWEST if self._is_spent else _PROGRAMS]
        if all(met.peak > self.limit for met in smallest):
            smallest = [*self._least(smallest), *smallest]
        for met in smallest:
            self._make(met)
        if not self.fitting and self.attempt.is_last(self.free, inf):
            less = Tried(self.attempt, self.limit, self.free)
            descend(less, within_less(self.attempt, self.free, self.focus))
            self.made |= less.made

    def _least(self, smallest: Sequence[Met]) -> list[Met]:
        """A choice of small peak that the solver finds, if any, where nothing proves yet that none is small enough.

        Where the Problem is too large for CP-SAT, what the prices met prove has to do.
        """
        problem = self.attempt.problem(float(self.limit))
        least = LeastPeak(None, inf, self._least_peak)
        is_wanted = bool(smallest) or self._entries <= FEW_ENTRIES
        if is_wanted and may_ask_cp_sat(self.attempt):
            enough = min(float(self.limit), self._aim())  # programs hold more
            least = least_peak(problem, self.attempt.task.options.solver, enough)
        self._refute(least.bound)
        return [] if least.choice is None else [met_as(problem, least.choice)]

    def _bounded(self, met: Met) -> Planned:
        """The plan of a choice, with what is proven of the limit."""
        found = self.focus.solved(met)
        planned = self.made[met]
        solution = self.focus.bounded(found, self.limit)
        if self.solved is not None and self.solved.lower_bound > solution.lower_bound:
            low = min(self.solved.lower_bound, found.objective)
            solution = replace(found, lower_bound=low, witness=self.solved.witness)
        bound = min(max(self.bound, solution.lower_bound), solution.objective)
        planned = replace(planned, plan=replace(planned.plan, lower_bound_s=max(0.0, bound)))
        return replace(planned, solution=solution, problem=self.attempt.problem(float(self.limit)))


def within_less(attempt: LimitedSolve, free: Planned, focus: Focus) -> Callable[[int], Tried]:
    """What the loop tries within smaller limits, at prices that go on from one to the next."""
    made = dict[Met, Planned]()
    unbounded = replace(free, plan=replace(free.plan, lower_bound_s=0.0))

    def search(limit: int) -> Tried:
        loop = MemoryLoop(attempt, limit, unbounded, prices=focus)
        loop.made = made
        try:
            return loop.searched()
        except NoFeasiblePlan:
            return loop

    return search


def least_memory(attempt: LimitedSolve, planned: Planned) -> tuple[Planned, float]:
    """The plan of the smallest peak that is met, `planned` at worst, and what no plan's peak is below.

    Where things repeat, it is one of the plans that place alike what does, and nothing is proven.
    """
    equal = equally(attempt) if entries_of(attempt) > FEW_ENTRIES else None
    tried = Tried(equal or attempt, 0, planned)
    try:
        search = within_less(
            tried.attempt, planned, focused(tried.attempt, tried.attempt.problem(0.0))
        )
    except Infeasible:
        return planned, 0.0

    least = descend(tried, search)
    if equal is not None:
        attempt.met.extend(map(equal.lifted, equal.met))
    return tried.smallest, 0.0 if equal else least


def nothing_fits(
    attempt: LimitedSolve, limit: int, planned: Planned, least_bytes: float | None
) -> NothingFits:
    """That it is proven that nothing fits in `limit`; `planned` has the smallest peak that is known so far.

    A smaller one is looked for if the user is told.
    """
    look = partial(least_memory, attempt, planned)
    clash = partial(attempt.clash, float(limit))
    return NothingFits(attempt.where, limit, planned, least_bytes, look, clash)
