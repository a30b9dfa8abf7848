"""The last stage: a Solution is checked against the Problem it claims to solve, with nothing taken on trust."""

from __future__ import annotations

import math

from autopar.errors import AutoparError
from autopar.solve.problem import Problem, Solution, objective, peak

TOLERANCE = 1e-9


class InvalidSolution(AutoparError, ValueError):
    """A solution that contradicts its problem: always a bug of the solver or a tampered solution."""


def verify(problem: Problem, solution: Solution) -> None:
    """Returns if `solution` is feasible, and its objective, peak and bound are consistent.

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
    cost, used = objective(problem, solution.choice), peak(problem, solution.choice)
    if not math.isfinite(cost):
        raise InvalidSolution("the choice takes a forbidden entry")
    if problem.usage_limit is not None and used > problem.usage_limit:
        raise InvalidSolution(f"peak {used} above the limit {problem.usage_limit}")
    if not math.isclose(cost, solution.objective, rel_tol=TOLERANCE, abs_tol=0.0):
        raise InvalidSolution(f"objective {solution.objective}, but the choice costs {cost}")
    if not math.isclose(used, solution.peak, rel_tol=TOLERANCE, abs_tol=0.0):
        raise InvalidSolution(f"peak {solution.peak}, but the choice uses {used}")
    if not solution.lower_bound <= solution.objective:  # NaN too
        raise InvalidSolution(f"lower bound {solution.lower_bound} above the objective {solution.objective}")
