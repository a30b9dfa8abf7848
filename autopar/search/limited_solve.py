"""LimitedSolve: what constraints leave on one mesh, solved with and without a memory limit, and lowered to programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import inf

from autopar.backends.known import backend_of
from autopar.core.dataflow import Dataflow
from autopar.core.graph import OpGraph
from autopar.core.placement import StepKind
from autopar.core.plan import Plan, Stage
from autopar.core.program import ShardedProgram
from autopar.cost.assemble import least_bytes, placement_choice
from autopar.cost.exchange_costs import exchange_cost
from autopar.cost.pricing import Pricing, compiler_of, pack_price
from autopar.memory.account import Account, Lives, accounted, lives_of
from autopar.memory.lent import bytes_if_lent
from autopar.ops.fusion import in_memory, recomputed
from autopar.passes.pipeline import build_program
from autopar.redistribute.route import Router
from autopar.search.batch_rows import with_rows_split
from autopar.search.constraints.restriction import Restriction, each_alone
from autopar.search.explain_infeasible import Moments, blame
from autopar.search.mesh_context import MeshContext
from autopar.search.recomputable import recomputable
from autopar.search.task import Planned, Task
from autopar.solve import (
    Infeasible,
    NothingCheaper,
    Problem,
    Progress,
    Requirement,
    Solution,
    SolveOptions,
    alike,
    clashing,
    solve,
)
from autopar.solve.certificate.proof import Prices, Proof
from autopar.solve.parametric.relaxation import UNBOUNDED, PricedBound

FEW_ENTRIES = 30_000
"""Entries of all edges of a problem that is solved fully within every limit, and for an error's figures alone."""
WORTH = 0.05
"""What a memory limit must cost at least, as a share, before recomputing is looked into."""
CLASH_WORK = 2.0
"""Deterministic time (roughly seconds) of CP-SAT for each question of what clashes."""


