"""Tried: the state of the memory loop within one limit, and its descent to the least memory.

The programs made so far say how much of a peak the Problem counts; the bound says what no plan undercuts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from autopar.errors import Unsolved
from autopar.search.best_bound_first import reaches
from autopar.search.explain_infeasible import unsolved
from autopar.search.hidden_bytes import HiddenBytes
from autopar.search.limited_solve import CLASH_WORK, LimitedSolve
from autopar.search.task import Planned
from autopar.solve import Infeasible, NothingCheaper, Problem, Solution
from autopar.solve.cp_sat.bottleneck import least_peak
from autopar.solve.parametric.archive import Met, met_as
from autopar.solve.parametric.single_limit import Focus
from autopar.solve.problem.reduction import Choice
from autopar.solve.problem.rows import least_use

_HALVINGS = 5
_FEW_HALVINGS = 2  # of what lies between the least counted and the smallest program; of larger ones
_MOST_HALVED = 300_000  # entries of a Problem


@dataclass(eq=False)
class Tried:
    """One attempt within one limit: the programs made of choices; `bound` is what is proven of all plans.

    `free` is the best plan without a limit; what costs less than `below` by more than the tolerance is wanted.
    """

    attempt: LimitedSolve
    limit: int
    free: Planned
    below: float = inf
    made: dict[Met, Planned] = field(default_factory=dict[Met, Planned], init=False)

    def __post_init__(self) -> None:
        self.bound = self.free.plan.lower_bound_s

    def make(self, met: Met, solution: Solution) -> Planned:
        """The program of a choice, accounted."""
        self.attempt.met.append(solution)
        planned = self.made[met] = self.attempt.planned(solution)
        if self.fits(met):
            self.attempt.task.tell(self.attempt.ground.mesh, self.limit, met.cost, self.bound)
        return planned

    def fits(self, met: Met) -> bool:
        """Whether its program keeps within the limit, as what the Problem counts does."""
        return max(met.peak, peak_of(self.made[met])) <= self.limit

    @property
    def fitting(self) -> list[Met]:
        """The choices whose programs fit."""
        return [met for met in self.made if self.fits(met)]

    @property
    def cost(self) -> float:
        """Of the cheapest of these."""
        return min((met.cost for met in self.fitting), default=inf)

    @property
    def smallest(self) -> Planned:
        """The plan of the smallest peak."""
        return min((*self.made.values(), self.free), key=peak_of)

    def counted(self, least: float) -> float:
        """What the Problem is to count: what it does of the program nearest to the limit, as a share of its peak.

        That lies between the largest choice whose program fits, or `least`, and the smallest above it whose program
        does not.
        """
        spent = [(peak_of(planned), met.peak) for met, planned in self.made.items()]
        aim = self.limit * counted_share(spent, self.limit)
        low = max((met.peak for met in self.fitting), default=least)
        missed = [met.peak for met in self.made if not self.fits(met) and met.peak > low]
        high = min(missed, default=inf)
        return aim if low < aim < high else (low + min(high, self.limit)) / 2

    def prove(self, bound: float) -> None:
        """Takes up what is proven of the limit.

        Raises:
          NothingCheaper: that no plan costs less than `below`.
        """
        self.bound = max(self.bound, bound)
        self.attempt.prove(self.limit, self.bound)
        if reaches(self.bound, self.below, self.attempt.task.options.gap_tolerance):
            raise NothingCheaper(self.below, self.bound)

    def unknown(self) -> Unsolved:
        """That none was met that fits, and none was proven impossible."""
        return unsolved(self.smallest, self.limit, self.attempt.where)


def peak_of(planned: Planned) -> int:
    """Of its program."""
    return planned.account.peak_memory_bytes


def counted_share(spent: Sequence[tuple[int, float]], limit: float) -> float:
    """What the Problem counts of the program nearest to the limit; `spent` are peaks, and what is counted of them."""
    top, counted = min(spent, key=lambda pair: abs(pair[0] - limit), default=(1, 1.0))
    return min(1.0, counted / top) if top else 1.0


def entries_of(attempt: LimitedSolve) -> int:
    """Of all edges of the Problem."""
    return sum(edge.matrix.size for edge in attempt.problem(0.0).edges)


def focused(attempt: LimitedSolve, problem: Problem, *, begins: bool = True) -> Focus:
    """Prices of memory on a Problem of an attempt, until the search is stopped; `begins` as of Focus.

    Raises:
      Infeasible: proven: there is no choice at all.
    """
    task = attempt.task
    return Focus(problem, task.options.solver, lambda: not task.stop.is_over, begins=begins)


def may_ask_cp_sat(attempt: LimitedSolve) -> bool:
    """Whether the Problem is small enough for CP-SAT to find the least memory that can be counted."""
    return (
        entries_of(attempt) <= attempt.task.options.solver.max_cp_sat_entries
        and not attempt.task.stop.is_over
    )


def chosen_at_prices(
    attempt: LimitedSolve, hidden: HiddenBytes, limit: float, is_last: bool
) -> Choice | None:
    """The cheapest choice met within a limit, hidden bytes counted.

    Where there is none, without guesses, if this `is_last` of what is looked into.
    """
    while True:
        met = None
        try:
            focus = focused(attempt, hidden.problem(0.0))
            focus.turn_to(limit)
            focus.mix(limit)
            met = focus.best(limit)
        except Infeasible:
            pass  # what was learnt may leave nothing
        if met is not None or not is_last or not hidden.stop_guessing():
            return None if met is None else met.whole


def descend(tried: Tried, search: Callable[[int], Tried]) -> float:
    """Makes programs of less and less memory, until one fits, or a few times.

    First that of the choice of least memory, if the Problem is small enough for CP-SAT. Then `search` tries within
    limits between what no choice peaks below, as the Problem counts, and the smallest program: by halves. Returns that
    bound. All depends on the attempt and its `free` plan alone: what is met here is met again.
    """
    attempt = tried.attempt
    smallest = peak_of(tried.free)
    try:
        least = (
            _least_by_cp_sat(tried)
            if may_ask_cp_sat(attempt)
            else least_use(attempt.problem(0.0).usages)
        )
        smallest = min([smallest, *(peak_of(tried.made[met]) for met in tried.made)])
        low = max(1.0, least)
        for _ in range(_HALVINGS if entries_of(attempt) <= _MOST_HALVED else _FEW_HALVINGS):
            middle = int((low * smallest) ** 0.5)
            if tried.fitting or middle <= low or middle >= smallest or attempt.task.stop.is_over:
                break
            found = search(middle)
            tried.made |= found.made
            below = peak_of(found.smallest)
            low, smallest = (low, below) if below < smallest else (float(middle), smallest)
    except Infeasible:
        return inf

    return least


def _least_by_cp_sat(tried: Tried) -> float:
    usual = tried.attempt.task.options.solver
    options = replace(usual, cp_sat_work=min(usual.cp_sat_work, CLASH_WORK))
    least = least_peak(tried.attempt.problem(0.0), options)
    if least.choice is not None:
        met = met_as(tried.attempt.problem(0.0), least.choice)
        tried.make(met, Solution(least.choice, met.cost, -inf, met.peak))
    return least.bound
