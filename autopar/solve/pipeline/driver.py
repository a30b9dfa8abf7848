"""The way through the solver: without the limit first, where that is exact, and only if that does not fit, with it.

solve(problem) = eliminate without the limit -> fits? done
                                             -> smallest peak (feasible at all?) -> minimise within the limit -> verify
                 too wide for elimination    -> minimise within the limit -> nothing found? smallest peak -> verify
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from autopar.errors import AutoparError, Unsolved
from autopar.solve.cp_sat.bottleneck import LeastPeak, least_peak
from autopar.solve.elimination.bucket_elimination import plan_elimination
from autopar.solve.elimination.exact import exactly, lifted, reduced, weight
from autopar.solve.parametric.lagrangian import solve_at_prices
from autopar.solve.periodic.quotient import chooses_alike, quotient
from autopar.solve.pipeline.core import minimise
from autopar.solve.presolve.batched import reduce_alike
from autopar.solve.presolve.knapsack_filtering import drop_oversized
from autopar.solve.presolve.merging import merge_usages
from autopar.solve.presolve.reduce import reduce_cheaply, resting
from autopar.solve.primal.first_choice import first_choice
from autopar.solve.primal.repair import LocalSearch
from autopar.solve.problem.bracket import is_narrow
from autopar.solve.problem.clock import ending_at, left_s, now
from autopar.solve.problem.incumbent import Best, Inner, OnProgress
from autopar.solve.problem.options import SolveOptions
from autopar.solve.problem.problem import Infeasible, Problem, Solution, Stopped, objective, peak
from autopar.solve.problem.reduction import Choice, Reduction, unchanged, without_limit
from autopar.solve.problem.rows import drop_slack, least_use, memory_rows
from autopar.solve.problem.verifier import TOLERANCE, verify_choice
from autopar.solve.trws.ascent import Answer, is_closed
from autopar.solve.trws.dual import Dual


class NothingCheaper(AutoparError):
    """No choice that costs less than `below` was found: every choice costs at least `lower_bound` (proven).

    Whether there is a choice at all is not said. `is_proven`: the bound reaches `below`, so there is none below it.
    `stopped` as in Solution.
    """

    def __init__(self, below: float, lower_bound: float, stopped: Stopped = "") -> None:
        self.is_proven = lower_bound >= below - TOLERANCE * abs(below)
        self.below, self.lower_bound = below, below if self.is_proven else lower_bound
        self.stopped: Stopped = stopped
        verdict = "there is none" if self.is_proven else f"none costs less than {lower_bound:.6g}"
        super().__init__(f"no choice found that costs less than {below:.6g}; {verdict}")


_DEFAULTS = SolveOptions()
_LAST_S, _LAST_SHARE = 0.3, 0.03  # and of the limit: for any choice at all, where the time is up and none is known
_LITTLE_WORK = 1e9  # of elimination, for a choice to begin with
_MOST_LATE = 300_000  # entries of edges, strategies: of larger problems nothing is found in such a moment


def solve(
    problem: Problem,
    *,
    options: SolveOptions = _DEFAULTS,
    warm: Solution | None = None,
    below: float = np.inf,
    on_progress: OnProgress | None = None,
) -> Solution:
    """A verified solution with a proven lower bound; the same for the same problem and options, always.

    The bound is proven up to rounding: it is set to the objective when it comes within 1e-9 of it, relative. With a
    time limit, or when interrupted from the keyboard, the best choice so far is the answer, with the bound so far.

    Args:
      problem: what to minimise.
      options: limits on the work.
      warm: a solution of a problem with the same nodes and strategies: its choice is the first, if it is feasible here.
      below: choices that do not cost less are not wanted: all work is on those that do.
      on_progress: told whenever the best choice or the bound moves.

    Raises:
      Infeasible: proven. If the limit is to blame, `min_peak_bytes` is the smallest peak found (the least possible,
        unless CP-SAT ran out of work before proving it).
      NothingCheaper: no choice that costs less than `below` was found; with what is proven of all choices.
      Unsolved: neither a choice nor a proof of infeasibility was found within the work limits.
      KeyboardInterrupt: interrupted before any choice was found, and `below` was not given.
      ValueError: `warm` is of a problem with other nodes or strategies, or `below` is NaN.
    """
    if np.isnan(below):
        raise ValueError("below is NaN: pass the cost that choices must keep under, or leave it out")
    watch = Best(problem, options.time_limit_s, on_progress, below, options.gap_tolerance)
    if warm is not None:
        watch.offer(_of_same_shape(problem, warm))
    stopped: Stopped = ""
    equal: Choice | None = None
    try:
        with ending_at(watch.ends):
            equal = _choosing_alike(problem, options)
            if equal is not None:
                watch.offer(equal)
            _search(problem, options, watch)
    except Infeasible as error:
        error.witness = watch.proof if watch.bound == np.inf else None
        raise
    except KeyboardInterrupt:
        if watch.choice is None and below == np.inf:
            raise
        stopped = "keyboard"
    if not stopped and watch.left_s() <= 0:
        stopped = "time limit"
    if watch.choice is None and below < np.inf:
        raise NothingCheaper(below, watch.bound, stopped)
    if watch.choice is None:
        raise Unsolved(f"no choice found for {len(problem.node_costs)} nodes; not proven infeasible: {options}")
    solution = replace(_solution(problem, watch), stopped=stopped)
    solution = solution if equal is None else _preferred(problem, solution, equal)
    verify_choice(problem, solution)
    return solution


def alike(problem: Problem, solution: Solution, options: SolveOptions) -> Solution:
    """`solution`, or one that costs no more and chooses alike what repeats; with the same bound."""
    small = None if chooses_alike(problem, solution.choice) else quotient(problem)
    if small is None:
        return solution
    common = _preferred(problem, solution, small.lift(small.most_common(solution.choice)))
    equal = None if common is not solution else _choosing_alike(problem, options)
    return common if equal is None else _preferred(problem, solution, equal)


def _preferred(problem: Problem, solution: Solution, choice: Choice) -> Solution:
    """`solution`, or one of the choice with its bound if that is feasible and costs no more."""
    cost = objective(problem, choice)
    if not cost <= solution.objective + TOLERANCE * abs(solution.objective) or not _fits(problem, choice):
        return solution
    bound = min(solution.lower_bound, cost)
    return replace(solution, choice=choice, objective=cost, lower_bound=bound, peak=peak(problem, choice))


def _choosing_alike(problem: Problem, options: SolveOptions) -> Choice | None:
    """A good choice that chooses alike what repeats, found with little work; None if little repeats, or none is met."""
    small = quotient(problem) if options.periodic.quotient else None
    if small is None:
        return None
    work = min(options.max_elimination_work, _LITTLE_WORK)
    little = replace(options, max_elimination_work=work, max_rounds=0, max_price_steps=0)
    try:
        found = solve(small.problem, options=replace(little, time_limit_s=None if left_s() == np.inf else left_s()))
    except (Infeasible, Unsolved):
        return None
    choice = small.lift(found.choice)
    return choice if np.isfinite(objective(problem, choice)) and _fits(problem, choice) else None


def _of_same_shape(problem: Problem, warm: Solution) -> Choice:
    counts = problem.counts
    if len(warm.choice) != len(counts) or any(s >= n for s, n in zip(warm.choice, counts, strict=True)):
        raise ValueError(f"warm: a choice for {len(warm.choice)} nodes, not one of this problem's {len(counts)} nodes")
    return warm.choice


def _search(problem: Problem, options: SolveOptions, watch: Best) -> None:
    """Searches until all is proven or the work is done; the watch has what is found."""
    try:
        reduction = unchanged(problem).then(drop_slack).then(partial(reduce_alike, options=options))
        reduction = reduction.then(partial(reduce_cheaply, options=options.presolve))
        reduction = reduction.then(partial(resting, merge_usages))
    except Infeasible as error:
        watch.raise_bound(np.inf, error.witness or ())
        raise Infeasible("no choice avoids the forbidden entries, with or without a memory limit") from None
    small, inner = reduction.problem, Inner(watch, reduction)
    if small.usage_limit is not None and least_use(small) > small.usage_limit * (1 + TOLERANCE):
        raise _infeasible(small, _least_peak(small, options), options, inner)
    upper = inner.news(inner.objective)
    some = _first(small, options, inner) if options.time_limit_s is not None else None
    relaxed = _without_limit(small, options) if small.usages else None
    if relaxed is None:
        _search_wide(small, options, inner, upper)
        return
    inner.raise_bound(relaxed.bound, relaxed.proof)
    if relaxed.choice is None:
        raise Infeasible("no choice avoids the forbidden entries, with or without a memory limit")
    inner.offer(relaxed.choice)
    if not is_closed(relaxed.bound, inner.news(inner.objective)):
        _search_limited(small, options, inner, relaxed.bound, some)


def _without_limit(problem: Problem, options: SolveOptions) -> Answer | None:
    """The optimum without the limit by elimination; None if that does not fit, no choice if all are forbidden."""
    try:
        reduction = without_limit(problem)
        if not is_narrow(problem) and _is_too_wide(reduction.problem, options):
            return None
        reduction = reduction.then(partial(reduce_cheaply, options=options.presolve))
        reduction = reduction.then(partial(reduced, options=options))
    except Infeasible as error:
        return Answer(None, np.inf, np.inf, error.witness or ())
    found = exactly(reduction.problem, options)
    return None if found is None else lifted(reduction, found)


def _is_too_wide(problem: Problem, options: SolveOptions) -> bool:
    """Whether elimination needs too large a table, as a plan says at once; to shorten chains would take seconds."""
    return plan_elimination(problem, options.max_table_entries).largest_entries > options.max_table_entries


def _first(problem: Problem, options: SolveOptions, watch: Inner) -> Choice | None:
    """Any choice within the limit, told to the watch, if none is known and memory has rows."""
    rows = memory_rows(problem)
    if watch.objective < np.inf or not rows.count or not options.primal.first_choice:
        return None
    choice = first_choice(Dual(problem, rows), options, watch)
    if choice is not None:
        watch.offer(choice)
    return choice


def _search_wide(problem: Problem, options: SolveOptions, watch: Inner, upper: float) -> None:
    """Within the limit at once, below `upper`; what is feasible at all is asked only if nothing is found."""
    try:
        reduction = _roomy(problem, options)
    except Infeasible as error:
        watch.raise_bound(np.inf, error.witness or ())
        raise _infeasible(problem, _least_peak(problem, options), options, watch) from None
    found = minimise(reduction.problem, options, Inner(watch, reduction), upper - reduction.offset)
    if watch.objective < np.inf or (problem.usage_limit is None and found.bound < np.inf):
        return
    if problem.usage_limit is None:
        raise Infeasible("no choice avoids the forbidden entries")
    if found.bound < np.inf and not left_s() and weight(problem) > _MOST_LATE:
        return
    least = _least_peak(problem, options, enough=problem.usage_limit)
    if least.bound > problem.usage_limit * (1 + TOLERANCE) or found.bound == np.inf:
        raise _infeasible(problem, least, options, watch)
    if (start := _start(problem, least.choice, options)).choice is not None:
        watch.offer(start.choice)


def _roomy(problem: Problem, options: SolveOptions) -> Reduction:
    """Without the strategies that find no room, where that is cheap: then fewer rows bind, and bounds are higher.

    Raises:
      Infeasible: if there is a node none of whose strategies finds room.
    """
    whole = unchanged(problem)
    left = whole.then(drop_oversized) if options.presolve.knapsack_filtering and is_narrow(problem) else whole
    return whole if left is whole else left.then(drop_slack).then(partial(reduce_cheaply, options=options.presolve))


def _search_limited(problem: Problem, options: SolveOptions, watch: Inner, bound: float, some: Choice | None) -> None:
    """The best choice within the limit where elimination fits without one; `some`: a first one, if it is known."""
    assert problem.usage_limit is not None
    start = Answer(None, watch.objective, bound)
    some = some or _first(problem, options, watch)
    if watch.objective == np.inf:
        least = _least_peak(problem, options, enough=problem.usage_limit)
        if least.bound > problem.usage_limit * (1 + TOLERANCE):
            raise _infeasible(problem, least, options, watch)
        some = least.choice
    if some is not None:
        start = replace(_start(problem, some, options), bound=bound)
    if start.choice is not None:
        watch.offer(start.choice)
    left, reduction, best = problem, unchanged(problem), start
    if options.parametric.lagrangian:
        left, reduction, best = solve_at_prices(problem, options, start, watch)
    if best.choice is not None:
        watch.offer(best.choice)
    watch.raise_bound(best.bound, best.proof)
    upper = watch.news(watch.objective)
    if is_closed(best.bound, upper):
        return
    found = minimise(left, options, Inner(watch, reduction, upper), upper - reduction.offset)
    if watch.objective == np.inf and found.bound == np.inf:
        least = _least_peak(problem, options, enough=problem.usage_limit)
        raise _infeasible(problem, least, options, watch)


def _least_peak(problem: Problem, options: SolveOptions, enough: float = -np.inf) -> LeastPeak:
    """As `least_peak`, which has a moment even where the time is up."""
    moment_s = _LAST_S + _LAST_SHARE * (options.time_limit_s or 0.0)
    with ending_at(now() + max(moment_s, left_s())):
        return least_peak(problem, options, enough)


def _infeasible(problem: Problem, least: LeastPeak, options: SolveOptions, watch: Inner) -> Infeasible:
    message = f"no choice keeps within the limit of {problem.usage_limit} bytes: "
    if least.choice is None:
        return Infeasible(f"{message}no choice at all was found")
    cheap = _start(replace(problem, usage_limit=least.peak), least.choice, options).choice or least.choice
    found = f"{message}the smallest peak found is {least.peak:.6g} bytes"
    return Infeasible(found, least.peak, least.bound, watch.reduction.lift(cheap))


def _start(problem: Problem, choice: Choice | None, options: SolveOptions) -> Answer:
    """The choice of small peak, moved to cheaper strategies as far as the limit lets it."""
    if choice is None or not _fits(problem, choice):
        return Answer(None, np.inf, -np.inf)
    moved, _ = LocalSearch(problem, memory_rows(problem), options.primal).improve(list(choice))
    best = moved if moved is not None and _fits(problem, moved) else choice
    return Answer(best, objective(problem, best), -np.inf)


def _fits(problem: Problem, choice: Choice) -> bool:
    return problem.usage_limit is None or peak(problem, choice) <= problem.usage_limit


def _solution(problem: Problem, watch: Best) -> Solution:
    assert watch.choice is not None
    cost, bound = watch.objective, watch.bound
    proven = bound >= cost - TOLERANCE * abs(cost)
    return Solution(watch.choice, cost, cost if proven else bound, peak(problem, watch.choice), watch.proof)
