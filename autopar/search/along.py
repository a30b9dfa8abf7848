"""Along: plans within all memory limits, all from one curve (`solve.curve`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from math import inf

from autopar.search.attempt import FEW_ENTRIES, Attempt
from autopar.search.race import TIE
from autopar.search.task import Planned
from autopar.solve.curve import Curve
from autopar.solve.pareto import Met

_TRIES = 3  # to keep a program within a limit
_LESS = 0.99  # of what was asked for, at most, where a program exceeds the limit
_SPARE = 1.5  # times as many programs as points: some need as much as others that cost less
_CLOSE = 1.01  # times the peak of another: what lies between is no point of its own


@dataclass(eq=False)
class Along:
    """One attempt along all memory limits.

    A program holds more than the Problem counts, by about the same factor where peaks are close: so choices are asked
    for that leave this much free. `_lowered` are the plans of choices met so far.
    """

    attempt: Attempt
    _lowered: dict[Met, Planned] = field(default_factory=dict[Met, Planned], init=False)

    @cached_property
    def is_worth_it(self) -> bool:
        """Whether the Problem is too large to be solved anew, and fully, within every limit."""
        return sum(edge.cost.size for edge in self.attempt.problem(0.0).edges) > FEW_ENTRIES

    @cached_property
    def curve(self) -> Curve:
        """Of the Problem, whatever its limit; drawn.

        Raises:
          Infeasible: proven: there is no choice at all.
        """
        task = self.attempt.task
        curve = Curve(self.attempt.problem(0.0), task.options.solve, lambda: not task.halt.is_over)
        curve.draw()
        return curve

    def peaks_bytes(self, fastest: Planned, count: int) -> Iterator[int]:
        """The peaks of programs, `count` of them if there are, that need less than `fastest`, and cost more.

        First that of the smallest choice, then again and again one between those two peaks that are furthest apart.

        Raises:
          Infeasible: as `curve`.
        """
        most, cost = fastest.account.peak_memory_bytes, fastest.plan.objective_s
        left = [met for met in self.curve.choices() if met.cost > cost * (1 + TIE)]
        for _ in range(int(_SPARE * count)):
            useful = [met for met in self._useful() if self._peak(met) < most]
            chosen = _between([(self._peak(met), met.peak) for met in useful], most, left)
            if chosen is None or len(useful) >= count:
                return
            left.remove(chosen)
            self._planned(chosen)
            if chosen in self._useful():
                yield self._peak(chosen)

    def within(self, limit: int) -> Planned | None:
        """The cheapest plan met whose program keeps within `limit`, with a bound for that limit; None if none was met.

        Raises:
          Infeasible: as `curve`.
        """
        share = self._share(limit)
        for _ in range(_TRIES):
            best, met = self._fitting(limit), self.curve.best(share * limit)
            if met is None or (best is not None and best.plan.objective_s <= met.cost * (1 + TIE)):
                break
            planned = self._planned(met)
            if planned.account.peak_memory_bytes <= limit:
                break
            share = min(_LESS * share, planned.counted_bytes / planned.account.peak_memory_bytes)
        best = self._fitting(limit)
        return None if best is None else self._bounded(best, limit)

    def bound_s(self, limit: int) -> float:
        """What no plan within `limit` undercuts."""
        return max(0.0, self.curve.bound(float(limit)))

    def _fitting(self, limit: int) -> Planned | None:
        """The cheapest plan whose program keeps within the limit."""
        fitting = [planned for planned in self._lowered.values() if planned.account.peak_memory_bytes <= limit]
        return min(fitting, key=lambda planned: planned.plan.objective_s, default=None)

    def _useful(self) -> list[Met]:
        """The choices whose programs need less than all that cost no more, the smallest program first."""
        useful: list[Met] = []
        for met in sorted(self._lowered, key=lambda met: (self._peak(met), met.cost)):
            if not useful or met.cost < useful[-1].cost:
                useful.append(met)
        return useful

    def _share(self, limit: int) -> float:
        """What the Problem counts of the program whose peak is nearest to the limit; 1: none yet."""
        spent = [(planned.account.peak_memory_bytes, planned.counted_bytes) for planned in self._lowered.values()]
        top, counted = min(spent, key=lambda pair: abs(pair[0] - limit), default=(1, 1.0))
        return counted / top if top else 1.0

    def _peak(self, met: Met) -> int:
        return self._lowered[met].account.peak_memory_bytes

    def _planned(self, met: Met) -> Planned:
        if met not in self._lowered:
            self._lowered[met] = self.attempt.planned(self.curve.solved(met))
        return self._lowered[met]

    def _bounded(self, planned: Planned, limit: int) -> Planned:
        """The plan with the bound of a limit that it keeps within."""
        assert planned.solution is not None
        solution = self.curve.bounded(planned.solution, limit)
        bound = max(0.0, solution.lower_bound)
        self.attempt.task.halt.tell(self.attempt.ground.mesh, limit, planned.plan.objective_s, bound)
        plan = replace(planned.plan, lower_bound_s=bound)
        return replace(planned, plan=plan, solution=solution, problem=self.attempt.problem(float(limit)))


def _between(useful: Sequence[tuple[int, float]], most: int, left: Sequence[Met]) -> Met | None:
    """A choice left between those two whose programs' peaks are furthest apart; the smallest, if there are none.

    `useful` are peaks, of programs and as the Problem counts, the smallest first; `most` is the fastest program's.
    """
    if not useful:
        return left[0] if left else None
    gaps = pairwise([*useful, (most, inf)])
    for (low, least), (high, largest) in sorted(gaps, key=lambda gap: -gap[1][0] / max(1, gap[0][0])):
        inside = [met for met in left if least < met.peak < largest]
        if inside and high > _CLOSE * low:
            middle = (max(least, 1.0) * min(largest, inside[-1].peak)) ** 0.5
            return min(inside, key=lambda met: max(met.peak, middle) / max(1.0, min(met.peak, middle)))
    return None
