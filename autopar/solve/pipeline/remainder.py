"""Remainder: the nodes that elimination leaves, a problem of pairs of its own, solved by messages that are kept.

Any messages prove a bound, so those of before are where the sweeps start after a change: few are needed where little
changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from autopar.solve.certificate.proof import Forbid, Proof
from autopar.solve.elimination.exact import exactly
from autopar.solve.periodic.few_periods import shortened
from autopar.solve.presolve.arc_consistency import possible
from autopar.solve.problem.incumbent import Best, Watch
from autopar.solve.problem.options import SolveOptions
from autopar.solve.problem.problem import Floats, Problem
from autopar.solve.problem.reduction import Bools, Choice, restrict
from autopar.solve.problem.verifier import TOLERANCE
from autopar.solve.trws.arrays import owners, per_edge
from autopar.solve.trws.ascent import Answer, Ascent, better
from autopar.solve.trws.dual import Certificate

_ENOUGH = TOLERANCE / 10  # of the cost: the rest is for rounding
_FEW_NODES, _QUICK = 3_000, 3e7  # nodes, additions: elimination is tried before sweeps
_SHORTER = 2 / 3  # of the nodes, at least, have to be left out


@dataclass(frozen=True, eq=False)
class Settled:
    """A choice of the nodes that are left, its cost, a bound and its proof, and the messages (0: of what is ruled out).

    These are in the order of `flat` for the problem with all its strategies.
    """

    choice: Choice
    cost: float
    bound: float
    proof: Proof
    messages: Floats

    @property
    def is_proven(self) -> bool:
        """Whether the bound is the cost, up to the rounding of sums over many layers."""
        return _meet(self.bound, self.cost)


NOTHING = Settled((), 0.0, 0.0, (), np.zeros(0))
"""Where no nodes are left."""


def settle(problem: Problem, options: SolveOptions, messages: Floats | None = None) -> Settled | None:
    """The best choice and bound that sweeps give, starting from `messages`, or that elimination does.

    Where that is quick, it comes first: of equal choices it takes the first, where messages take what rounding says.
    None if neither finds a finite choice.

    Raises:
      Infeasible: if forbidden entries leave a node no strategy.
    """
    keep = possible(problem)
    small = restrict(problem, keep, Forbid)
    quick = _quickly(small.problem, options)
    if quick is not None and quick.choice is not None:
        unmoved = np.zeros(sum(problem.counts[int(v)] for v in owners(problem))) if messages is None else messages
        return Settled(small.lift(quick.choice), quick.objective, quick.bound, small.steps + quick.proof, unmoved)
    mask = None if small.problem is problem else _kept_messages(problem, keep)
    start = messages if messages is None or mask is None else messages[mask]
    ascent, is_hopeful = _begun(small.problem, options, start)
    best, certificate = _swept(ascent, is_hopeful, options, Best(problem, options.time_limit_s, None))
    bound, proof = certificate.bound, certificate.proof()
    if not _meet(bound, best.objective) and (exact := exactly(small.problem, options)) is not None:
        best, bound, proof = exact, exact.bound, exact.proof
    if best.choice is None or not np.isfinite(best.objective):
        return None
    kept = ascent.held.messages
    if mask is not None:
        kept = np.zeros(len(mask))
        kept[mask] = ascent.held.messages
    return Settled(small.lift(best.choice), best.objective, bound, small.steps + proof, kept)


def _quickly(problem: Problem, options: SolveOptions) -> Answer | None:
    """The optimum by elimination, if that takes less than sweeps; None otherwise."""
    if len(problem.node_costs) > _FEW_NODES:
        return None
    return exactly(problem, replace(options, max_elimination_work=min(options.max_elimination_work, _QUICK)))


def _begun(problem: Problem, options: SolveOptions, messages: Floats | None) -> tuple[Ascent, bool]:
    """The ascent at `messages`; without, at those that a problem of few of the equal layers settles at, if any are.

    And whether sweeps may prove the problem: where they do not prove few of its layers, they do not prove all.
    """
    ascent = Ascent(problem, options, messages, eager=True, enough=_ENOUGH)
    short = shortened(problem) if messages is None else None
    if short is None or len(short.problem.counts) > (1 - _SHORTER) * len(problem.counts):
        return ascent, True
    few = Ascent(short.problem, options, eager=True, enough=_ENOUGH)
    best, certificate = few.sweeps(np.inf, Best(short.problem, options.time_limit_s, None))
    ascent.start_from(short.messages(ascent.dual.flat, per_edge(few.dual.flat, few.held.messages)))
    ascent.options = replace(options, max_sweeps=1)
    return ascent, _meet(certificate.bound, best.objective)


def _swept(ascent: Ascent, is_hopeful: bool, options: SolveOptions, watch: Watch) -> tuple[Answer, Certificate]:
    """What sweeps give: few of them, where the ascent is to take few; as many as usual, if these do not prove it."""
    best, certificate = ascent.sweeps(np.inf, watch)
    if is_hopeful and not _meet(certificate.bound, best.objective) and ascent.options is not options:
        ascent.options = options
        more, certificate = ascent.sweeps(best.objective, watch)
        best = better(best, more)
    return best, certificate


def _meet(bound: float, cost: float) -> bool:
    return bool(np.isfinite(cost)) and bound >= cost - TOLERANCE * abs(cost)


def _kept_messages(problem: Problem, keep: Sequence[Bools]) -> Bools:
    """Which messages of all are those of strategies that are kept."""
    own = [keep[int(v)] for v in owners(problem)]
    return np.concatenate([np.zeros(0, dtype=np.bool_), *own])
