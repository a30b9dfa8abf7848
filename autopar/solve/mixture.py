"""Mixture: the choices that are cheapest just below and above the memory prices, to be mixed within the limit.

At the best prices a choice that exceeds the limit costs as much as one that leaves memory free, its bytes paid for.
Between them lie those that take some strategies of the one and some of the other: few a node, so a search is quick.
"""

from __future__ import annotations

import math

from autopar.solve.dual import Certificate
from autopar.solve.exact import eliminated
from autopar.solve.options import SolveOptions
from autopar.solve.problem import derived
from autopar.solve.proof import Forbid
from autopar.solve.reduction import Choice, restrict

_SHARES = (0.99, 1.01, 1.1, 1.5, 3.0)  # of the memory prices, until a choice keeps within the limit
_WINDOW = 3e-4  # of the bound


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
