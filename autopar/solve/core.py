"""The search on what the reductions leave: exact elimination if it fits, else bound, window, reduce again, CP-SAT.

`minimise` is given a cost that is known to be reachable (`upper`) and looks for something cheaper. Its answer's bound
holds for every choice that costs less than `upper`; a bound of inf says that there is none.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autopar.solve.ascent import Answer, ascend, better, is_closed
from autopar.solve.contract_chains import contract_chains
from autopar.solve.cp_sat import entries, finish
from autopar.solve.dual import Certificate
from autopar.solve.eliminate import minimise_exactly, plan_elimination
from autopar.solve.options import SolveOptions
from autopar.solve.problem import Infeasible, Problem, objective
from autopar.solve.reduce import reduce_cheaply, reduce_fully
from autopar.solve.reduction import Reduction, restrict, size, unchanged
from autopar.solve.rows import drop_slack

_GUESSES = (1e-4, 1e-3, 1e-2)  # of the bound: windows tried while no choice is known
_SHRUNK = 0.9
_MAX_DEPTH = 12
NOTHING = Answer(None, np.inf, np.inf)


def minimise(problem: Problem, options: SolveOptions, upper: float = np.inf, depth: int = 0) -> Answer:
    """The cheapest choice found, after reducing; exact where elimination fits."""
    try:
        reduction = _reduced(problem, options)
    except Infeasible:
        return NOTHING
    small = reduction.problem
    plan = plan_elimination(small)
    if not small.usages and plan.fits(options):
        choice, cost = minimise_exactly(small, plan)
        found = Answer(choice, cost, cost) if np.isfinite(cost) else NOTHING
    else:
        found = _minimise_core(small, options, upper - reduction.offset, depth)
    lifted = reduction.lift(found.choice) if found.choice is not None else None
    return Answer(lifted, found.objective + reduction.offset, found.bound + reduction.offset)


def _reduced(problem: Problem, options: SolveOptions) -> Reduction:
    """Cheap reductions; all of them, repeatedly, if elimination does not fit after the cheap ones."""

    def chains(part: Problem) -> Reduction:
        return contract_chains(part, options)

    result = unchanged(problem).then(drop_slack).then(reduce_cheaply).then(chains)
    while result.problem.usages or not plan_elimination(result.problem).fits(options):
        before = size(result.problem)
        result = result.then(reduce_fully).then(drop_slack).then(chains)
        if size(result.problem) == before:
            break
    return result


def _minimise_core(problem: Problem, options: SolveOptions, upper: float, depth: int) -> Answer:
    """Bound and heuristics, then smaller problems within windows above the bound, then CP-SAT."""
    certificate, best = ascend(problem, options, upper)
    low = certificate.bound
    for window in _windows(low, min(upper, best.objective), depth):
        inside = _inside(certificate, min(window, min(upper, best.objective) - certificate.bound), options, depth)
        if inside is None:
            break
        best = better(best, inside)
        low = max(low, min(inside.bound, certificate.bound + window))
        exhausted = low < certificate.bound + window and best.choice is not None
        if exhausted or is_closed(low, min(upper, best.objective)):
            return _answer(best, low, upper)
    cutoff = min(upper, best.objective)
    if not is_closed(low, cutoff) and entries(certificate) <= options.max_cp_sat_entries:
        found = finish(certificate, cutoff - certificate.bound, best.choice, options)
        low = max(low, min(found.bound, cutoff))
        if found.choice is not None:
            best = better(best, Answer(found.choice, objective(problem, found.choice), low))
    return _answer(best, low, upper)


def _answer(best: Answer, low: float, upper: float) -> Answer:
    """`best` with a bound; nothing if all below `upper` is ruled out."""
    if best.choice is None:
        return replace(best, bound=np.inf if low >= upper else low)
    return replace(best, bound=min(low, best.objective))


def _windows(low: float, cutoff: float, depth: int) -> list[float]:
    """Widths above the bound in which to search, narrow ones first; the last takes in all that is of use."""
    blind = depth == 0 and cutoff == np.inf
    guesses = [guess * abs(low) for guess in _GUESSES if blind and low]
    whole = [cutoff - low] if np.isfinite(cutoff) and depth < _MAX_DEPTH and cutoff > low else []
    return guesses + whole


def _inside(certificate: Certificate, window: float, options: SolveOptions, depth: int) -> Answer | None:
    """The answer among the choices within a window of the bound; None if the window leaves most of the problem."""
    before = certificate.problem
    keep = certificate.keep(window)
    if not all(mask.any() for mask in keep):
        return NOTHING
    reduction = restrict(before, keep)
    if _weight(reduction.problem) > _SHRUNK * _weight(before):
        return None
    found = minimise(reduction.problem, options, certificate.bound + window, depth + 1)
    return replace(found, choice=reduction.lift(found.choice)) if found.choice is not None else found


def _weight(problem: Problem) -> int:
    return sum(edge.cost.size for edge in problem.edges) + sum(problem.counts)
