"""Recompute: where a memory limit binds, what to keep and what to compute once more, chosen with the placements.

First the plan in which everything is kept. Where the limit costs something, the Problem that holds both choices
(`price.assemble_recompute`) is solved too, on the meshes on which that can be better; the better plan is taken, so that
no plan is worse for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from autopar.core.dataflow import Dataflow, dataflow, group_of
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.core.plan import Plan, Stage
from autopar.core.recompute import Key, Recomputed, Rewritten, with_recomputed
from autopar.core.space import Space
from autopar.errors import NoFeasiblePlan
from autopar.passes.pipeline import build_program
from autopar.price.assemble import placement_choice
from autopar.price.assemble_recompute import RecomputeProblem, assemble_recompute
from autopar.price.pricing import restricted
from autopar.search.modes import pins_of
from autopar.search.recomputable import recomputable
from autopar.search.search import Attempt, Outcome, Planned, Task, account_of, best_of, outcomes_of
from autopar.search.space import build_space
from autopar.solve import Infeasible, Solution, solve

_WORTH = 1e-3
"""What a memory limit must cost at least, as a share, before recomputing is looked into."""


def find_plan(task: Task, meshes: Sequence[DeviceMesh]) -> Planned:
    """The best plan of `task` over `meshes`, with or without recomputation; its bound holds over all of them.

    Raises:
      NoFeasiblePlan: nothing fits in the memory limit on any of them; the smallest peak found is named.
    """
    outcomes = outcomes_of(task, meshes)
    best = min((o.planned.plan.objective_s for o in outcomes if o.planned is not None), default=inf)
    worth = [task.options.recompute == "auto" and _is_worth(outcome, best) for outcome in outcomes]
    recomputed = recomputable(task.graph) if any(worth) else ()
    if not recomputed:
        return best_of(task, outcomes)
    rewritten = with_recomputed(task.graph, recomputed, residuals=True)
    tried = [_better(task, o, rewritten) if w else o for o, w in zip(outcomes, worth, strict=True)]
    planned = best_of(task, tried)
    on = " or ".join(str(o.attempt.space.mesh) for o, w in zip(outcomes, worth, strict=True) if w)
    return replace(planned, plan=replace(planned.plan, space=f"{planned.plan.space}, kept or recomputed on {on}"))


def _is_worth(outcome: Outcome, best_s: float) -> bool:
    """Whether the memory limit costs something on this mesh, and less could beat the best plan that keeps all."""
    if outcome.planned is outcome.unlimited:
        return False
    return outcome.unlimited.plan.lower_bound_s * (1 + _WORTH) < best_s


def _better(task: Task, outcome: Outcome, rewritten: Rewritten) -> Outcome:
    """`outcome`, or what recomputation makes of it, if that is better."""
    limit = task.memory_limit_bytes
    assert limit is not None
    attempt = recompute_attempt(task, outcome, rewritten)
    unbounded = replace(outcome.unlimited, plan=replace(outcome.unlimited.plan, lower_bound_s=0.0))
    try:
        found = attempt.within(limit, unbounded)
    except NoFeasiblePlan as error:
        bound = min((outcome.lower_bound_s, *attempt.bounds))
        misfits = [misfit for misfit in (outcome.misfit, error) if misfit is not None]
        smallest = min(misfits, key=lambda misfit: misfit.min_peak_bytes or 0)
        return replace(outcome, misfit=smallest, lower_bound_s=bound)
    kept = outcome.planned
    bound = min(outcome.lower_bound_s, found.plan.lower_bound_s)
    is_better = kept is None or found.plan.objective_s < kept.plan.objective_s
    return replace(outcome, planned=found if is_better else kept, lower_bound_s=bound)


def recompute_attempt(task: Task, outcome: Outcome, rewritten: Rewritten) -> RecomputeAttempt:
    """The attempt at `rewritten`, which holds every twin, on the mesh and with the steps of `outcome`."""
    mesh, step_kinds = outcome.attempt.space.mesh, outcome.attempt.step_kinds
    graph = rewritten.graph
    flow = dataflow(graph)
    pricing = restricted(task.make_pricing(graph, mesh), step_kinds)
    pins = task.pins or pins_of(task.mode, graph, mesh)
    space = build_space(graph, flow, mesh, keep=pricing.keep, pins=pins, strict=task.strict, find=task.find)
    space = _with_common_copies(rewritten, flow, space)
    return RecomputeAttempt(task, flow, space, pricing, step_kinds, rewritten=rewritten)


def _with_common_copies(rewritten: Rewritten, flow: Dataflow, space: Space) -> Space:
    """`space` in which the stored copies of what is kept and of what is computed anew have the same candidates."""
    graph = rewritten.graph
    stored = {copy.tensor.id: copy.id for copy in flow.copies if copy.stored}
    made = {t.id: (op.id, k) for op in graph.ops for k, t in enumerate(op.outs)}
    copies = list(space.copies)
    for twin in rewritten.twins:
        for new, kept in zip(graph.ops[twin.op].outs, twin.kept, strict=True):
            if kept is None or new.id not in stored:
                continue
            join = stored[new.id]
            if kept.id in stored:
                other = copies[stored[kept.id]]
            else:
                op, position = made[kept.id]
                other = tuple(strategy.outs[position] for strategy in space.strategies[op])
            both = tuple(dict.fromkeys((*other, *copies[join])))
            copies[join] = both
            if kept.id in stored:
                copies[stored[kept.id]] = both
    return replace(space, copies=tuple(copies))


@dataclass(frozen=True, eq=False, kw_only=True)
class RecomputeAttempt(Attempt):
    """Solving for what to keep and what to compute once more. Space, flow and pricing are those of `rewritten`.

    `bounds` are those found under the memory limit itself, before it was tightened.
    """

    rewritten: Rewritten
    bounds: list[float] = field(default_factory=list[float])

    def solve(self, limit_bytes: float | None) -> Planned:
        """The plan under `limit_bytes` on what the Problem counts; its bound is for that limit."""
        problem = self.problem(limit_bytes)
        solution = solve(problem.problem, options=self.task.options.solve)
        if limit_bytes == self.task.memory_limit_bytes:
            self.bounds.append(solution.lower_bound)
        return self.planned(problem, solution)

    def problem(self, limit_bytes: float | None) -> RecomputeProblem:
        """The Problem under `limit_bytes`."""
        if limit_bytes is None:
            raise Infeasible("without a memory limit nothing is recomputed")
        return assemble_recompute(self.rewritten, self.flow, self.space, self.pricing, self.router, limit_bytes)

    def planned(self, problem: RecomputeProblem, solution: Solution) -> Planned:
        """The plan that a choice of the Problem is: of the graph that recomputes what it says."""
        task, mesh = self.task, self.space.mesh
        final, stage = self.decoded(problem, solution.choice)
        pricing = restricted(task.make_pricing(final.graph, mesh), self.step_kinds)
        program = build_program(final.graph, dataflow(final.graph), stage, self.router, pricing.step_cost)
        plan = Plan((stage,), task.fingerprint, solution.objective, solution.lower_bound, step_kinds=self.step_kinds)
        plan = replace(plan, recomputed=_recomputed(final.keys))
        return Planned(final.graph, plan, program, account_of(final.graph, program, pricing), pricing)

    def decoded(self, problem: RecomputeProblem, choice: Sequence[int]) -> tuple[Rewritten, Stage]:
        """The graph that recomputes what `choice` says, and the stage of it."""
        keys = [self.rewritten.keys[twin.op] for twin in self.rewritten.twins if problem.is_present(twin.op, choice)]
        final = with_recomputed(self.task.graph, _recomputed(keys))
        whole = self.space.stage(placement_choice(self.space, choice[: len(self.space.counts)]))
        by_key = dict(zip(self.rewritten.keys, whole.strategies, strict=True))
        strategies = tuple(by_key[key] for key in final.keys)
        known = dict(zip(_copy_keys(self.rewritten, self.flow), whole.copies, strict=True))
        anew = _anew(self.rewritten)
        flow = dataflow(final.graph)
        copies = tuple(_placement(known, key, anew) for key in _copy_keys(final, flow))
        return final, replace(whole, strategies=strategies, copies=copies)


CopyKey = tuple[Key, int, object]
"""The operator that makes a copy's tensor (or the input's number), which of its results it is, and its readers."""


def _copy_keys(rewritten: Rewritten, flow: Dataflow) -> list[CopyKey]:
    """What each copy of a rewritten graph is in all of them."""
    graph = rewritten.graph
    made: dict[int, tuple[Key, int]] = {t.id: (("input", n), 0) for n, t in enumerate(graph.inputs)}
    made |= {t.id: (rewritten.keys[op.id], k) for op in graph.ops for k, t in enumerate(op.outs)}
    return [(*made[copy.tensor.id], group_of(graph, copy)) for copy in flow.copies]


def _anew(rewritten: Rewritten) -> dict[tuple[Key, int], tuple[Key, int]]:
    """For each result that may be kept, the one that stands for it and for its late readers' copies."""
    graph = rewritten.graph
    made = {t.id: (rewritten.keys[op.id], k) for op in graph.ops for k, t in enumerate(op.outs)}
    return {
        made[kept.id]: made[new.id]
        for twin in rewritten.twins
        for kept, new in zip(twin.kept, graph.ops[twin.op].outs, strict=True)
        if kept is not None
    }


def _placement(
    known: Mapping[CopyKey, Placement], key: CopyKey, anew: Mapping[tuple[Key, int], tuple[Key, int]]
) -> Placement:
    """The placement chosen for the copy `key`: what is kept may have its late readers' copies under its twin's name."""
    if key in known:
        return known[key]
    maker = anew[key[0], key[1]]
    late = (*maker, "backward" if isinstance(key[2], int) else key[2])
    return known[late] if late in known else known[(*maker, None)]


def _recomputed(keys: Sequence[Key]) -> tuple[Recomputed, ...]:
    return tuple(sorted(Recomputed(int(str(k[1])), int(str(k[2]))) for k in keys if k[0] == "twin"))
