"""The search on what the reductions leave: exact elimination, or bound and choices, window, reduce again, CP-SAT.

`minimise` is given a cost that is known to be reachable (`upper`) and looks for something cheaper. Its answer's bound
holds for every choice that costs less than `upper`; a bound of inf says that there is none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from autopar.solve.ascent import Answer, Ascent, better, is_closed
from autopar.solve.bar import barred
from autopar.solve.branch import Branches
from autopar.solve.cp_sat import entries, finish
from autopar.solve.dual import Certificate
from autopar.solve.exact import NOTHING, eliminated, exactly, finite, lifted, reduced, reduced_fully, weight
from autopar.solve.few import Few, few_of
from autopar.solve.first import first_choice
from autopar.solve.known import Known, answer, edge_entries, is_large, is_narrow
from autopar.solve.mixture import choices_about, close_to
from autopar.solve.options import SolveOptions
from autopar.solve.problem import Infeasible, Problem, objective
from autopar.solve.proof import FREE, Exceed, Exhaust, Forbid, Prices
from autopar.solve.reduction import Choice, Ints, Reduction, kept, restrict
from autopar.solve.squeeze import MOST_JOINS, squeeze, squeeze_windows
from autopar.solve.watch import Apart, Inner, Watch

_GUESSES = (1e-4, 1e-3, 1e-2)  # of the bound: windows tried while no choice is known
_SHORT = 100  # passes of an annealing where a gap is let be
_CLOSE = (1e-6, 1e-5, 1e-4, 1e-3)  # of the bound: windows eliminated as long as they fit
_NEARLY = 1e-5  # of the bound: a tiled choice as close is worth a proof
_MIXTURE_PASSES = 100
_MIXTURE_WORK = 0.1  # of CP-SAT's
_PRICED_SWEEPS = 2  # times as many sweeps where prices have to settle too
_HEADROOM = 0.8  # of the gap that is let be: what a choice of few layers may have, so that a tiled one is good too
_SHRUNK = 0.9
_MAX_DEPTH = 12
_ROUNDS_TO_SPLIT = 2  # that are left: with fewer, branch and bound does not close what CP-SAT did not
_MOST_LONGER = 4  # times that the work of branch and bound is doubled
_CP_SAT, _BRANCHES = "CP-SAT", "branches"
_FIRST_FOR_CP_SAT = 50_000  # entries: it closes smaller cores sooner than branch and bound
_WORTH_SPLITTING = 0.8  # of the gap is left: with more, CP-SAT and better choices come first


def minimise(problem: Problem, options: SolveOptions, watch: Watch, upper: float = np.inf, depth: int = 0) -> Answer:
    """The cheapest choice found: by elimination where it fits, else by messages alone where they close, else by all."""
    return _after(reduced, _by_all if depth else by_messages, problem, options, watch, upper, depth)


def _by_all(
    problem: Problem, options: SolveOptions, watch: Watch, upper: float, depth: int, prices: Prices = FREE
) -> Answer:
    """After all reductions, by elimination where it fits, or by bounds, choices, windows and CP-SAT.

    `prices` of times are those to begin with.
    """
    return _after(reduced_fully, partial(_minimise_core, prices=prices), problem, options, watch, upper, depth)


def _after(
    reduce: Callable[[Problem, SolveOptions], Reduction],
    search: Callable[[Problem, SolveOptions, Watch, float, int], Answer],
    problem: Problem,
    options: SolveOptions,
    watch: Watch,
    upper: float,
    depth: int,
) -> Answer:
    """What elimination finds after reductions, or, where it does not fit, what a search does."""
    try:
        reduction = reduce(problem, options)
    except Infeasible as error:
        watch.raise_bound(upper, error.witness or ())
        return NOTHING
    inner = Inner(watch, reduction, upper)
    found = exactly(reduction.problem, options)
    if found is None:
        found = search(reduction.problem, options, inner, upper - reduction.offset, depth)
    else:
        inner.raise_bound(found.bound, found.proof)
    if found.choice is not None:
        inner.offer(found.choice)
    return lifted(reduction, found)


def by_messages(
    problem: Problem,
    options: SolveOptions,
    watch: Watch,
    upper: float,
    depth: int = 0,
    ascent: Ascent | None = None,
) -> Answer:
    """The optimum where messages prove a choice that they decode, as on most training steps.

    Elsewhere what lies close above their bound is eliminated, if that fits; then the best of all that is cheaper than
    what is known by then.
    """
    is_any_news = ascent is None and upper == watch.objective == math.inf  # of few layers a choice is no choice yet
    ascent = ascent or _ascent(problem, options, rough=_may_squeeze(problem, options))
    if is_any_news and ascent.rows.count:
        _offer(first_choice(ascent.dual, options, watch), watch)
    few = _few(ascent, options, watch)
    tiled = Answer(None, np.inf, -np.inf) if few is None else few.tiled()
    settle = ascent.settle if problem.usages and not is_narrow(problem) else ascent.sweeps
    best, certificate = settle(min(upper, tiled.objective), watch)
    best = better(tiled, best)
    known = Known(best, certificate.bound, upper)
    _offer(best.choice, watch)
    if is_any_news and best.choice is None and not ascent.rows.count:  # forbidden entries alone are in the way
        _offer(first_choice(ascent.dual, options, watch), watch)
    watch.raise_bound(known.low, certificate.proof())
    known = _closing(certificate, few, options, watch, known)
    if is_closed(known.low, known.cutoff):
        return answer(known.best, known.cutoff, upper)
    may_stop = options.large_gap > 0 and is_large(problem, options) and not known.is_enough(problem, options)
    if may_stop and certificate.prices.any() and is_narrow(problem):
        known = _mixed(certificate, options, watch, known)
        may_stop = not known.is_enough(problem, options)
    if known.best.choice is not None and may_stop:
        near = ascent.anneal(known.cutoff, known.best.choice, watch)
        known = Known(better(known.best, near), known.low, upper)
    if not options.max_rounds or watch.left_s() <= 0 or known.is_enough(problem, options):
        return known.answer()
    keep = certificate.keep(known.cutoff - certificate.bound)
    if not all(mask.any() for mask in keep):
        watch.raise_bound(known.cutoff, (_exceed(certificate, kept(keep)),))
        return answer(known.best, known.cutoff, upper)
    left = restrict(problem, keep, partial(_exceed, certificate))
    prices, inner = certificate.parts()[0], Inner(watch, left, known.cutoff)
    found = lifted(left, _by_all(left.problem, options, inner, known.cutoff, depth, prices))
    return answer(better(known.best, found), max(known.low, min(found.bound, known.cutoff)), upper)


def _offer(choice: Choice | None, watch: Watch) -> None:
    if choice is not None:
        watch.offer(choice)


def _closing(certificate: Certificate, few: Few | None, options: SolveOptions, watch: Watch, known: Known) -> Known:
    """What is known after what closes the gap of messages on training steps: each where it fits, until it is closed."""
    problem = certificate.problem
    if few is not None and is_large(problem, options) and not known.is_enough(problem, options):
        known = Known(better(known.best, few.annealed(watch).tiled()), known.low, known.upper)
    may_squeeze = _may_squeeze(problem, options)
    if may_squeeze and _is_left(known, watch):
        known = _known_after(known, squeeze_windows(certificate, known.cutoff, options, watch))
    is_near = known.cutoff - known.low <= _NEARLY * abs(known.low)
    if _is_left(known, watch) and (few is None or is_near or not known.is_enough(problem, options)):
        if not certificate.prices.any():
            known = _close_above(certificate, options, watch, known)
        elif is_narrow(problem):
            known = _mixed(certificate, options, watch, known)
        else:
            known = _mixed_close(certificate, options, watch, known)
    is_last = is_large(problem, options) and not known.is_enough(problem, options)  # too large for CP-SAT
    if may_squeeze and is_last and _is_left(known, watch):
        known = _joined(problem, options, watch, known)
    return known


def _joined(problem: Problem, options: SolveOptions, watch: Watch, known: Known) -> Known:
    """What is known after squeezing with joins, from messages that did not swing: these rule out more pairs."""
    found, certificate = Ascent(problem, options, swinging=False).sweeps(known.cutoff, watch)
    known = _known_after(known, replace(found, bound=certificate.bound))
    if found.choice is not None:
        watch.offer(found.choice)
    watch.raise_bound(certificate.bound, certificate.proof())
    if not _is_left(known, watch):
        return known
    return _known_after(known, squeeze(certificate, known.cutoff, options, watch, MOST_JOINS))


def _known_after(known: Known, found: Answer) -> Known:
    """What is known after an answer whose bound is about what is cheaper."""
    return Known(better(known.best, found), max(known.low, min(found.bound, known.cutoff)), known.upper)


def _is_left(known: Known, watch: Watch) -> bool:
    """Whether there is a gap, and time."""
    return not is_closed(known.low, known.cutoff) and watch.left_s() > 0


def _may_squeeze(problem: Problem, options: SolveOptions) -> bool:
    """Whether windows above its bound are squeezed."""
    return not problem.usages and edge_entries(problem) <= options.max_total_entries


def _ascent(problem: Problem, options: SolveOptions, *, rough: bool) -> Ascent:
    """Messages to begin with, and short annealings where a gap is let be."""
    more = _PRICED_SWEEPS if problem.usages and is_narrow(problem) else 1
    passes = min(options.anneal_passes, _SHORT)
    little = replace(options, max_sweeps=more * options.max_sweeps, anneal_passes=passes)
    return Ascent(problem, little, rough=rough)


def _few(whole: Ascent, options: SolveOptions, watch: Watch) -> Few | None:
    """Few of the equal layers, if enough repeats and there is time, solved by messages and windows alone."""
    if watch.left_s() <= 0:
        return None
    little = replace(options, max_rounds=0, large_gap=0.0)

    def search(ascent: Ascent) -> Answer:
        return by_messages(ascent.problem, little, Apart(watch), np.inf, ascent=ascent)

    return few_of(whole, lambda short: _ascent(short, little, rough=whole.rough), search)


def _mixed(certificate: Certificate, options: SolveOptions, watch: Watch, known: Known) -> Known:
    """What is known after the best mixture of the choices about the memory prices, as CP-SAT finds it."""
    if is_large(certificate.problem, options):
        return _mixed_close(certificate, options, watch, known)
    return _mixture_of(choices_about(certificate, options), certificate.problem, options, watch, known)


def _mixed_close(certificate: Certificate, options: SolveOptions, watch: Watch, known: Known) -> Known:
    """What is known after sweeps of what is close to the bound, and the best mixture of the choices found there."""
    close = close_to(certificate, known.cutoff, options)
    if close is None:
        return known
    known = _known_after(known, close.swept(known.cutoff, watch))
    is_enough = known.is_enough(certificate.problem, options) and not is_narrow(certificate.problem)
    if is_enough or not _is_left(known, watch):
        return known
    known = _mixture_of(close.decoded(), certificate.problem, options, watch, known)
    if known.cutoff >= close.top or not _is_left(known, watch):
        return known
    narrower = close_to(certificate, known.cutoff, options)
    return known if narrower is None else _known_after(known, narrower.swept(known.cutoff, watch))


def _mixture_of(
    choices: Sequence[Choice], problem: Problem, options: SolveOptions, watch: Watch, known: Known
) -> Known:
    """What is known after the best choice made of these and the best known, as CP-SAT finds it."""
    every = [*choices, *([] if known.best.choice is None else [known.best.choice])]
    if len(set(every)) < 2:
        return known
    keep = [np.isin(np.arange(n), [choice[v] for choice in every]) for v, n in enumerate(problem.counts)]
    left = restrict(problem, keep, Forbid)
    little = replace(options, max_rounds=1, cp_sat_work=_MIXTURE_WORK * options.cp_sat_work)
    little = replace(little, anneal_passes=min(options.anneal_passes, _MIXTURE_PASSES))
    unbounded = Inner(watch, left, -np.inf)  # nothing forbids the rest: what is proven of a mixture proves no more
    best = lifted(left, _by_all(left.problem, little, unbounded, known.cutoff - left.offset, _MAX_DEPTH))
    if best.choice is not None:
        watch.offer(best.choice)
    return Known(better(known.best, best), known.low, known.upper)


def _close_above(certificate: Certificate, options: SolveOptions, watch: Watch, known: Known) -> Known:
    """What is known after windows above the bound, wider and wider, were eliminated as long as that fits."""
    for guess in _CLOSE:
        window = min(guess * abs(certificate.bound), known.cutoff - certificate.bound)
        keep = certificate.keep(window)
        found = replace(NOTHING, proof=(_exceed(certificate, kept(keep)),))
        if all(mask.any() for mask in keep):
            reduction = restrict(certificate.problem, keep, partial(_exceed, certificate))
            inside = eliminated(reduction.problem, options, options.max_cp_sat_entries)
            if inside is None:
                return known
            found = lifted(reduction, inside)
        watch.raise_bound(min(found.bound, certificate.bound + window), found.proof)
        low = max(known.low, min(found.objective, certificate.bound + window))
        known = Known(better(known.best, found), low, known.upper)
        if known.best.choice is not None:
            watch.offer(known.best.choice)
        if is_closed(known.low, known.cutoff) or watch.left_s() <= 0:
            return known
    return known


def _minimise_core(
    problem: Problem, options: SolveOptions, watch: Watch, upper: float, depth: int, prices: Prices
) -> Answer:
    """Rounds of bound and choices; after each, smaller problems within windows above the bound, or CP-SAT."""
    ascent, best, low = _priced_ascent(problem, options, prices), Answer(None, np.inf, -np.inf), -np.inf
    branches: Branches | None = None
    is_tried = False  # CP-SAT: what it does not close, it does not close later
    for round_ in range(options.max_rounds):
        certificate, found = ascent.round(round_, min(upper, best.objective), best.choice, watch)
        best, low = better(best, found), max(low, certificate.bound)
        watch.raise_bound(certificate.bound, certificate.proof())
        if is_closed(low, min(upper, best.objective)) or watch.left_s() <= 0:
            break
        if Known(best, low, upper).is_enough(problem, options):
            break
        known, is_all = _narrowed(certificate, options, watch, Known(best, low, upper), depth)
        if is_all:
            return known.answer()
        means = _means(certificate, options, is_tried, round_ + _ROUNDS_TO_SPLIT >= options.max_rounds)
        for mean in means:
            if mean == _BRANCHES:
                branches = branches or Branches(certificate, options)
                known = _split(branches, options, watch, known, round_)
            elif watch.left_s() > 0:
                known, is_tried = _finished(certificate, options, watch, known), True
            if is_closed(known.low, known.cutoff) or known.is_enough(problem, options):
                return known.answer()
        if means == [_CP_SAT]:
            return known.answer()
        best, low = known.best, known.low
    return answer(best, low, upper)


def _priced_ascent(problem: Problem, options: SolveOptions, prices: Prices) -> Ascent:
    """Messages, and memory prices that begin at those of times."""
    ascent = Ascent(problem, options)
    if len(prices.times) and ascent.rows.count:
        ascent.price(ascent.rows.by_row(prices))
    return ascent


def _means(certificate: Certificate, options: SolveOptions, is_tried: bool, is_last: bool) -> list[str]:
    """What may close the rest, in order: what closes it sooner, first; in the last rounds CP-SAT has the last word."""
    size = entries(certificate)
    for_cp_sat = not is_tried and size <= options.max_cp_sat_entries
    may_split = bool(certificate.prices.any()) and is_narrow(certificate.problem) and options.branch_entries > 0
    means = ([_CP_SAT] if for_cp_sat else []) + ([_BRANCHES] if may_split and not (for_cp_sat and is_last) else [])
    return means if size <= _FIRST_FOR_CP_SAT else means[::-1]


def _split(branches: Branches, options: SolveOptions, watch: Watch, known: Known, round_: int) -> Known:
    """What is known after branch and bound, which goes on for longer after each round, as annealing does.

    As long as it closes much of the gap, it goes on at once, each time for twice as long.
    """
    while True:
        gap = known.cutoff - known.low
        splits = 2 ** min(round_, _MOST_LONGER) * options.branch_entries // weight(branches.problem)
        branches.grow(splits, known.cutoff, watch)
        best = better(known.best, branches.best)
        known = Known(best, max(known.low, min(branches.bound, known.cutoff, best.objective)), known.upper)
        left = known.cutoff - known.low
        if left > _WORTH_SPLITTING * gap or is_closed(known.low, known.cutoff) or watch.left_s() <= 0:
            return known
        round_ += 1


def _narrowed(
    certificate: Certificate, options: SolveOptions, watch: Watch, known: Known, depth: int
) -> tuple[Known, bool]:
    """What is known after searching windows above the bound, and whether one of them held all that is wanted.

    What a window has may cost more than its upper end; then all that is cheaper is in a wider one.
    """
    wanted = known.cutoff
    for window in _windows(certificate.bound, wanted, depth):
        inside = _inside(certificate, window, options, watch, depth) if watch.left_s() > 0 else None
        if inside is None:
            break
        low = max(known.low, min(inside.bound, certificate.bound + window))
        known = Known(better(known.best, inside), low, known.upper)
        if math.isfinite(wanted) or is_closed(certificate.bound + window, known.cutoff):
            return known, True
        if known.best.choice is not None:
            return _narrowed(certificate, options, watch, known, depth)
    return known, False


def _finished(certificate: Certificate, options: SolveOptions, watch: Watch, known: Known) -> Known:
    """What is known after CP-SAT."""
    window = known.cutoff - certificate.bound
    found, keep = finish(certificate, window, known.best.choice, options, watch), certificate.keep(window)
    reached = min(found.bound, known.cutoff)
    low, beyond = max(known.low, reached), reached - certificate.bound
    best = known.best
    if found.choice is not None:
        watch.offer(found.choice)
        best = better(best, Answer(found.choice, objective(certificate.problem, found.choice), low))
    watch.raise_bound(low, (Exhaust(kept(keep), *certificate.parts(), beyond, _CP_SAT),))
    return Known(best, low, known.upper)


def _exceed(certificate: Certificate, left: Mapping[int, Ints]) -> Exceed:
    """The step of a proof that leaves what is within a window of the bound."""
    return Exceed(left, *certificate.parts())


def _windows(low: float, cutoff: float, depth: int) -> list[float]:
    """Widths above the bound in which to search, narrow ones first; the last takes in all that is of use."""
    blind = depth == 0 and cutoff == np.inf
    guesses = [guess * abs(low) for guess in _GUESSES if blind and low]
    whole = [cutoff - low] if np.isfinite(cutoff) and depth < _MAX_DEPTH and cutoff > low else []
    return guesses + whole


def _inside(certificate: Certificate, window: float, options: SolveOptions, watch: Watch, depth: int) -> Answer | None:
    """The answer among the choices within a window of the bound; None if the window leaves most of the problem."""
    try:
        reduction = barred(certificate, window)
    except Infeasible as error:
        watch.raise_bound(certificate.bound + window, error.witness or ())
        return NOTHING
    if finite(reduction.problem) > _SHRUNK * finite(certificate.problem):
        return None
    upper = certificate.bound + window
    found = minimise(reduction.problem, options, Inner(watch, reduction, upper), upper, depth + 1)
    return replace(found, choice=reduction.lift(found.choice)) if found.choice is not None else found
