"""A plan within one memory limit: which way it is looked for.

Where no gap may be left the Problem is solved within tighter and tighter limits (`tightening`). Where things repeat, as
layers do, plans are aimed at that place alike what repeats (`equally`), and what is proven holds for all plans.
Everything else is aimed at (`aim`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from autopar.errors import NoFeasiblePlan, Unsolved
from autopar.search.aim import Aim, entries_of
from autopar.search.attempt import FEW_ENTRIES, Attempt
from autopar.search.equally import EqualAttempt, equally
from autopar.search.misfit import unsolved
from autopar.search.task import Planned, quickly
from autopar.search.tightening import Tightening, misfit
from autopar.solve import Infeasible, NothingCheaper, Problem, Solution
from autopar.solve.parametric.single_limit import Focus
from autopar.solve.problem.clock import ending_at
from autopar.solve.problem.rows import least_use
from autopar.solve.problem.verifier import TOLERANCE

_MOST_WHOLE = 2_000_000  # entries of a Problem that is aimed at as a whole as well
_FAR = 0.05  # of the cost: a gap at which plans that do not place alike what repeats are aimed at too


def plan_within(attempt: Attempt, limit: int, free: Planned, below: float = inf) -> Planned:
    """A plan whose program peaks within `limit`; `free` is the best without one.

    Where a gap may be left (`gap_tolerance`) it is aimed at; elsewhere the Problem is solved within tighter
    and tighter limits, with little work also where it is small and nothing was met.

    Raises:
      NoFeasiblePlan: proven that none fits.
      Unsolved: none was found that fits.
      NothingCheaper: none was found that costs less than `below`.
      KeyboardInterrupt: the search was interrupted before.
    """
    if not attempt.task.halt.within(attempt.task.options.solver).gap_tolerance:
        return Tightening(attempt).within(limit, free, below)
    equal = equally(attempt) if entries_of(attempt) > FEW_ENTRIES else None
    if equal is not None:
        with ending_at(attempt.task.halt.ends):
            return Equal(attempt, equal, limit, free, below).plan()
    try:
        with ending_at(attempt.task.halt.ends):
            return Aim(attempt, limit, free, below).plan()
    except Unsolved:
        if entries_of(attempt) > FEW_ENTRIES or attempt.task.halt.is_over:
            raise
    return Tightening(attempt, quickly(attempt.task.options.solver)).within(limit, free, below)


@dataclass(eq=False)
class Equal:
    """The plan that places alike what repeats, and what is proven of all plans within the limit."""

    attempt: Attempt
    equal: EqualAttempt
    limit: int
    free: Planned
    below: float = inf

    def plan(self) -> Planned:
        """The plan, unless it is proven that none fits, or that none costs less than `below`.

        Raises: as `plan_within`.
        """
        aim, halt = Aim(self.equal, self.limit, self.free, self.below), self.attempt.task.halt
        try:
            found = aim.plan() if least_use(self._problem) <= self.limit * (1 + TOLERANCE) else aim.refuted()
        except (NoFeasiblePlan, Unsolved, NothingCheaper) as error:
            return self._without(error, aim.smallest)
        finally:
            self.attempt.met.extend(map(self.equal.lifted, self.equal.met))
        met = replace(found, solution=self.equal.lifted(_solution(found)), problem=self._problem)
        bound = min(self.free.plan.lower_bound_s, met.plan.objective_s)
        is_enough = bound >= met.plan.objective_s * (1 - halt.within(self.attempt.task.options.solver).gap_tolerance)
        if is_enough or halt.is_over:
            return replace(met, plan=replace(met.plan, lower_bound_s=bound))
        focus = self._focus()
        solution = focus.bounded(_solution(met), float(self.limit))
        bound = max(0.0, bound, min(solution.lower_bound, solution.objective))
        met = replace(met, plan=replace(met.plan, lower_bound_s=bound), solution=solution)
        return met if met.plan.gap <= _FAR or not self._is_small else self._better(met)

    def _better(self, met: Planned) -> Planned:
        """`met`, or a plan that does not place alike what repeats, and costs less."""
        try:
            return Aim(self.attempt, self.limit, self.free, met.plan.objective_s).plan()
        except (NothingCheaper, Unsolved):
            return met

    @property
    def _is_small(self) -> bool:
        """Whether plans of all kinds are aimed at as well where those that place alike what repeats do not do."""
        return entries_of(self.attempt) <= _MOST_WHOLE

    @property
    def _problem(self) -> Problem:
        return self.attempt.problem(float(self.limit))

    def _focus(self) -> Focus:
        """On the whole Problem, turned to the limit: what it proves is taken up.

        Raises:
          NothingCheaper: it proves that no plan costs less than `below`.
        """
        aim = Aim(self.attempt, self.limit, self.free, self.below)
        aim.prove()
        return aim.focus

    def _without(self, error: Exception, smallest: Planned) -> Planned:
        """Where no such plan is met, or none that is wanted: what is proven of all plans, as an error."""
        if self._is_small:
            return Aim(self.attempt, self.limit, self.free, self.below).plan()
        least = least_use(self._problem)
        if least > self.limit * (1 + TOLERANCE):
            raise misfit(self.attempt, self.limit, smallest, Infeasible("", least_peak_bytes=least))
        if isinstance(error, NothingCheaper):
            self._focus()
            raise NothingCheaper(self.below, self.attempt.bound_within(float(self.limit)))
        raise unsolved(smallest, self.limit, self.attempt.where)


def _solution(planned: Planned) -> Solution:
    assert planned.solution is not None
    return planned.solution
