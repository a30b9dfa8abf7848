"""Equally: an attempt in which what repeats is placed alike: its Problem is the quotient, its plans are whole ones.

Layers of a deep network make Problems too large to be searched within one memory limit after another, and to have
programs learnt from. Their quotient (`solve.periodic.quotient`) is as small as one layer's. What is proven of it is
proven of plans that place alike what repeats, and of no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autopar.search.limited_solve import LimitedSolve
from autopar.search.task import Planned
from autopar.solve import Problem, Solution
from autopar.solve.periodic.quotient import Quotient, quotient
from autopar.solve.problem.problem import derived


@dataclass(frozen=True, eq=False, kw_only=True)
class EqualLayersSolve(LimitedSolve):
    """`whole`, where what repeats is placed alike. Solutions are of the quotient, so are those of its plans."""

    whole: LimitedSolve
    small: Quotient

    def problem(self, limit_bytes: float | None, *, tensors_only: bool = False) -> Problem:
        """The quotient of the Problem under `limit_bytes`, in which all that a limit counts is counted."""
        if tensors_only:
            raise ValueError("the quotient was made of the Problem that counts more than tensors")
        found = self.small.problem
        return derived(found.node_costs, found.edges, found.usages, limit_bytes)

    def lifted(self, solution: Solution) -> Solution:
        """A solution of the quotient as one of the whole Problem, of which it proves nothing."""
        return replace(
            solution, choice=self.small.lift(solution.choice), lower_bound=0.0, witness=()
        )

    def planned(self, solution: Solution) -> Planned:
        """The plan that a choice of the quotient is."""
        return replace(self.whole.planned(self.lifted(solution)), solution=solution)

    def times_of(self, planned: Planned) -> Sequence[int]:
        """As of the whole Problem."""
        return self.whole.times_of(planned)

    def variable_of(self, op: int) -> int:
        """The node of the quotient that an operator's strategy is chosen by."""
        return int(self.small.classes[self.whole.variable_of(op)])

    def is_last(self, free: Planned, cost: float) -> bool:
        """As of the whole Problem."""
        return self.whole.is_last(free, cost)


def equally(attempt: LimitedSolve) -> EqualLayersSolve | None:
    """`attempt` where what repeats is placed alike; None if little repeats."""
    small = quotient(attempt.problem(0.0))
    if small is None:
        return None
    return EqualLayersSolve(
        attempt.task, attempt.ground, attempt.left, attempt.step_kinds, whole=attempt, small=small
    )
