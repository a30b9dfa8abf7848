"""What is known while the solver runs: the best choice and bound so far, when to stop, and whom to tell.

The search works on smaller and smaller problems; an `Inner` watch takes their choices back to the whole one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from autopar.solve.certificate.proof import Proof
from autopar.solve.problem.problem import Problem, objective, peak
from autopar.solve.problem.reduction import Choice, Reduction
from autopar.solve.problem.stop import left_s, now


@dataclass(frozen=True)
class Progress:
    """A moment of the search: seconds since it began, the cost of the best choice (inf: none yet), the bound, it."""

    time_s: float
    objective: float
    bound: float
    choice: Choice | None = None


OnProgress = Callable[[Progress], None]


class Watch(Protocol):
    """Where a search says what it found, and asks whether to go on."""

    @property
    def objective(self) -> float:
        """The cost of the best choice so far, or what is to be undercut; inf without either."""
        ...

    @property
    def enough(self) -> float:
        """What a choice may cost that is not worth bettering; -inf: any is."""
        ...

    def news(self, cost: float) -> float:
        """What a choice must cost less than, to be worth finding where one of this cost is known."""
        ...

    def allowed(self, bound: float) -> float:
        """What a choice may cost that is not worth bettering where this bound is proven."""
        ...

    def offer(self, choice: Choice) -> None:
        """A choice was found."""
        ...

    def raise_bound(self, bound: float, proof: Proof) -> None:
        """No choice costs less than `bound`, because of `proof`."""
        ...

    def left_s(self) -> float:
        """Seconds left; inf without a limit on time."""
        ...


class Best:
    """The watch of a whole problem; only choices that cost less than `below` are kept.

    Its time ends no later than that of what it is part of. A gap of `tolerance`, as a share of the cost, may be left.
    """

    def __init__(
        self,
        problem: Problem,
        time_limit_s: float | None,
        on_progress: OnProgress | None = None,
        below: float = np.inf,
        tolerance: float = 0.0,
    ) -> None:
        self.problem = problem
        self.on_progress = on_progress
        self.began = now()
        self.ends = self.began + (left_s() if time_limit_s is None else min(time_limit_s, left_s()))
        self.choice: Choice | None = None
        self.objective: float = below
        self.bound: float = -np.inf
        self.enough: float = -np.inf
        self.proof: Proof = ()
        self.tolerance = tolerance

    def news(self, cost: float) -> float:
        """Less by the gap that may be left."""
        return cost - self.tolerance * abs(cost) if cost < np.inf else cost

    def allowed(self, bound: float) -> float:
        """The largest cost whose news are no more than the bound."""
        if bound <= 0:
            return bound / (1 + self.tolerance)
        return bound / (1 - self.tolerance) if self.tolerance < 1 else np.inf

    def offer(self, choice: Choice) -> None:
        """Keeps the choice if it is within the limit and the cheapest so far."""
        if choice == self.choice:
            return
        cost = objective(self.problem, choice)
        limit = self.problem.usage_limit
        if cost < self.objective and (limit is None or peak(self.problem, choice) <= limit):
            self.choice = choice
            self.objective = cost
            self._tell()

    def raise_bound(self, bound: float, proof: Proof) -> None:
        """Keeps the bound and its proof if it is the highest so far; never above the best choice's cost."""
        if min(bound, self.objective) > self.bound:
            self.bound = min(bound, self.objective)
            self.proof = proof
            self._tell()

    def left_s(self) -> float:
        """Seconds left, at least 0."""
        return max(0.0, self.ends - now())

    def _tell(self) -> None:
        if self.on_progress is not None:
            cost = np.inf if self.choice is None else self.objective
            self.on_progress(Progress(now() - self.began, cost, self.bound, self.choice))


@dataclass(frozen=True, eq=False)
class Inner:
    """The watch of a reduced problem in which all choices cheaper than `cap` (as the outer one counts) are left.

    One that costs no more than `most` is enough.
    """

    outer: Watch
    reduction: Reduction
    cap: float = np.inf
    most: float = -np.inf

    @property
    def objective(self) -> float:
        """The cost of the best choice so far, as the reduced problem counts; inf without one."""
        return self.outer.objective - self.reduction.offset

    @property
    def enough(self) -> float:
        """As the outer one, or `most`, as the reduced problem counts."""
        return max(self.outer.enough, self.most) - self.reduction.offset

    def news(self, cost: float) -> float:
        """As the outer one, as the reduced problem counts."""
        return self.outer.news(cost + self.reduction.offset) - self.reduction.offset

    def allowed(self, bound: float) -> float:
        """As the outer one, as the reduced problem counts."""
        return self.outer.allowed(bound + self.reduction.offset) - self.reduction.offset

    def offer(self, choice: Choice) -> None:
        """Offers what the choice stands for."""
        self.outer.offer(self.reduction.lift(choice))

    def raise_bound(self, bound: float, proof: Proof) -> None:
        """A bound on all choices that are left is one on all that are cheaper than the cap."""
        self.outer.raise_bound(
            min(bound + self.reduction.offset, self.cap), self.reduction.steps + proof
        )

    def left_s(self) -> float:
        """As the outer one."""
        return self.outer.left_s()


@dataclass(frozen=True, eq=False)
class Apart:
    """The watch of a problem whose choices and bounds say nothing of the outer one: they share the time."""

    outer: Watch
    objective: float = np.inf
    enough: float = -np.inf

    def news(self, cost: float) -> float:
        """Whatever is cheaper."""
        return cost

    def allowed(self, bound: float) -> float:
        """No gap."""
        return bound

    def offer(self, choice: Choice) -> None:
        """Nothing to keep."""

    def raise_bound(self, bound: float, proof: Proof) -> None:
        """Nothing to keep."""

    def left_s(self) -> float:
        """As the outer one."""
        return self.outer.left_s()


def offer(choice: Choice | None, watch: Watch) -> None:
    """Offers a choice to the watch, if there is one."""
    if choice is not None:
        watch.offer(choice)
