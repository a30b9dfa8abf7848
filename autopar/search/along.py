"""Along: plans within one memory limit after another, all from one curve (`solve.curve`)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from autopar.search.attempt import FEW_ENTRIES, Attempt
from autopar.search.task import Planned
from autopar.solve import Solution
from autopar.solve.curve import Curve
from autopar.solve.reduction import Choice

_TRIES = 3  # to keep a program within a limit
_LESS = 0.99  # of what was asked for, at most, where a program exceeds the limit


@dataclass(eq=False)
class Along:
    """One attempt along all memory limits.

    A program holds more than the Problem counts, by about the same factor where peaks are close: so choices are asked
    for that leave this much free. `_lowered` are the plans of choices met so far.
    """

    attempt: Attempt
    _lowered: dict[Choice, Planned] = field(default_factory=dict[Choice, Planned], init=False)

    @cached_property
    def is_worth_it(self) -> bool:
        """Whether the Problem is too large to be solved anew, and fully, within every limit."""
        return sum(edge.cost.size for edge in self.attempt.problem(0.0).edges) > FEW_ENTRIES

    @cached_property
    def curve(self) -> Curve:
        """Of the Problem, whatever its limit."""
        task = self.attempt.task
        return Curve(self.attempt.problem(0.0), task.options.solve, lambda: not task.halt.is_over)

    def least_peak_bytes(self) -> int | None:
        """The peak of a program of little memory; None if no choice is met.

        Raises:
          Infeasible: proven: there is no choice at all.
        """
        solution = self.curve.solution(self.curve.least())
        return None if solution is None else self._planned(solution).account.peak_memory_bytes

    def within(self, limit: int, enough: float) -> Planned | None:
        """The cheapest plan met whose program keeps within `limit`, with a bound for that limit; None if none was met.

        Choices are worked on until their gap is `enough`, for a few rounds at most.

        Raises:
          Infeasible: proven: there is no choice at all.
        """
        share = self._share(limit)
        for _ in range(_TRIES):
            self.curve.work(share * limit, enough)
            solution = self.curve.solution(share * limit)
            if solution is None:
                break
            planned = self._planned(solution)
            if planned.account.peak_memory_bytes <= limit:
                break
            share = min(_LESS * share, planned.counted_bytes / planned.account.peak_memory_bytes)
        fitting = [planned for planned in self._lowered.values() if planned.account.peak_memory_bytes <= limit]
        best = min(fitting, key=lambda planned: planned.plan.objective_s, default=None)
        return None if best is None else self._bounded(best, limit)

    def _share(self, limit: int) -> float:
        """What the Problem counts of the program whose peak is nearest to the limit; 1: none yet."""
        spent = [(planned.account.peak_memory_bytes, planned.counted_bytes) for planned in self._lowered.values()]
        top, counted = min(spent, key=lambda pair: abs(pair[0] - limit), default=(1, 1.0))
        return counted / top if top else 1.0

    def _planned(self, solution: Solution) -> Planned:
        if solution.choice not in self._lowered:
            self._lowered[solution.choice] = self.attempt.planned(solution)
        return self._lowered[solution.choice]

    def _bounded(self, planned: Planned, limit: int) -> Planned:
        """The plan with the bound of a limit that it keeps within."""
        assert planned.solution is not None
        solution = self.curve.bounded(planned.solution, limit)
        plan = replace(planned.plan, lower_bound_s=max(0.0, solution.lower_bound))
        return replace(planned, plan=plan, solution=solution, problem=self.attempt.problem(float(limit)))
