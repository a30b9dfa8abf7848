"""The search by messages: bounds and choices of sweeps, of few of the equal layers, and what closes the rest."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from autopar.solve.elimination.exact import lifted
from autopar.solve.periodic.few_periods import Few, few_of
from autopar.solve.pipeline.closing import closing, may_squeeze, mixed
from autopar.solve.primal.crossover import annealed_near
from autopar.solve.primal.first_choice import first_choice
from autopar.solve.problem.bracket import Known, Search, edge_entries, is_large, is_narrow
from autopar.solve.problem.incumbent import Apart, Inner, Watch, offer
from autopar.solve.problem.options import SolveOptions
from autopar.solve.problem.problem import Problem
from autopar.solve.problem.reduction import kept, restrict
from autopar.solve.trws.arrays import Pool
from autopar.solve.trws.ascent import Answer, Ascent, better, is_closed
from autopar.solve.trws.dual import Certificate

_SHORT = 100  # passes of an annealing where a gap is let be
_MORE_SWEEPS = 40  # of the whole, where those from messages of few on left more than layers make of the gap of few
_MOST_ENTRIES = 30_000_000  # of edges: where a gap may be left, of more only messages and annealing are tried
_PRICED_SWEEPS = 2  # times as many sweeps where prices have to settle too


def closed_by_messages(
    problem: Problem,
    options: SolveOptions,
    watch: Watch,
    upper: float,
    depth: int,
    rest: Search,
    ascent: Ascent | None = None,
) -> Answer:
    """The optimum where messages prove a choice that they decode, as on most training steps.

    Elsewhere what lies close above their bound is eliminated, if that fits; then the best of all that is cheaper than
    what is known by then, as `rest` finds it. `ascent`: the messages to begin with.
    """
    is_any_news = ascent is None and upper == watch.objective == math.inf  # of few layers a choice is no choice yet
    ascent = ascent or _ascent(problem, options, rough=may_squeeze(problem, options))
    settles = bool(problem.usages) and not is_narrow(problem)
    is_any_news = is_any_news and options.primal.first_choice
    if is_any_news and ascent.rows.count and not settles:
        offer(first_choice(ascent.dual, options, watch), watch)
    few = _few(ascent, options, watch)
    if few is None:
        settle = ascent.settle if settles else ascent.sweeps
        best, certificate = settle(upper, watch)
    else:
        few, best, certificate = _from_few(few, upper, options, watch, rest)
    known = Known(best, certificate.bound, upper, watch)
    offer(best.choice, watch)
    watch.raise_bound(certificate.bound, certificate.proof())
    if known.is_left:
        known = closing(certificate, ascent.met, few, options, watch, known, rest)
    if is_any_news and known.best.choice is None and (settles or not ascent.rows.count):
        offer(first_choice(ascent.dual, options, watch), watch)
    if is_closed(known.low, known.cutoff):
        return known.closed()
    may_stop = options.gap_tolerance > 0 and is_large(problem, options)
    if may_stop:
        known = _annealed(certificate, ascent, options, watch, known, rest)
    if not options.max_rounds or not known.is_left:
        return known.answer()
    return _searched(certificate, known, options, watch, depth, rest, may_stop=may_stop)


def _annealed(
    certificate: Certificate, ascent: Ascent, options: SolveOptions, watch: Watch, known: Known, rest: Search
) -> Known:
    """What is known after what is tried last on a large problem on which a gap may be left."""
    problem, is_priced = certificate.problem, bool(certificate.prices.any())
    if is_priced and is_narrow(problem) and options.primal.crossover:
        known = mixed(certificate, options, watch, known, rest)
    choice = known.best.choice
    if choice is None or is_closed(known.low, known.cutoff):
        return known
    if is_priced and not is_narrow(problem) and options.primal.crossover:
        return known.met(annealed_near(certificate, choice, known.cutoff, options, watch))
    return known.met(ascent.anneal(known.cutoff, choice, watch))


def _searched(
    certificate: Certificate,
    known: Known,
    options: SolveOptions,
    watch: Watch,
    depth: int,
    rest: Search,
    *,
    may_stop: bool,
) -> Answer:
    """What `rest` finds among the strategies that can undercut what is known, unless it may stop and these are many."""
    problem = certificate.problem
    keep = certificate.keep(known.cutoff - certificate.bound)
    if not all(mask.any() for mask in keep):
        watch.raise_bound(known.cutoff, (certificate.exceed(kept(keep)),))
        return known.closed()
    left = restrict(problem, keep, certificate.exceed)
    may_stop = may_stop and known.best.choice is not None and options.time_limit_s is None
    if may_stop and edge_entries(left.problem) > _MOST_ENTRIES:
        return known.answer()
    prices, inner = certificate.parts()[0], Inner(watch, left, known.cutoff)
    found = lifted(left, rest(left.problem, options, inner, known.cutoff, depth, prices))
    return known.after(found).answer()


def _from_few(
    few: Few, upper: float, options: SolveOptions, watch: Watch, rest: Search
) -> tuple[Few, Answer, Certificate]:
    """What few of the layers tell of all: the last few, the best choice, and what messages of all prove.

    More and more are few until they tell; if almost all would be, those of all are swept until they settle.
    """
    known = Answer(None, np.inf, -np.inf)
    if options.gap_tolerance:
        known, certificate = _at_once(few, upper, watch)
        if is_closed(certificate.bound, min(upper, watch.news(known.objective))):
            return few, known, certificate
    while True:
        few = _few_searched(few, options, watch, rest)
        known = better(known, few.tiled())
        few.begin()
        swept, certificate = few.whole.sweeps(min(upper, watch.news(known.objective)), watch)
        known = better(known, swept)
        cutoff = min(upper, watch.news(known.objective))
        by_more = few.is_proven and not is_closed(few.ascent.held.bound, few.best.objective)  # than messages
        if by_more and not few.is_like(cutoff - certificate.bound, 1.0):
            swept, certificate = few.whole.resumed(few.whole.held.messages, _MORE_SWEEPS, cutoff, watch)
            known = better(known, swept)
            cutoff = min(upper, watch.news(known.objective))
        if is_closed(certificate.bound, cutoff) or watch.left_s() <= 0:
            return few, known, certificate
        if few.is_like(cutoff - certificate.bound):
            return few, known, certificate
        more = _few(few.whole, options, watch, few)
        if more is None:
            swept, certificate = few.whole.resumed(few.tiled_messages(), options.max_sweeps, cutoff, watch)
            return few, better(known, swept), certificate
        few = more


def _at_once(few: Few, upper: float, watch: Watch) -> tuple[Answer, Certificate]:
    """What the messages and the choice of few of the layers are worth for all: often enough where a gap may be left."""
    known = few.tiled()
    few.begin()
    swept, certificate = few.whole.sweeps(min(upper, watch.news(known.objective)), watch)
    return better(known, swept), certificate


def _few_searched(few: Few, options: SolveOptions, watch: Watch, rest: Search) -> Few:
    """Few of the layers, searched by messages and windows alone unless messages prove them."""
    if few.is_proven:
        return few

    def search(ascent: Ascent) -> Answer:
        return closed_by_messages(ascent.problem, _little(options), Apart(watch), np.inf, 0, rest, ascent)

    return few.searched(search)


def _settled(ascent: Ascent, most: int, watch: Watch) -> Answer:
    """What sweeps decode that go on until they settle, `most` of them, and what they prove."""
    found, certificate = ascent.resumed(ascent.dual.messages, most, np.inf, Apart(watch))
    return replace(found, bound=certificate.bound)


def _little(options: SolveOptions) -> SolveOptions:
    """For few of the layers: messages and windows alone."""
    return replace(options, max_rounds=0, gap_tolerance=0.0)


def _ascent(problem: Problem, options: SolveOptions, *, rough: bool, pool: Pool | None = None) -> Ascent:
    """Messages to begin with, and short annealings where a gap is let be."""
    more = _PRICED_SWEEPS if problem.usages and is_narrow(problem) else 1
    passes = min(options.anneal_passes, _SHORT)
    little = replace(options, max_sweeps=more * options.max_sweeps, anneal_passes=passes)
    return Ascent(problem, little, rough=rough, pool=pool)


def _few(whole: Ascent, options: SolveOptions, watch: Watch, fewer: Few | None = None) -> Few | None:
    """Few of the equal layers, more than `fewer` has, swept, if enough repeats and there is time."""
    if watch.left_s() <= 0 or not options.periodic.few_periods:
        return None

    def begun(short: Problem) -> Ascent:
        return _ascent(short, _little(options), rough=may_squeeze(short, options), pool=whole.dual.pool)

    def swept(ascent: Ascent) -> Answer:
        if fewer is None:
            return ascent.swept(np.inf, Apart(watch))
        return _settled(ascent, options.max_sweeps, watch)

    return few_of(whole, begun, swept, fewer)