@dataclass(frozen=True, eq=False)
class LimitedSolve:
    """Solving what constraints leave on one ground, with and without a memory limit.

    Under one limit after another the Problem is the same but for the limit: what was met under one is where the next
    starts from, and no limit is solved twice. `prices` of memory are those that proved a limit, here or on another
    mesh: meshes on which one graph is searched may share the list. What `is_one_of_several` is given up where nothing
    is met soon: of all of them one is looked into to the end.
    """

    task: Task
    ground: MeshContext
    left: Restriction
    step_kinds: tuple[StepKind, ...]
    near: Planned | None = None
    prices: list[Prices] = field(default_factory=list[Prices])
    met: list[Solution] = field(default_factory=list[Solution])
    _solved: dict[float, Planned] = field(default_factory=dict[float, Planned])
    _refused: list[tuple[float, Infeasible]] = field(default_factory=list[tuple[float, Infeasible]])
    _bounds: dict[float, PricedBound] = field(default_factory=dict[float, PricedBound])
    is_one_of_several: bool = False

    def solve(
        self, limit_bytes: float | None, options: SolveOptions | None = None, below: float = inf
    ) -> Planned:
        """The plan under `limit_bytes` on what the Problem counts; its bound is for that limit.

        Raises:
          Infeasible: proven, here or under a looser limit before.
          NothingCheaper: none was found that costs less than `below`.
        """
        if limit_bytes is None:
            return self.planned_freely(self.solved_freely(options, below))
        problem = self.problem(limit_bytes)
        for refused, reason in self._refused:
            if limit_bytes <= refused:
                raise reason
        if limit_bytes not in self._solved:
            planned = self.planned(self._within_limit(problem, limit_bytes, options, below))
            self._solved[limit_bytes] = replace(planned, problem=problem)
        return self._solved[limit_bytes]

    def solved_freely(self, options: SolveOptions | None, below: float) -> Solution:
        """The choice without a memory limit; errors as of `solve`."""
        problem = self.problem(None)
        found = self._without_limit(problem, options, below)
        return with_rows_split(self, problem, found, found.lower_bound)

    def planned_freely(self, solution: Solution) -> Planned:
        """The plan that a choice without a memory limit is."""
        return replace(self.planned(solution), problem=self.problem(None))

    def bound_within(self, limit_bytes: float) -> float:
        """What was proven of all plans within this limit; `inf` if there are none."""
        if limit_bytes in self._solved:
            return self._solved[limit_bytes].plan.lower_bound_s
        if any(limit_bytes <= refused for refused, _ in self._refused):
            return inf
        return self.proven_within(limit_bytes).bound

    def proven_within(self, limit_bytes: float) -> PricedBound:
        """What `prove` took up of this limit, with its proof if that was kept."""
        return self._bounds.get(limit_bytes, UNBOUNDED)

    def prove(self, limit_bytes: float, bound: float, proof: Proof = ()) -> None:
        """Takes up that all plans within this limit cost at least `bound`, and the proof if it is to be kept."""
        if bound > self.proven_within(limit_bytes).bound:
            self._bounds[limit_bytes] = PricedBound(bound, proof)

    def problem(self, limit_bytes: float | None, *, tensors_only: bool = False) -> Problem:
        """The Problem under `limit_bytes`, with what the constraints leave."""
        return self.left.apply(self.free_problem(limit_bytes, tensors_only=tensors_only))

    def free_problem(self, limit_bytes: float | None, *, tensors_only: bool = False) -> Problem:
        """The Problem under `limit_bytes` without constraints."""
        return self.ground.problem(self.step_kinds, limit_bytes, tensors_only=tensors_only)

    def least_bytes(self) -> float:
        """What every choice holds on a device at some time: found without the Problem, so at little cost."""
        ground = self.ground
        pricing, router = ground.minimised(self.step_kinds)
        return least_bytes(ground.graph, ground.flow, ground.space, pricing, router)

    def groups(self) -> tuple[Requirement, ...]:
        """What every constraint leaves of the free Problem by itself."""
        every = each_alone(self.ground.graph, self.ground.space, self.task.all_constraints)
        return tuple(Requirement(left.keep, left.ties) for left in every)

    def _without_limit(
        self, problem: Problem, options: SolveOptions | None, below: float
    ) -> Solution:
        """Solved from what stands of it already, unless with little work only."""
        usual = self.task.options.solver
        if options is None and not self.left.ties:
            with self.task.stop.current():
                standing = self.ground.standing(self.step_kinds, usual)
                found = None if standing is None else standing.solve(problem)
            if found is not None:
                self.task.tell(self.ground.mesh, None, found.objective, found.lower_bound)
                return alike(problem, found, usual)
        found = self.solved_by(problem, self.nearby(False), options, below)
        return (
            found if options is None or options.periodic.quotient else alike(problem, found, usual)
        )

    def solved_by(
        self,
        problem: Problem,
        warm: Solution | None,
        options: SolveOptions | None,
        below: float = inf,
    ) -> Solution:
        """By the solver, within what is left of the time; what ended it early is noted."""
        stop = self.task.stop
        options = stop.within(options or self.task.options.solver)

        def tell(known: Progress) -> None:
            self.task.tell(self.ground.mesh, problem.usage_limit, known.objective, known.bound)

        try:
            found = solve(problem, options=options, warm=warm, below=below, on_progress=tell)
        except NothingCheaper as nothing:
            stop.note(nothing.stopped)
            raise

        stop.note(found.stopped)
        return found

    def _within_limit(
        self, problem: Problem, limit_bytes: float, options: SolveOptions | None, below: float
    ) -> Solution:
        try:
            solution = self.solved_by(problem, self._cheapest_within(limit_bytes), options, below)
        except Infeasible as reason:
            self._refused.append((limit_bytes, reason))
            raise
        except NothingCheaper as nothing:
            self.prove(limit_bytes, nothing.lower_bound)
            raise
        self.met.append(solution)
        return solution

    def is_last(self, free: Planned, cost: float) -> bool:
        """Whether what is met at this cost is the end; not, if recomputation is looked into, which bounds all plans."""
        return cost <= free.plan.lower_bound_s * (1 + WORTH) or not self._may_recompute

    @cached_property
    def _may_recompute(self) -> bool:
        return self.task.options.recompute != "never" and bool(recomputable(self.task.graph))

    def times_of(self, planned: Planned) -> Sequence[int]:
        """The Problem's time of every operator of the graph that the plan is of, and of the end."""
        return range(len(planned.graph.ops) + 1)

    def variable_of(self, op: int) -> int:
        """The Problem's node that an operator's strategy is chosen by."""
        return self.ground.space.operator_variables[op]

    def _cheapest_within(self, limit_bytes: float) -> Solution | None:
        """The cheapest of the solutions met under other limits that keeps within this one too."""
        fitting = [solution for solution in self.met if solution.peak <= limit_bytes]
        return min(fitting, key=lambda solution: solution.objective, default=self.nearby(True))

    def nearby(self, is_limited: bool) -> Solution | None:
        """What the solver gave for a near plan with a limit, or without: their candidates are not the same.

        Nothing, if the near plan recomputes: what it was solved for has more variables.
        """
        near = self.near
        if near is not None and not is_limited and near.unlimited is not None:
            near = near.unlimited
        is_same = near is not None and near.is_unlimited != is_limited and near.rewritten is None
        return near.solution if near is not None and is_same else None

    def planned(self, solution: Solution) -> Planned:
        """The plan that a choice of the Problem is, and its program."""
        task = self.task
        ground = self.ground
        stage = ground.space.stage(placement_choice(ground.space, solution.choice))
        pricing = ground.pricing(self.step_kinds)
        router = ground.router(self.step_kinds)
        program = program_of(task.graph, ground.flow, stage, router, pricing)
        spent = account_of(task.graph, program, pricing)
        bound = solution.lower_bound
        plan = Plan(
            (stage,),
            solution.objective,
            bound,
            step_kinds=self.step_kinds,
            communication_weight=ground.communication_weight,
            hidden_weight=ground.hidden_weight,
        )

        return Planned(
            task,
            plan,
            program,
            spent,
            pricing,
            ground,
            counted_bytes=solution.peak,
            solution=solution,
            attempt=self,
        )

    @property
    def where(self) -> str:
        """The mesh, and what the space is limited to."""
        steps = f" (redistributing by {', '.join(self.step_kinds)} only)" if self.step_kinds else ""
        return f"{self.ground.mesh}{steps}"

    def clash(self, limit_bytes: float | None) -> str:
        """What clashes where nothing keeps to all constraints, within a limit or without: found by solving."""
        problem = self.free_problem(limit_bytes)
        groups = self.groups()
        options = self.task.options.solver
        with self.task.stop.current():
            options = replace(options, cp_sat_work=min(options.cp_sat_work, CLASH_WORK))
            found = clashing(
                problem,
                groups,
                options,
                met=[
                    solution.choice
                    for solution in sorted(self.met, key=lambda solution: -solution.peak)
                ],
            )

        least = min(self.met, key=lambda solution: solution.peak, default=None)
        ground = self.ground
        moments = None
        if limit_bytes is not None:
            choice = None if least is None else least.choice
            moments = Moments(ground.graph, ground.flow, ground.space, problem, choice)

        return blame(found, self._as_written(), moments)

    def _as_written(self) -> list[str]:
        """The constraints as their user wrote them; those of the mode say so."""
        own = set(self.task.constraints)
        mode = self.task.mode
        return [
            str(c) if c in own else f"{c} (of mode {mode!r})" for c in self.task.all_constraints
        ]


