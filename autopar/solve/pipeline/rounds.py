"""The search on what reductions leave: exact elimination, or messages, or rounds of bound and choices.

`minimise` is given a cost that is known to be reachable (`upper`) and looks for something cheaper. Its answer's bound
holds for every choice that costs less than `upper`; a bound of inf says that there is none. After each round come
smaller problems in windows above the bound, which are searched likewise, branch and bound, and CP-SAT.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from autopar.solve.certificate.proof import FREE, Exhaust, Prices
from autopar.solve.cp_sat.finish import entries, finish
from autopar.solve.elimination.bucket_elimination import (
    NOTHING,
    exactly,
    finite,
    lifted,
    reduced,
    reduced_fully,
    weight,
)
from autopar.solve.fixing.reduced_cost_fixing import pairs_fixed, sampled, window_of
from autopar.solve.pipeline.branch_and_bound import Branches
from autopar.solve.pipeline.messages import ascent_of
from autopar.solve.pipeline.stage import (
    MAX_DEPTH,
    Bracket,
    SolveState,
    answer,
    edge_entries,
    is_narrow,
    run_stages,
)
from autopar.solve.pipeline.stages import STAGES
from autopar.solve.problem.incumbent import Inner, Watch
from autopar.solve.problem.options import SolveOptions
from autopar.solve.problem.problem import Infeasible, Problem, objective
from autopar.solve.problem.reduction import Reduction, kept
from autopar.solve.trws.ascent import Answer, Ascent, better, is_closed
from autopar.solve.trws.dual import Certificate

_GUESSES = (1e-4, 1e-3, 1e-2)  # of the bound: windows tried while no choice is known
_FEW = 12_000  # pairs that a window leaves: these are searched in seconds
_LEAST_SHARE = 0.1
_MOST_SHARE = 0.6  # of the gap, for such a window
_SHRUNK = 0.9  # of what there was: a window that leaves more is not worth a search of its own
_ROUNDS_TO_SPLIT = (
    2  # that are left: with fewer, branch and bound does not close what CP-SAT did not
)
_MOST_LONGER = 4  # times that the work of branch and bound is doubled
_CP_SAT = "CP-SAT"
_BRANCHES = "branches"
_FIRST_FOR_CP_SAT = 50_000  # entries: it closes smaller cores sooner than branch and bound
_WORTH_SPLITTING = 0.8  # of the gap is left: with more, CP-SAT and better choices come first


def in_rounds(
    problem: Problem,
    options: SolveOptions,
    watch: Watch,
    upper: float,
    depth: int,
    prices: Prices,
) -> Answer:
    """Rounds of bound and choices; after each, smaller problems in windows above the bound, or CP-SAT."""
    ascent = _priced_ascent(problem, options, prices)
    best = Answer(None, np.inf, -np.inf)
    low = -np.inf
    branches: Branches | None = None
    is_tried = False  # CP-SAT: what it does not close, it does not close later
    for round_ in range(options.max_rounds):
        certificate, found = ascent.round(
            round_, min(upper, watch.news(best.objective)), best.choice, watch
        )
        best = better(best, found)
        low = max(low, certificate.bound)
        watch.raise_bound(certificate.bound, certificate.proof())
        known = Bracket(best, low, upper, watch)
        if not known.is_left or watch.objective <= watch.enough:
            break
        known, is_all = _narrowed(certificate, options, known, depth)
        if is_all:
            return known.answer()
        means = _means(
            certificate, options, is_tried, round_ + _ROUNDS_TO_SPLIT >= options.max_rounds
        )
        for mean in means:
            if mean == _BRANCHES:
                branches = branches or Branches(certificate, options)
                known = _split(branches, options, known, round_)
            elif watch.left_s() > 0:
                known = _finished(certificate, options, known)
                is_tried = True
            if is_closed(known.low, known.cutoff):
                return known.answer()
        if means == [_CP_SAT]:
            return known.answer()
        best = known.best
        low = known.low

    return answer(best, low, upper)


def _priced_ascent(problem: Problem, options: SolveOptions, prices: Prices) -> Ascent:
    """Messages, and memory prices that begin at those of times."""
    ascent = Ascent(problem, options)
    if len(prices.times) and ascent.rows.count:
        ascent.price(ascent.rows.by_row(prices))
    return ascent


def _means(
    certificate: Certificate, options: SolveOptions, is_tried: bool, is_last: bool
) -> list[str]:
    """What may close the rest, in order: what closes it sooner, first; in the last rounds CP-SAT has the last word."""
    size = entries(certificate)
    for_cp_sat = options.cp_sat.finish and not is_tried and size <= options.max_cp_sat_entries
    may_split = options.pipeline.branch_and_bound and options.branch_entries > 0
    may_split = may_split and bool(certificate.prices.any()) and is_narrow(certificate.problem)
    means = ([_CP_SAT] if for_cp_sat else []) + (
        [_BRANCHES] if may_split and not (for_cp_sat and is_last) else []
    )
    return means if size <= _FIRST_FOR_CP_SAT else means[::-1]


def _split(branches: Branches, options: SolveOptions, known: Bracket, round_: int) -> Bracket:
    """What is known after branch and bound, which goes on for longer after each round, as annealing does.

    As long as it closes much of the gap, it goes on at once, each time for twice as long.
    """
    while True:
        gap = known.cutoff - known.low
        splits = 2 ** min(round_, _MOST_LONGER) * options.branch_entries // weight(branches.problem)
        branches.grow(splits, known.cutoff, known.watch)
        known = known.after(
            replace(branches.best, bound=min(branches.bound, branches.best.objective))
        )
        left = known.cutoff - known.low
        if left > _WORTH_SPLITTING * gap or not known.is_left:
            return known
        round_ += 1


def _narrowed(
    certificate: Certificate, options: SolveOptions, known: Bracket, depth: int
) -> tuple[Bracket, bool]:
    """What is known after searching windows above the bound, and whether one of them held all that is wanted.

    What a window has may cost more than its upper end; then all that is cheaper is in a wider one. The last takes in
    all that is of use; it comes at once after one in which a better choice was found.
    """
    windows = [*_guesses(certificate, known, depth), math.inf]
    watch = known.watch
    while windows and depth < MAX_DEPTH and options.pipeline.windows:
        window = min(windows.pop(0), known.cutoff - certificate.bound)
        before = known.cutoff
        is_any = 0 < window < math.inf and watch.left_s() > 0
        inside = _inside(certificate, window, options, watch, depth) if is_any else None
        if inside is None:
            break
        low = max(known.low, min(inside.bound, certificate.bound + window))
        known = replace(known.met(inside), low=low)
        if is_closed(certificate.bound + window, known.cutoff):
            return known, True
        if known.cutoff < before:
            windows = [math.inf]

    return known, False


def _finished(certificate: Certificate, options: SolveOptions, known: Bracket) -> Bracket:
    """What is known after CP-SAT."""
    window = known.cutoff - certificate.bound
    watch = known.watch
    hint = known.best.choice if known.best.objective <= known.cutoff else None
    found = finish(certificate, window, hint, options, watch)
    keep = certificate.keep(window)
    reached = min(found.bound, known.cutoff)
    low = max(known.low, reached)
    beyond = reached - certificate.bound
    best = known.best
    if found.choice is not None:
        watch.offer(found.choice)
        best = better(best, Answer(found.choice, objective(certificate.problem, found.choice), low))

    watch.raise_bound(low, (Exhaust(kept(keep), *certificate.parts(), beyond, _CP_SAT),))
    return replace(known, best=best, low=low)


def _guesses(certificate: Certificate, known: Bracket, depth: int) -> list[float]:
    """Widths above the bound in which to search before all that is of use is, narrow ones first.

    Where something is to be undercut: one that leaves few pairs, if it takes in enough of the gap, but not most of it.
    """
    if math.isinf(known.cutoff):
        return [
            guess * abs(certificate.bound) for guess in _GUESSES if certificate.bound and not depth
        ]
    few = window_of(sampled(certificate)[0], _FEW)
    gap = known.cutoff - known.low
    is_worth = _LEAST_SHARE * gap <= few - (known.low - certificate.bound) <= _MOST_SHARE * gap
    return [few] if is_worth else []


def _inside(
    certificate: Certificate, window: float, options: SolveOptions, watch: Watch, depth: int
) -> Answer | None:
    """The answer among the choices within a window of the bound; None if the window leaves most of the problem."""
    try:
        reduction = pairs_fixed(certificate, window)
    except Infeasible as error:
        watch.raise_bound(certificate.bound + window, error.witness or ())
        return NOTHING
    if finite(reduction.problem) > _SHRUNK * finite(certificate.problem):
        return None
    upper = certificate.bound + window
    found = minimise(reduction.problem, options, Inner(watch, reduction, upper), upper, depth + 1)
    return (
        replace(found, choice=reduction.lift(found.choice)) if found.choice is not None else found
    )


def minimise(
    problem: Problem, options: SolveOptions, watch: Watch, upper: float, depth: int = 0
) -> Answer:
    """The cheapest choice found: by elimination where it fits, else by messages alone where they close, else by all."""
    return _after(reduced, by_all if depth else by_messages, problem, options, watch, upper, depth)


def by_messages(
    problem: Problem, options: SolveOptions, watch: Watch, upper: float, depth: int = 0
) -> Answer:
    """The best choice that costs less than `upper`, and a bound on all that do, after all stages.

    On most training steps messages prove a choice that they decode. `by_all` searches what the stages leave.
    """
    is_first = upper == watch.objective == math.inf
    is_free = not problem.usages and edge_entries(problem) <= options.max_total_entries
    ascent = ascent_of(problem, options, rough=is_free)
    known = Bracket(Answer(None, math.inf, -math.inf), -math.inf, upper, watch)
    return _staged(SolveState(problem, options, known, ascent, by_all, _staged, depth, is_first))


def _staged(state: SolveState) -> Answer:
    """What is known after all stages, as an answer."""
    known = run_stages(STAGES, state).known
    return known.closed() if is_closed(known.low, known.cutoff) else known.answer()


def by_all(
    problem: Problem,
    options: SolveOptions,
    watch: Watch,
    upper: float,
    depth: int,
    prices: Prices = FREE,
) -> Answer:
    """After all reductions, by elimination where it fits, or by bounds, choices, windows and CP-SAT.

    `prices` of times are those to begin with.
    """
    search = partial(in_rounds, prices=prices)
    return _after(reduced_fully, search, problem, options, watch, upper, depth, at_last=True)


def _after(
    reduce: Callable[[Problem, SolveOptions], Reduction],
    search: Callable[[Problem, SolveOptions, Watch, float, int], Answer],
    problem: Problem,
    options: SolveOptions,
    watch: Watch,
    upper: float,
    depth: int,
    *,
    at_last: bool = False,
) -> Answer:
    """What elimination finds after reductions, or, where it does not fit, what a search does.

    `at_last`: that search has no quick means left.
    """
    try:
        reduction = reduce(problem, options)
    except Infeasible as error:
        watch.raise_bound(upper, error.witness or ())
        return NOTHING

    inner = Inner(watch, reduction, upper)
    found = exactly(reduction.problem, options, at_last=at_last)
    if found is None:
        found = search(reduction.problem, options, inner, upper - reduction.offset, depth)
    else:
        inner.raise_bound(found.bound, found.proof)

    if found.choice is not None:
        inner.offer(found.choice)

    return lifted(reduction, found)
