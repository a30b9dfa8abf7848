"""The last stage: a Solution is checked against the Problem it claims to solve, with nothing taken on trust."""

from __future__ import annotations

import math

import numpy as np

from autopar.solve.certificate.check import Proven, proven
from autopar.solve.problem.factored_matrix import entries_of
from autopar.solve.problem.problem import (
    Floats,
    InvalidSolution,
    Problem,
    Solution,
    objective,
    peak,
)

TOLERANCE = 1e-9
_SMALLEST = 1e-12  # of the largest cost
_NOTHING = 1e-18  # where all costs are 0: what is left of prices of memory, by rounding


def verify(problem: Problem, solution: Solution, search_work: float = 0.0) -> Proven:
    """Returns what is proven of the optimum if `solution` is feasible, and its numbers and its lower bound are right.

    The bound is proven anew, from the problem and the solution's witness, by code that shares nothing with the search.
    It has to reach the solution's lower bound to 1e-9 of the objective, 1e-12 of the largest cost, and 1e-18. Where the
    result names searches (`stated_by`), the bound rests on their word for what the witness leaves; `search_work` lets
    CP-SAT search through that again (`repeated`), as in `proven`.

    Raises:
      InvalidSolution: what is wrong, with the numbers.
    """
    verify_choice(problem, solution)
    if solution.witness is None:
        raise InvalidSolution("there is no witness of the lower bound")
    found = proven(problem, solution.witness, search_work)
    smallest = _SMALLEST * _largest_cost(problem) + _NOTHING
    tolerance = TOLERANCE * abs(solution.objective) + smallest
    if not found.bound >= solution.lower_bound - tolerance:  # NaN too
        raise InvalidSolution(
            f"lower bound {solution.lower_bound}, but its witness proves {found.bound}"
        )
    return found


def _largest_cost(problem: Problem) -> float:
    """The largest magnitude of a finite entry."""
    arrays: dict[int, Floats] = {id(cost): cost for cost in problem.node_costs}
    arrays |= {id(matrix): entries_of(matrix) for matrix in problem.matrices[0]}
    return max(
        (float(np.abs(x[np.isfinite(x)]).max(initial=0.0)) for x in arrays.values()), default=0.0
    )


def verify_choice(problem: Problem, solution: Solution) -> None:
    """Returns if `solution` is feasible, and its objective, peak and bound are consistent; the bound is not proven.

    The memory limit is compared exactly, the objective and the peak to 1e-9 relative.

    Raises:
      InvalidSolution: what is wrong, with the numbers.
    """
    counts = problem.counts
    if len(solution.choice) != len(counts):
        raise InvalidSolution(f"{len(solution.choice)} choices for {len(counts)} nodes")

    for v, (s, count) in enumerate(zip(solution.choice, counts, strict=True)):
        if not 0 <= s < count:
            raise InvalidSolution(f"node {v}: strategy {s}, but it has {count}")

    cost = objective(problem, solution.choice)
    used = peak(problem, solution.choice)
    if not math.isfinite(cost):
        raise InvalidSolution("the choice takes a forbidden entry")
    if problem.usage_limit is not None and used > problem.usage_limit:
        raise InvalidSolution(f"peak {used} above the limit {problem.usage_limit}")
    if not math.isclose(cost, solution.objective, rel_tol=TOLERANCE, abs_tol=0.0):
        raise InvalidSolution(f"objective {solution.objective}, but the choice costs {cost}")
    if not math.isclose(used, solution.peak, rel_tol=TOLERANCE, abs_tol=0.0):
        raise InvalidSolution(f"peak {solution.peak}, but the choice uses {used}")

    if not solution.lower_bound <= solution.objective:  # NaN too
        raise InvalidSolution(
            f"lower bound {solution.lower_bound} above the objective {solution.objective}"
        )
