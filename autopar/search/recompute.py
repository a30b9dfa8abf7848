"""Recompute: where a memory limit binds, what to keep and what to compute once more, chosen with the placements.

First the plan in which everything is kept: on one mesh, if it costs much there (`MeshSearch.run`). Where there is none,
or the limit costs more than 5 % of the objective, the Problem that holds both choices (`cost.assemble_recompute`) is
solved too, on the meshes on which that can be better: little work bounds it on each, then the least bound goes first.
Where nothing is met on any of them, the one with the smallest program is looked into to the end.
The better plan is taken, so that no plan is worse for it. What is proven of it holds for plans that keep everything
too: so that is all that is proven then, and the plan is what is to be undercut.

What constraints say of an operator they say of its twin too; what is absent keeps to all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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
from autopar.errors import NoFeasiblePlan, Unsolved
from autopar.search.best_bound_first import RaceResult, reaches
from autopar.search.constraints.restriction import Restriction, each_alone, restriction
from autopar.search.limited_solve import FEW_ENTRIES, LimitedSolve, account_of, program_of
from autopar.search.memory_limit import bounded_within, plan_within
from autopar.search.mesh_context import MeshContext
from autopar.search.mesh_search import Found, MeshSearch
from autopar.search.mesh_shapes import promise
from autopar.search.recomputable import recomputable
from autopar.search.task import Planned, Task, quickly
from autopar.search.tried import entries_of
from autopar.solve import Edge, Infeasible, NothingCheaper, Problem, Requirement, Solution
from autopar.solve.certificate.proof import Prices
from autopar.solve.problem.problem import derived

_ENOUGH = 0.02  # of a plan's cost: what may be left to prove
_CLOSE = 0.01  # of a bound


def may_recompute(task: Task) -> bool:
    """Whether there is anything that may be computed once more."""
    return task.options.recompute != "never" and bool(recomputable(task.graph))


def or_recomputed(
    places: Sequence[MeshSearch],
    finish: RaceResult[Planned],
    inside: Sequence[Collection[int]],
    worth: float,
) -> tuple[RaceResult[Planned], tuple[int, ...]]:
    """`finish`, or a better one with recomputation, and the positions of the places on which that was looked into.

    Args:
      places: what is searched, on every mesh.
      finish: of their race, in which everything is kept.
      inside: for every place those whose plans are all among its own.
      worth: what the memory limit must cost more than, as a share of the objective without it.
    """
    limit = places[0].task.memory_limit_bytes
    options = places[0].task.options
    if limit is None or options.recompute == "never":
        return finish, ()

    met = ((n, place.binding(limit)) for n, place in enumerate(places))
    bound_by = {n: found for n, found in met if found is not None}
    bounds = {n: free.plan.lower_bound_s for n, (_, free) in bound_by.items()}
    if min(bounds.values(), default=inf) * (1 + worth) >= finish.objective:
        return finish, ()

    looked = _Looked(places, inside, bound_by)
    left = _in_order(places, bounds)
    tried = set[int]()
    unmet: dict[int, int] = {}
    while left := [n for n in left if looked.is_open(n, finish.objective)]:
        n = min(left, key=looked.known.__getitem__)
        is_to_be_undercut = finish.found is not None and len(left) > 1
        if is_to_be_undercut and looked.is_bounded_anew(n, limit, finish.objective):
            continue
        left.remove(n)
        is_one = finish.found is not None or bool(left) or bool(unmet)
        again = looked.at(n, is_one_of_several=is_one)
        found = _better(again, limit, bound_by[n][1], n, finish)
        if found is not None:
            finish = found
            tried.add(n)
            looked.take_up(n, again.bound_within(limit))
        if is_one and finish.found is None and (peak := _smallest_peak(finish)):
            unmet[n] = peak

    if finish.found is None and unmet and not places[0].task.stop.is_over:
        n = min(unmet, key=unmet.__getitem__)
        again = looked.at(n, is_one_of_several=False)
        finish = _better(again, limit, bound_by[n][1], n, finish) or finish
        looked.take_up(n, again.bound_within(limit))

    proven = tuple(map(max, finish.bounds, looked.known))
    return replace(finish, bounds=proven), tuple(sorted(tried))


@dataclass(eq=False)
class _Looked:
    """What is known of recomputation at the places whose `free` plans exceed the limit, and the attempts at it.

    Large attempts are made anew each time they are asked for: all at once they take too much memory.
    """

    places: Sequence[MeshSearch]
    inside: Sequence[Collection[int]]
    free: Mapping[int, Found]
    known: list[float] = field(init=False)
    """What is proven of all plans at each place within the limit."""
    _bounded: set[int] = field(default_factory=set[int])
    _small: dict[int, RecomputeSolve] = field(default_factory=lambda: dict[int, RecomputeSolve]())
    _prices: dict[OpGraph, list[Prices]] = field(default_factory=dict[OpGraph, list[Prices]])

    def __post_init__(self) -> None:
        self.known = [-inf] * len(self.places)

    def is_open(self, n: int, best: float) -> bool:
        """Whether there is anything to recompute at a place, and what is proven does not rule it out."""
        task = self.places[n].task
        bound = max(self.known[n], self.free[n][1].plan.lower_bound_s)
        is_ruled_out = reaches(bound, best, task.options.gap_tolerance)
        return not is_ruled_out and with_twins(task.graph) is not None

    def take_up(self, n: int, bound: float) -> None:
        """What is proven at a place holds for those whose plans are all among its own."""
        for coarse in (n, *self.inside[n]):
            self.known[coarse] = max(self.known[coarse], bound)

    def at(self, n: int, *, is_one_of_several: bool = False) -> RecomputeSolve:
        """The attempt at a place; a small one is looked into to the end, although it is one of several."""
        if n in self._small:
            return self._small[n]
        task = self.places[n].task
        twins = with_twins(task.graph)
        assert twins is not None
        prices = self._prices.setdefault(task.graph, list[Prices]())
        attempt = recompute_solve(task, self.free[n][0], twins, prices)
        is_small = entries_of(attempt) <= FEW_ENTRIES
        return replace(attempt, is_one_of_several=is_one_of_several and not is_small)

    def is_bounded_anew(self, n: int, limit: int, below: float) -> bool:
        """Whether little work proves anything of a place of which nothing was proven so; `below` is to be undercut."""
        if n in self._bounded or self.places[n].task.stop.is_over:
            return False
        self._bounded.add(n)
        attempt = self.at(n)
        if entries_of(attempt) <= FEW_ENTRIES:
            self._small[n] = attempt
        bound = bounded_within(attempt, limit, _unbounded(self.free[n][1]), below)
        self.take_up(n, bound)
        return bound > 0


def _smallest_peak(finish: RaceResult[Planned]) -> int | None:
    """That of the programs that were made at the last place that was looked into, if nothing is proven of it."""
    last = finish.misfits[-1] if finish.misfits else None
    return last.min_peak_bytes if isinstance(last, Unsolved) else None


def _in_order(places: Sequence[MeshSearch], bounds: Mapping[int, float]) -> list[int]:
    """The positions of places, those first that are to be looked at first: of the least bounds without the limit.

    What is as close there says nothing of which is better within the limit: then as where nothing is known.
    """
    found = sorted(bounds, key=lambda n: (bounds[n], n))
    least = -inf
    ranks: dict[int, float] = {}
    for n in found:
        least = ranks[n] = least if bounds[n] <= least * (1 + _CLOSE) else bounds[n]
    return sorted(found, key=lambda n: (ranks[n], promise(places[n].ground.mesh), n))


@once_per_graph
def with_twins(graph: OpGraph) -> Rewritten | None:
    """The graph with all that may be computed once more; None if there is nothing."""
    found = recomputable(graph)
    return with_recomputed(graph, found, residuals=True) if found else None


def _better(
    again: RecomputeSolve, limit: int, free: Planned, position: int, finish: RaceResult[Planned]
) -> RaceResult[Planned] | None:
    """`finish` after `again` was solved too, which is at `position`; None where the solver's work did not suffice."""
    try:
        planned = _within(again, limit, free, finish)
    except NothingCheaper:
        planned = None
    except (NoFeasiblePlan, Unsolved) as error:
        if isinstance(error, Unsolved) and finish.found is not None:
            return None
        planned = None
        finish = replace(finish, misfits=(*finish.misfits, error))

    bounds = list(finish.bounds)
    cheapest = (
        finish.objective if planned is None else min(planned.plan.objective_s, finish.objective)
    )
    bounds[position] = _bound(again, limit, free, cheapest)  # of plans that keep everything too
    finish = replace(finish, bounds=tuple(bounds))
    if planned is None or planned.plan.objective_s >= finish.objective:
        return finish

    planned = replace(planned, unlimited=replace(free, task=again.task, is_unlimited=True))
    return replace(finish, winner=position, found=planned, objective=planned.plan.objective_s)


