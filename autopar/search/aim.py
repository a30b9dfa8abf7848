"""Aim: a plan within one memory limit, where the Problem need not be solved fully within one after another.

Choices and bounds for all limits near the one asked for come of one `Focus` (`solve.focus`). Programs hold more than
the Problem counts, by about the same factor where peaks are close: so choices are looked for that leave this much free,
and the cheapest whose program keeps within the limit is the plan. The bound is that of the limit itself.

On Problems that are not large, which are focused on in no time, choices are looked for that leave free what programs
were seen to hold, at the times at which they did (`beside`). Then the Problem is solved within the limit, with little
work: that proves more, and where the program of what is found does not fit, what is learnt of it is counted and it is
solved anew. On larger ones less of this is done, and only where a large gap is left, or nothing is met. Where nothing
is met, what programs hold is learnt by strategies, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, isfinite

from autopar.errors import Unsolved
from autopar.search.attempt import FEW_ENTRIES, Attempt
from autopar.search.beside import Beside
from autopar.search.misfit import unsolved
from autopar.search.race import reaches
from autopar.search.task import Planned, quickly
from autopar.search.tightening import misfit
from autopar.solve import Infeasible, NothingCheaper, Solution
from autopar.solve.cp_sat.bottleneck import LeastPeak, least_peak
from autopar.solve.parametric.archive import Met, met_as
from autopar.solve.parametric.single_limit import Focus
from autopar.solve.problem.problem import objective
from autopar.solve.problem.reduction import Choice
from autopar.solve.problem.rows import least_use
from autopar.solve.problem.verifier import TOLERANCE

_AIMS = 2  # peaks as the Problem counts that choices are made for; ...
_MOST_AIMS, _LOWER = 6, 0.03  # ... as long as no program fits, each at least this share below the one before
_PROGRAMS = 5  # for each
_WORTH = 1e-3  # of the cost: what another program has to save
_ENOUGH = 5e-3  # of the bound of what the Problem counts: a choice as close is not worth another aim
_CLOSE = 1e-2  # of a peak: another that is as close is not aimed at
_LESSONS, _MOST_LESSONS = 8, 12  # programs that are learnt from, where choices are decoded; by strategies
_LEARNT, _MOST_LEARNT = 12_000_000, 32_000_000  # entries of all large Problems on which is focused anew for these
_MOST_BESIDE = 1_000_000  # entries of a Problem on which is focused anew
_FEW_SOLVED, _MOST_SOLVED = 10_000, 1_000_000  # entries of a Problem that is solved within the limit; ...
_FAR, _VERY_FAR = 0.05, 0.1  # of the cost: ... of a larger one than few where the gap is more; of a large one
_OPERATORS, _FEWEST = 60_000, 2  # of all programs that are made; programs that may be made in any case
_ENTRIES_ANEW, _MOST_ANEW = 12_000, 6  # entries of all solves beside what is learnt there; solves


def entries_of(attempt: Attempt) -> int:
    """Of all edges of the Problem."""
    return sum(edge.matrix.size for edge in attempt.problem(0.0).edges)


@dataclass(eq=False)
class Aim:
    """One attempt within one limit; `bound` is what is proven of it, `lowered` are the plans of choices met so far.

    `free` is the best plan without a limit; what costs less than `below` by more than the tolerance is wanted.
    """

    attempt: Attempt
    limit: int
    free: Planned
    below: float = inf
    lowered: dict[Met, Planned] = field(default_factory=dict[Met, Planned], init=False)

    def __post_init__(self) -> None:
        self.bound = self.free.plan.lower_bound_s
        self.beside = Beside(self.attempt, self.limit)
        self.solved: Solution | None = None  # within the limit, with the bound's witness

    @cached_property
    def focus(self) -> Focus:
        """On the Problem.

        Raises:
          Infeasible: proven: there is no choice at all.
        """
        task = self.attempt.task
        return Focus(self.attempt.problem(0.0), task.options.solver, lambda: not task.halt.is_over)

    def plan(self) -> Planned:
        """The cheapest plan met whose program keeps within the limit, with its bound.

        Raises:
          NoFeasiblePlan: proven that none fits.
          Unsolved: none was met that fits.
          NothingCheaper: proven that none costs less than `below`.
        """
        halt = self.attempt.task.halt
        try:
            self._search()
            self._search_beside(self._lessons)
            self._learn_by_strategy()
            self._solve()
            if not self._fitting:
                self._search_smallest()
        except Infeasible as proof:
            raise misfit(self.attempt, self.limit, self.free, proof) from None
        except KeyboardInterrupt:
            halt.note("keyboard")
            if not self._fitting:
                raise
        best = min(self._fitting, key=lambda met: met.cost, default=None)
        if best is None:
            raise unsolved(self.smallest, self.limit, self.attempt.where)
        return self._bounded(best)

    @property
    def _is_spent(self) -> bool:
        """Whether enough programs were made, the fewer the larger they are."""
        return len(self.lowered) >= max(_FEWEST, _OPERATORS // max(1, len(self.attempt.ground.graph.ops)))

    def _search_smallest(self) -> None:
        """Lowers the smallest choices there are.

        Raises:
          NoFeasiblePlan: proven that none keeps within the limit.
        """
        smallest = self.focus.choices()[: _FEWEST if self._is_spent else _PROGRAMS]
        if all(met.peak > self.limit for met in smallest):
            smallest = [*self._least(smallest), *smallest]
        for met in smallest:
            self._lower(met)

    def _least(self, smallest: Sequence[Met]) -> list[Met]:
        """A choice of small peak that the solver finds, if any, where nothing proves yet that none is small enough.

        Where the Problem is too large for CP-SAT, what the prices met prove has to do.
        """
        problem = self.attempt.problem(float(self.limit))
        least = LeastPeak(None, inf, max(self._least_use, self.focus.least_peak))
        if self._may_ask(least.bound > self.limit or not smallest):
            enough = min(float(self.limit), self._aim())  # programs hold more
            least = least_peak(problem, self.attempt.task.options.solver, enough)
        found = [] if least.choice is None else [met_as(problem, least.choice)]
        if least.bound > self.limit * (1 + TOLERANCE):
            for met in (*found, *smallest):
                self._lower(met)
            least_bytes = least.bound if isfinite(least.bound) else None
            raise misfit(self.attempt, self.limit, self.smallest, Infeasible("", least_peak_bytes=least_bytes))
        return found

    def _may_ask(self, is_known: bool) -> bool:
        """Whether CP-SAT is asked for a small choice: of small Problems, though it be known that none is small enough.

        It tells what the least is.
        """
        entries, halt = entries_of(self.attempt), self.attempt.task.halt
        is_small = entries <= self.attempt.task.options.solver.max_cp_sat_entries
        return is_small and not halt.is_over and (not is_known or entries <= FEW_ENTRIES)

    def refuted(self) -> Planned:
        """Where it is known that nothing fits: as an error that tells of a small program.

        Raises:
          NoFeasiblePlan: always.
        """
        try:
            self.prove()
            for met in self.focus.choices()[:_FEWEST]:
                self._lower(met)
        except (Infeasible, NothingCheaper):
            pass  # then the best plan without a limit is the smallest that is known
        raise misfit(self.attempt, self.limit, self.smallest, Infeasible("", least_peak_bytes=self._least_use))

    def prove(self) -> None:
        """Turns to the limit, and takes up what that proves of it.

        Raises:
          NothingCheaper: proven that no plan costs less than `below`.
        """
        self.focus.turn_to(self.limit)
        self._prove()

    @property
    def smallest(self) -> Planned:
        """The plan of the smallest peak."""
        return min((*self.lowered.values(), self.free), key=lambda planned: planned.account.peak_memory_bytes)

    def _search(self) -> None:
        """Lowers choices about the limit, then those made for what the Problem counts of programs there."""
        self.prove()
        if max(self._least_use, self.focus.least_peak) > self.limit * (1 + TOLERANCE):
            return
        self._lower_next()
        aimed = inf
        for n in range(_MOST_AIMS):
            aim = self._aim() if self._fitting else min(self._aim(), aimed * (1 - _LOWER))
            is_enough = self._fitting and (n >= _AIMS or abs(aim - aimed) <= _CLOSE * aim)
            if self.attempt.task.halt.is_over or is_enough:
                return
            self.focus.turn_to(aim)
            self._prove()
            if self.focus.bound(aim) >= min(self.below, self._cost) / (1 + _WORTH):
                return
            self.focus.mix(aim)
            for _ in range(_PROGRAMS):
                if not self._lower_next(inf if self._fitting else aim):
                    break
            if self._cost <= self.focus.bound(self._aim()) * (1 + _ENOUGH):
                return
            aimed = aim

    @cached_property
    def _least_use(self) -> float:
        """No choice peaks below this."""
        return least_use(self.attempt.problem(float(self.limit)))

    @property
    def _lessons(self) -> int:
        """How many programs are learnt from: few of large Problems, on which each takes long."""
        entries = entries_of(self.attempt)
        if entries <= (_MOST_BESIDE if self._is_far(0.0) else FEW_ENTRIES):
            return _LESSONS
        is_wanted = self._is_far(_VERY_FAR) and self.attempt.is_last(self.free, self._cost)
        return min(_LESSONS, _LEARNT // entries) if is_wanted else 0

    def _learn_by_strategy(self) -> None:
        """Where nothing fits, and nothing else is looked into: lowers choices as before, but learns by strategies."""
        if self._fitting or not self._lessons or not self.attempt.is_last(self.free, inf):
            return
        self.beside = Beside(self.attempt, self.limit, by_strategy=True)
        self._search_beside(min(_MOST_LESSONS, _MOST_LEARNT // max(1, entries_of(self.attempt))))

    def _search_beside(self, lessons: int) -> None:
        """Lowers the cheapest choices that leave free what programs were seen to hold, until one fits."""
        options, halt = self.attempt.task.options.solver, self.attempt.task.halt
        for _ in range(lessons):
            try:
                focus = Focus(replace(self.beside.problem(), usage_limit=0.0), options, lambda: not halt.is_over)
            except Infeasible:
                return
            focus.turn_to(self.limit)
            focus.mix(self.limit)
            met = focus.best(self.limit)
            if met is None and self.beside.stop_guessing():
                continue
            is_over = halt.is_over or self._is_spent
            if met is None or is_over or not self._is_news(met.cost) or self._is_learnt(met.whole):
                return

    def _is_news(self, cost: float) -> bool:
        """Whether it is enough less than what the cheapest costs."""
        return cost <= self._cost / (1 + _WORTH)

    def _is_learnt(self, choice: Choice) -> bool:
        """Whether the program of a choice fits; if not, what it holds at its peak is taken up."""
        met = met_as(self.attempt.problem(float(self.limit)), choice)
        self._lower(met)
        if not self._fits(met):
            self.beside.learn(self.lowered[met])
        return self._fits(met)

    def _solve(self) -> None:
        """Proves more of the limit, and lowers what costs the least there, or beside what was learnt."""
        attempt, best = self.attempt, self.focus.best(self.limit)
        if best is None or not self._is_worth_solving():
            return
        options = quickly(attempt.task.options.solver)
        messages = replace(options, max_elimination_work=1.0)  # bounds do not matter
        self.beside = Beside(attempt, self.limit)
        self.solved = attempt.solved_by(attempt.problem(float(self.limit)), self.focus.solved(best), options)
        self._prove_at_least(self.solved.lower_bound)
        choice = self.solved.choice
        for _ in range(min(_MOST_ANEW, max(1, _ENTRIES_ANEW // max(1, entries_of(attempt))))):
            if not self._is_news(objective(self.beside.problem(), choice)) or self._is_learnt(choice):
                return
            try:
                choice = attempt.solved_by(self.beside.problem(), None, messages, self._cost / (1 + _WORTH)).choice
            except (Infeasible, NothingCheaper, Unsolved):
                return

    def _is_worth_solving(self) -> bool:
        """Whether a gap is left, and the Problem is small enough, and this is the last that is looked into."""
        entries = entries_of(self.attempt)
        is_far = self._is_far(0.0 if entries <= _FEW_SOLVED else _FAR)
        is_small = entries <= min(_MOST_SOLVED, _MOST_BESIDE)
        is_wanted = is_far and is_small and not self.attempt.task.halt.is_over
        return is_wanted and self.attempt.is_last(self.free, self._cost)

    def _is_far(self, gap: float) -> bool:
        """Whether a larger gap is left, and more than may be."""
        return self.bound < self._cost * (1 - max(gap, self.attempt.task.options.solver.gap_tolerance))

    def _prove(self) -> None:
        """Takes up what is proven of the limit by lines."""
        self._prove_at_least(self.focus.bound(float(self.limit)))

    def _prove_at_least(self, bound: float) -> None:
        """Takes up what is proven of the limit."""
        self.bound = max(self.bound, bound)
        self.attempt.prove(self.limit, self.bound)
        if reaches(self.bound, self.below, self.attempt.task.options.gap_tolerance):
            raise NothingCheaper(self.below, self.bound)

    @property
    def _fitting(self) -> list[Met]:
        """The choices whose programs keep within the limit, as what the Problem counts of them does."""
        return [met for met in self.lowered if self._fits(met)]

    @property
    def _cost(self) -> float:
        """Of the cheapest of these."""
        return min((met.cost for met in self._fitting), default=inf)

    def _fits(self, met: Met) -> bool:
        return max(met.peak, self.lowered[met].account.peak_memory_bytes) <= self.limit

    def _aim(self) -> float:
        """What the Problem is to count: what it does of the program nearest to the limit, as a share of its peak.

        That lies between the largest choice whose program fits and the smallest above it whose program does not.
        """
        spent = [(planned.account.peak_memory_bytes, met.peak) for met, planned in self.lowered.items()]
        top, counted = min(spent, key=lambda pair: abs(pair[0] - self.limit), default=(1, 1.0))
        aim = self.limit * min(1.0, counted / max(1, top))
        least = min((met.peak for met in self.focus.choices()), default=0.0)
        low = max((met.peak for met in self._fitting), default=least)
        missed = [met.peak for met in self.lowered if not self._fits(met) and met.peak > low]
        high = min(missed, default=inf)
        return aim if low < aim < high else (low + min(high, self.limit)) / 2

    def _lower_next(self, most: float = inf) -> bool:
        """Lowers the choice that promises most, of those that count at most that much; whether there was one."""
        met = self.focus.best(min(most, self._aim()))
        if met is None or met in self.lowered or met.cost > self._cost / (1 + _WORTH) or self._is_spent:
            return False
        self._lower(met)
        return True

    def _lower(self, met: Met) -> None:
        """Makes the program of a choice."""
        solution = self.focus.solved(met)
        self.attempt.met.append(solution)
        self.lowered[met] = self.attempt.planned(solution)
        if self._fits(met):
            self.attempt.task.halt.tell(self.attempt.ground.mesh, self.limit, met.cost, self.bound)

    def _bounded(self, met: Met) -> Planned:
        """The plan of a choice, with what is proven of the limit."""
        found, planned = self.focus.solved(met), self.lowered[met]
        solution = self.focus.bounded(found, self.limit)
        if self.solved is not None and self.solved.lower_bound > solution.lower_bound:
            low = min(self.solved.lower_bound, found.objective)
            solution = replace(found, lower_bound=low, witness=self.solved.witness)
        bound = min(max(self.bound, solution.lower_bound), solution.objective)
        planned = replace(planned, plan=replace(planned.plan, lower_bound_s=max(0.0, bound)))
        return replace(planned, solution=solution, problem=self.attempt.problem(float(self.limit)))