def program_of(
    graph: OpGraph, flow: Dataflow, stage: Stage, router: Router, pricing: Pricing
) -> ShardedProgram:
    """The program of `stage` as it runs, at what `pricing` says of steps, buckets and exchanges."""
    exchange = partial(exchange_cost, pricing)
    return build_program(
        graph, flow, stage, router, pricing.step_cost, pack_price(pricing), exchange
    )


def account_of(graph: OpGraph, program: ShardedProgram, pricing: Pricing) -> Account:
    """What `program` costs in time and memory: no less than its compiler may set aside, where that is known."""
    backend = backend_of(compiler_of(pricing))
    lives = lives_in(graph, program, pricing)
    spent = accounted(program, pricing.op_cost, lives)
    counted = spent.peak_memory_bytes
    compiled = backend.set_aside(program, graph.donated, backend.workspace_bytes)
    if compiled is None:
        lends = backend.holding.results_lend
        expected = bytes_if_lent(program, lives, graph.donated) if lends else counted
        expected += backend.shared_workspace_bytes(program)
        return spent if expected == counted else replace(spent, set_aside_bytes=expected)

    return replace(
        spent,
        peak_memory_bytes=max(counted, compiled.most_bytes),
        set_aside_bytes=compiled.expected_bytes(counted),
    )


def lives_in(graph: OpGraph, program: ShardedProgram, pricing: Pricing) -> Lives:
    """When a device holds what while it runs `program`, as `account_of` counts it."""
    backend = backend_of(compiler_of(pricing))
    return lives_of(
        program,
        in_memory(graph, backend.counting),
        graph.donated,
        recomputed=recomputed(graph, backend.counting),
        workspace=backend.workspace_bytes,
        holding=backend.holding,
        fusing=backend.counting,
    )
