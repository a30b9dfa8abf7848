"""Mixture: the choices that are cheapest just below and above the memory prices, to be mixed within the limit.

At the best prices a choice that exceeds the limit costs as much as one that leaves memory free, its bytes paid for.
Between them lie those that take some strategies of the one and some of the other: few a node, so a search is quick.

On a small problem they are exact. On a large one they are what sweeps decode, within a window that leaves few pairs.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from autopar.solve.ascent import Ascent
from autopar.solve.bar import barred, sampled, window_of
from autopar.solve.dual import Certificate
from autopar.solve.exact import eliminated, reduced
from autopar.solve.forbid import drop_forbidden
from autopar.solve.options import SolveOptions
from autopar.solve.problem import Floats, Infeasible, Problem, derived
from autopar.solve.proof import Forbid
from autopar.solve.reduction import Choice, restrict
from autopar.solve.rows import Rows, memory_rows
from autopar.solve.watch import Apart, Watch

_SHARES = (0.99, 1.01, 1.1, 1.5, 3.0)  # of the memory prices, until a choice keeps within the limit
_WINDOW = 3e-4  # of the bound
_DECODED_SHARES = (0.5, 0.8, 0.9, 0.99, 1.01, 1.1, 1.3, 2.0)
_PAIRS = 1_200_000  # that are left, where sweeps decode
_SWEEPS = 40


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
    problem, rows = certificate.problem, certificate.rows
    priced = derived(tuple(rows.priced(share * certificate.prices, problem.node_costs)), problem.edges)
    keep = certificate.keep(_WINDOW * abs(certificate.bound))
    if not all(mask.any() for mask in keep):
        return None
    close = restrict(priced, keep, Forbid)
    found = eliminated(close.problem, options, math.inf)
    return close.lift(found.choice) if found is not None and found.choice is not None else None


def choices_decoded(certificate: Certificate, cutoff: float, options: SolveOptions, watch: Watch) -> list[Choice]:
    """What sweeps decode at shares of the prices, among the pairs of little excess, on both sides of the limit.

    Nothing, if no choice has so little excess.
    """
    above, each = sampled(certificate)
    window = min(cutoff - certificate.bound, window_of(above, _PAIRS / each))
    try:
        close = barred(certificate, window).then(partial(reduced, options=options)).then(drop_forbidden)
    except Infeasible:
        return []
    rows = memory_rows(close.problem)
    prices = rows.by_row(certificate.parts()[0])
    little = replace(options, max_sweeps=_SWEEPS)
    return [close.lift(_decoded(close.problem, rows, share * prices, little, watch)) for share in _DECODED_SHARES]


def _decoded(problem: Problem, rows: Rows, prices: Floats, options: SolveOptions, watch: Watch) -> Choice:
    ascent = Ascent(derived(tuple(rows.priced(prices, problem.node_costs)), problem.edges), options)
    ascent.sweeps(math.inf, Apart(watch))
    return tuple(ascent.dual.decode().tolist())
