"""Recompute: where a memory limit binds, what to keep and what to compute once more, chosen with the placements.

First the plan in which everything is kept: on one mesh, if it costs much there (`MeshSearch.run`). Where there is none,
or the limit costs more than 5 % of the objective, the Problem that holds both choices (`cost.assemble_recompute`) is
solved too, on the meshes on which that can be better: little work bounds it on each, then the least bound goes first.
Where nothing is met on any of them, the one with the smallest program is looked into to the end. The better plan is
taken, so that no plan is worse for it. What is proven of it holds for plans that keep everything too: so that is all
that is proven then, and the plan is what is to be undercut.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from autopar.core.graph import OpGraph
from autopar.errors import NoFeasiblePlan, Unsolved
from autopar.search.best_bound_first import RaceResult, reaches
from autopar.search.limited_solve import FEW_ENTRIES
from autopar.search.memory_limit import bounded_within, plan_within
from autopar.search.mesh_search import Found, MeshSearch
from autopar.search.mesh_shapes import promise
from autopar.search.recomputable import recomputable
from autopar.search.recompute_solve import RecomputeSolve, recompute_solve, with_twins
from autopar.search.task import Planned, Task
from autopar.search.tried import entries_of
from autopar.solve import NothingCheaper
from autopar.solve.certificate.proof import Prices
from autopar.solve.parametric.relaxation import PricedBound

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

    Large attempts are made anew each time they are asked for: all at once they take too much memory. So of the proofs
    only that of the least bound is kept: its place is searched.
    """

    places: Sequence[MeshSearch]
    inside: Sequence[Collection[int]]
    free: Mapping[int, Found]
    known: list[float] = field(init=False)
    """What is proven of all plans at each place within the limit; `_least`: by little work, where it is the least."""
    _bounded: set[int] = field(default_factory=set[int])
    _small: dict[int, RecomputeSolve] = field(default_factory=lambda: dict[int, RecomputeSolve]())
    _least: tuple[int, PricedBound] = field(init=False)
    _prices: dict[OpGraph, list[Prices]] = field(default_factory=dict[OpGraph, list[Prices]])

    def __post_init__(self) -> None:
        self.known = [-inf] * len(self.places)
        self._least = -1, PricedBound(inf)

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
        position, least = self._least
        if position == n and task.memory_limit_bytes is not None:
            attempt.prove(task.memory_limit_bytes, least.bound, least.proof)
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
        found = bounded_within(attempt, limit, _unbounded(self.free[n][1]), below)
        if found.proof and found.bound < self._least[1].bound:
            self._least = n, found
        self.take_up(n, found.bound)
        return found.bound > 0


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
