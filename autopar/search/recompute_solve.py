"""RecomputeSolve: the attempt at what to keep and what to compute once more, with the placements, on one mesh.

What constraints say of an operator they say of its twin too; what is absent keeps to all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from autopar.core.dataflow import Dataflow, dataflow, group_of
from autopar.core.graph import OpGraph
from autopar.core.memo import once_per_graph
from autopar.core.placement import Placement
from autopar.core.plan import Plan, Stage
from autopar.core.recompute import Key, Recomputed, Rewritten, with_recomputed
from autopar.core.space import Space
from autopar.cost.assemble import placement_choice
from autopar.cost.assemble_recompute import (
    RecomputeProblem,
    assemble_recompute,
    least_bytes_recomputed,
)
from autopar.cost.cached_pricing import Remembered
from autopar.cost.pricing import restricted
from autopar.search.constraints.restriction import Restriction, each_alone, restriction
from autopar.search.limited_solve import LimitedSolve, account_of, program_of
from autopar.search.mesh_context import MeshContext
from autopar.search.recomputable import recomputable
from autopar.search.task import Planned, Task, quickly
from autopar.solve import Edge, Infeasible, NothingCheaper, Problem, Requirement, Solution
from autopar.solve.certificate.proof import Prices
from autopar.solve.problem.problem import derived


@once_per_graph
def with_twins(graph: OpGraph) -> Rewritten | None:
    """The graph with all that may be computed once more; None if there is nothing."""
    found = recomputable(graph)
    return with_recomputed(graph, found, residuals=True) if found else None


def recompute_solve(
    task: Task, attempt: LimitedSolve, rewritten: Rewritten, prices: list[Prices] | None = None
) -> RecomputeSolve:
    """The attempt at `rewritten`, which holds every twin, on the mesh and with the steps of `attempt`.

    `prices` are shared with attempts at it on other meshes.
    """
    base = attempt.ground
    graph = rewritten.graph
    flow = rewritten.flow
    ground = task.ground(graph, flow, base.mesh)
    space = _with_common_copies(rewritten, flow, ground.space)
    left = restriction(graph, space, task.all_constraints)

    found = RecomputeSolve(
        task, ground.holding(space), left, attempt.step_kinds, base=base, rewritten=rewritten
    )
    return found if prices is None else replace(found, prices=prices)


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


def padded(left: Restriction, counts: Sequence[int]) -> Restriction:
    """`left` where a variable may be absent, after its candidates: of what is absent constraints say nothing.

    So those that are tied to a variable which may be absent are tied to one another.
    """
    keep = {
        v: np.append(mask, np.ones(counts[v] - len(mask), dtype=np.bool_))
        for v, mask in left.keep.items()
    }
    ties: list[Edge] = []
    for n, tie in enumerate(left.ties):
        rows, columns = tie.cost.shape
        ties.append(
            Edge(
                tie.u,
                tie.v,
                np.pad(tie.cost, ((0, counts[tie.u] - rows), (0, counts[tie.v] - columns))),
            )
        )
        for other in left.ties[n + 1 :] if counts[tie.u] > rows else ():
            if other.u == tie.u and other.v != tie.v:
                same = (tie.cost.T == 0).astype(np.int64) @ (other.cost == 0).astype(np.int64)
                cost = np.where(same > 0, 0.0, np.inf)
                more = (0, counts[tie.v] - columns), (0, counts[other.v] - cost.shape[1])
                ties.append(Edge(tie.v, other.v, np.pad(cost, more)))

    return Restriction(keep, tuple(ties))


@dataclass(frozen=True, eq=False, kw_only=True)
class RecomputeSolve(LimitedSolve):
    """Solving for what to keep and what to compute once more.

    `ground` is that of `rewritten`, `base` that of the graph which keeps everything. If `by_tensors`, only tensors are
    counted.
    """

    base: MeshContext
    rewritten: Rewritten
    by_tensors: bool = False
    _assembled: dict[bool, RecomputeProblem] = field(default_factory=dict[bool, RecomputeProblem])
    _constrained: dict[bool, Problem] = field(default_factory=dict[bool, Problem])

    def problem(self, limit_bytes: float | None, *, tensors_only: bool = False) -> Problem:
        """The Problem under `limit_bytes`, with what the constraints leave."""
        if limit_bytes is None or tensors_only not in self._constrained:
            free = self.free_problem(limit_bytes, tensors_only=tensors_only)
            self._constrained[tensors_only] = self._padded(self.left).apply(free)
        found = self._constrained[tensors_only]
        return derived(found.node_costs, found.edges, found.usages, limit_bytes, found.periods)

    def free_problem(self, limit_bytes: float | None, *, tensors_only: bool = False) -> Problem:
        """The Problem under `limit_bytes` without constraints."""
        if limit_bytes is None:
            raise Infeasible("without a memory limit nothing is recomputed")
        whole = self.assembled(tensors_only).problem
        return derived(whole.node_costs, whole.edges, whole.usages, limit_bytes, whole.periods)

    def least_bytes(self) -> float:
        """What every choice holds on a device at some time, whatever it recomputes."""
        ground = self.ground
        args = self.rewritten, ground.flow, ground.space, *ground.minimised(self.step_kinds)
        return least_bytes_recomputed(*args)

    def of_tensors(self) -> RecomputeSolve:
        """The same, where only tensors are counted, and what nobody reads may be kept: more is met."""
        ground = self.ground
        left = self.left
        return RecomputeSolve(
            self.task,
            ground,
            left,
            self.step_kinds,
            base=self.base,
            rewritten=self.rewritten,
            by_tensors=True,
        )

    def groups(self) -> tuple[Requirement, ...]:
        """What every constraint leaves of the free Problem by itself."""
        every = each_alone(self.ground.graph, self.ground.space, self.task.all_constraints)
        return tuple(Requirement(left.keep, left.ties) for left in map(self._padded, every))

    def _padded(self, left: Restriction) -> Restriction:
        return padded(left, self.assembled().problem.counts)

    def assembled(self, tensors_only: bool = False) -> RecomputeProblem:
        """The Problem without a limit or constraints yet."""
        tensors_only = tensors_only or self.by_tensors
        if tensors_only not in self._assembled:
            ground = self.ground
            steps = self.step_kinds
            args = self.rewritten, ground.flow, ground.space, *ground.minimised(steps)
            self._assembled[tensors_only] = assemble_recompute(
                *args, inf, tensors_only=tensors_only
            )

        return self._assembled[tensors_only]

    def planned(self, solution: Solution) -> Planned:
        """The plan that a choice of the Problem is: of the graph that recomputes what it says."""
        task = self.task
        mesh = self.ground.mesh
        final, stage = self.decoded(solution.choice)
        pricing = restricted(
            Remembered(task.make_pricing(final.graph, mesh), final.graph), self.step_kinds
        )
        router = self.ground.router(self.step_kinds)
        program = program_of(final.graph, dataflow(final.graph), stage, router, pricing)
        plan = Plan(
            (stage,),
            solution.objective,
            solution.lower_bound,
            step_kinds=self.step_kinds,
            recomputed=_recomputed(final.keys),
            communication_weight=self.ground.communication_weight,
            hidden_weight=self.ground.hidden_weight,
        )
        spent = account_of(final.graph, program, pricing)
        counted = solution.peak
        found = Planned(
            task,
            plan,
            program,
            spent,
            pricing,
            self.base,
            counted_bytes=counted,
            rewritten=final.graph,
            attempt=self,
        )

        return replace(found, solution=solution)

    def bound_without_limit(self, below: float) -> float:
        """What plans cost without a limit, `below` at most; recomputing may save redistributing even there."""
        limited = self.problem(inf)
        options = quickly(self.task.options.solver)
        problem = derived(limited.node_costs, limited.edges)
        try:
            return self.solved_by(problem, None, options, below).lower_bound
        except NothingCheaper as nothing:
            return nothing.lower_bound

    def is_last(self, free: Planned, cost: float) -> bool:
        """It holds both choices; where tensors alone are counted nothing is proven, so less is looked into."""
        return not self.by_tensors and not self.is_one_of_several

    def times_of(self, planned: Planned) -> Sequence[int]:
        """Where the operators of the graph of a plan run in the one that holds every twin."""
        place = {key: n for n, key in enumerate(self.rewritten.keys)}
        keys = with_recomputed(self.task.graph, planned.plan.recomputed).keys
        return [*(place[key] for key in keys), len(place)]

    def decoded(self, choice: Sequence[int]) -> tuple[Rewritten, Stage]:
        """The graph that recomputes what `choice` says, and the stage of it."""
        problem = self.assembled()
        space = self.ground.space
        keys = [
            self.rewritten.keys[twin.op]
            for twin in self.rewritten.twins
            if problem.is_present(twin.op, choice)
        ]
        final = with_recomputed(self.task.graph, _recomputed(keys))
        whole = space.stage(placement_choice(space, choice[: len(space.counts)]))
        by_key = dict(zip(self.rewritten.keys, whole.strategies, strict=True))
        strategies = tuple(by_key[key] for key in final.keys)
        known = dict(zip(_copy_keys(self.rewritten, self.ground.flow), whole.copies, strict=True))
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
    known: Mapping[CopyKey, Placement],
    key: CopyKey,
    anew: Mapping[tuple[Key, int], tuple[Key, int]],
) -> Placement:
    """The placement chosen for the copy `key`: what is kept may have its late readers' copies under its twin's name."""
    if key in known:
        return known[key]
    maker = anew[key[0], key[1]]
    late = (*maker, "backward" if isinstance(key[2], int) else key[2])
    return known[late] if late in known else known[(*maker, None)]


def _recomputed(keys: Sequence[Key]) -> tuple[Recomputed, ...]:
    return tuple(sorted(Recomputed(int(str(k[1])), int(str(k[2]))) for k in keys if k[0] == "twin"))
