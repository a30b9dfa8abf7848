"""The exact finish without search: within a window above a bound, what is too dear goes and the bound rises, in turn.

Strategies and pairs of strategies go that exceed the window (`reduced_cost_fixing`); what is left is reduced and swept
a little, and so on, until it is eliminated or has nothing left. Every pair that goes makes the next bound stronger
than that of the whole problem could be. No choice below the cutoff is known to be needed: a cutoff that is only
guessed, and that nothing undercuts, is a bound.

G. Dantzig, R. Fulkerson, S. Johnson, "Solution of a large-scale traveling-salesman problem" (1954), for the fixing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from autopar.solve.elimination.bucket_elimination import exactly, finite, lifted
from autopar.solve.fixing.node_merging import cycles_merged, frustrated_cycles, has_few_pairs
from autopar.solve.fixing.reduced_cost_fixing import pairs_fixed, sampled, window_of
from autopar.solve.presolve.arc_consistency import drop_forbidden
from autopar.solve.presolve.reduce import reduce_once
from autopar.solve.presolve.variable_elimination import contract_chains
from autopar.solve.problem.incumbent import Inner, Watch
from autopar.solve.problem.options import FixingOptions, SolveOptions
from autopar.solve.problem.problem import Infeasible, Problem, objective
from autopar.solve.problem.reduction import Reduction, unchanged
from autopar.solve.trws.ascent import Answer, Ascent, better, is_closed
from autopar.solve.trws.dual import Certificate

_FEW_PAIRS = 0.006
_LEAST_SHARE = 0.4  # of all: what a first window leaves
_WIDER = 1.5
_MORE_PAIRS = 1.5  # times, the next window: at least; and what it leaves
_WIDE_PAIRS = 1_000_000  # what the first window leaves in which cycles are merged
_MOST_PAIRS = 4_000_000  # what any window leaves
_CLOSER = 0.5  # of a window that did not end: where a choice is as close, another is tried
_KNOWN = 5  # times as many at most, and at once where a choice is known that leaves no more
_SWEEPS = 30  # between two cuts
_WORK = 3e8  # additions of an elimination: more takes longer than another cut
_SHRUNK = 0.95  # of what was left: more, and the problem has stopped shrinking
_RISEN = 0.03  # of the window, between two cuts: a bound that rises by less is all there is, or will not get there
_SLOW = 0.1  # of the window, as above: frustrated cycles are merged
_NARROWER = 30.0
_MOST_NARROWED = 2  # times, the window where nothing moves


def fixed_in_windows(
    certificate: Certificate, cutoff: float, options: SolveOptions, watch: Watch
) -> Answer:
    """The cheapest choice met, and a bound on all below `cutoff`, from windows that leave few pairs, and then more.

    After the first window that does not come to an end by itself, frustrated cycles are merged, in wide windows: these
    do not take much longer then. It ends with the first of those that does not come to an end, nor finds a better
    choice by far. Where a choice is known, the window after the first goes up to its cost, unless that leaves too many
    pairs.
    """
    total = sum(edge.matrix.size for edge in certificate.problem.edges)
    bound = certificate.bound
    pairs = min(max(_LEAST_SHARE * options.max_cp_sat_entries, _FEW_PAIRS * total), _MOST_PAIRS)
    most_known = min(_KNOWN * pairs, _MOST_PAIRS)
    best = Answer(None, np.inf, bound)
    may_merge = False
    failed = np.inf
    if _pairs_below(certificate, cutoff) <= most_known:  # without a look at all pairs
        best = fixed_in_window(certificate, cutoff, options, watch)
        if is_closed(best.bound, min(cutoff, watch.news(best.objective))) or watch.left_s() <= 0:
            return best
        failed = cutoff - bound
        may_merge = True

    above, each = sampled(certificate)
    window, known = (window_of(above, n / each) for n in (pairs, most_known))
    widest = window_of(above, _MOST_PAIRS / each)
    while True:
        cutoff = min(cutoff, watch.news(best.objective))
        gap = cutoff - bound
        upper = (
            cutoff
            if gap <= (max(window, known) if gap < _CLOSER * failed else window)
            else bound + window
        )
        if upper == np.inf:
            return best
        found = fixed_in_window(certificate, upper, options, watch, may_merge=may_merge)
        best = replace(better(best, found), bound=max(best.bound, min(found.bound, upper)))
        ended = found.bound >= min(upper, watch.news(found.objective))
        gap = min(cutoff, watch.news(best.objective)) - bound
        failed = failed if ended else min(failed, upper - bound)
        is_stuck = not ended and may_merge and gap >= _CLOSER * failed
        if (
            is_stuck
            or is_closed(best.bound, min(cutoff, watch.news(best.objective)))
            or watch.left_s() <= 0
        ):
            return best
        if ended and window >= widest:
            return best
        pairs = _MORE_PAIRS * pairs if ended else _WIDE_PAIRS
        window = max(_WIDER * window, 0.0 if may_merge else window_of(above, pairs / each))
        is_known = window < gap <= widest and gap < np.inf
        window = gap if is_known else window
        may_merge = may_merge or not ended or is_known


def _pairs_below(certificate: Certificate, cutoff: float) -> float:
    """The pairs of strategies that choices below the cutoff may have one by one; inf if there is no cutoff."""
    if cutoff == np.inf:
        return np.inf
    counts = [int(mask.sum()) for mask in certificate.keep(cutoff - certificate.bound)]
    return sum(counts[edge.u] * counts[edge.v] for edge in certificate.problem.edges)


def fixed_in_window(
    certificate: Certificate,
    upper: float,
    options: SolveOptions,
    watch: Watch,
    *,
    may_merge: bool = False,
) -> Answer:
    """The cheapest choice met, and a bound on all below `upper`: they meet unless the problem stops shrinking first.

    `upper` is the cost of a choice that is known, or a guess. A bound of `upper` says that none costs less. Where the
    bound stops rising, frustrated cycles are merged, if they may be and what that leaves is small enough; then narrower
    windows are looked into, which say less.
    """
    problem = certificate.problem
    best = Answer(None, np.inf, -np.inf)
    low = certificate.bound
    narrowed = 0
    left = unchanged(problem)
    little = replace(options, max_sweeps=_SWEEPS, max_elimination_work=_WORK)
    to_merge = list[frozenset[int]]()

    while True:
        try:
            cut = left.then(partial(_cut, certificate, upper - left.offset, to_merge, options))
        except Infeasible as error:
            watch.raise_bound(upper, error.witness or ())
            return replace(best, bound=upper)
        found = exactly(cut.problem, little)
        stalled = finite(cut.problem) > _SHRUNK * finite(left.problem)
        is_tight = bool(to_merge) and len(cut.problem.node_costs) == len(left.problem.node_costs)
        to_merge = [] if is_tight else to_merge
        left = cut
        inner = Inner(watch, cut, upper)
        if found is not None:
            inner.raise_bound(found.bound, found.proof)
            best = better(best, _whole(problem, lifted(left, found), watch))
            return replace(best, bound=min(upper, best.objective))
        if watch.left_s() <= 0 or (stalled and not to_merge and narrowed >= _MOST_NARROWED):
            return replace(best, bound=low)
        met, certificate = Ascent(left.problem, little, is_accelerated=False).sweeps(
            upper - left.offset, inner
        )
        inner.raise_bound(certificate.bound, certificate.proof())
        best = better(best, _whole(problem, lifted(left, met), watch))
        before = low
        upper = min(upper, watch.news(best.objective))
        low = max(low, min(certificate.bound + left.offset, upper))
        if low >= upper:
            return replace(best, bound=low)
        is_slow = low - before < _SLOW * (upper - before)
        was_to_merge = to_merge
        to_merge = (
            _to_merge(certificate, upper - low, may_merge, options.fixing)
            if is_slow and not is_tight
            else []
        )
        if not (to_merge or was_to_merge) and (stalled or low - before < _RISEN * (upper - before)):
            narrowed = narrowed + 1
            upper = low + (upper - low) / _NARROWER


def _to_merge(
    certificate: Certificate, gap: float, may_merge: bool, options: FixingOptions
) -> list[frozenset[int]]:
    """What is merged: all there is, where few pairs are left of it; else frustrated cycles, if they may be."""
    if not options.node_merging:
        return []
    if has_few_pairs(certificate.problem):
        return [frozenset(range(len(certificate.problem.node_costs)))]
    return frustrated_cycles(certificate, gap) if may_merge and options.frustrated_cycles else []


def _cut(
    certificate: Certificate,
    upper: float,
    to_merge: Sequence[frozenset[int]],
    options: SolveOptions,
    _: Problem,
) -> Reduction:
    """What can be part of a choice that costs less than `upper`, reduced, without these cycles.

    Raises:
      Infeasible: if nothing can.
    """
    cut = pairs_fixed(certificate, upper - certificate.bound)
    cut = cut.then(partial(cycles_merged, cycles=to_merge, upper=upper))
    cut = cut.then(partial(reduce_once, options=options.presolve))
    cut = cut.then(partial(contract_chains, options=options))
    # sums of edges may forbid more; sweeps want a finite partner for every strategy
    return cut.then(drop_forbidden)


def _whole(problem: Problem, found: Answer, watch: Watch) -> Answer:
    """An answer with the cost of its choice as the whole problem counts; rounding aside it is the same."""
    if found.choice is None:
        return found
    watch.offer(found.choice)
    return replace(found, objective=objective(problem, found.choice))
