"""FrontCurve: plans within all memory limits, on all meshes, from one curve of each (`solve.curve`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from math import inf, log

from autopar.search.best_bound_first import TIE
from autopar.search.equal_layers import EqualLayersSolve
from autopar.search.limited_solve import LimitedSolve
from autopar.search.task import Planned
from autopar.solve import Infeasible, Solution
from autopar.solve.parametric.archive import Met, Pareto
from autopar.solve.parametric.dual_curve import DualCurve

_MOST_ANEW = 10_000  # entries of all edges of problems that are solved anew within every limit: more may take minutes
_TRIES = 3  # to keep a program within a limit
_LESS = 0.99  # of what was asked for, at most, where a program exceeds the limit
_SPARE = 1.5  # times as many programs as points: some need as much as others that cost less


@dataclass(frozen=True, eq=False)
class Point:
    """The best plan found within `limit_bytes`, of the task at `position`; its bound is for that limit."""

    limit_bytes: int
    position: int
    planned: Planned


@dataclass(frozen=True)
class _Told:
    """A program: its peak, its cost, and the peak as the Problem counts."""

    peak: float
    cost: float
    counted: float


@dataclass(eq=False)
class Lane:
    """One attempt along all memory limits; `known_s` bounds all its plans, whatever the limit.

    It is `drawn` once it was looked into. No plan costs less than `bound_s` then; before that, than `known_s`. Where
    layers repeat, choices may come of `alike`, which places them alike: it is much smaller. Bounds never do.
    """

    attempt: LimitedSolve
    known_s: float
    alike: EqualLayersSolve | None = None
    _curves: list[DualCurve] = field(default_factory=list[DualCurve], init=False)
    _lifted: dict[Met, Solution] = field(default_factory=dict[Met, Solution], init=False)
    _refused: bool = field(default=False, init=False)

    @property
    def entries(self) -> int:
        """How large the Problem is."""
        return sum(edge.matrix.size for edge in self.attempt.problem(0.0).edges)

    @property
    def drawn(self) -> bool:
        """Whether it was looked into."""
        return bool(self._curves) or self._refused

    def draw(self, known: Pareto, enough: float) -> list[Met]:
        """The choices met; only bounds are proven where those `known` cost a share of `enough` too much at most."""
        task = self.attempt.task
        try:
            curve = DualCurve(
                self.attempt.problem(0.0), task.options.solver, lambda: not task.stop.is_over
            )
        except Infeasible:
            self._refused = True
            return []

        curve.prove()
        self._curves.append(curve)
        is_enough = known.met and all(
            curve.bound(met.peak) >= met.cost * (1 - enough) for met in known.met
        )
        if is_enough:
            return curve.choices()
        if self.alike is not None:
            return [*self._chosen_alike(self.alike, curve.wanted), *curve.choices()]
        curve.choose()
        return curve.choices()

    def _chosen_alike(self, alike: EqualLayersSolve, wanted: Callable[[], bool]) -> list[Met]:
        """The choices met that place layers alike."""
        small = DualCurve(alike.problem(0.0), alike.task.options.solver, wanted)
        small.draw()
        self._lifted |= {met: alike.lifted(small.solved(met)) for met in small.choices()}
        return list(self._lifted)

    def bound_s(self, limit: int) -> float:
        """What no plan within `limit` undercuts."""
        proven = (
            self._curves[0].bound(float(limit)) if self._curves else inf if self._refused else 0.0
        )
        return max(0.0, self.known_s, proven)

    def planned(self, met: Met) -> Planned:
        """The plan of a choice met here."""
        return self.attempt.planned(self._lifted.get(met) or self._curves[0].solved(met))

    def bounded(self, planned: Planned, limit: int) -> Planned:
        """A plan met here with the witness of its bound for a limit that it keeps within."""
        assert planned.solution is not None
        solution = self._curves[0].bounded(planned.solution, limit)
        return replace(planned, solution=solution, problem=self.attempt.problem(float(limit)))


@dataclass(eq=False)
class FrontCurve:
    """Attempts along all memory limits, those of the least bounds first.

    A program holds more than the Problem counts, by about the same factor where peaks are close: so choices are asked
    for that leave this much free. `_lowered` are the plans of choices met so far.
    """

    lanes: Sequence[Lane]
    _lowered: dict[Met, Planned] = field(default_factory=dict[Met, Planned], init=False)
    _lane_of: dict[Met, Lane] = field(default_factory=dict[Met, Lane], init=False)

    @cached_property
    def is_worth_it(self) -> bool:
        """Whether the Problems are too large to be solved anew, and fully, within every limit."""
        return sum(lane.entries for lane in self.lanes) > _MOST_ANEW

    @cached_property
    def choices(self) -> Pareto:
        """The choices of all lanes but those whose plans all cost more than these, until the search is stopped."""
        found = Pareto()
        for lane in sorted(self.lanes, key=lambda lane: lane.known_s):
            task = lane.attempt.task
            if not found.met or (lane.known_s < found.met[0].cost and not task.stop.is_over):
                for met in lane.draw(found, task.options.front_gap):
                    self._lane_of[met] = lane
                    found.meet(met)
        return found

    def peaks_bytes(self, fastest: Planned, count: int) -> Iterator[int]:
        """The peaks of programs, `count` of them if there are, that need less than `fastest`, and cost more.

        First that of the smallest choice, then again and again that of the choice that gains most between two.
        """
        cost = fastest.plan.objective_s
        choices = self.choices.by_peak()
        left = [met for met in choices if met.cost > cost * (1 + TIE)]
        end = _Told(
            fastest.account.peak_memory_bytes,
            cost,
            1.0 + max((met.peak for met in choices), default=0.0),
        )

        for _ in range(int(_SPARE * count)):
            told = self._told(end.peak)
            missed = [met for met in self._lowered if told and met.peak < told[0].counted]
            again = missed[0] if len(missed) == 1 else None  # once, as it would go on and on
            chosen = _next(told, end, left, self._made(), again) if len(told) < count else None
            if chosen is None:
                return
            left.remove(chosen)
            peak = self._planned(chosen).account.peak_memory_bytes
            if any(point.counted == chosen.peak for point in self._told(end.peak)):
                yield peak

    def within(self, limit: int) -> Planned | None:
        """The cheapest plan met whose program keeps within `limit`, with a bound for that limit; None if none was met.

        The bound holds for all lanes, its witness for that of the plan.
        """
        share = self._share(limit)
        for _ in range(_TRIES):
            best = self._fitting(limit)
            met = self.choices.best(share * limit)
            if met is None or (best is not None and best.cost <= met.cost * (1 + TIE)):
                break
            planned = self._planned(met)
            if planned.account.peak_memory_bytes <= limit:
                break
            share = min(_LESS * share, planned.counted_bytes / planned.account.peak_memory_bytes)
        best = self._fitting(limit)
        return None if best is None else self._bounded(best, limit)

    def smallest(self) -> Planned | None:
        """The plan of the choice of the smallest peak; None if none was met."""
        met = next(iter(self.choices.by_peak()), None)
        return None if met is None else self._planned(met)

    def _fitting(self, limit: int) -> Met | None:
        """The cheapest choice whose program keeps within the limit."""
        fitting = [
            met
            for met, planned in self._lowered.items()
            if planned.account.peak_memory_bytes <= limit
        ]
        return min(fitting, key=lambda met: self._lowered[met].plan.objective_s, default=None)

    def _told(self, below: float) -> list[_Told]:
        """The programs of smaller peaks than this, each cheaper than all that need less."""
        told: list[_Told] = []
        for program in sorted(self._made(), key=lambda program: (program.peak, program.cost)):
            if program.peak < below and (not told or program.cost < told[-1].cost):
                told.append(program)
        return told

    def _made(self) -> list[_Told]:
        """All programs."""
        return [
            _Told(p.account.peak_memory_bytes, met.cost, met.peak)
            for met, p in self._lowered.items()
        ]

    def _share(self, limit: int) -> float:
        """What the Problem counts of the program whose peak is nearest to the limit; 1: none yet."""
        spent = [
            (planned.account.peak_memory_bytes, planned.counted_bytes)
            for planned in self._lowered.values()
        ]
        top, counted = min(spent, key=lambda pair: abs(pair[0] - limit), default=(1, 1.0))
        return counted / top if top else 1.0

    def _planned(self, met: Met) -> Planned:
        if met not in self._lowered:
            self._lowered[met] = self._lane_of[met].planned(met)
        return self._lowered[met]

    def _bounded(self, met: Met, limit: int) -> Planned:
        """The plan with the bound of a limit that it keeps within."""
        lane = self._lane_of[met]
        planned = lane.bounded(self._lowered[met], limit)
        bound = min(planned.plan.objective_s, *(lane.bound_s(limit) for lane in self.lanes))
        lane.attempt.task.tell(planned.ground.mesh, limit, planned.plan.objective_s, bound)
        return replace(planned, plan=replace(planned.plan, lower_bound_s=bound))


def _next(
    told: Sequence[_Told],
    end: _Told,
    left: Sequence[Met],
    made: Sequence[_Told],
    missed: Met | None,
) -> Met | None:
    """The choice left that gains most between two that are told, the last being `end`; if none is, the smallest.

    In the plane of log peak and log cost, the programs told and those undercut by them fill an area. It grows by

        log(peak of the next larger / peak) * log(cost of the next smaller / cost)

    Where the smallest choice was `missed`, its program being no smaller than those told, there may be some between.
    """
    if not told:
        return left[0] if left else None

    begin: list[_Told] = []
    if missed is not None:
        share = missed.peak / told[0].counted
        begin = [_Told(share * told[0].peak, missed.cost * (1 + TIE), missed.peak - 1.0)]

    best = None
    most = 0.0
    for small, large in pairwise([*begin, *told, end]):
        between = [
            p for p in made if small.counted < p.counted < large.counted and small not in begin
        ]
        known = sorted([small, large, *between], key=_counted)
        for met in left:
            if small.counted < met.peak < large.counted and large.cost < met.cost < small.cost:
                peak = _expected(met.peak, known)
                peak = (
                    min(peak, met.peak * small.peak / max(1.0, small.counted))
                    if known == [small, end]
                    else peak
                )
                gain = log(large.peak / peak) * log(small.cost / met.cost)
                best, most = (met, gain) if gain > most else (best, most)

    return best


def _counted(program: _Told) -> float:
    return program.counted


def _expected(counted: float, known: Sequence[_Told]) -> float:
    """The peak of a program of which the Problem counts so much: as the two next to it have it."""
    small, large = next((a, b) for a, b in pairwise(known) if a.counted <= counted <= b.counted)
    low = max(1.0, small.peak)
    least = max(1.0, small.counted)
    share = log(max(1.0, counted) / least) / log(large.counted / least)
    return low * (large.peak / low) ** share
