"""The way through the solver: without the limit first, and only if that does not fit, with it.

solve(problem) = relax the limit -> minimise -> fits? done
                                             -> smallest peak (feasible at all?) -> minimise within the limit -> verify
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autopar.errors import AutoparError
from autopar.solve.ascent import Answer, better, is_closed
from autopar.solve.core import minimise
from autopar.solve.lagrange import solve_at_prices
from autopar.solve.least_peak import LeastPeak, least_peak
from autopar.solve.options import SolveOptions
from autopar.solve.polish import LocalSearch
from autopar.solve.problem import Infeasible, Problem, Solution, objective, peak
from autopar.solve.reduction import Choice, without_limit
from autopar.solve.rows import memory_rows
from autopar.solve.verifier import TOLERANCE, verify


class Unsolved(AutoparError):
    """No choice was found within the work limits, and none was proven not to exist. Raise the limits."""


_DEFAULTS = SolveOptions()


def solve(problem: Problem, *, options: SolveOptions = _DEFAULTS) -> Solution:
    """A verified solution with a proven lower bound; the same for the same problem and options, always.

    The bound is proven up to rounding: it is set to the objective when it comes within 1e-9 of it, relative.

    Raises:
      Infeasible: proven. If the limit is to blame, `min_peak_bytes` is the smallest peak found (the least possible,
        unless CP-SAT ran out of work before proving it).
      Unsolved: neither a choice nor a proof of infeasibility was found within the work limits.
    """
    relaxed = minimise(without_limit(problem), options)
    if relaxed.bound == np.inf:
        raise Infeasible("no choice avoids the forbidden entries, with or without a memory limit")
    if problem.usage_limit is None or (relaxed.choice is not None and _fits(problem, relaxed.choice)):
        best, bound = relaxed, relaxed.bound
    else:
        best, bound = _solve_limited(problem, options, relaxed.bound)
    if best.choice is None:
        raise Unsolved(f"no choice found for {len(problem.node_costs)} nodes; not proven infeasible: {options}")
    solution = _solution(problem, best.choice, bound)
    verify(problem, solution)
    return solution


def _solve_limited(problem: Problem, options: SolveOptions, bound: float) -> tuple[Answer, float]:
    """The best choice within the limit, and a bound on all such choices, at least the one given."""
    assert problem.usage_limit is not None
    least = least_peak(problem, options, enough=problem.usage_limit)
    if least.bound > problem.usage_limit * (1 + TOLERANCE):
        raise _infeasible(problem, least.choice is not None, least)
    start = replace(_start(problem, options, least.choice), bound=bound)
    left, reduction, best = solve_at_prices(problem, options, start)
    if best.choice is not None and not _fits(problem, best.choice):  # by rounding of sizes that are not whole
        best = replace(start, bound=best.bound)
    if is_closed(best.bound, best.objective):
        return best, best.bound
    found = minimise(left, options, best.objective - reduction.offset)
    choice = reduction.lift(found.choice) if found.choice is not None else None
    if choice is not None and _fits(problem, choice):
        best = better(best, Answer(choice, objective(problem, choice), best.bound))
    if best.choice is None and found.bound == np.inf:
        raise _infeasible(problem, least.choice is not None, least)
    return best, max(best.bound, min(found.bound + reduction.offset, best.objective))


def _infeasible(problem: Problem, found: bool, least: LeastPeak) -> Infeasible:
    at_least = f"the smallest peak found is {least.peak:.6g} bytes" if found else "no choice at all was found"
    message = f"no choice keeps within the limit of {problem.usage_limit} bytes: {at_least}"
    return Infeasible(message, least.peak if found else None)


def _start(problem: Problem, options: SolveOptions, choice: Choice | None) -> Answer:
    """The choice of small peak, moved to cheaper strategies as far as the limit lets it."""
    if choice is None or not _fits(problem, choice):
        return Answer(None, np.inf, -np.inf)
    moved, _ = LocalSearch(problem, memory_rows(problem), options).improve(list(choice))
    best = moved if moved is not None and _fits(problem, moved) else choice
    return Answer(best, objective(problem, best), -np.inf)


def _fits(problem: Problem, choice: Choice) -> bool:
    return problem.usage_limit is None or peak(problem, choice) <= problem.usage_limit


def _solution(problem: Problem, choice: Choice, bound: float) -> Solution:
    cost = float(objective(problem, choice))
    proven = bound >= cost - TOLERANCE * abs(cost)
    return Solution(choice, cost, cost if proven else bound, peak(problem, choice))
