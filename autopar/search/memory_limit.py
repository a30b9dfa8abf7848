"""A plan within one memory limit: which memory loop looks for it.

Where a gap may be left, prices of memory choose (`memory_loop`); where things repeat, as layers do, among plans that
place alike what repeats, and what is proven holds for all plans. Where no gap may be left, and on small Problems on
which that met nothing, the Problem is solved fully within less and less (`FullSolves`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf

from autopar.errors import NoFeasiblePlan, Unsolved
from autopar.search.equal_layers import EqualLayersSolve, equally, in_two_groups, mixed
from autopar.search.explain_infeasible import unsolved
from autopar.search.limited_solve import FEW_ENTRIES, LimitedSolve
from autopar.search.memory_loop import MemoryLoop, nothing_fits, within_less
from autopar.search.task import Planned, bounding, quickly
from autopar.search.tried import Tried, descend, entries_of, focused, peak_of
from autopar.solve import Infeasible, NothingCheaper, Problem, Solution, SolveOptions
from autopar.solve.certificate.proof import Prices
from autopar.solve.parametric.archive import met_as
from autopar.solve.parametric.relaxation import UNBOUNDED, PricedBound, bounded_at
from autopar.solve.parametric.single_limit import Focus
from autopar.solve.problem.problem import objective, peak
from autopar.solve.problem.reduction import Choice
from autopar.solve.problem.rows import least_use
from autopar.solve.problem.verifier import TOLERANCE

_FINE = 0.2  # of the gap tolerance: how close a plan's bound at given prices is to what these prove
_ROUGH = 4.0  # times that: where it says only who is looked at first
_MOST_WHOLE = 2_000_000  # entries of a Problem that is aimed at as a whole as well
_PROGRAMS = 3  # of layers that are placed alike in two groups
_FAR = (
    0.05  # of the cost: a gap at which plans that do not place alike what repeats are aimed at too
)


def plan_within(
    attempt: LimitedSolve,
    limit: int,
    free: Planned,
    below: float = inf,
    proven_if_within: float = inf,
) -> Planned:
    """A plan whose program peaks within `limit`; `free` is the best without one.

    Where a gap may be left (`gap_tolerance`) it is aimed at; elsewhere the Problem is solved within tighter
    and tighter limits, with little work also where it is small and nothing was met.

    Args:
      attempt: what is solved.
      limit: in bytes of one device.
      free: the best without a limit.
      below: what is to be undercut.
      proven_if_within: where things repeat, and a plan costs more than what is proven of `free` by a larger share than
        this, nothing more is proven than that.

    Raises:
      NoFeasiblePlan: proven that none fits.
      Unsolved: none was found that fits.
      NothingCheaper: none was found that costs less than `below`.
      KeyboardInterrupt: the search was interrupted before.
    """
    if not _tolerance(attempt):
        return FullSolves(attempt, limit, free, below).plan()

    equal = equally(attempt) if entries_of(attempt) > FEW_ENTRIES else None
    if equal is not None:
        with attempt.task.stop.current():
            return EqualLayers(attempt, equal, limit, free, below, proven_if_within).plan()

    try:
        with attempt.task.stop.current():
            return MemoryLoop(attempt, limit, free, below).plan()
    except Unsolved:
        if entries_of(attempt) > FEW_ENTRIES or attempt.task.stop.is_over:
            raise

    return FullSolves(
        attempt, limit, free, below, options=quickly(attempt.task.options.solver)
    ).plan()


def bounded_within(attempt: LimitedSolve, limit: int, free: Planned, below: float) -> PricedBound:
    """What little work proves of all plans whose programs peak within `limit`, where things repeat; elsewhere nothing.

    That none costs less than `below`, which is finite, is enough.
    """
    is_aimed_at = _tolerance(attempt) > 0 and entries_of(attempt) > FEW_ENTRIES
    equal = equally(attempt) if is_aimed_at else None
    if equal is None:
        return UNBOUNDED
    with attempt.task.stop.current():
        return EqualLayers(attempt, equal, limit, free, below).bound()


@dataclass(eq=False)
class EqualLayers:
    """The plan that places alike what repeats, and what is proven of all plans within the limit."""

    attempt: LimitedSolve
    equal: EqualLayersSolve
    limit: int
    free: Planned
    below: float = inf
    proven_if_within: float = inf

    def plan(self) -> Planned:
        """The plan, unless it is proven that none fits, or that none costs less than `below`.

        Raises: as `plan_within`.
        """
        least = least_use(self._problem.usages)
        stop = self.attempt.task.stop
        if least > self.limit * (1 + TOLERANCE):
            raise nothing_fits(self.attempt, self.limit, self.free, least)

        self._refute_at_known_prices()
        loop = MemoryLoop(self.equal, self.limit, self.free, self.below)
        try:
            found = loop.plan()
        except (NoFeasiblePlan, Unsolved, NothingCheaper) as error:
            return self._without(error, loop)
        finally:
            self.attempt.met.extend(map(self.equal.lifted, self.equal.met))

        met = replace(found, solution=self.equal.lifted(_solution(found)), problem=self._problem)
        bound = min(self.free.plan.lower_bound_s, met.plan.objective_s)
        is_enough = bound >= met.plan.objective_s * (1 - self._tolerance)
        if is_enough or stop.is_over or self._is_far(met.plan.objective_s):
            return replace(met, plan=replace(met.plan, lower_bound_s=bound))

        solution = self._bounded(_solution(met), loop)
        bound = max(0.0, bound, min(solution.lower_bound, solution.objective))
        met = replace(met, plan=replace(met.plan, lower_bound_s=bound), solution=solution)
        if met.plan.gap > self._tolerance:
            met = self._in_two_groups(met, loop)
        return met if met.plan.gap <= _FAR or not self._is_small else self._better(met)

    def bound(self) -> PricedBound:
        """What little work proves of all plans, at the prices that proved the limit on another mesh, or here."""
        try:
            prices = self.attempt.prices
            if prices:
                return self._proven_at(prices[-1], self.below, _ROUGH)
            return self._priced(self._turned_to_limit().focus, self.below, _ROUGH)
        except NothingCheaper as nothing:
            return PricedBound(nothing.lower_bound)
        except Infeasible:  # of equal layers, and so of prices: nothing of others
            return UNBOUNDED

    def _turned_to_limit(self) -> MemoryLoop:
        """Prices of equal layers at the limit, also where they prove that none of these costs less than `below`."""
        loop = MemoryLoop(self.equal, self.limit, self.free, self.below)
        with suppress(NothingCheaper):
            loop.turn_to_limit()
        return loop

    def _in_two_groups(self, met: Planned, equal: MemoryLoop) -> Planned:
        """`met`, or a plan that costs less, in which layers are placed alike in two groups."""
        most = equal.counted(0.0)
        best = met
        for _ in range(_PROGRAMS):
            below = best.plan.objective_s * (1 - self._tolerance)
            pair = mixed(equal.focus.choices(), most, below)
            if pair is None or self.attempt.task.stop.is_over:
                break
            small, large = (self.equal.small.lift(one.whole) for one in pair)
            found = self._made(in_two_groups(self._problem, small, large, most), best)
            if found is None:
                break
            most += self.limit - peak_of(found)
            best = found if peak_of(found) <= self.limit else best

        return best

    def _made(self, choice: Choice | None, met: Planned) -> Planned | None:
        """The plan of a choice, if there is one that costs less than `met`; what is proven is as of that."""
        if choice is None:
            return None
        cost = objective(self._problem, choice)
        if cost >= met.plan.objective_s:
            return None

        known = replace(_solution(met), choice=choice, objective=cost)
        found = replace(known, peak=peak(self._problem, choice))
        self.attempt.met.append(found)
        made = self.attempt.planned(found)
        plan = replace(made.plan, lower_bound_s=met.plan.lower_bound_s)
        return replace(made, plan=plan, problem=self._problem)

    def _bounded(self, met: Solution, equal: MemoryLoop) -> Solution:
        """`met` with what is proven of all plans: at the prices of equal layers, where that is about as much.

        What was proven before is enough where it is within the gap tolerance, and its proof was kept.
        """
        found = self.attempt.proven_within(float(self.limit))
        if found.proof and found.bound >= met.objective * (1 - self._tolerance):
            low = min(found.bound, met.objective)
            return replace(met, lower_bound=low, witness=found.proof)

        found = self._priced(equal.focus, met.objective, _FINE)
        wanted = equal.focus.bound(float(self.limit)) * (1 - self._tolerance)
        if found.bound >= min(wanted, met.objective):
            low = min(found.bound, met.objective)
            return replace(met, lower_bound=low, witness=found.proof)
        return self._focus(equal).bounded(met, float(self.limit))

    def _refute_at_known_prices(self) -> None:
        """Where prices that proved the limit on another mesh do so here, none of this one are looked for.

        Equal layers are asked first: they are few.

        Raises:
          NothingCheaper: no plan costs less than the `below` of the search.
        """
        if self.below == inf or not self.attempt.prices:
            return

        prices = self.attempt.prices[-1]
        problem = self.equal.problem(float(self.limit))
        alike = bounded_at(problem, prices, float(self.limit), self.below, self._options)
        if alike.bound >= self.below * (1 - self._tolerance):
            self._proven_at(prices, self.below)

    def _priced(self, equal: Focus, below: float, share: float = 1.0) -> PricedBound:
        """What is proven of all plans at the prices that proved the limit for equal layers, and taken up.

        That none costs less than `below`, but for this share of the gap tolerance, is enough.

        Raises:
          NothingCheaper: it proves that no plan costs less than the `below` of the search.
        """
        prices = equal.prices_at(float(self.limit))
        self.attempt.prices.append(prices)
        return self._proven_at(prices, below, share)

    def _proven_at(self, prices: Prices, below: float, share: float = 1.0) -> PricedBound:
        """As `_priced`, at these prices."""
        options = self._options
        options = replace(options, gap_tolerance=share * options.gap_tolerance)
        found = bounded_at(self._problem, prices, float(self.limit), below, options)
        Tried(self.attempt, self.limit, self.free, self.below).prove(found.bound)
        return found

    @property
    def _options(self) -> SolveOptions:
        return bounding(self.attempt.task.stop.within(self.attempt.task.options.solver))

    @property
    def _tolerance(self) -> float:
        return _tolerance(self.attempt)

    def _better(self, met: Planned) -> Planned:
        """`met`, or a plan that does not place alike what repeats, and costs less."""
        try:
            return MemoryLoop(self.attempt, self.limit, self.free, met.plan.objective_s).plan()
        except (NothingCheaper, Unsolved):
            return met

    def _is_far(self, cost: float) -> bool:
        """Whether nothing is to be proven beside what is proven without a limit."""
        return cost > self.free.plan.lower_bound_s * (1 + self.proven_if_within)

    @property
    def _is_small(self) -> bool:
        """Whether plans of all kinds are aimed at as well where those that place alike what repeats do not do."""
        return entries_of(self.attempt) <= _MOST_WHOLE

    @property
    def _problem(self) -> Problem:
        return self.attempt.problem(float(self.limit))

    def _focus(self, equal: MemoryLoop) -> Focus:
        """On the whole Problem, at the prices that proved the limit for equal layers: what it proves is taken up.

        Raises:
          NothingCheaper: it proves that no plan costs less than `below`.
        """
        loop = MemoryLoop(self.attempt, self.limit, self.free, self.below)
        loop.prove_like(equal.focus)
        return loop.focus

    def _without(self, error: Exception, equal: MemoryLoop) -> Planned:
        """Where no such plan is met, or none that is wanted: what is proven of all plans, as an error."""
        focus = None
        if isinstance(error, NothingCheaper):
            if self._is_far(self.below):
                raise NothingCheaper(self.below, self.free.plan.lower_bound_s)
            self._priced(equal.focus, self.below)
            focus = self._focus(equal)
            if not self._is_small:
                raise NothingCheaper(self.below, self.attempt.bound_within(float(self.limit)))
        if self._is_small:
            return MemoryLoop(self.attempt, self.limit, self.free, self.below, prices=focus).plan()
        raise unsolved(equal.smallest, self.limit, self.attempt.where)


@dataclass(eq=False)
class FullSolves(Tried):
    """The memory loop in which the solver chooses, within one limit after another; `options`: None are the task's.

    Where a program exceeds the limit, the next solve may count what is left of it beside the hidden bytes, until the
    choice of least peak is all that is left. Where this finds nothing, the same is tried by the excess, on tensors
    alone: another way through choices that the Problem cannot tell apart. Only the bound of the limit itself holds.
    """

    options: SolveOptions | None = None
    proof: Infeasible | None = field(default=None, init=False)

    def plan(self) -> Planned:
        """A plan whose program peaks within the limit.

        Raises:
          NoFeasiblePlan: proven that none fits.
          Unsolved: none was found that fits.
          NothingCheaper: none was found that costs less than `below`.
        """
        found = self._repeated(
            self._solved, lambda made, _: self.limit - (peak_of(made) - made.counted_bytes)
        )
        if self.proof is not None:
            raise nothing_fits(self.attempt, self.limit, self.smallest, self.proof.least_peak_bytes)

        if found is None and not self.attempt.task.stop.is_over:
            found = self._repeated(
                self._solved_on_tensors, lambda made, tight: tight - (peak_of(made) - self.limit)
            )

        if found is None and not self.attempt.task.stop.is_over:
            focus = focused(self.attempt, self.attempt.problem(0.0))
            descend(self, within_less(self.attempt, self.free, focus))
            found = min(
                (self.made[met] for met in self.fitting),
                key=lambda made: made.plan.objective_s,
                default=None,
            )

        if found is None:
            raise self.unknown()

        return replace(
            found,
            plan=replace(
                found.plan, lower_bound_s=max(0.0, min(self.bound, found.plan.objective_s))
            ),
        )

    def _repeated(
        self,
        choose: Callable[[float], tuple[Planned | None, bool]],
        left: Callable[[Planned, float], float],
    ) -> Planned | None:
        """The loop: what `choose` gives within what may be counted, and whether it is the last; less is `left` then."""
        tight = float(self.limit)
        for _ in range(self.attempt.task.options.max_tightenings):
            if self.attempt.task.stop.is_over and tight < self.limit:
                return None
            found, is_last = choose(tight)
            if found is None:
                return None
            assert found.solution is not None
            self.made[met_as(self.attempt.problem(0.0), found.solution.choice)] = found
            if peak_of(found) <= self.limit:
                return found
            if is_last:
                return None
            tight = left(found, tight)

        return None

    def _solved(self, tight: float) -> tuple[Planned | None, bool]:
        """What the solver finds; below the limit, what it finds of least peak where nothing is small enough."""
        is_first = tight == self.limit
        try:
            found = self.attempt.solve(tight, self.options, self.below)
        except NothingCheaper as nothing:
            raise (
                nothing if is_first else NothingCheaper(self.below, self.bound, nothing.stopped)
            ) from nothing
        except Unsolved:
            return None, True
        except Infeasible as error:
            proof = error
            if is_first:
                self.proof = proof
                return None, True
            return self._least(lambda: self._solve_least(proof)), True

        if is_first:
            self.bound = max(self.bound, found.plan.lower_bound_s)

        return found, False

    def _solved_on_tensors(self, tight: float) -> tuple[Planned | None, bool]:
        """As `_solved`, on tensors alone."""
        try:
            return self._solve_tensors(tight), False
        except Unsolved:
            return None, True
        except Infeasible as error:
            least = error.min_peak_bytes
            return (
                None if least is None else self._least(lambda: self._solve_tensors(least))
            ), True

    def _least(self, solve: Callable[[], Planned | None]) -> Planned | None:
        try:
            return solve()
        except Unsolved:
            return None

    def _solve_least(self, proof: Infeasible) -> Planned | None:
        """The best plan under the smallest peak that the solver found; where its program does not fit, that choice.

        Of choices that the Problem cannot tell apart, the one that an error told of is met again so.
        """
        if proof.min_peak_bytes is None or proof.choice is None:
            return None
        found = self.attempt.solve(proof.min_peak_bytes, self.options)
        choice = proof.choice
        if peak_of(found) <= self.limit:
            return found
        problem = self.attempt.problem(proof.min_peak_bytes)
        smallest = self.attempt.planned(
            Solution(choice, objective(problem, choice), -inf, peak(problem, choice))
        )
        return min(found, smallest, key=peak_of)

    def _solve_tensors(self, limit_bytes: float) -> Planned:
        """As `solve`, under a limit on tensors alone, between their making and their last use."""
        problem = self.attempt.problem(limit_bytes, tensors_only=True)
        solution = self.attempt.solved_by(problem, self.attempt.nearby(True), self.options)
        return replace(self.attempt.planned(solution), problem=problem)


def _solution(planned: Planned) -> Solution:
    assert planned.solution is not None
    return planned.solution


def _tolerance(attempt: LimitedSolve) -> float:
    """The gap that may be left, as the search has it now."""
    return attempt.task.stop.within(attempt.task.options.solver).gap_tolerance
