"""Place: a task on one mesh, searched step by step, so that whoever races several can stop the hopeless ones early."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import inf

from autopar.core.placement import StepKind
from autopar.errors import InvalidConstraint, NoFeasiblePlan, Unsolved, UnsupportedPrimitive
from autopar.search.best_bound_first import TIE, Entrant, Progress, reaches
from autopar.search.constraints.records import show, step_kinds_of
from autopar.search.constraints.restriction import Restriction, restriction
from autopar.search.explain_infeasible import NoPlan
from autopar.search.limited_solve import LimitedSolve
from autopar.search.memory_limit import plan_within
from autopar.search.mesh_context import MeshContext
from autopar.search.task import Planned, Task, bounding, roughly
from autopar.solve import Infeasible, NothingCheaper, Solution, SolveOptions

Found = tuple[LimitedSolve, Planned]
"""A plan, and the attempt that found it."""


@dataclass(frozen=True, eq=False)
class _Rough:
    """What little work chose, and the attempt that did."""

    attempt: LimitedSolve
    solution: Solution

    @cached_property
    def planned(self) -> Planned:
        """The plan; its program is made when it is asked for."""
        return self.attempt.planned_freely(self.solution)

    def within(self, task: Task) -> Planned | None:
        """The plan of the task, if its program keeps within that one's limit."""
        limit = task.memory_limit_bytes
        is_over = limit is not None and self.planned.account.peak_memory_bytes > limit
        return None if is_over else replace(self.planned, task=task)


