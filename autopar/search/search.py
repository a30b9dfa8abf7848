"""search: a graph and a cluster in, the best plan and its program out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autopar.core.dataflow import Dataflow, dataflow
from autopar.core.graph import OpGraph
from autopar.core.mesh import DeviceMesh
from autopar.core.plan import Plan
from autopar.core.space import Space
from autopar.errors import NoFeasiblePlan
from autopar.passes.account import Account, account
from autopar.passes.pipeline import build_program
from autopar.passes.program import ShardedProgram
from autopar.price.assemble import assemble, placement_choice
from autopar.price.pricing import MakePricing, Pricing
from autopar.price.work import materialised
from autopar.redistribute.route import Router
from autopar.search.modes import pins_of
from autopar.search.space import Pins, build_space
from autopar.solve import Infeasible, Solution, SolveOptions, solve


@dataclass(frozen=True)
class SearchOptions:
    """How to search.

    `max_mesh_axes` bounds the mesh shapes tried where none is given; `max_tightenings` (>= 1) how often a memory limit
    is tightened for what only the program counts.
    """

    max_mesh_axes: int = 2
    max_tightenings: int = 8
    solve: SolveOptions = field(default_factory=SolveOptions)


@dataclass(frozen=True, eq=False)
class Planned:
    """A plan with what it was made from and what it became."""

    graph: OpGraph
    plan: Plan
    program: ShardedProgram
    account: Account
    pricing: Pricing


@dataclass(frozen=True, eq=False)
class Task:
    """What is to be planned: a graph, how it is priced, under which constraints."""

    graph: OpGraph
    fingerprint: str
    make_pricing: MakePricing
    mode: str = "auto"
    pins: Pins | None = None
    memory_limit_bytes: int | None = None
    strict: bool = False
    options: SearchOptions = SearchOptions()
    dump: Path | None = None


def search(task: Task, meshes: Sequence[DeviceMesh]) -> Planned:
    """The best plan of `task` over `meshes`, by the solver's objective; its bound holds over all of them.

    Raises:
      NoFeasiblePlan: nothing fits in the memory limit on any of them; the smallest peak found is named.
    """
    flow = dataflow(task.graph)
    found: list[Planned] = []
    misfits: list[NoFeasiblePlan] = []
    for mesh in meshes:
        try:
            found.append(_on_mesh(task, flow, mesh))
        except NoFeasiblePlan as error:
            misfits.append(error)
    if not found:
        raise min(misfits, key=lambda error: error.min_peak_bytes or float("inf"))
    best = min(found, key=lambda planned: planned.plan.objective_s)
    plan = Plan(
        best.plan.stages,
        task.fingerprint,
        best.plan.objective_s,
        min(planned.plan.lower_bound_s for planned in found),
        f"mode {task.mode}, mesh {' or '.join(str(mesh) for mesh in meshes)}",
    )
    return Planned(best.graph, plan, best.program, best.account, best.pricing)


def _on_mesh(task: Task, flow: Dataflow, mesh: DeviceMesh) -> Planned:
    pricing = task.make_pricing(task.graph, mesh)
    router = Router(mesh, pricing.step_cost)
    pins = task.pins or pins_of(task.mode, task.graph, mesh)
    space = build_space(task.graph, flow, mesh, keep=pricing.keep, pins=pins, strict=task.strict)
    attempt = _Attempt(task, flow, space, pricing, router)
    planned, bound = attempt.solve(None)
    limit = task.memory_limit_bytes
    if limit is None or planned.account.peak_memory_bytes <= limit:
        return planned
    return attempt.within(limit, planned, bound)


def restore(graph: OpGraph, plan: Plan, make_pricing: MakePricing) -> Planned:
    """The program and account of `plan`, made earlier for `graph`: nothing is searched."""
    pricing = make_pricing(graph, plan.stage.mesh)
    router = Router(plan.stage.mesh, pricing.step_cost)
    program = build_program(graph, dataflow(graph), plan.stage, router, pricing.step_cost)
    spent = account(program, pricing.op_cost, materialised(graph), graph.donated)
    return Planned(graph, plan, program, spent, pricing)


@dataclass(frozen=True, eq=False)
class _Attempt:
    """Solving one space, with and without a memory limit."""

    task: Task
    flow: Dataflow
    space: Space
    pricing: Pricing
    router: Router

    def solve(self, limit_bytes: float | None) -> tuple[Planned, float]:
        """The plan under `limit_bytes` on what the Problem counts, and its lower bound."""
        task = self.task
        problem = assemble(task.graph, self.flow, self.space, self.pricing, self.router, limit_bytes)
        solution = solve(problem, options=task.options.solve)
        return self._planned(solution), solution.lower_bound

    def within(self, limit: int, planned: Planned, bound: float) -> Planned:
        """A plan whose program peaks within `limit`.

        The Problem does not count the buffers of redistributions on their way to a single operator; the program does.
        So where a program still exceeds the limit, the Problem's is tightened by the excess, and the bound of the
        looser ones keeps holding.
        """
        smallest = planned.account.peak_memory_bytes
        tight = float(limit)
        for _ in range(self.task.options.max_tightenings):
            try:
                planned, found = self.solve(tight)
            except Infeasible as error:
                known = min(smallest, error.min_peak_bytes or smallest)
                raise self._misfit(limit, int(known), planned) from error
            bound = max(bound, found) if tight == limit else bound
            peak = planned.account.peak_memory_bytes
            smallest = min(smallest, peak)
            if peak <= limit:
                plan = planned.plan
                plan = Plan(plan.stages, plan.fingerprint, plan.objective_s, min(bound, plan.objective_s), plan.space)
                return Planned(planned.graph, plan, planned.program, planned.account, planned.pricing)
            tight -= peak - limit
        raise self._misfit(limit, smallest, planned)

    def _planned(self, solution: Solution) -> Planned:
        task = self.task
        stage = self.space.stage(placement_choice(self.space, solution.choice))
        program = build_program(task.graph, self.flow, stage, self.router, self.pricing.step_cost)
        spent = account(program, self.pricing.op_cost, materialised(task.graph), task.graph.donated)
        plan = Plan((stage,), task.fingerprint, solution.objective, solution.lower_bound)
        return Planned(task.graph, plan, program, spent, self.pricing)

    def _misfit(self, limit: int, smallest: int, planned: Planned) -> NoFeasiblePlan:
        program = planned.program
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
        )


def _producer(planned: Planned, tensor: int) -> str:
    op = planned.graph.producers.get(tensor)
    return f"{op.kind} ({op.source})" if op else "a constant"
