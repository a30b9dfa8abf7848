"""Solve: a problem in, a verified solution out; what repeats chooses alike where that costs no more."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autopar.errors import AutoparError, Unsolved
from autopar.solve.certificate.proof import Proof
from autopar.solve.periodic.quotient import Quotient, chooses_alike, quotient
from autopar.solve.pipeline.whole import fits, search
from autopar.solve.problem.incumbent import Best, OnProgress
from autopar.solve.problem.options import SolveOptions
from autopar.solve.problem.problem import Infeasible, Problem, Solution, Stopped, objective, peak
from autopar.solve.problem.reduction import Choice
from autopar.solve.problem.stop import ending_at, left_s
from autopar.solve.problem.verifier import TOLERANCE, verify_choice


class NothingCheaper(AutoparError):
    """No choice that costs less than `below` was found: every choice costs at least `lower_bound` (proven).

    Whether there is a choice at all is not said. `is_proven`: the bound reaches `below`, so there is none below it.
    `stopped` as in Solution; so is `witness`, where the solver says so.
    """

    def __init__(
        self, below: float, lower_bound: float, stopped: Stopped = "", witness: Proof | None = None
    ) -> None:
        self.is_proven = lower_bound >= below - TOLERANCE * abs(below)
        self.below, self.lower_bound = below, below if self.is_proven else lower_bound
        self.stopped: Stopped = stopped
        self.witness = witness
        verdict = "there is none" if self.is_proven else f"none costs less than {lower_bound:.6g}"
        super().__init__(f"no choice found that costs less than {below:.6g}; {verdict}")


_DEFAULTS = SolveOptions()
_LITTLE_WORK = 1e9  # of elimination, for a choice to begin with


def solve(
    problem: Problem,
    *,
    options: SolveOptions = _DEFAULTS,
    warm: Solution | None = None,
    below: float = np.inf,
    on_progress: OnProgress | None = None,
) -> Solution:
    """A verified solution with a proven lower bound; the same for the same problem and options, always.

    The bound is proven up to rounding: it is set to the objective when it comes within 1e-9 of it, relative. With a
    time limit, or when interrupted from the keyboard, the best choice so far is the answer, with the bound so far.

    Args:
      problem: what to minimise.
      options: limits on the work.
      warm: a solution of a problem with the same nodes and strategies: its choice is the first, if it is feasible here.
      below: choices that do not cost less are not wanted: all work is on those that do.
      on_progress: told whenever the best choice or the bound moves.

    Raises:
      Infeasible: proven. If the limit is to blame, `min_peak_bytes` is the smallest peak found (the least possible,
        unless CP-SAT ran out of work before proving it).
      NothingCheaper: no choice that costs less than `below` was found; with what is proven of all choices.
      Unsolved: neither a choice nor a proof of infeasibility was found within the work limits.
      KeyboardInterrupt: interrupted before any choice was found, and `below` was not given.
      ValueError: `warm` is of a problem with other nodes or strategies, or `below` is NaN.
    """
    if np.isnan(below):
        raise ValueError(
            "below is NaN: pass the cost that choices must keep under, or leave it out"
        )

    watch = Best(problem, options.time_limit_s, on_progress, below, options.gap_tolerance)
    if warm is not None:
        watch.offer(_of_same_shape(problem, warm))

    stopped: Stopped = ""
    equal: Choice | None = None
    try:
        with ending_at(watch.ends):
            small = quotient(problem) if options.periodic.quotient else None
            equal = None if small is None else _choosing_alike(problem, small, options)
            if equal is not None:
                watch.offer(equal)
            search(problem, options, watch)
    except Infeasible as error:
        error.witness = watch.proof if watch.bound == np.inf else None
        raise
    except KeyboardInterrupt:
        if watch.choice is None and below == np.inf:
            raise
        stopped = "keyboard"

    if not stopped and watch.left_s() <= 0:
        stopped = "time limit"
    if watch.choice is None and below < np.inf:
        raise NothingCheaper(below, watch.bound, stopped, watch.proof)

    if watch.choice is None:
        raise Unsolved(
            f"no choice found for {len(problem.node_costs)} nodes; not proven infeasible: {options}"
        )

    solution = replace(_solution(problem, watch), stopped=stopped)
    solution = solution if equal is None else _preferred(problem, solution, equal)
    verify_choice(problem, solution)
    return solution


def alike(problem: Problem, solution: Solution, options: SolveOptions) -> Solution:
    """`solution`, or one that costs no more and chooses alike what repeats; with the same bound."""
    small = None if chooses_alike(problem, solution.choice) else quotient(problem)
    if small is None:
        return solution
    common = _preferred(problem, solution, small.lift(small.most_common(solution.choice)))
    is_wanted = common is solution and options.periodic.quotient
    equal = _choosing_alike(problem, small, options) if is_wanted else None
    return common if equal is None else _preferred(problem, solution, equal)


def _preferred(problem: Problem, solution: Solution, choice: Choice) -> Solution:
    """`solution`, or one of the choice with its bound if that is feasible and costs no more."""
    cost = objective(problem, choice)
    if not cost <= solution.objective + TOLERANCE * abs(solution.objective) or not fits(
        problem, choice
    ):
        return solution
    bound = min(solution.lower_bound, cost)
    return replace(
        solution, choice=choice, objective=cost, lower_bound=bound, peak=peak(problem, choice)
    )


def _choosing_alike(problem: Problem, small: Quotient, options: SolveOptions) -> Choice | None:
    """A good choice that chooses alike what repeats, found with little work in the quotient; None if none is met."""
    work = min(options.max_elimination_work, _LITTLE_WORK)
    little = replace(options, max_elimination_work=work, max_rounds=0)
    try:
        found = solve(
            small.problem,
            options=replace(little, time_limit_s=None if left_s() == np.inf else left_s()),
        )
    except (Infeasible, Unsolved):
        return None

    choice = small.lift(found.choice)
    return choice if np.isfinite(objective(problem, choice)) and fits(problem, choice) else None


def _of_same_shape(problem: Problem, warm: Solution) -> Choice:
    counts = problem.counts
    if len(warm.choice) != len(counts) or any(
        s >= n for s, n in zip(warm.choice, counts, strict=True)
    ):
        raise ValueError(
            f"warm: a choice for {len(warm.choice)} nodes, not one of this problem's {len(counts)} nodes"
        )
    return warm.choice


def _solution(problem: Problem, watch: Best) -> Solution:
    assert watch.choice is not None
    cost = watch.objective
    bound = watch.bound
    proven = bound >= cost - TOLERANCE * abs(cost)
    return Solution(
        watch.choice, cost, cost if proven else bound, peak(problem, watch.choice), watch.proof
    )