@dataclass(frozen=True, eq=False)
class MeshSearch:
    """A task on one mesh, whatever its memory limit.

    `known` is its best plan without one, where that is there; `near` another plan, from which the solver may start.
    """

    task: Task
    ground: MeshContext
    known: Planned | None = None
    near: Planned | None = None
    _free: list[Found] = field(default_factory=list[Found])
    _rough: list[_Rough | NothingCheaper | None] = field(
        default_factory=list[_Rough | NothingCheaper | None]
    )
    put_off: list[int] = field(default_factory=list[int])
    """The limits within which it was not searched yet, as recomputation is looked into."""

    def run(
        self,
        limit: int | None,
        *,
        roughly: bool = False,
        proven_if_within: Callable[[], float] = lambda: inf,
        puts_off: bool = False,
    ) -> Entrant[Planned]:
        """Searches with little work (if `roughly`), then without the limit, then within it (see `plan_within`).

        `proven_if_within` is asked only where the limit binds. If it `puts_off`, the last is put off where what is to
        be undercut costs more than what is proven without the limit by a larger share.
        """
        task = replace(self.task, memory_limit_bytes=limit)
        below = yield Progress(-inf)
        if roughly and (rough := self._found_roughly(below)) is not None:
            if isinstance(rough, NothingCheaper):
                below = yield Progress(rough.lower_bound)
            else:
                known = rough.solution
                make = partial(rough.within, task)
                below = yield Progress(known.lower_bound, known.objective, make=make)

        try:
            attempt, free = self.free(below)
            free = replace(free, task=task, is_unlimited=True)
            below = yield _met(free, limit)
            if limit is None or free.account.peak_memory_bytes <= limit:
                return
            within = proven_if_within()
            if puts_off and free.plan.lower_bound_s * (1 + within) < below < inf:
                self.put_off.append(limit)
                return
            found = plan_within(attempt, limit, free, below, within)
            last = _met(replace(found, task=task, unlimited=free), limit)
        except NothingCheaper as nothing:
            last = Progress[Planned](nothing.lower_bound)
        except (NoFeasiblePlan, InvalidConstraint, UnsupportedPrimitive) as error:
            last = Progress[Planned](inf, misfit=error)
        except Unsolved as error:
            last = Progress[Planned](-inf, misfit=error)

        # not where errors are caught: who waits there keeps all that led to them
        yield last

    def roughly(self) -> Found | None:
        """A plan without a memory limit that little work finds; None where that finds none."""
        found = self._found_roughly(inf)
        return (found.attempt, found.planned) if isinstance(found, _Rough) else None

    def attempt(self) -> LimitedSolve:
        """The attempt that finds the best plan without a memory limit; that is searched only if there are several.

        Raises: as `free`.
        """
        first, *others = step_kinds_of(self.task.all_constraints)
        return self.free()[0] if self._free or others else self._attempt(first)

    @property
    def found(self) -> Planned | None:
        """The best plan without a memory limit, if `free` found it."""
        return self._free[0][1] if self._free else None

    def binding(self, limit: int) -> tuple[LimitedSolve, Planned] | None:
        """What `free` is, if it was found and exceeds `limit`."""
        return next(
            (found for found in self._free if found[1].account.peak_memory_bytes > limit), None
        )

    def _found_roughly(self, below: float) -> _Rough | NothingCheaper | None:
        """A choice without a memory limit, and a bound, found with little work; None where that finds neither."""
        if self.known is None and not self._rough:
            try:
                little = (roughly if below == inf else bounding)(self.task.options.solver)
                self._rough.append(_Rough(*self._unlimited(little, below)))
            except NothingCheaper as nothing:
                # anew: what led to it, and its proof, take memory
                self._rough.append(NothingCheaper(nothing.below, nothing.lower_bound))
            except (Unsolved, NoFeasiblePlan, InvalidConstraint, UnsupportedPrimitive):
                self._rough.append(None)
        return self._rough[0] if self._rough else None

    def free(self, below: float = inf) -> Found:
        """The best plan without a memory limit, and the attempt that found it; once found, whatever it costs.

        Raises:
          NothingCheaper: no plan found costs less than `below`.
          NoFeasiblePlan: the constraints leave no plan, with or without a memory limit: proven.
          Unsolved: none was found, and none was proven impossible.
          InvalidConstraint: one is about nothing, cannot hold or contradicts others.
        """
        if not self._free:
            rough = self._rough[0] if self._rough else None
            if self.known is not None:
                self._free.append((self._attempt(self.known.plan.step_kinds), self.known))
            elif isinstance(rough, _Rough) and self._is_enough(rough.solution):
                self._free.append((rough.attempt, rough.planned))
            elif isinstance(rough, NothingCheaper) and reaches(
                rough.lower_bound, below, self.task.options.gap_tolerance
            ):
                raise NothingCheaper(below, rough.lower_bound)
            else:
                self._free.append(self._found_fully(below))

        return self._free[0]

    def _is_enough(self, found: Solution) -> bool:
        """Whether it is proven within the tolerance: a bound that reaches it exactly does, however rounded."""
        return reaches(found.lower_bound, found.objective, self.task.options.gap_tolerance + TIE)

    def _found_fully(self, below: float) -> Found:
        """With all the work that the options allow."""
        try:
            attempt, solution = self._unlimited(None, below)
        except Unsolved as error:
            raise _unsolved(self.task, self.ground, error) from None
        return attempt, attempt.planned_freely(solution)

    def _unlimited(
        self, options: SolveOptions | None, below: float
    ) -> tuple[LimitedSolve, Solution]:
        """With the first steps of the constraints that leave any plan; of several, each has to tell whether it does."""
        task = self.task
        kinds = step_kinds_of(self.task.all_constraints)
        below = below if len(kinds) == 1 else inf
        for step_kinds in kinds:
            attempt = self._attempt(step_kinds)
            try:
                return attempt, attempt.solved_freely(options, below)
            except Infeasible:
                continue

        held = f" and {show(task.constraints)}" if task.constraints else ""
        what = (
            f"no plan on mesh {self.ground.mesh} satisfies the constraints of mode {task.mode!r}{held}: no sequence of "
            f"steps takes some tensor from where it is made to where it is pinned"
        )
        raise NoPlan(
            what, partial(self._attempt(()).clash, None), "Pin less, or choose another mode."
        )

    def _attempt(self, step_kinds: tuple[StepKind, ...]) -> LimitedSolve:
        return LimitedSolve(self.task, self.ground, self._left, step_kinds, self.near)

    @cached_property
    def _left(self) -> Restriction:
        return restriction(self.task.graph, self.ground.space, self.task.all_constraints)


def _met(planned: Planned, limit: int | None) -> Progress[Planned]:
    """That `planned` was met: found, if it keeps within the limit; its bound holds either way."""
    plan = planned.plan
    if limit is not None and planned.account.peak_memory_bytes > limit:
        return Progress(plan.lower_bound_s)
    return Progress(plan.lower_bound_s, plan.objective_s, planned)


def _unsolved(task: Task, ground: MeshContext, error: Unsolved) -> Unsolved:
    """That the solver found neither a plan nor a proof that there is none, whatever the memory limit."""
    held = f" under {show(task.all_constraints)}" if task.all_constraints else ""
    held += f" until the search was ended by {task.stop}" if task.stop.reason else ""
    return Unsolved(
        f"no plan was found on mesh {ground.mesh}{held}, and none was proven impossible: {error}. Raise the limits on "
        f"work (options=autopar.SearchOptions(...)), or choose another mesh."
    )
