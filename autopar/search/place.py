"""Place: a task on one mesh, searched step by step, so that whoever races several can stop the hopeless ones early."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import inf

from autopar.core.placement import StepKind
from autopar.errors import InvalidConstraint, NoFeasiblePlan, Unsolved
from autopar.search.attempt import Attempt
from autopar.search.constraints import show, step_kinds_of
from autopar.search.ground import Ground
from autopar.search.misfit import Misfit
from autopar.search.race import Progress
from autopar.search.restriction import Restriction, restriction
from autopar.search.task import Planned, Task, roughly
from autopar.solve import Infeasible, SolveOptions


@dataclass(frozen=True, eq=False)
class Place:
    """A task on one mesh, whatever its memory limit.

    `known` is its best plan without one, where that is there; `near` another plan, from which the solver may start.
    """

    task: Task
    ground: Ground
    known: Planned | None = None
    near: Planned | None = None

    def run(self, limit: int | None, *, roughly: bool = False) -> Iterator[Progress[Planned]]:
        """Searches with little work (if `roughly`), then without the limit, then within it."""
        task = replace(self.task, memory_limit_bytes=limit)
        if roughly and self.rough is not None:
            yield _met(replace(self.rough[1], task=task), limit)
        try:
            attempt, free = self.free
        except (NoFeasiblePlan, InvalidConstraint) as error:
            yield Progress(inf, misfit=error)
            return
        except Unsolved as error:
            yield Progress(-inf, misfit=_unsolved(task, self.ground, error))
            return
        free = replace(free, task=task, is_unlimited=True)
        yield _met(free, limit)
        if limit is None or free.account.peak_memory_bytes <= limit:
            return
        try:
            planned = replace(attempt.within(limit, free), task=task, unlimited=free)
        except (NoFeasiblePlan, Unsolved) as error:
            yield Progress(-inf if isinstance(error, Unsolved) else inf, misfit=error)
            return
        yield _met(planned, limit)

    def binding(self, limit: int) -> tuple[Attempt, Planned] | None:
        """What `free` is, if it was found and exceeds `limit`."""
        found: tuple[Attempt, Planned] | None = self.__dict__.get("free")
        return None if found is None or found[1].account.peak_memory_bytes <= limit else found

    @cached_property
    def rough(self) -> tuple[Attempt, Planned] | None:
        """A plan without a memory limit, and a bound, found with little work; None where that finds none."""
        if self.known is not None:
            return None
        try:
            return self._unlimited(roughly(self.task.options.solve))
        except (Unsolved, NoFeasiblePlan, InvalidConstraint):
            return None

    @cached_property
    def free(self) -> tuple[Attempt, Planned]:
        """The best plan without a memory limit, and the attempt that found it.

        Raises:
          NoFeasiblePlan: the constraints leave no plan, with or without a memory limit.
          InvalidConstraint: one is about nothing, cannot hold or contradicts others.
        """
        if self.known is not None:
            return self._attempt(self.known.plan.step_kinds), self.known
        if "rough" in self.__dict__ and self.rough is not None and not self.rough[1].plan.gap:
            return self.rough
        return self._unlimited(None)

    def _unlimited(self, options: SolveOptions | None) -> tuple[Attempt, Planned]:
        """With the first steps of the constraints that leave any plan."""
        task = self.task
        for step_kinds in step_kinds_of(task.all_constraints):
            attempt = self._attempt(step_kinds)
            try:
                return attempt, attempt.solve(None, options)
            except Infeasible:
                continue
        held = f" and {show(task.constraints)}" if task.constraints else ""
        what = (
            f"no plan on mesh {self.ground.mesh} satisfies the constraints of mode {task.mode!r}{held}: no sequence of "
            f"steps takes some tensor from where it is made to where it is pinned"
        )
        raise Misfit(what, partial(self._attempt(()).clash, None), "Pin less, or choose another mode.")

    def _attempt(self, step_kinds: tuple[StepKind, ...]) -> Attempt:
        return Attempt(self.task, self.ground, self._left, step_kinds, self.near)

    @cached_property
    def _left(self) -> Restriction:
        return restriction(self.task.graph, self.ground.space, self.task.all_constraints)


def _met(planned: Planned, limit: int | None) -> Progress[Planned]:
    """That `planned` was met: found, if it keeps within the limit; its bound holds either way."""
    plan = planned.plan
    if limit is not None and planned.account.peak_memory_bytes > limit:
        return Progress(plan.lower_bound_s)
    return Progress(plan.lower_bound_s, plan.objective_s, planned)


def _unsolved(task: Task, ground: Ground, error: Unsolved) -> Unsolved:
    """That the solver found neither a plan nor a proof that there is none, whatever the memory limit."""
    held = f" under {show(task.all_constraints)}" if task.all_constraints else ""
    held += f" until the search was ended by {task.halt}" if task.halt.reason else ""
    return Unsolved(
        f"no plan was found on mesh {ground.mesh}{held}, and none was proven impossible: {error}. Raise the limits on "
        f"work (options=autopar.SearchOptions(...)), or choose another mesh."
    )