def _bound(again: RecomputeSolve, limit: int, free: Planned, cheapest: float) -> float:
    """What is proven of all plans within the limit, the cheapest known of which costs `cheapest`.

    If much is left, and the best that keeps everything costs more without a limit, what is proven without one too.
    """
    bound = again.bound_within(limit)
    least = free.plan.lower_bound_s
    is_enough = bound >= least or cheapest == inf or bound >= cheapest * (1 - _ENOUGH)
    if is_enough or again.task.stop.is_over:
        return bound
    try:
        return max(bound, again.bound_without_limit(least))
    except KeyboardInterrupt:
        again.task.stop.note("keyboard")
        return bound


def _within(
    again: RecomputeSolve, limit: int, free: Planned, finish: RaceResult[Planned]
) -> Planned:
    """The plan within the limit; where none is met, and none known, one that is met where tensors alone are counted.

    These are counted at times at which a program has let go of them: so nothing is proven there.

    Raises:
      NoFeasiblePlan, Unsolved, NothingCheaper: as `plan_within`.
    """
    unbounded = _unbounded(free)
    try:
        return plan_within(again, limit, unbounded, finish.objective)
    except Unsolved as error:
        if finish.found is not None or again.is_one_of_several:
            raise
        unknown = error

    try:
        met = plan_within(again.of_tensors(), limit, unbounded, finish.objective)
    except (NoFeasiblePlan, Unsolved, NothingCheaper):
        raise unknown from None

    solution = met.solution and replace(met.solution, lower_bound=0.0, witness=())
    return replace(met, solution=solution)  # bounds come from `again` alone


def _unbounded(free: Planned) -> Planned:
    """A plan of which nothing is proven: what is proven of plans that keep everything is not of others."""
    return replace(free, plan=replace(free.plan, lower_bound_s=0.0))


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
