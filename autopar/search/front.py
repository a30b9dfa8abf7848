"""Front: the best plan for one memory limit after another, from the least peak found up to the fastest plan of all.

All limits are solved on the same candidates and prices. First all plans keep everything; then, on the meshes of these,
plans are met that compute once more what they do not keep (`front_recompute`), and bounds hold for both.
What is bounded under a loose limit is bounded under every tighter one.

Small problems are solved anew within every limit, from loose to tight, but for limits that the plan of a looser one
keeps, if that is proven. Each search looks for what undercuts the plans met before that keep within its limit, until it
is proven to `front_gap`.

    limit_k = least * (most / least) ^ (k / (points - 1))       k = 1 .. points - 2

`most` is the peak of the fastest plan within the task's own limit, `least` the smallest peak of a program that is met
(`memory_loop.least_memory`).

On large ones that would take minutes, and so it would where plans may recompute. There choices and bounds for all
limits come of one curve (`along`, `solve.curve`), and the limits are the peaks of programs of these choices: the
smallest first, then again and again one between those two that are furthest apart. Each point says what its gap is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf

from autopar.core.dataflow import dataflow
from autopar.core.mesh import DeviceMesh
from autopar.errors import AutoparError, InvalidConstraint, NoFeasiblePlan, Unsolved
from autopar.search.best_bound_first import TIE, RaceResult, race
from autopar.search.explain_infeasible import explained, refusal
from autopar.search.front_curve import FrontCurve, Lane, Point
from autopar.search.front_recompute import FrontAgain
from autopar.search.memory_loop import least_memory
from autopar.search.mesh_context import MeshContext
from autopar.search.mesh_search import MeshSearch
from autopar.search.recompute import may_recompute
from autopar.search.search import announced, contained, find_at, nameable, settled
from autopar.search.task import Planned, Task, begun
from autopar.search.tried import peak_of

_CP_SAT_WORK = 1.0


def find_front(
    tasks: Sequence[Task],
    meshes: Sequence[DeviceMesh],
    points: int,
    ground: MeshContext | None = None,
) -> tuple[Point, ...]:
    """At most `points` (>= 2) points, the least memory first: each costs less than all that need less memory.

    `tasks` are graphs of one function, with the same limit; `ground` is that of the only one on the only mesh, if it
    is there.

    Raises:
      NoFeasiblePlan: nothing fits in the tasks' own limit.
    """
    sweeps = [_Sweep(_content(task), meshes, ground) for task in begun(tasks)]
    stop = sweeps[0].task.stop
    fastest = _fastest(sweeps)
    announced(tasks[fastest.position], fastest.planned)
    most = fastest.planned.account.peak_memory_bytes
    fastest = replace(fastest, limit_bytes=most)
    found = [fastest]
    recomputing: list[FrontAgain] = []
    try:
        # what came before an interruption stays
        found.extend(_others(sweeps, fastest.planned, points))
        for again in _recomputing(sweeps, found):
            recomputing.append(again)
            found.extend(again.points(fastest.planned, points))
    except KeyboardInterrupt:
        stop.note("keyboard")

    bounded = [_bounded_by(recomputing, point) for point in found]
    told = monotone(sorted(bounded, key=lambda point: (point.limit_bytes, _cost(point))))
    if _cost(told[-1]) == _cost(fastest):
        # it is known better than what bounds tighter limits too
        told[-1] = _with_bound(told[-1], fastest.planned.plan.lower_bound_s)
    return tuple(_stopped(point, str(stop)) for point in _spread(thinned(told), points))


def _fastest(sweeps: Sequence[_Sweep]) -> Point:
    """The fastest plan within the tasks' own limit; where that binds, the one that a search for a single plan finds.

    Raises:
      NoFeasiblePlan: nothing fits.
      Unsolved: nothing was met that fits, and it is not proven that nothing does.
    """
    limit = sweeps[0].task.memory_limit_bytes
    may_again = limit is not None and any(may_recompute(sweep.task) for sweep in sweeps)
    try:
        fastest = _best(sweeps, None if may_again else limit)
    except NoFeasiblePlan as error:
        raise explained(error) from None

    if not may_again or limit is None or fastest.limit_bytes <= limit:
        return fastest
    planned = find_at([place for sweep in sweeps for place in sweep.places])
    graphs = [sweep.task.graph for sweep in sweeps]
    position = next(n for n, graph in enumerate(graphs) if graph is planned.task.graph)
    return Point(limit, position, planned)


def _recomputing(sweeps: Sequence[_Sweep], found: Sequence[Point]) -> Iterator[FrontAgain]:
    """What may recompute, on the meshes of the points of each graph."""
    for position, sweep in enumerate(sweeps):
        meshes = {p.planned.plan.stage.mesh for p in found if p.position == position}
        places = [place for place in sweep.places if place.ground.mesh in meshes]
        again = FrontAgain(sweep.task, position, places)
        if may_recompute(sweep.task) and not sweep.task.stop.is_over and again.curve.lanes:
            yield again


def _bounded_by(recomputing: Sequence[FrontAgain], point: Point) -> Point:
    """The point with a bound that holds for plans that recompute too."""
    proven = [again.bound_s(point.limit_bytes) for again in recomputing]
    return _with_bound(point, min([point.planned.plan.lower_bound_s, *proven]))


def _with_bound(point: Point, bound_s: float) -> Point:
    plan = replace(point.planned.plan, lower_bound_s=bound_s)
    return replace(point, planned=replace(point.planned, plan=plan))


def _others(sweeps: Sequence[_Sweep], fastest: Planned, points: int) -> Iterator[Point]:
    """The points that keep everything, of less memory than the fastest plan, until the search is stopped.

    None, where those that may recompute hold them all: on a single mesh.
    """
    stop = sweeps[0].task.stop
    if all(sweep.is_large and len(sweep.places) == 1 for sweep in sweeps) and all(
        may_recompute(sweep.task) for sweep in sweeps
    ):
        return

    if any(sweep.is_large for sweep in sweeps):
        for limit in _peaks(sweeps, fastest, points):
            if stop.is_over:
                return
            yield _best_along(sweeps, limit)
        return

    if stop.is_over:
        return

    most = fastest.account.peak_memory_bytes
    smallest = [planned for sweep in sweeps for planned in sweep.smallest()]
    least = min([most, *map(peak_of, smallest)])
    enough = sweeps[0].task.options.gap_tolerance
    last = fastest
    for limit in reversed(limits(least, most, points)[:-1]):
        if stop.is_over:
            return
        if peak_of(last) <= limit and last.plan.gap <= enough:
            continue  # nothing undercuts the plan within a looser limit, which keeps within this one
        point = _best(sweeps, limit)
        last = point.planned
        yield replace(point, limit_bytes=peak_of(last))


def _peaks(sweeps: Sequence[_Sweep], fastest: Planned, points: int) -> Iterator[int]:
    """The peaks of programs of large problems that need less than the fastest: fewer of each, the more there are."""
    for sweep in sweeps:
        yield from sweep.along.peaks_bytes(
            fastest, max(2, (points - 1) // len(sweeps) + (len(sweeps) > 1))
        )


def _stopped(point: Point, reason: str) -> Point:
    """The point, of a front whose search ended for this reason; "": at its end."""
    plan = replace(point.planned.plan, stopped=reason or point.planned.plan.stopped)
    return replace(point, planned=replace(point.planned, plan=plan))


def _content(task: Task) -> Task:
    """The task, content with plans that are proven to be about as good as any, and with less work on each."""
    solve = task.options.solve
    gap = task.options.front_gap
    wanted = max(gap, task.options.gap_tolerance) if gap else 0.0
    solve = replace(
        solve, max_rounds=min(1, solve.max_rounds), cp_sat_work=min(_CP_SAT_WORK, solve.cp_sat_work)
    )
    return replace(task, options=replace(task.options, solve=solve, gap_tolerance=wanted))


def _spread(points: Sequence[Point], count: int) -> tuple[Point, ...]:
    """At most `count` of the points: again and again the one goes whose neighbours are closest in memory."""
    kept = list(points)
    while len(kept) > count:
        ratios = [
            kept[n + 1].limit_bytes / kept[n - 1].limit_bytes for n in range(1, len(kept) - 1)
        ]
        del kept[1 + ratios.index(min(ratios))]
    return tuple(kept)


def limits(least: int, most: int, points: int) -> list[int]:
    """`points` limits from `least` to `most` in equal ratios, as whole bytes; fewer where these fall together."""
    ratio = most / least if least else 1.0
    inner = [int(least * ratio ** (k / (points - 1))) for k in range(1, points - 1)]
    return sorted({least, *inner, most})


def monotone(points: Sequence[Point]) -> list[Point]:
    """The points, from tight to loose, with what each tells of its neighbours.

    A plan within a limit is one within every looser limit; a bound for a limit is one for every tighter limit.
    """
    found: list[Point] = []
    for point in points:
        cheaper = found[-1] if found and _cost(found[-1]) <= _cost(point) else point
        found.append(replace(point, position=cheaper.position, planned=_under(cheaper, point)))

    bound = -inf
    bounded = list[Point]()
    for point in reversed(found):
        plan = point.planned.plan
        bound = min(max(bound, plan.lower_bound_s), plan.objective_s)
        bounded.append(
            replace(point, planned=replace(point.planned, plan=replace(plan, lower_bound_s=bound)))
        )

    return bounded[::-1]


def thinned(points: Iterable[Point]) -> tuple[Point, ...]:
    """The points, from tight to loose, without those that are not cheaper than all before."""
    kept: list[Point] = []
    for point in points:
        if not kept or _cost(point) < _cost(kept[-1]) * (1 - TIE):
            kept.append(point)
    return tuple(kept)


def _cost(point: Point) -> float:
    return point.planned.plan.objective_s


def _under(point: Point, other: Point) -> Planned:
    """The plan of `point` under the limit and bound of `other`."""
    planned = point.planned
    bounded = other.planned
    plan = replace(planned.plan, lower_bound_s=bounded.plan.lower_bound_s, space=bounded.plan.space)
    return replace(
        planned, task=replace(planned.task, memory_limit_bytes=other.limit_bytes), plan=plan
    )


def _best(sweeps: Sequence[_Sweep], limit: int | None) -> Point:
    """The best of all graphs within `limit`; its bound holds for all of them."""
    found: dict[int, Planned] = {}
    misfits: list[AutoparError] = []
    for position, sweep in enumerate(sweeps):
        try:
            found[position] = sweep.best(limit)
        except (NoFeasiblePlan, Unsolved, InvalidConstraint) as error:
            misfits.append(error)

    if not found:
        raise refusal(misfits)
    return _cheapest(found, limit)


def _best_along(sweeps: Sequence[_Sweep], limit: int) -> Point:
    """The best of all graphs within `limit`, the peak of a plan that was met along all limits."""
    met = ((n, sweep.best_along(limit)) for n, sweep in enumerate(sweeps))
    return _cheapest({n: planned for n, planned in met if planned is not None}, limit)


def _cheapest(found: Mapping[int, Planned], limit: int | None) -> Point:
    """The cheapest of the plans of some graphs, by position; its bound holds for all of them."""
    position = min(found, key=lambda n: (found[n].plan.objective_s, n))
    plan = found[position].plan
    bound = min(plan.objective_s, *(planned.plan.lower_bound_s for planned in found.values()))
    limit_bytes = limit if limit is not None else found[position].account.peak_memory_bytes
    return Point(
        limit_bytes, position, replace(found[position], plan=replace(plan, lower_bound_s=bound))
    )


@dataclass(eq=False)
class _Sweep:
    """One graph on all meshes under one limit after another; `met` are the plans so far."""

    task: Task
    meshes: Sequence[DeviceMesh]
    ground: MeshContext | None = None
    met: list[Planned] = field(default_factory=list[Planned])

    def __post_init__(self) -> None:
        task = self.task
        flow = dataflow(self.task.graph)
        if self.ground is None:
            grounds = [task.ground(task.graph, flow, mesh) for mesh in self.meshes]
        else:
            grounds = [self.ground]
        self.grounds = nameable(task, grounds)
        self.places = [MeshSearch(task, ground) for ground in self.grounds]
        self.inside = contained(task, self.grounds)
        self.bounds = [-inf] * len(self.grounds)

    def best(self, limit: int | None) -> Planned:
        """The best plan within `limit`, at least as good as all met before that keep within it.

        Raises:
          NoFeasiblePlan: nothing fits.
        """
        task = replace(self.task, memory_limit_bytes=limit)
        known = min(
            self._fitting(limit), key=lambda planned: planned.plan.objective_s, default=None
        )
        runs = [place.run(limit, roughly=len(self.places) > 1) for place in self.places]
        below = inf if known is None else known.plan.objective_s
        finish = race(
            runs, self.inside, below=below, stop=task.stop, gap_tolerance=task.options.gap_tolerance
        )
        self.bounds = [max(pair) for pair in zip(self.bounds, finish.bounds, strict=True)]
        found = finish.found or known
        if found is None:
            raise refusal(finish.misfits)

        self.met.append(found)
        return settled(task, self.grounds, finish, replace(found, task=task))

    def best_along(self, limit: int) -> Planned | None:
        """The best plan met within `limit` along all limits; its bound holds for all meshes. None: none was met."""
        found = self.along.within(limit)
        if found is None:
            return None

        bounds = list(self.bounds)
        ended = [False] * len(self.places)
        for n, lane in self.lanes.items():
            for covered in (n, *self.inside[n]):
                bounds[covered] = max(bounds[covered], lane.bound_s(limit))
                ended[covered] = lane.drawn

        finish = RaceResult(None, found, found.plan.objective_s, tuple(bounds), tuple(ended))
        free = next(place.found for place in self.places if place.ground is found.ground)
        task = replace(self.task, memory_limit_bytes=limit)
        return settled(task, self.grounds, finish, replace(found, task=task, unlimited=free))

    @property
    def is_large(self) -> bool:
        """Whether problems are too large to be solved anew for every limit, unless fully: those that recompute are."""
        is_worth_it = may_recompute(self.task) or self.along.is_worth_it
        return bool(self.task.options.front_gap) and is_worth_it

    @cached_property
    def along(self) -> FrontCurve:
        """The meshes whose plans are not all among another's, along all limits."""
        return FrontCurve(tuple(self.lanes.values()))

    @cached_property
    def lanes(self) -> dict[int, Lane]:
        """The attempts on those of these meshes that may have a plan."""
        covered = {n for inside in self.inside for n in inside}
        found: dict[int, Lane] = {}
        for n, place in enumerate(self.places):
            if n not in covered:
                try:
                    found[n] = Lane(place.attempt(), self.bounds[n])
                except (NoFeasiblePlan, Unsolved, InvalidConstraint):
                    continue
        return found

    def smallest(self) -> Iterator[Planned]:
        """The plans of the smallest peaks met, one of each mesh whose plans are not all among another's."""
        covered = {n for inside in self.inside for n in inside}
        for place in (place for n, place in enumerate(self.places) if n not in covered):
            try:
                attempt, free = place.free()
            except (NoFeasiblePlan, Unsolved, InvalidConstraint):
                continue
            found, _ = least_memory(attempt, free)
            self.met.append(replace(found, problem=attempt.problem(float(peak_of(found)))))
            yield self.met[-1]

    def _fitting(self, limit: int | None) -> list[Planned]:
        return [p for p in self.met if limit is None or p.account.peak_memory_bytes <= limit]
