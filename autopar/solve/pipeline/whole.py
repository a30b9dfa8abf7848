"""The stages of a whole problem: without the limit first, where that is exact, and only if that does not fit, with it.

reductions -> elimination without the limit -> fits? done
                                            -> smallest peak (feasible at all?) -> minimise within the limit
              too wide for elimination      -> minimise within the limit -> nothing found? smallest peak
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from autopar.solve.cp_sat.bottleneck import LeastPeak, least_peak
from autopar.solve.elimination.bucket_elimination import (
    exactly,
    lifted,
    plan_elimination,
    reduced,
    weight,
)
from autopar.solve.periodic.layers import with_layers
from autopar.solve.pipeline.rounds import minimise
from autopar.solve.pipeline.stage import SolveStage, is_narrow, run_stages
from autopar.solve.presolve.batched_elimination import reduce_alike
from autopar.solve.presolve.knapsack_filtering import drop_oversized
from autopar.solve.presolve.reduce import merge_usages, reduce_cheaply, resting
from autopar.solve.primal.first_choice import first_choice
from autopar.solve.primal.single_moves import SingleMoves
from autopar.solve.problem.incumbent import Best, Inner
from autopar.solve.problem.options import SolveOptions
from autopar.solve.problem.problem import Infeasible, Problem, objective, peak
from autopar.solve.problem.reduction import Choice, Reduction, unchanged, without_limit
from autopar.solve.problem.rows import drop_slack, least_use, memory_rows
from autopar.solve.problem.stop import ending_at, left_s, now
from autopar.solve.problem.verifier import TOLERANCE
from autopar.solve.trws.ascent import Answer, is_closed
from autopar.solve.trws.dual import Dual

_LAST_S = 0.3
_LAST_SHARE = (
    0.03  # and of the limit: for any choice at all, where the time is up and none is known
)
_MOST_LATE = (
    300_000  # entries of edges, strategies: of larger problems nothing is found in such a moment
)
_FORBIDDEN = "no choice avoids the forbidden entries, with or without a memory limit"


@dataclass(frozen=True, eq=False)
class Whole:
    """What a search knows of a whole problem.

    Attributes:
      options: limits on work, and the switches.
      best: keeps the incumbent, the bound with its proof, and the clock.
      reduction: the problem that is left, and the way back.
      upper: what choices had to cost less than when the search began, as that problem counts.
      some: a first choice of that problem within the limit.
      relaxed: its optimum without the limit; None: it is not known.
      is_over: whether nothing is left to be done.
    """

    options: SolveOptions
    best: Best
    reduction: Reduction
    upper: float = np.inf
    some: Choice | None = None
    relaxed: Answer | None = None
    is_over: bool = False

    @property
    def problem(self) -> Problem:
        """What is left."""
        return self.reduction.problem

    @property
    def watch(self) -> Inner:
        """The watch of what is left."""
        return Inner(self.best, self.reduction)

    @property
    def is_left(self) -> bool:
        """Whether something is left to be done; what asks for the time are the stages themselves."""
        return not self.is_over

    def tell(self) -> None:
        """Nothing: whatever is found is told at once."""


def search(problem: Problem, options: SolveOptions, watch: Best) -> None:
    """Searches until all is proven or the work is done; the watch has what is found.

    Raises:
      Infeasible: proven.
    """
    run_stages(STAGES, Whole(options, watch, unchanged(problem)))


def _reduced(state: Whole) -> Whole:
    """After all reductions that are cheap whatever the problem."""
    options = state.options
    try:
        reduction = state.reduction.then(drop_slack).then(partial(_layered, options=options))
        reduction = reduction.then(partial(reduce_alike, options=options))
        reduction = reduction.then(partial(reduce_cheaply, options=options.presolve))
        reduction = reduction.then(partial(resting, merge_usages))
    except Infeasible as error:
        state.best.raise_bound(np.inf, error.witness or ())
        raise Infeasible(_FORBIDDEN) from None
    state = replace(state, reduction=reduction)
    return replace(state, upper=state.watch.news(state.watch.objective))


def _layered(problem: Problem, options: SolveOptions) -> Reduction:
    """The same problem, whose nodes know their layers where these are of use."""
    if problem.usages or not options.periodic.few_periods:
        return unchanged(problem)
    return replace(unchanged(problem), problem=with_layers(problem))


def _exceeds(state: Whole) -> bool:
    """Whether even the least use of every node exceeds the limit."""
    limit = state.problem.usage_limit
    return limit is not None and least_use(state.problem.usages) > limit * (1 + TOLERANCE)


def _refused(state: Whole) -> Whole:
    """Says that no choice keeps within the limit."""
    raise _infeasible(
        state.problem, _least_peak(state.problem, state.options), state.options, state.watch
    )


def _first_chosen(state: Whole) -> Whole:
    """After any choice within the limit was looked for, if none is known and memory has rows."""
    rows = memory_rows(state.problem)
    if state.watch.objective < np.inf or not rows.count:
        return state
    choice = first_choice(Dual(state.problem, rows), state.options, state.watch)
    if choice is not None:
        state.watch.offer(choice)
    return replace(state, some=choice)


def _relaxed(state: Whole) -> Whole:
    """After the optimum without the limit, by elimination, if that fits."""
    found = _without_limit(state.problem, state.options)
    if found is None:
        return state
    state.watch.raise_bound(found.bound, found.proof)
    if found.choice is None:
        raise Infeasible(_FORBIDDEN)
    state.watch.offer(found.choice)
    return replace(
        state,
        relaxed=found,
        is_over=is_closed(found.bound, state.watch.news(state.watch.objective)),
    )


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
    return (
        plan_elimination(problem, options.max_table_entries).largest_entries
        > options.max_table_entries
    )


def _searched_at_once(state: Whole) -> Whole:
    """After a search within the limit at once; what is feasible at all is asked only if nothing is found."""
    problem = state.problem
    options = state.options
    watch = state.watch
    try:
        reduction = _roomy(problem, options)
    except Infeasible as error:
        watch.raise_bound(np.inf, error.witness or ())
        raise _infeasible(problem, _least_peak(problem, options), options, watch) from None

    found = minimise(
        reduction.problem, options, Inner(watch, reduction), state.upper - reduction.offset
    )
    if watch.objective < np.inf or (problem.usage_limit is None and found.bound < np.inf):
        return replace(state, is_over=True)
    if problem.usage_limit is None:
        raise Infeasible("no choice avoids the forbidden entries")
    if found.bound < np.inf and not left_s() and weight(problem) > _MOST_LATE:
        return replace(state, is_over=True)

    least = _least_peak(problem, options, enough=problem.usage_limit)
    if least.bound > problem.usage_limit * (1 + TOLERANCE) or found.bound == np.inf:
        raise _infeasible(problem, least, options, watch)
    if (start := _start(problem, least.choice, options)).choice is not None:
        watch.offer(start.choice)

    return replace(state, is_over=True)


def _roomy(problem: Problem, options: SolveOptions) -> Reduction:
    """Without the strategies that find no room, where that is cheap: then fewer rows bind, and bounds are higher.

    Raises:
      Infeasible: if there is a node none of whose strategies finds room.
    """
    whole = unchanged(problem)
    left = (
        whole.then(drop_oversized)
        if options.presolve.knapsack_filtering and is_narrow(problem)
        else whole
    )
    return (
        whole
        if left is whole
        else left.then(drop_slack).then(partial(reduce_cheaply, options=options.presolve))
    )


def _met_within(state: Whole) -> Whole:
    """After any choice within the limit is known.

    Raises:
      Infeasible: if there is none.
    """
    problem = state.problem
    options = state.options
    watch = state.watch
    assert problem.usage_limit is not None
    some = state.some
    if some is None and options.primal.first_choice:
        some = _first_chosen(state).some

    if watch.objective == np.inf:
        least = _least_peak(problem, options, enough=problem.usage_limit)
        if least.bound > problem.usage_limit * (1 + TOLERANCE):
            raise _infeasible(problem, least, options, watch)
        some = least.choice

    start = _start(problem, some, options)
    if start.choice is not None:
        watch.offer(start.choice)

    return state


def _searched_within(state: Whole) -> Whole:
    """After a search within the limit."""
    problem = state.problem
    options = state.options
    watch = state.watch
    assert state.relaxed is not None
    upper = watch.news(watch.objective)
    if is_closed(state.relaxed.bound, upper):
        return state

    found = minimise(problem, options, Inner(watch, unchanged(problem), upper), upper)
    if watch.objective == np.inf and found.bound == np.inf:
        least = _least_peak(problem, options, enough=problem.usage_limit or 0.0)
        raise _infeasible(problem, least, options, watch)

    return state


def _least_peak(problem: Problem, options: SolveOptions, enough: float = -np.inf) -> LeastPeak:
    """As `least_peak`, which has a moment even where the time is up."""
    moment_s = _LAST_S + _LAST_SHARE * (options.time_limit_s or 0.0)
    with ending_at(now() + max(moment_s, left_s())):
        return least_peak(problem, options, enough)


def _infeasible(
    problem: Problem, least: LeastPeak, options: SolveOptions, watch: Inner
) -> Infeasible:
    message = f"no choice keeps within the limit of {problem.usage_limit} bytes: "
    if least.choice is None:
        return Infeasible(f"{message}no choice at all was found")
    cheap = (
        _start(replace(problem, usage_limit=least.peak), least.choice, options).choice
        or least.choice
    )
    found = f"{message}the smallest peak found is {least.peak:.6g} bytes"
    return Infeasible(found, least.peak, least.bound, watch.reduction.lift(cheap))


def _start(problem: Problem, choice: Choice | None, options: SolveOptions) -> Answer:
    """The choice of small peak, moved to cheaper strategies as far as the limit lets it."""
    if choice is None or not fits(problem, choice):
        return Answer(None, np.inf, -np.inf)
    moved, _ = SingleMoves(problem, memory_rows(problem), options.primal).improve(list(choice))
    best = moved if moved is not None and fits(problem, moved) else choice
    return Answer(best, objective(problem, best), -np.inf)


def fits(problem: Problem, choice: Choice) -> bool:
    """Whether a choice keeps within the limit, if there is one."""
    return problem.usage_limit is None or peak(problem, choice) <= problem.usage_limit


STAGES: tuple[SolveStage[Whole], ...] = (
    SolveStage("presolve", "", lambda _: True, _reduced),
    SolveStage("least use", "", _exceeds, _refused),
    SolveStage(
        "first choice",
        "primal.first_choice",
        lambda s: s.options.time_limit_s is not None,
        _first_chosen,
    ),
    SolveStage("elimination without the limit", "", lambda s: bool(s.problem.usages), _relaxed),
    SolveStage(
        "search within the limit at once", "", lambda s: s.relaxed is None, _searched_at_once
    ),
    SolveStage("any choice within the limit", "", lambda _: True, _met_within),
    SolveStage("search within the limit", "", lambda _: True, _searched_within),
)
"""In order; where the problem has no limit that can bind, the search at once is the last."""
