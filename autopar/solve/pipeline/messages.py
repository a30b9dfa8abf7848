"""Messages as a stage: bounds and choices of sweeps, which begin at those of few of the periods where layers repeat."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autopar.solve.periodic.few_periods import Few, few_of
from autopar.solve.pipeline.stage import Bracket, SolveStage, SolveState, is_narrow
from autopar.solve.primal.first_choice import first_choice
from autopar.solve.problem.incumbent import Apart, Watch, offer
from autopar.solve.problem.options import SolveOptions
from autopar.solve.problem.problem import Problem
from autopar.solve.trws.arrays import Pool
from autopar.solve.trws.ascent import Answer, Ascent, better, is_closed
from autopar.solve.trws.dual import Certificate

_SHORT = 100  # passes of an annealing where a gap is let be
_MORE_SWEEPS = 40  # of the whole, where those from messages of few on left more than layers make of the gap of few
_PRICED_SWEEPS = 2  # times as many sweeps where prices have to settle too


def ascent_of(
    problem: Problem, options: SolveOptions, *, rough: bool, pool: Pool | None = None
) -> Ascent:
    """Messages to begin with, and short annealings where a gap is let be."""
    more = _PRICED_SWEEPS if problem.usages and is_narrow(problem) else 1
    passes = min(options.anneal_passes, _SHORT)
    little = replace(options, max_sweeps=more * options.max_sweeps, anneal_passes=passes)
    return Ascent(problem, little, rough=rough, pool=pool)


def _first_chosen(state: SolveState) -> SolveState:
    """A choice within the limit is offered, if one is met."""
    offer(first_choice(state.ascent.dual, state.options, state.watch), state.watch)
    return state


def _passed(state: SolveState) -> SolveState:
    """Messages are passed until their bound stalls."""
    few = _few(state)
    if few is None:
        settle = state.ascent.settle if state.settles else state.ascent.sweeps
        best, certificate = settle(state.known.upper, state.watch)
    else:
        few, best, certificate = _from_few(few, state)
    state.watch.raise_bound(certificate.bound, certificate.proof())
    known = replace(state.known, best=best, low=certificate.bound)
    return replace(state, known=known, swept=certificate, few=few)


FIRST_CHOICE = SolveStage(
    "first choice",
    "primal.first_choice",
    lambda state: state.is_first and bool(state.ascent.rows.count) and not state.settles,
    _first_chosen,
    is_last=True,
)
MESSAGES = SolveStage("TRW-S", "", lambda _: True, _passed, is_last=True)
LATE_FIRST_CHOICE = SolveStage(
    "first choice where messages decode none",
    "primal.first_choice",
    lambda state: (
        state.is_first
        and state.known.best.choice is None
        and (state.settles or not state.ascent.rows.count)
    ),
    _first_chosen,
    is_last=True,
)


def _from_few(few: Few, state: SolveState) -> tuple[Few, Answer, Certificate]:
    """What few of the layers tell of all: the last few, the best choice, and what messages of all prove.

    More and more are few until they tell; if almost all would be, those of all are swept until they settle.
    """
    known = Answer(None, np.inf, -np.inf)
    upper = state.known.upper
    watch = state.watch
    if state.options.gap_tolerance:
        known, certificate = _at_once(few, upper, watch)
        if is_closed(certificate.bound, min(upper, watch.news(known.objective))):
            return few, known, certificate

    while True:
        few = _few_searched(few, state)
        known = better(known, few.tiled())
        few.begin()
        swept, certificate = few.whole.sweeps(min(upper, watch.news(known.objective)), watch)
        known = better(known, swept)
        cutoff = min(upper, watch.news(known.objective))
        # than messages
        by_more = few.is_proven and not is_closed(few.ascent.held.bound, few.best.objective)
        if by_more and not few.is_like(cutoff - certificate.bound, 1.0):
            swept, certificate = few.whole.resumed(
                few.whole.held.messages, _MORE_SWEEPS, cutoff, watch
            )
            known = better(known, swept)
            cutoff = min(upper, watch.news(known.objective))
        if is_closed(certificate.bound, cutoff) or watch.left_s() <= 0:
            return few, known, certificate
        if few.is_like(cutoff - certificate.bound):
            return few, known, certificate
        more = _few(state, few)
        if more is None:
            swept, certificate = few.whole.resumed(
                few.tiled_messages(), state.options.max_sweeps, cutoff, watch
            )
            return few, better(known, swept), certificate
        few = more


def _at_once(few: Few, upper: float, watch: Watch) -> tuple[Answer, Certificate]:
    """What the messages and the choice of few of the layers are worth for all: often enough where a gap may be left.

    Where these messages rule out all that is wanted, as on most meshes that lose, none are passed; where they do after
    one pass, no more are.
    """
    few.begin()
    dual = few.whole.dual
    begun = dual.state()
    if is_closed(begun.bound, upper):
        return Answer(None, np.inf, -np.inf), dual.certificate(begun)

    known = few.tiled()
    cutoff = min(upper, watch.news(known.objective))
    if is_closed(few.whole.swept_once().bound, cutoff):
        return known, dual.certificate(few.whole.held)
    swept, certificate = few.whole.sweeps(cutoff, watch)
    return better(known, swept), certificate


def _few_searched(few: Few, state: SolveState) -> Few:
    """Few of the layers, searched by messages and windows alone unless messages prove them."""
    if few.is_proven:
        return few

    def search(ascent: Ascent) -> Answer:
        known = Bracket(Answer(None, np.inf, -np.inf), -np.inf, np.inf, Apart(state.watch))
        alone = replace(
            state,
            problem=ascent.problem,
            options=_little(state.options),
            known=known,
            ascent=ascent,
        )
        return state.anew(
            replace(alone, depth=0, is_first=False, is_few=True, swept=None, few=None)
        )

    return few.searched(search)


def _settled(ascent: Ascent, most: int, watch: Watch) -> Answer:
    """What sweeps decode that go on until they settle, `most` of them, and what they prove."""
    found, certificate = ascent.resumed(ascent.dual.messages, most, np.inf, Apart(watch))
    return replace(found, bound=certificate.bound)


def _little(options: SolveOptions) -> SolveOptions:
    """For few of the layers: messages and windows alone."""
    return replace(options, max_rounds=0, gap_tolerance=0.0)


def _few(state: SolveState, fewer: Few | None = None) -> Few | None:
    """Few of the equal layers, more than `fewer` has, swept, if enough repeats and there is time."""
    options = state.options
    watch = state.watch
    whole = state.ascent
    if watch.left_s() <= 0 or not options.periodic.few_periods:
        return None

    def begun(short: Problem) -> Ascent:
        return ascent_of(short, _little(options), rough=whole.rough, pool=whole.dual.pool)

    def swept(ascent: Ascent) -> Answer:
        if fewer is None:
            return ascent.swept(np.inf, Apart(watch))
        return _settled(ascent, options.max_sweeps, watch)

    return few_of(whole, begun, swept, fewer)
