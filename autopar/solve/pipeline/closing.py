"""What closes the gap that messages leave, as stages: crossover, reduced-cost fixing, annealing; each where it fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from autopar.solve.certificate.proof import FREE, Forbid
from autopar.solve.elimination.bucket_elimination import lifted, reduced_fully
from autopar.solve.fixing.fixed_point import fixed_in_window, fixed_in_windows
from autopar.solve.pipeline.stage import MAX_DEPTH, SolveStage, SolveState, edge_entries
from autopar.solve.primal.crossover import (
    annealed,
    annealed_near,
    choices_about,
    close_to,
    mixed_exactly,
    strategies_of,
)
from autopar.solve.problem.incumbent import Inner, offer
from autopar.solve.problem.problem import Infeasible, Problem
from autopar.solve.problem.reduction import Choice, kept, restrict, shrank
from autopar.solve.trws.ascent import Ascent

_NEARLY = 1e-5  # of the bound: a tiled choice as close is worth a proof
_WIDE = 0.5  # of the strategies: with more in a window, messages have to become better first
_REPEATED = 0.5  # of the pairs of all edges: dominance is asked once of nodes with equal matrices
_MIXTURE_PASSES = 100  # of annealing: few strategies are left, more passes find nothing better
_MIXTURE_WORK = 0.1  # of CP-SAT's
_MOST_ENTRIES = (
    30_000_000  # of edges: where a gap may be left, of more only messages and annealing are tried
)


def _few_annealed(state: SolveState) -> SolveState:
    """After annealing of few of the periods, the best choice tiled."""
    assert state.few is not None
    return state.met(state.few.annealed(state.watch).tiled())


def _met_mixed(state: SolveState) -> SolveState:
    """After the best mixture of what was decoded on the way, by elimination."""
    return state.met(mixed_exactly(state.problem, state.ascent.met, state.options))


def _is_near(state: SolveState) -> bool:
    """Whether what is known is as close to the bound as is worth a proof."""
    return state.known.cutoff - state.known.low <= _NEARLY * abs(state.known.low)


def _fully_reduced(state: SolveState) -> SolveState:
    """After messages of what all reductions leave of what can undercut what is known, if they leave much less.

    Dominance takes strategies, whose edges then let nodes be merged: the messages that are left are worth more. Where
    the gap is small enough for windows to leave little, these are quicker; so they are where few matrices are equal.
    """
    known = state.known
    certificate = state.certificate
    keep = certificate.keep(known.cutoff - certificate.bound)
    is_wide = sum(map(np.count_nonzero, keep)) >= _WIDE * sum(state.problem.counts)
    if not is_wide or not all(mask.any() for mask in keep):
        return state

    try:
        left = restrict(state.problem, keep, certificate.exceed)
        left = left.then(partial(reduced_fully, options=state.options))
    except Infeasible as error:
        state.watch.raise_bound(known.cutoff, error.witness or ())
        return replace(state, known=replace(known, low=max(known.low, known.cutoff)))
    if not shrank(state.problem, left.problem):
        return state

    inner = Inner(state.watch, left, known.cutoff)
    found, swept = Ascent(left.problem, state.options).sweeps(known.cutoff - left.offset, inner)
    inner.raise_bound(swept.bound, swept.proof())
    if found.choice is not None:
        inner.offer(found.choice)
    return state.after(lifted(left, replace(found, bound=swept.bound)))


def _is_repeated(problem: Problem) -> bool:
    """Whether most pairs of strategies are those of a matrix that other edges have too."""
    distinct = sum(matrix.size for matrix in problem.matrices[0])
    return distinct <= _REPEATED * edge_entries(problem)


def _fixed(state: SolveState) -> SolveState:
    """After windows above the bound, cut, reduced and swept in turn."""
    return state.after(
        fixed_in_windows(state.certificate, state.known.cutoff, state.options, state.watch)
    )


def _fixed_and_merged(state: SolveState) -> SolveState:
    """After the same with joins, from messages that did not swing: these rule out more pairs."""
    ascent = Ascent(state.problem, state.options, is_accelerated=False)
    found, certificate = ascent.sweeps(state.known.cutoff, state.watch)
    state = state.after(replace(found, bound=certificate.bound))
    offer(found.choice, state.watch)
    state.watch.raise_bound(certificate.bound, certificate.proof())
    if not state.known.is_left:
        return state
    return state.after(
        fixed_in_window(certificate, state.known.cutoff, state.options, state.watch, may_merge=True)
    )


def _met_annealed(state: SolveState) -> SolveState:
    """After the best mixture of what was decoded on the way, by sweeps and annealing."""
    return state.met(annealed(state.certificate, state.ascent.met, state.options, state.watch))


def _mixed_close(state: SolveState) -> SolveState:
    """After sweeps of what is close to the bound, and the best mixture of the choices found there."""
    close = close_to(state.certificate, state.known.cutoff, state.options)
    if close is None:
        return state

    state = state.after(close.swept(state.known.cutoff, state.watch))
    if not state.known.is_left:
        return state

    state = _mixture_of(close.decoded(state.watch), state)
    if state.known.cutoff >= close.top or not state.known.is_left:
        return state

    narrower = close_to(state.certificate, state.known.cutoff, state.options)
    return (
        state if narrower is None else state.after(narrower.swept(state.known.cutoff, state.watch))
    )


def _mixed(state: SolveState) -> SolveState:
    """After the best mixture of the choices about the memory prices, as CP-SAT finds it."""
    if state.is_large:
        return _mixed_close(state)
    return _mixture_of(choices_about(state.certificate, state.options), state)


def _mixture_of(choices: Sequence[Choice], state: SolveState) -> SolveState:
    """After the best choice made of these and the best known, or one that is enough: by CP-SAT."""
    options = state.options
    known = state.known
    every = [*choices, *([] if known.best.choice is None else [known.best.choice])]
    if len(set(every)) < 2:
        return state

    left = restrict(state.problem, strategies_of(state.problem, every), Forbid)
    passes = min(options.anneal_passes, _MIXTURE_PASSES)
    little = replace(
        options, max_rounds=1, cp_sat_work=_MIXTURE_WORK * options.cp_sat_work, cp_sat_workers=1
    )
    little = replace(little, anneal_passes=passes)
    # nothing forbids the rest: what is proven of a mixture proves no more
    unbounded = Inner(state.watch, left, -np.inf, known.enough)
    best = lifted(
        left,
        state.rest(left.problem, little, unbounded, known.cutoff - left.offset, MAX_DEPTH, FREE),
    )
    offer(best.choice, state.watch)
    return state.met(best)


def _annealed_near(state: SolveState) -> SolveState:
    """After annealing of the strategies of the best choice and those of little excess."""
    choice = state.known.best.choice
    assert choice is not None
    return state.met(
        annealed_near(state.certificate, choice, state.known.cutoff, state.options, state.watch)
    )


def _annealed(state: SolveState) -> SolveState:
    """After annealing from the best choice."""
    choice = state.known.best.choice
    assert choice is not None
    return state.met(state.ascent.anneal(state.known.cutoff, choice, state.watch))


def _is_wide_and_priced(state: SolveState) -> bool:
    return state.is_priced and not state.is_narrow


def _anneals_near(state: SolveState) -> bool:
    return state.options.primal.crossover and _is_wide_and_priced(state)


def _rounds(state: SolveState) -> SolveState:
    """After rounds of bounds and choices among the strategies that can undercut what is known.

    Unless a gap may be left and these are many.
    """
    known = state.known
    certificate = state.certificate
    keep = certificate.keep(known.cutoff - certificate.bound)
    if not all(mask.any() for mask in keep):
        state.watch.raise_bound(known.cutoff, (certificate.exceed(kept(keep)),))
        return replace(state, known=replace(known, low=max(known.low, known.cutoff)))

    left = restrict(state.problem, keep, certificate.exceed)
    may_stop = (
        state.may_stop and known.best.choice is not None and state.options.time_limit_s is None
    )
    if may_stop and edge_entries(left.problem) > _MOST_ENTRIES:
        return state

    prices = certificate.parts()[0]
    inner = Inner(state.watch, left, known.cutoff)
    return state.after(
        lifted(
            left, state.rest(left.problem, state.options, inner, known.cutoff, state.depth, prices)
        )
    )


FEW_ANNEALED = SolveStage(
    "annealing of few periods",
    "periodic.few_periods",
    lambda s: s.few is not None and s.is_large,
    _few_annealed,
)
CROSSOVER_ELIMINATED = SolveStage(
    "crossover by elimination",
    "primal.crossover",
    lambda s: s.is_free and not _is_near(s),
    _met_mixed,
)
FULLY_REDUCED = SolveStage(
    "all reductions",
    "presolve.dead_end_elimination",
    # elsewhere windows are as quick
    lambda s: s.is_free and s.is_large and not s.is_few and _is_repeated(s.problem),
    _fully_reduced,
)
FIXED_POINT = SolveStage("reduced-cost fixing", "fixing.fixed_point", lambda s: s.is_free, _fixed)
CROSSOVER = SolveStage(
    "crossover", "primal.crossover", lambda s: s.is_priced and s.is_narrow, _mixed
)
CROSSOVER_ANNEALED = SolveStage(
    "crossover by annealing",
    "primal.crossover",
    lambda s: _is_wide_and_priced(s) and s.may_stop,
    _met_annealed,
)
CROSSOVER_CLOSE = SolveStage(
    "crossover close to the bound", "primal.crossover", _is_wide_and_priced, _mixed_close
)
NODE_MERGING = SolveStage(
    "reduced-cost fixing with node merging",
    "fixing.fixed_point",
    lambda s: s.is_free and s.is_large,  # elsewhere CP-SAT closes it
    _fixed_and_merged,
)
LAST_CROSSOVER = SolveStage(
    "crossover, from the best choice",
    "primal.crossover",
    lambda s: s.may_stop and s.is_priced and s.is_narrow,
    _mixed,
)
ANNEALING_NEAR = SolveStage(
    "annealing close to the bound",
    "primal.crossover",
    lambda s: s.may_stop and _is_wide_and_priced(s) and s.known.best.choice is not None,
    _annealed_near,
)
ANNEALING = SolveStage(
    "annealing",
    "primal.annealing",
    lambda s: s.may_stop and s.known.best.choice is not None and not _anneals_near(s),
    _annealed,
)
ROUNDS = SolveStage("rounds", "", lambda s: s.options.max_rounds > 0, _rounds)
