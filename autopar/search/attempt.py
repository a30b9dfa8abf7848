"""Attempt: what constraints leave on one mesh, solved with and without a memory limit, and lowered to programs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf

from autopar.core.graph import OpGraph
from autopar.core.placement import StepKind
from autopar.core.plan import Plan
from autopar.errors import NoFeasiblePlan
from autopar.passes.account import Account, account
from autopar.passes.pipeline import build_program
from autopar.passes.program import ShardedProgram
from autopar.price.assemble import placement_choice
from autopar.price.pricing import Pricing
from autopar.price.work import materialised, recomputed, workspace_bytes
from autopar.search.ground import Ground
from autopar.search.restriction import Restriction
from autopar.search.task import Planned, Task
from autopar.solve import Infeasible, NothingCheaper, Problem, Solution, SolveOptions, solve
from autopar.solve.least_peak import least_peak
from autopar.solve.problem import objective


@dataclass(frozen=True, eq=False)
class Attempt:
    """Solving what constraints leave on one ground, with and without a memory limit.

    Under one limit after another the Problem is the same but for the limit: what was met under one is where the next
    starts from, and no limit is solved twice.
    """

    task: Task
    ground: Ground
    left: Restriction
    step_kinds: tuple[StepKind, ...]
    near: Planned | None = None
    _met: list[Solution] = field(default_factory=list[Solution])
    _solved: dict[float, Planned] = field(default_factory=dict[float, Planned])
    _refused: list[tuple[float, Infeasible]] = field(default_factory=list[tuple[float, Infeasible]])
    _bounds: dict[float, float] = field(default_factory=dict[float, float])

    def solve(self, limit_bytes: float | None, options: SolveOptions | None = None, below: float = inf) -> Planned:
        """The plan under `limit_bytes` on what the Problem counts; its bound is for that limit.

        Raises:
          Infeasible: proven, here or under a looser limit before.
          NothingCheaper: none was found that costs less than `below`.
        """
        problem = self.problem(limit_bytes)
        if limit_bytes is None:
            return replace(self.planned(self._without_limit(problem, options, below)), problem=problem)
        for refused, reason in self._refused:
            if limit_bytes <= refused:
                raise reason
        if limit_bytes not in self._solved:
            planned = self.planned(self._within_limit(problem, limit_bytes, below))
            self._solved[limit_bytes] = replace(planned, problem=problem)
        return self._solved[limit_bytes]

    def bound_within(self, limit_bytes: float) -> float:
        """What was proven of all plans within this limit; `inf` if there are none."""
        if limit_bytes in self._solved:
            return self._solved[limit_bytes].plan.lower_bound_s
        if any(limit_bytes <= refused for refused, _ in self._refused):
            return inf
        return self._bounds.get(limit_bytes, 0.0)

    def problem(self, limit_bytes: float | None, *, tensors_only: bool = False) -> Problem:
        """The Problem under `limit_bytes`, with what the constraints leave."""
        return self.left.apply(self.ground.problem(self.step_kinds, limit_bytes, tensors_only=tensors_only))

    def _without_limit(self, problem: Problem, options: SolveOptions | None, below: float) -> Solution:
        """Solved from what stands of it already, unless with little work only."""
        usual = self.task.options.solve
        if options is None and not self.left.ties:
            standing = self.ground.standing(self.step_kinds, usual)
            found = None if standing is None else standing.solve(problem)
            if found is not None:
                return found
        return solve(problem, options=options or usual, warm=self._nearby(False), below=below)

    def _within_limit(self, problem: Problem, limit_bytes: float, below: float) -> Solution:
        options, warm = self.task.options.solve, self._cheapest_within(limit_bytes)
        try:
            solution = solve(problem, options=options, warm=warm, below=below)
        except Infeasible as reason:
            self._refused.append((limit_bytes, reason))
            raise
        except NothingCheaper as nothing:
            self._bounds[limit_bytes] = max(nothing.lower_bound, self._bounds.get(limit_bytes, 0.0))
            raise
        self._met.append(solution)
        return solution

    def least(self) -> Planned | None:
        """The cheapest plan of the least peak that the Problem counts, as far as found; its bound is for that peak."""
        problem = self.problem(0.0)
        found = least_peak(problem, self.task.options.solve)
        if found.choice is None:
            return None
        self._met.append(Solution(found.choice, objective(problem, found.choice), -inf, found.peak))
        return self.solve(found.peak)

    def _cheapest_within(self, limit_bytes: float) -> Solution | None:
        """The cheapest of the solutions met under other limits that keeps within this one too."""
        fitting = [solution for solution in self._met if solution.peak <= limit_bytes]
        return min(fitting, key=lambda solution: solution.objective, default=self._nearby(True))

    def _nearby(self, is_limited: bool) -> Solution | None:
        """What the solver gave for a near plan with a limit, or without: their candidates are not the same."""
        near = self.near
        if near is not None and not is_limited and near.unlimited is not None:
            near = near.unlimited
        return near.solution if near is not None and near.is_unlimited != is_limited else None

    def within(self, limit: int, planned: Planned, below: float = inf) -> Planned:
        """A plan whose program peaks within `limit`; `planned` is the best without one.

        The program holds more than the Problem counts: the buffers of redistributions on their way to a single
        operator, and what lowering shares. So where a program still exceeds the limit, the Problem's becomes what is
        left of it beside those hidden bytes, until the choice of least peak is all that is left. That always rules out
        the choice before. Only the bounds of the looser problems hold. Where this finds nothing, the same is tried by
        the excess, on tensors alone: another way through choices that the Problem cannot tell apart.

        Raises:
          NoFeasiblePlan: none was found that fits.
          NothingCheaper: none was found that costs less than `below`.
        """
        bound, smallest, tight, proven = planned.plan.lower_bound_s, planned, float(limit), False
        for _ in range(self.task.options.max_tightenings):
            try:
                planned, fits = self._solve_or_least(tight, below)
            except NothingCheaper as nothing:
                raise nothing if tight == limit else NothingCheaper(below, bound) from nothing
            bound = max(bound, planned.plan.lower_bound_s) if tight == limit else bound
            smallest = min(smallest, planned, key=lambda p: p.account.peak_memory_bytes)
            if planned.account.peak_memory_bytes <= limit:
                return _bounded(planned, bound)
            if not fits:
                proven = tight == limit
                break
            tight = limit - (planned.account.peak_memory_bytes - planned.counted_bytes)
        tight = float(limit)
        for _ in range(0 if proven else self.task.options.max_tightenings):
            planned, fits = self._solve_tensors(tight)
            smallest = min(smallest, planned, key=lambda p: p.account.peak_memory_bytes)
            if planned.account.peak_memory_bytes <= limit:
                return _bounded(planned, bound)
            if not fits:
                break
            tight -= planned.account.peak_memory_bytes - limit
        raise self._misfit(limit, smallest, proven)

    def _solve_tensors(self, limit_bytes: float) -> tuple[Planned, bool]:
        """As `_solve_or_least`, under a limit on tensors alone, between their making and their last use."""

        def solved(limit: float) -> Planned:
            problem = self.problem(limit, tensors_only=True)
            solution = solve(problem, options=self.task.options.solve, warm=self._nearby(True))
            return replace(self.planned(solution), problem=problem)

        try:
            return solved(limit_bytes), True
        except Infeasible as error:
            if error.min_peak_bytes is None:
                raise
            return solved(error.min_peak_bytes), False

    def _solve_or_least(self, limit_bytes: float, below: float) -> tuple[Planned, bool]:
        """As `solve`, and True; where nothing keeps within the limit, the best of what is closest to it, and False."""
        try:
            return self.solve(limit_bytes, below=below), True
        except Infeasible as error:
            if error.min_peak_bytes is None:
                raise
            return self.solve(error.min_peak_bytes), False

    def planned(self, solution: Solution) -> Planned:
        """The plan that a choice of the Problem is, and its program."""
        task, ground = self.task, self.ground
        stage = ground.space.stage(placement_choice(ground.space, solution.choice))
        pricing, router = ground.pricing(self.step_kinds), ground.router(self.step_kinds)
        program = build_program(task.graph, ground.flow, stage, router, pricing.step_cost)
        spent = account_of(task.graph, program, pricing)
        bound = solution.lower_bound
        plan = Plan((stage,), task.fingerprint, solution.objective, bound, step_kinds=self.step_kinds)
        return Planned(task, plan, program, spent, pricing, ground, counted_bytes=solution.peak, solution=solution)

    def _misfit(self, limit: int, planned: Planned, proven: bool) -> NoFeasiblePlan:
        """That nothing fits in `limit`, or that nothing was found; `planned` has the smallest peak found."""
        program, smallest = planned.program, planned.account.peak_memory_bytes
        largest = [program.values[v] for v in planned.account.peak_values[:3]]
        names = ", ".join(
            f"{v.tensor.name or f'result of {_producer(planned, v.tensor.id)}'} "
            f"{v.tensor.dtype}{list(v.tensor.shape)} {v.placement} ({program.local_bytes(v.id):,} bytes)"
            for v in largest
        )
        return NoFeasiblePlan(
            f"no plan on mesh {self.ground.mesh} fits in the memory limit of {limit:,} bytes a device: the smallest "
            f"peak found is {smallest:,} bytes. Largest at the peak: {names}. Raise memory_limit_bytes, use more "
            f"devices, or donate the state.",
            smallest,
            proven,
        )


def _bounded(planned: Planned, bound: float) -> Planned:
    """`planned` with `bound`, or its own cost where that is less."""
    return replace(planned, plan=replace(planned.plan, lower_bound_s=min(bound, planned.plan.objective_s)))


def account_of(graph: OpGraph, program: ShardedProgram, pricing: Pricing) -> Account:
    """What `program` costs in time and memory."""
    return account(
        program,
        pricing.op_cost,
        materialised(graph),
        graph.donated,
        recomputed=recomputed(graph),
        workspace=workspace_bytes,
    )


def _producer(planned: Planned, tensor: int) -> str:
    op = planned.graph.producers.get(tensor)
    return f"{op.kind} ({op.source})" if op else "a constant"
