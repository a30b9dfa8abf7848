"""search: a graph and a cluster in, the best plan and its program out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, isfinite
from numbers import Real
from pathlib import Path
from typing import Literal

from autopar.core.dataflow import Dataflow, dataflow
from autopar.core.graph import OpGraph
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import StepKind
from autopar.core.plan import Plan
from autopar.core.regions import WHILE_TRIPS
from autopar.errors import InvalidOption, NoFeasiblePlan, PlanFileError
from autopar.passes.account import Account, account
from autopar.passes.pipeline import build_program, program_states, write_dump
from autopar.passes.program import ShardedProgram
from autopar.price.assemble import placement_choice
from autopar.price.pricing import MakePricing, Pricing
from autopar.price.work import materialised, recomputed, workspace_bytes
from autopar.redistribute.route import Router
from autopar.search.constraints import Constraint, show, step_kinds_of
from autopar.search.ground import Ground
from autopar.search.modes import constraints_of
from autopar.search.replicated import warn_unwritten
from autopar.search.resolve import FindRule, no_rule
from autopar.search.restriction import Restriction, can_name, holds, restriction
from autopar.search.space import check_strategies
from autopar.solve import Infeasible, Solution, SolveOptions, solve


@dataclass(frozen=True)
class SearchOptions:
    """How to search.

    `max_mesh_axes` bounds the mesh shapes tried where none is given; `max_tightenings` (>= 1) how often a memory limit
    is tightened for what only the program counts; `while_trips` how often a while loop is held to go round. `operators`
    says what becomes of functions that were made operators (`autopar.operator`): "kept" whole, "expanded", or "best":
    both are planned and the better plan is kept.
    """

    max_mesh_axes: int = 2
    max_tightenings: int = 8
    while_trips: float = WHILE_TRIPS
    operators: Literal["best", "kept", "expanded"] = "best"
    solve: SolveOptions = field(default_factory=SolveOptions)

    def __post_init__(self) -> None:
        trips: object = self.while_trips
        if isinstance(trips, bool) or not isinstance(trips, Real) or not isfinite(trips) or trips <= 0:
            raise InvalidOption(f"while_trips is {trips!r}: pass how often while loops go round, a finite number > 0")


@dataclass(frozen=True, eq=False)
class Planned:
    """A plan with what it was made from and what it became.

    `task` and `ground` are what it may be searched anew from. `unlimited` is the best plan without a memory limit,
    where that is known and another; `is_unlimited` says that it is known to be this one. `solution` is what the solver
    gave, where it did.
    """

    task: Task
    plan: Plan
    program: ShardedProgram
    account: Account
    pricing: Pricing
    ground: Ground
    unlimited: Planned | None = None
    is_unlimited: bool = False
    solution: Solution | None = None

    @property
    def graph(self) -> OpGraph:
        """The graph."""
        return self.task.graph


@dataclass(frozen=True, eq=False)
class Task:
    """What is to be planned: a graph, how it is priced, under which constraints; `find` finds rules by trial.

    `constraints` stand beside those of `mode`.
    """

    graph: OpGraph
    fingerprint: str
    make_pricing: MakePricing
    mode: str = "auto"
    constraints: tuple[Constraint, ...] = ()
    memory_limit_bytes: int | None = None
    strict: bool = False
    options: SearchOptions = SearchOptions()
    dump: Path | None = None
    find: FindRule = no_rule

    @cached_property
    def all_constraints(self) -> tuple[Constraint, ...]:
        """Those of the mode, then the others."""
        return constraints_of(self.mode, self.constraints)


def search(task: Task, meshes: Sequence[DeviceMesh]) -> Planned:
    """The best plan of `task` over `meshes`, by the solver's objective; its bound holds over all of them.

    Raises:
      NoFeasiblePlan: nothing fits in the memory limit on any of them; the smallest peak found is named.
    """
    return announced(task, find_plan(task, meshes))


def announced(task: Task, planned: Planned) -> Planned:
    """`planned`, after the user was told of its operators without a rule, and after every stage was dumped."""
    if not task.strict:
        warn_unwritten(task.graph, planned.plan.stage.mesh, planned.pricing, task.find)
    if task.dump is not None:
        _dump(task.graph, dataflow(task.graph), planned.plan, planned.pricing, task.dump)
    return planned


def find_plan(task: Task, meshes: Sequence[DeviceMesh]) -> Planned:
    """As `search`; nothing is said or written."""
    flow = dataflow(task.graph)
    grounds = [Ground(task.graph, flow, mesh, task.make_pricing, task.strict, task.find) for mesh in meshes]
    return find_on(task, nameable(task, grounds))


def nameable(task: Task, grounds: Sequence[Ground]) -> Sequence[Ground]:
    """Those of `grounds` whose meshes have the axes that the constraints name; all, to be refused, if none has."""
    named = [g for g in grounds if all(can_name(constraint, g.mesh) for constraint in task.all_constraints)]
    return named or grounds


def find_on(
    task: Task, grounds: Sequence[Ground], unlimited: Planned | None = None, near: Planned | None = None
) -> Planned:
    """As `search`, on grounds that are there already; `unlimited` and `near` as for `on_ground`, on a single one."""
    outcomes = [on_ground(task, ground, unlimited, near) for ground in grounds]
    found = [outcome.planned for outcome in outcomes if outcome.planned is not None]
    if not found:
        misfits = [outcome.misfit for outcome in outcomes if outcome.misfit is not None]
        raise min(misfits, key=lambda misfit: misfit.min_peak_bytes or 0)
    best = min(found, key=lambda planned: planned.plan.objective_s)
    plan = replace(
        best.plan,
        fingerprint=task.fingerprint,
        lower_bound_s=min(best.plan.objective_s, *(outcome.lower_bound_s for outcome in outcomes)),
        space=described(task, best.plan.step_kinds, [ground.mesh for ground in grounds]),
    )
    return replace(best, plan=plan)


def described(task: Task, step_kinds: tuple[StepKind, ...], meshes: Sequence[DeviceMesh]) -> str:
    """The space that was searched, for the user."""
    steps = f" (redistributing by {', '.join(step_kinds)} only)" if step_kinds else ""
    held = f", {show(task.constraints)}" if task.constraints else ""
    return f"mode {task.mode}{steps}{held}, mesh {' or '.join(str(mesh) for mesh in meshes)}"


@dataclass(frozen=True, eq=False)
class Outcome:
    """What came of one mesh: a plan or the reason why there is none, and a bound that holds for it either way."""

    planned: Planned | None
    lower_bound_s: float
    misfit: NoFeasiblePlan | None = None


def on_ground(task: Task, ground: Ground, unlimited: Planned | None = None, near: Planned | None = None) -> Outcome:
    """What comes of one mesh.

    `unlimited` is the best plan without a memory limit, if it is known; `near` another plan on the same candidates,
    from which the solver may start.

    Raises:
      NoFeasiblePlan: the constraints leave no plan, with or without a memory limit.
      InvalidConstraint: one is about nothing, cannot hold or contradicts others.
    """
    attempt, free = _unlimited(task, ground, unlimited, near)
    planned = replace(free, task=task, is_unlimited=True)
    bound, limit = planned.plan.lower_bound_s, task.memory_limit_bytes
    if limit is None or planned.account.peak_memory_bytes <= limit:
        return Outcome(planned, bound)
    try:
        planned = replace(attempt.within(limit, planned), unlimited=planned)
    except NoFeasiblePlan as error:
        return Outcome(None, inf if error.proven else bound, error)
    return Outcome(planned, planned.plan.lower_bound_s)


def _unlimited(task: Task, ground: Ground, known: Planned | None, near: Planned | None) -> tuple[_Attempt, Planned]:
    """The best plan without a memory limit, with the first steps of the constraints that leave any."""
    left = restriction(task.graph, ground.space, task.all_constraints)
    if known is not None:
        return _Attempt(task, ground, left, known.plan.step_kinds, near), known
    for step_kinds in step_kinds_of(task.all_constraints):
        attempt = _Attempt(task, ground, left, step_kinds, near)
        try:
            return attempt, attempt.solve(None)
        except Infeasible:
            continue
    held = f" and {show(task.constraints)}" if task.constraints else ""
    raise NoFeasiblePlan(
        f"no plan on mesh {ground.mesh} satisfies the constraints of mode {task.mode!r}{held}: no sequence of steps "
        f"takes some tensor from where it is made to where it is pinned. Pin less, or choose another mode."
    )


def _dump(graph: OpGraph, flow: Dataflow, plan: Plan, pricing: Pricing, directory: Path) -> None:
    """Writes every stage of `plan` to `directory` as numbered files: the graph, the plan, the program pass by pass."""
    router = Router(plan.stage.mesh, pricing.step_cost)
    states = program_states(graph, flow, plan.stage, router, pricing.step_cost)
    write_dump(directory, [("graph", graph), ("plan", _lines(graph, plan)), *states])


def _lines(graph: OpGraph, plan: Plan) -> str:
    """The plan line by line: inputs, operators, outputs with their placements."""
    stage = plan.stage
    lines = [f"mesh {stage.mesh}, objective {plan.objective_s:.6g} s, lower bound {plan.lower_bound_s:.6g} s"]
    lines += [f"{t.name} {t.dtype}{list(t.shape)} {p}" for t, p in zip(graph.inputs, stage.inputs, strict=True)]
    for op, strategy in zip(graph.ops, stage.strategies, strict=True):
        ins, outs = (" ".join(map(str, side)) for side in (strategy.ins, strategy.outs))
        lines.append(f"{op.id} {op.kind} {ins} -> {outs}  # {op.source}")
    lines += [f"output[{n}] {p}" for n, p in enumerate(stage.outputs)]
    return "\n".join(lines)


def restore(task: Task, plan: Plan) -> Planned:
    """The program and account of `plan`, made earlier for `task`: nothing is searched.

    Raises:
      PlanFileError: if an operator has a strategy that is not one of its own, or a constraint does not hold.
    """
    graph = task.graph
    check_strategies(graph, plan.stage, task.find)
    if not holds(graph, plan.stage, task.all_constraints):
        raise PlanFileError(
            f"the plan does not keep to its own constraints, {show(task.all_constraints)}: the file is damaged. Plan "
            f"again."
        )
    ground = Ground(graph, dataflow(graph), plan.stage.mesh, task.make_pricing, task.strict, task.find)
    pricing, router = ground.pricing(plan.step_kinds), ground.router(plan.step_kinds)
    program = build_program(graph, ground.flow, plan.stage, router, pricing.step_cost)
    spent = _account(graph, program, pricing)
    return Planned(task, plan, program, spent, pricing, ground)


@dataclass(frozen=True, eq=False)
class _Attempt:
    """Solving what constraints leave on one ground, with and without a memory limit."""

    task: Task
    ground: Ground
    left: Restriction
    step_kinds: tuple[StepKind, ...]
    near: Planned | None = None

    def solve(self, limit_bytes: float | None) -> Planned:
        """The plan under `limit_bytes` on what the Problem counts; its bound is for that limit."""
        options = self.task.options.solve
        problem = self.left.apply(self.ground.problem(self.step_kinds, limit_bytes))
        if limit_bytes is None and not self.left.ties:
            standing = self.ground.standing(self.step_kinds, options)
            if standing is not None:
                return self._planned(standing.solve(problem))
        return self._planned(solve(problem, options=options, warm=self._warm(limit_bytes is not None)))

    def _warm(self, is_limited: bool) -> Solution | None:
        """What the solver gave for a near plan with a limit, or without: their candidates are not the same."""
        near = self.near
        if near is not None and not is_limited and near.unlimited is not None:
            near = near.unlimited
        return near.solution if near is not None and near.is_unlimited != is_limited else None

    def within(self, limit: int, planned: Planned) -> Planned:
        """A plan whose program peaks within `limit`; `planned` is the best without one.

        The Problem does not count the buffers of redistributions on their way to a single operator; the program does.
        So where a program still exceeds the limit, the Problem's is tightened by the excess, until the choice of least
        peak is all that is left; only the bounds of the looser problems hold.
        """
        bound, smallest, tight, proven = planned.plan.lower_bound_s, planned, float(limit), False
        for _ in range(self.task.options.max_tightenings):
            planned, fits = self._solve_or_least(tight)
            bound = max(bound, planned.plan.lower_bound_s) if tight == limit else bound
            smallest = min(smallest, planned, key=lambda p: p.account.peak_memory_bytes)
            excess = planned.account.peak_memory_bytes - limit
            if excess <= 0:
                held = min(bound, planned.plan.objective_s)
                return replace(planned, plan=replace(planned.plan, lower_bound_s=held))
            if not fits:
                proven = tight == limit
                break
            tight -= excess
        raise self._misfit(limit, smallest, proven)

    def _solve_or_least(self, limit_bytes: float) -> tuple[Planned, bool]:
        """As `solve`, and True; where nothing keeps within the limit, the best of what is closest to it, and False."""
        try:
            return self.solve(limit_bytes), True
        except Infeasible as error:
            if error.min_peak_bytes is None:
                raise
            return self.solve(error.min_peak_bytes), False

    def _planned(self, solution: Solution) -> Planned:
        task, ground = self.task, self.ground
        stage = ground.space.stage(placement_choice(ground.space, solution.choice))
        pricing, router = ground.pricing(self.step_kinds), ground.router(self.step_kinds)
        program = build_program(task.graph, ground.flow, stage, router, pricing.step_cost)
        spent = _account(task.graph, program, pricing)
        bound = solution.lower_bound
        plan = Plan((stage,), task.fingerprint, solution.objective, bound, step_kinds=self.step_kinds)
        return Planned(task, plan, program, spent, pricing, ground, solution=solution)

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


def _account(graph: OpGraph, program: ShardedProgram, pricing: Pricing) -> Account:
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
