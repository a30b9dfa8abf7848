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
from autopar.core.space import Space
from autopar.errors import InvalidOption, NoFeasiblePlan
from autopar.passes.account import Account, account
from autopar.passes.pipeline import build_program, program_states, write_dump
from autopar.passes.program import ShardedProgram
from autopar.price.assemble import assemble, placement_choice
from autopar.price.pricing import MakePricing, Pricing, restricted
from autopar.price.remembered import Remembered
from autopar.price.work import materialised, recomputed, workspace_bytes
from autopar.redistribute.route import Router
from autopar.search.modes import pins_of, step_kinds_of
from autopar.search.replicated import warn_unwritten
from autopar.search.resolve import FindRule, no_rule
from autopar.search.space import Pins, build_space, check_strategies
from autopar.solve import Infeasible, Problem, Solution, SolveOptions, solve


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

    `counted_bytes` is the peak that the Problem counted, where it had a limit.
    """

    graph: OpGraph
    plan: Plan
    program: ShardedProgram
    account: Account
    pricing: Pricing
    counted_bytes: float = 0.0


@dataclass(frozen=True, eq=False)
class Task:
    """What is to be planned: a graph, how it is priced, under which constraints; `find` finds rules by trial."""

    graph: OpGraph
    fingerprint: str
    make_pricing: MakePricing
    mode: str = "auto"
    pins: Pins | None = None
    memory_limit_bytes: int | None = None
    strict: bool = False
    options: SearchOptions = SearchOptions()
    dump: Path | None = None
    find: FindRule = no_rule


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
    outcomes = [_on_mesh(task, flow, mesh) for mesh in meshes]
    found = [outcome.planned for outcome in outcomes if outcome.planned is not None]
    if not found:
        misfits = [outcome.misfit for outcome in outcomes if outcome.misfit is not None]
        raise min(misfits, key=lambda misfit: misfit.min_peak_bytes or 0)
    best = min(found, key=lambda planned: planned.plan.objective_s)
    plan = replace(
        best.plan,
        fingerprint=task.fingerprint,
        lower_bound_s=min(best.plan.objective_s, *(outcome.lower_bound_s for outcome in outcomes)),
        space=f"mode {task.mode}{_steps(best.plan)}, mesh {' or '.join(str(mesh) for mesh in meshes)}",
    )
    return replace(best, plan=plan)


def _steps(plan: Plan) -> str:
    return f" (redistributing by {', '.join(plan.step_kinds)} only)" if plan.step_kinds else ""


@dataclass(frozen=True, eq=False)
class _Outcome:
    """What came of one mesh: a plan or the reason why there is none, and a bound that holds for it either way."""

    planned: Planned | None
    lower_bound_s: float
    misfit: NoFeasiblePlan | None = None


def _on_mesh(task: Task, flow: Dataflow, mesh: DeviceMesh) -> _Outcome:
    pricing = Remembered(task.make_pricing(task.graph, mesh))
    pins = task.pins or pins_of(task.mode, task.graph, mesh)
    space = build_space(task.graph, flow, mesh, keep=pricing.keep, pins=pins, strict=task.strict, find=task.find)
    attempt, planned = _unlimited(task, flow, space, pricing)
    bound, limit = planned.plan.lower_bound_s, task.memory_limit_bytes
    if limit is None or planned.account.peak_memory_bytes <= limit:
        return _Outcome(planned, bound)
    try:
        planned = attempt.within(limit, planned)
    except NoFeasiblePlan as error:
        return _Outcome(None, inf if error.proven else bound, error)
    return _Outcome(planned, planned.plan.lower_bound_s)


def _unlimited(task: Task, flow: Dataflow, space: Space, pricing: Pricing) -> tuple[_Attempt, Planned]:
    """The best plan without a memory limit, with the first steps of the mode that leave any."""
    for step_kinds in step_kinds_of(task.mode):
        attempt = _Attempt(task, flow, space, restricted(pricing, step_kinds), step_kinds)
        try:
            return attempt, attempt.solve(None)
        except Infeasible:
            continue
    raise NoFeasiblePlan(
        f"no plan on mesh {space.mesh} satisfies the constraints of mode {task.mode!r}: no sequence of steps takes "
        f"some tensor from where it is made to where it is pinned. Pin less, or choose another mode."
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


def restore(graph: OpGraph, plan: Plan, make_pricing: MakePricing, find: FindRule = no_rule) -> Planned:
    """The program and account of `plan`, made earlier for `graph`: nothing is searched.

    Raises:
      PlanFileError: if an operator has a strategy that is not one of its own.
    """
    check_strategies(graph, plan.stage, find)
    pricing = restricted(make_pricing(graph, plan.stage.mesh), plan.step_kinds)
    router = Router(plan.stage.mesh, pricing.step_cost)
    program = build_program(graph, dataflow(graph), plan.stage, router, pricing.step_cost)
    spent = _account(graph, program, pricing)
    return Planned(graph, plan, program, spent, pricing)


@dataclass(frozen=True, eq=False)
class _Attempt:
    """Solving one space, with and without a memory limit."""

    task: Task
    flow: Dataflow
    space: Space
    pricing: Pricing
    step_kinds: tuple[StepKind, ...]

    @cached_property
    def router(self) -> Router:
        """The routes under the pricing."""
        return Router(self.space.mesh, self.pricing.step_cost)

    @cached_property
    def _free(self) -> Problem:
        """The Problem without a memory limit."""
        return assemble(self.task.graph, self.flow, self.space, self.pricing, self.router)

    @cached_property
    def _limited(self) -> Problem:
        """The Problem under a memory limit, whatever it is."""
        return assemble(self.task.graph, self.flow, self.space, self.pricing, self.router, inf)

    def solve(self, limit_bytes: float | None) -> Planned:
        """The plan under `limit_bytes` on what the Problem counts; its bound is for that limit."""
        problem = self._free if limit_bytes is None else replace(self._limited, usage_limit=limit_bytes)
        return self._planned(solve(problem, options=self.task.options.solve))

    def within(self, limit: int, planned: Planned) -> Planned:
        """A plan whose program peaks within `limit`; `planned` is the best without one.

        The Problem does not count the buffers of redistributions on their way to a single operator; the program does.
        So where a program still exceeds the limit, the Problem's becomes what it counted for that choice, less the
        excess, until the choice of least peak is all that is left; only the bounds of the looser problems hold.
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
            tight = planned.counted_bytes - excess
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
        task = self.task
        stage = self.space.stage(placement_choice(self.space, solution.choice))
        program = build_program(task.graph, self.flow, stage, self.router, self.pricing.step_cost)
        spent = _account(task.graph, program, self.pricing)
        bound = solution.lower_bound
        plan = Plan((stage,), task.fingerprint, solution.objective, bound, step_kinds=self.step_kinds)
        return Planned(task.graph, plan, program, spent, self.pricing, solution.peak)

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
            f"no plan on mesh {self.space.mesh} fits in the memory limit of {limit:,} bytes a device: the smallest "
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
