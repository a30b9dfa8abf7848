"""Crossover: the choices that are cheapest just below and above the memory prices, to be mixed within the limit.

At the best prices a choice that exceeds the limit costs as much as one that leaves memory free, its bytes paid for.
Between them lie those that take some strategies of the one and some of the other: few a node, so a search is quick.

On a small problem they are exact. On a large one they are what sweeps decode: on the way to the bound, or within a
window that leaves few pairs. Also where memory is free the best mixture of what is decoded on the way is close to the
optimum, or is it, long before any single one of them is.

E. Rothberg, "An evolutionary algorithm for polishing mixed integer programming solutions", INFORMS Journal on
Computing 19 (2007).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from autopar.solve.certificate.proof import Forbid
from autopar.solve.elimination.bucket_elimination import eliminated, lifted, reduced
from autopar.solve.fixing.reduced_cost_fixing import pairs_fixed, sampled, window_of
from autopar.solve.presolve.arc_consistency import drop_forbidden
from autopar.solve.problem.incumbent import Apart, Inner, Watch
from autopar.solve.problem.options import SolveOptions
from autopar.solve.problem.problem import Floats, Infeasible, Problem, derived, objective
from autopar.solve.problem.reduction import Bools, Choice, Ints, Reduction, restrict
from autopar.solve.problem.rows import Rows, memory_rows
from autopar.solve.trws.ascent import Answer, Ascent
from autopar.solve.trws.dual import Certificate, Dual

_SHARES = (0.99, 1.01, 1.1, 1.5, 3.0)  # of the memory prices, until a choice keeps within the limit
_WINDOW = 3e-4  # of the bound
_DECODED_SHARES = (0.5, 0.99, 1.01, 2.0, 4.0)  # far ones give a mixture what it needs
_PAIRS = 1_200_000  # that are left, where sweeps decode
_SWEEPS = 40
_SWEEPS_PER_CHECK = 5  # at each share: few pairs are left, and messages settle soon
_PASSES = 25  # of annealings: more find hardly better ones
_NEAR = (
    0.1  # of a gap: the excess of strategies that a choice that is much cheaper is mostly made of
)
_WORK = 1e8  # additions of the elimination that mixes without one


def choices_about(certificate: Certificate, options: SolveOptions) -> list[Choice]:
    """The cheapest choices at shares of the prices, up to the first that keeps within the limit."""
    choices: list[Choice] = []
    for share in _SHARES:
        choice = _at_share(certificate, share, options)
        if choice is None:
            break
        choices.append(choice)
        if share > 1 and (certificate.rows.used(choice) <= certificate.rows.limit).all():
            break
    return choices


def _at_share(certificate: Certificate, share: float, options: SolveOptions) -> Choice | None:
    """The cheapest choice at this share of the prices, among strategies of little excess; None if that is too dear."""
    problem = certificate.problem
    rows = certificate.rows
    priced = derived(
        tuple(rows.priced(share * certificate.prices, problem.node_costs)), problem.edges
    )
    keep = certificate.keep(_WINDOW * abs(certificate.bound))
    if not all(mask.any() for mask in keep):
        return None
    close = restrict(priced, keep, Forbid)
    found = eliminated(close.problem, options, math.inf)
    return close.lift(found.choice) if found is not None and found.choice is not None else None


def annealed(
    certificate: Certificate, met: Sequence[Ints], options: SolveOptions, watch: Watch
) -> Answer:
    """The best choice made of these, of one at least, that sweeps at the prices and short annealings find."""
    return _annealed_of(certificate, strategies_of(certificate.problem, met), options, watch)


def annealed_near(
    certificate: Certificate, choice: Choice, cost: float, options: SolveOptions, watch: Watch
) -> Answer:
    """As `annealed`, of the strategies of a choice of this cost and those of little excess beside its gap."""
    close = certificate.keep(_NEAR * (cost - certificate.bound))
    own = strategies_of(certificate.problem, [choice])
    return _annealed_of(
        certificate, [a | b for a, b in zip(close, own, strict=True)], options, watch
    )


def _annealed_of(
    certificate: Certificate, keep: Sequence[Bools], options: SolveOptions, watch: Watch
) -> Answer:
    problem = certificate.problem
    try:
        left = restrict(problem, keep, Forbid).then(drop_forbidden)
    except Infeasible:
        return Answer(None, np.inf, -np.inf)

    ascent = Ascent(
        left.problem,
        replace(options, anneal_passes=min(options.anneal_passes, _PASSES)),
        rough=True,
    )
    ascent.price(ascent.rows.by_row(certificate.parts()[0]))
    found = ascent.chosen(Apart(watch))
    if found.choice is None:
        return found

    choice = left.lift(found.choice)
    return Answer(choice, objective(problem, choice), -np.inf)


def mixed_exactly(problem: Problem, met: Sequence[Ints], options: SolveOptions) -> Answer:
    """The best choice made of these, without a limit; none if elimination does not fit."""
    nothing = Answer(None, np.inf, -np.inf)
    if not met:
        return nothing
    left = restrict(problem, strategies_of(problem, met), Forbid)
    found = eliminated(left.problem, replace(options, max_elimination_work=_WORK), 0.0)
    if found is None or found.choice is None:
        return nothing
    choice = left.lift(found.choice)
    return Answer(choice, objective(problem, choice), -np.inf)


def strategies_of(problem: Problem, choices: Sequence[Choice] | Sequence[Ints]) -> list[Bools]:
    """Masks of the strategies that any of the choices has."""
    each = np.array(choices, dtype=np.intp).T
    return [np.isin(np.arange(n), taken) for n, taken in zip(problem.counts, each, strict=True)]


def close_to(certificate: Certificate, cutoff: float, options: SolveOptions) -> Close | None:
    """The pairs of little excess that choices below `cutoff` are of; None if no choice is."""
    above, each = sampled(certificate)
    window = min(cutoff - certificate.bound, window_of(above, _PAIRS / each))
    try:
        left = (
            pairs_fixed(certificate, window)
            .then(partial(reduced, options=options))
            .then(drop_forbidden)
        )
    except Infeasible:
        return None

    rows = memory_rows(left.problem)
    return Close(
        left, certificate.bound + window, rows, rows.by_row(certificate.parts()[0]), options
    )


@dataclass(frozen=True, eq=False)
class Close:
    """The pairs of little excess, reduced: all that choices below `top` are of. Prices are of its rows."""

    reduction: Reduction
    top: float
    rows: Rows
    prices: Floats
    options: SolveOptions

    def swept(self, cutoff: float, watch: Watch) -> Answer:
        """What sweeps find, which take little here, with a bound on all below the top."""
        left = self.reduction
        inner = Inner(watch, self.reduction, self.top)
        ascent = Ascent(left.problem, self.options)
        ascent.price(self.prices)
        found, proven = ascent.sweeps(cutoff - left.offset, inner)
        if found.choice is not None:
            inner.offer(found.choice)
        inner.raise_bound(proven.bound, proven.proof())
        return lifted(left, replace(found, bound=min(proven.bound, self.top - left.offset)))

    def decoded(self, watch: Watch) -> list[Choice]:
        """What sweeps decode at shares of the prices, on both sides of the limit, as far as time allows."""
        dual = Dual(self.reduction.problem, self.rows)
        dual.is_accelerated = self.options.trws.acceleration
        return [
            self.reduction.lift(_decoded(dual, share * self.prices, watch))
            for share in _DECODED_SHARES
            if watch.left_s() > 0
        ]


def _decoded(dual: Dual, prices: Floats, watch: Watch) -> Choice:
    dual.set_prices(prices)
    dual.start_from(np.zeros_like(dual.messages))
    held = dual.state()

    for sweep in range(1, _SWEEPS + 1):
        dual.sweep()
        if sweep % _SWEEPS_PER_CHECK == 0:
            now = dual.swept()
            if now.bound <= held.bound:
                dual.restore(held)
            held = now if now.bound > held.bound else held
            if watch.left_s() <= 0:
                break
    return tuple(dual.decode().tolist())
