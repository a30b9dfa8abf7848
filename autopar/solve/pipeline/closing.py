"""What closes the gap that messages leave on training steps: squeezed windows, mixtures, joins; each where it fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from autopar.solve.certificate.proof import FREE, Forbid
from autopar.solve.elimination.exact import NOTHING, eliminated, lifted
from autopar.solve.fixing.fixed_point import squeeze, squeeze_windows
from autopar.solve.periodic.few_periods import Few
from autopar.solve.primal.crossover import annealed, choices_about, close_to, mixed_exactly, strategies_of
from autopar.solve.problem.bracket import MAX_DEPTH, Known, Search, edge_entries, is_large, is_narrow
from autopar.solve.problem.incumbent import Inner, Until, Watch, offer
from autopar.solve.problem.options import SolveOptions
from autopar.solve.problem.problem import Problem
from autopar.solve.problem.reduction import Choice, Ints, kept, restrict
from autopar.solve.trws.ascent import Ascent
from autopar.solve.trws.dual import Certificate

_CLOSE = (1e-6, 1e-5, 1e-4, 1e-3)  # of the bound: windows eliminated as long as they fit
_NEARLY = 1e-5  # of the bound: a tiled choice as close is worth a proof
_MIXTURE_PASSES = 100
_MIXTURE_WORK = 0.1  # of CP-SAT's


def closing(
    certificate: Certificate,
    met: Sequence[Ints],
    few: Few | None,
    options: SolveOptions,
    watch: Watch,
    known: Known,
    rest: Search,
) -> Known:
    """What is known after what closes the gap of messages on training steps: each where it fits, until it is closed.

    `met`: choices that were decoded on the way. `rest` searches what mixtures of choices leave.
    """
    problem = certificate.problem
    if few is not None and is_large(problem, options) and known.is_left:
        known = known.met(few.annealed(watch).tiled())
    is_free = may_squeeze(problem, options)
    is_near = known.cutoff - known.low <= _NEARLY * abs(known.low)
    if options.primal.crossover and is_free and not is_near and known.is_left:
        known = known.met(mixed_exactly(problem, met, options))
        offer(known.best.choice, watch)
    if options.fixing.fixed_point and is_free and known.is_left:
        known = known.after(squeeze_windows(certificate, known.cutoff, options, watch))
    if known.is_left:
        if not certificate.prices.any():
            known = _close_above(certificate, options, watch, known) if options.fixing.narrow_windows else known
        elif not options.primal.crossover:
            pass
        elif is_narrow(problem):
            known = mixed(certificate, options, watch, known, rest)
        else:
            known = _mixed_met(certificate, met, options, watch, known, rest)
    if options.fixing.fixed_point and is_free and is_large(problem, options) and known.is_left:  # too large for CP-SAT
        known = _joined(problem, options, watch, known)
    return known


def may_squeeze(problem: Problem, options: SolveOptions) -> bool:
    """Whether windows above its bound are squeezed."""
    return not problem.usages and edge_entries(problem) <= options.max_total_entries


def _joined(problem: Problem, options: SolveOptions, watch: Watch, known: Known) -> Known:
    """What is known after squeezing with joins, from messages that did not swing: these rule out more pairs."""
    found, certificate = Ascent(problem, options, swinging=False).sweeps(known.cutoff, watch)
    known = known.after(replace(found, bound=certificate.bound))
    offer(found.choice, watch)
    watch.raise_bound(certificate.bound, certificate.proof())
    if not known.is_left:
        return known
    return known.after(squeeze(certificate, known.cutoff, options, watch, may_untie=True))


def _mixed_met(
    certificate: Certificate, met: Sequence[Ints], options: SolveOptions, watch: Watch, known: Known, rest: Search
) -> Known:
    """What is known after the best mixture of what was decoded on the way, if a gap may be left; or what is close."""
    problem = certificate.problem
    if is_large(problem, options) and options.gap_tolerance:
        known = known.met(annealed(certificate, met, options, watch))
        offer(known.best.choice, watch)
    if not known.is_left:
        return known
    return _mixed_close(certificate, options, watch, known, rest)


def _mixed_close(certificate: Certificate, options: SolveOptions, watch: Watch, known: Known, rest: Search) -> Known:
    """What is known after sweeps of what is close to the bound, and the best mixture of the choices found there."""
    close = close_to(certificate, known.cutoff, options)
    if close is None:
        return known
    known = known.after(close.swept(known.cutoff, watch))
    if not known.is_left:
        return known
    known = _mixture_of(close.decoded(), certificate.problem, options, watch, known, rest)
    if known.cutoff >= close.top or not known.is_left:
        return known
    narrower = close_to(certificate, known.cutoff, options)
    return known if narrower is None else known.after(narrower.swept(known.cutoff, watch))


def mixed(certificate: Certificate, options: SolveOptions, watch: Watch, known: Known, rest: Search) -> Known:
    """What is known after the best mixture of the choices about the memory prices, as CP-SAT finds it."""
    if is_large(certificate.problem, options):
        return _mixed_close(certificate, options, watch, known, rest)
    return _mixture_of(choices_about(certificate, options), certificate.problem, options, watch, known, rest)


def _mixture_of(
    choices: Sequence[Choice], problem: Problem, options: SolveOptions, watch: Watch, known: Known, rest: Search
) -> Known:
    """What is known after the best choice made of these and the best known, or one that is enough: by CP-SAT."""
    every = [*choices, *([] if known.best.choice is None else [known.best.choice])]
    if len(set(every)) < 2:
        return known
    left = restrict(problem, strategies_of(problem, every), Forbid)
    passes = min(options.anneal_passes, _MIXTURE_PASSES)
    little = replace(options, max_rounds=1, cp_sat_work=_MIXTURE_WORK * options.cp_sat_work, cp_sat_workers=1)
    little = replace(little, anneal_passes=passes)
    until = Until(watch, known.enough)
    unbounded = Inner(until, left, -np.inf)  # nothing forbids the rest: what is proven of a mixture proves no more
    best = lifted(left, rest(left.problem, little, unbounded, known.cutoff - left.offset, MAX_DEPTH, FREE))
    offer(best.choice, watch)
    return known.met(best)


def _close_above(certificate: Certificate, options: SolveOptions, watch: Watch, known: Known) -> Known:
    """What is known after windows above the bound, wider and wider, were eliminated as long as that fits."""
    gap = known.cutoff - certificate.bound
    for guess in (_NEARLY,) if gap <= _NEARLY * abs(certificate.bound) else _CLOSE:
        window = min(guess * abs(certificate.bound), known.cutoff - certificate.bound)
        keep = certificate.keep(window)
        found = replace(NOTHING, proof=(certificate.exceed(kept(keep)),))
        if all(mask.any() for mask in keep):
            reduction = restrict(certificate.problem, keep, certificate.exceed)
            inside = eliminated(reduction.problem, options, options.max_cp_sat_entries)
            if inside is None:
                return known
            found = lifted(reduction, inside)
        watch.raise_bound(min(found.bound, certificate.bound + window), found.proof)
        known = known.after(replace(found, bound=min(found.objective, certificate.bound + window)))
        offer(known.best.choice, watch)
        if not known.is_left:
            return known
    return known
