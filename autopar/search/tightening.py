"""Tightening: a plan within a memory limit by solving the Problem within it, then within less and less.

The program holds more than the Problem counts: the buffers of redistributions on their way to a single operator, and
what lowering shares. So where a program still exceeds the limit, the Problem's becomes what is left of it beside those
hidden bytes. Each time it is solved fully, which takes long where it is large (`aim`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import inf

from autopar.errors import Unsolved
from autopar.search.attempt import FEW_ENTRIES, Attempt
from autopar.search.misfit import Misfit, raise_to, unsolved, use_less
from autopar.search.task import Planned, barely
from autopar.solve import Infeasible, NothingCheaper, Solution, SolveOptions
from autopar.solve.problem.problem import objective, peak

SMALL_ENTRIES = 300_000
"""Entries of all edges of a problem that is solved barely for an error's figures alone."""


@dataclass(frozen=True, eq=False)
class Tightening:
    """An attempt within one memory limit after another; `options` limit the work on each, else those of the task."""

    attempt: Attempt
    options: SolveOptions | None = None

    def within(self, limit: int, planned: Planned, below: float = inf) -> Planned:
        """A plan whose program peaks within `limit`; `planned` is the best without one.

        The program holds more than the Problem counts: the buffers of redistributions on their way to a single
        operator, and what lowering shares. So where a program still exceeds the limit, the Problem's becomes what is
        left of it beside those hidden bytes, until the choice of least peak is all that is left. That always rules out
        the choice before. Only the bounds of the looser problems hold. Where this finds nothing, the same is tried by
        the excess, on tensors alone: another way through choices that the Problem cannot tell apart.

        Raises:
          NoFeasiblePlan: proven that none fits.
          Unsolved: none was found that fits.
          NothingCheaper: none was found that costs less than `below`.
        """
        task, halt = self.attempt.task, self.attempt.task.halt
        bound, smallest, tight = planned.plan.lower_bound_s, planned, float(limit)
        proof: Infeasible | None = None
        for _ in range(task.options.max_tightenings):
            least = self._least if tight == limit else partial(self._solve_least, limit)
            try:
                found, refused = _closest(partial(self.attempt.solve, options=self.options, below=below), tight, least)
            except NothingCheaper as nothing:
                raise nothing if tight == limit else NothingCheaper(below, bound, nothing.stopped) from nothing
            proof = refused if tight == limit else proof
            if found is None:
                break
            bound = max(bound, found.plan.lower_bound_s) if tight == limit else bound
            smallest = min(smallest, found, key=_peak)
            if _peak(found) <= limit:
                return _bounded(found, bound)
            if refused is not None or halt.is_over:
                break
            tight = limit - (_peak(found) - found.counted_bytes)
        tight = float(limit)
        for _ in range(0 if proof is not None or halt.is_over else task.options.max_tightenings):
            found, refused = _closest(self._solve_tensors, tight, self._solve_least_tensors)
            if found is None:
                break
            smallest = min(smallest, found, key=_peak)
            if _peak(found) <= limit:
                return _bounded(found, bound)
            if refused is not None or halt.is_over:
                break
            tight -= _peak(found) - limit
        where = self.attempt.where
        raise unsolved(smallest, limit, where) if proof is None else misfit(self.attempt, limit, smallest, proof)

    def _least(self, proof: Infeasible) -> Planned | None:
        """A plan of the smallest peak that the solver found, or a cheap one if its program needs less.

        What is cheap moves less about, which can save more than the choice of smallest peak does: within that peak, and
        within those of the programs that this leads to.
        """
        if proof.choice is None:
            return None
        attempt, usual = self.attempt, self.attempt.task.options
        problem, choice = attempt.problem(proof.min_peak_bytes), proof.choice
        met = [Solution(choice, objective(problem, choice), -inf, peak(problem, choice))]
        entries, options = sum(edge.matrix.size for edge in problem.edges), usual.solve
        if entries <= SMALL_ENTRIES:
            met.append(attempt.solved_by(problem, met[0], options if entries <= FEW_ENTRIES else barely(options)))
        best = min(map(attempt.planned, met), key=_peak)
        for _ in range(usual.max_tightenings if entries <= SMALL_ENTRIES else 0):
            near = attempt.problem(float(_peak(best)))
            met.append(attempt.solved_by(near, met[0], options if entries <= FEW_ENTRIES else barely(options)))
            planned = attempt.planned(met[-1])
            if _peak(planned) >= _peak(best):
                break
            best = planned
        attempt.met.extend(met)
        return best

    def _solve_least(self, limit: int, proof: Infeasible) -> Planned | None:
        """The best plan under the smallest peak that the solver found; where its program exceeds `limit`, that choice.

        Of choices that the Problem cannot tell apart, the one that an error told of is met again so.
        """
        if proof.min_peak_bytes is None or proof.choice is None:
            return None
        found, choice = self.attempt.solve(proof.min_peak_bytes, self.options), proof.choice
        if _peak(found) <= limit:
            return found
        problem = self.attempt.problem(proof.min_peak_bytes)
        smallest = self.attempt.planned(Solution(choice, objective(problem, choice), -inf, peak(problem, choice)))
        return min(found, smallest, key=_peak)

    def _solve_least_tensors(self, proof: Infeasible) -> Planned | None:
        """As `_solve_least`, on tensors alone."""
        return None if proof.min_peak_bytes is None else self._solve_tensors(proof.min_peak_bytes)

    def _solve_tensors(self, limit_bytes: float) -> Planned:
        """As `solve`, under a limit on tensors alone, between their making and their last use."""
        problem = self.attempt.problem(limit_bytes, tensors_only=True)
        return replace(
            self.attempt.planned(self.attempt.solved_by(problem, self.attempt.nearby(True), self.options)),
            problem=problem,
        )


def misfit(attempt: Attempt, limit: int, planned: Planned, proof: Infeasible) -> Misfit:
    """That nothing fits in `limit`; `planned` has the smallest peak found."""
    smallest, least = _peak(planned), proof.least_peak_bytes
    proven = "" if least is None else f", and any plan needs {int(least):,} bytes"
    what = (
        f"no plan on mesh {attempt.where} fits in the memory limit of {limit:,} bytes a device: the smallest peak "
        f"found is {smallest:,} bytes{proven}"
    )
    advice = f"{raise_to(smallest)}, {use_less(planned.graph)}."
    return Misfit(what, partial(attempt.clash, float(limit)), advice, smallest)


def _closest(
    solve: Callable[[float], Planned], limit: float, least: Callable[[Infeasible], Planned | None]
) -> tuple[Planned | None, Infeasible | None]:
    """What `solve` gives under `limit`; where nothing keeps within it, what `least` makes of the proof, and the proof.

    No plan, if the solver found none.
    """
    try:
        return solve(limit), None
    except Unsolved:
        return None, None
    except Infeasible as error:
        proof = error
    try:
        return least(proof), proof
    except Unsolved:
        return None, proof


def _peak(planned: Planned) -> int:
    """Of its program."""
    return planned.account.peak_memory_bytes


def _bounded(planned: Planned, bound: float) -> Planned:
    """`planned` with `bound`, or its own cost where that is less."""
    return replace(planned, plan=replace(planned.plan, lower_bound_s=min(bound, planned.plan.objective_s)))
