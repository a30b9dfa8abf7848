"""explore: a function is planned once, then asked about: what if this lay there, links were slower, memory less."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Unpack, overload

from autopar.api import constraints as made
from autopar.api.constraints import LayoutLike, TargetLike, checked
from autopar.api.explored import Axes, ExploredFunction
from autopar.api.front import Front, checked_points
from autopar.api.options import Function, PlanOptions, split_options, takes_options
from autopar.api.plan import Plan
from autopar.api.sizes import limit_of
from autopar.core.mesh import DeviceMesh
from autopar.core.sizes import exact_bytes
from autopar.errors import InvalidMesh, InvalidOption, Unsolved
from autopar.report.answer import Answer, history_section
from autopar.report.notebook import session_html
from autopar.report.render import plain, rich_sections
from autopar.search.constraints.records import Constraint, Named, Pin, Target, show
from autopar.search.front import find_front
from autopar.search.within import PlansWithin

if TYPE_CHECKING:
    from autopar.api.panel import Panel

_FEW_OPERATORS = 1_000
"""Of a function: with no more a limit that binds is searched in full, which takes a second or two."""


@dataclass(frozen=True)
class Asked:
    """What a plan is asked to be beside what its session began with; None: as at the beginning.

    `links` are the levels of the cluster whose bandwidth is another, with the factor of each. `rows` are those of the
    data in a step.
    """

    constraints: tuple[Constraint, ...] = ()
    memory_limit_bytes: int | None = None
    links: tuple[tuple[str, float], ...] = ()
    mesh: Axes | None = None
    rows: int | None = None

    @property
    def of_start(self) -> tuple[Axes | None, int | None]:
        """What makes another function, or another space, of it: a plan is searched anew for these."""
        return self.mesh, self.rows

    @property
    def without_limit(self) -> Asked:
        """The same within whatever memory there is."""
        return replace(self, memory_limit_bytes=None)


@dataclass(frozen=True, eq=False)
class Moment:
    """A session at one time: what was asked so far, the plan for that, and what the last question changed."""

    asked: Asked
    plan: Plan
    answer: Answer | None = None


class Session:
    """A function with a plan, to be asked what becomes of it: each question changes the plan, and is answered by how.

    Questions add up: after a pin and a limit the plan has both. `undo` takes the last one back. A question that has no
    plan, or makes no sense, raises an error that says why, and leaves the session as it was.

    Pins, what is forbidden and links are answered from what is there of the plan. For large functions a limit that
    binds is answered by what is met about it, and the answer says how far off it may be. Another mesh is searched anew
    the first time, and so is another batch, which is traced anew too.
    """

    def __init__(self, function: ExploredFunction) -> None:
        self._function = function
        self._history: tuple[Moment, ...] = (Moment(Asked(), function.plan(None, None)),)
        self._within: dict[Asked, PlansWithin] = {}

    @property
    def plan(self) -> Plan:
        """The plan as it is now."""
        return self._now.plan

    @property
    def start(self) -> Plan:
        """The plan at the beginning."""
        return self._history[0].plan

    @property
    def asked(self) -> Asked:
        """What it is asked to be."""
        return self._now.asked

    @property
    def history(self) -> tuple[Answer, ...]:
        """The answers so far that were not taken back."""
        return tuple(moment.answer for moment in self._history if moment.answer is not None)

    def pin(self, target: TargetLike, placement: LayoutLike) -> Answer:
        """What if `target` lay so? Arguments as of `autopar.pin`; it replaces what was pinned of the target here.

        Raises:
          InvalidConstraint: for a target that there is not, with what is called similarly, or one that cannot lie so.
          NoFeasiblePlan: no plan has it, with what clashes.
        """
        asked = made.pin(target, placement)
        others = tuple(one for one in self.asked.constraints if not _pins(one, asked.target))
        return self._ask(str(asked), constraints=(*others, asked))

    def forbid(self, target: TargetLike, what: str | LayoutLike) -> Answer:
        """What if `target` never used the mesh axis `what`, or never lay so? Arguments and errors as of `pin`."""
        return self.hold(made.forbid(target, what))

    def hold(self, *constraints: Constraint) -> Answer:
        """What if it were held to these, such as `autopar.tie(...)`? Errors as of `pin`."""
        given = checked(constraints)
        return self._ask(show(given), constraints=(*self.asked.constraints, *given))

    def release(self, target: TargetLike) -> Answer:
        """What if nothing asked here held `target`?

        Raises:
          InvalidOption: nothing holds it; names what is held.
        """
        wanted = Named(target) if isinstance(target, str) else target
        held = self.asked.constraints
        kept = tuple(one for one in held if getattr(one, "target", None) != wanted)
        if len(kept) == len(held):
            known = f"held are {show(held)}" if held else "nothing is held yet"
            raise InvalidOption(f"release({wanted}): nothing asked here holds it; {known}")
        return self._ask(f"release({wanted})", constraints=kept)

    def limit(self, memory_limit_bytes: int | str | None, *, full: bool = False) -> Answer:
        """What if a device had this much memory? A number or text ("30GiB"); None: as at the beginning.

        Args:
          memory_limit_bytes: what a device may use.
          full: search as `autopar.plan` does on this mesh: within the gap tolerance, with recomputation, maybe minutes.

        Raises:
          Unsolved: no plan met keeps it; names the smallest peak met.
          NoFeasiblePlan: likewise, and none does: proven.
        """
        limit = None if memory_limit_bytes is None else limit_of(memory_limit_bytes)
        question = f"limit({None if limit is None else exact_bytes(limit)!r})"
        return self._ask(question, full=full, memory_limit_bytes=limit)

    def links(self, factor: float, level: str | None = None) -> Answer:
        """What if links were `factor` times as fast as the cluster's? 1: as they are.

        Args:
          factor: of the bandwidth, > 0.
          level: that whose links it is about, as the cluster calls it ("server"); None: all.

        Raises:
          InvalidOption: for another factor, or a level that there is not.
        """
        changed = self._function.changed_links(self.asked.links, factor, level)
        question = f"links({factor:g})" if level is None else f"links({factor:g}, {level!r})"
        return self._ask(question, links=changed)

    def mesh(self, mesh: Mapping[str, int] | None) -> Answer:
        """What if the mesh were this? Axis sizes by name, major to minor; None: that of the beginning.

        Raises:
          InvalidMesh: if it is not of as many devices as the cluster has.
          InvalidConstraint: if what is asked names an axis that it has not.
        """
        if mesh is None:
            return self._ask("mesh(None)", mesh=None)
        if not isinstance(mesh, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidMesh(
                f"mesh({mesh!r}): pass axis sizes by name, such as {{'data': 2, 'model': 4}}, or None"
            )
        return self._ask(f"mesh({dict(mesh)})", mesh=DeviceMesh.of(mesh).axes)

    def batch(self, rows: int | None) -> Answer:
        """What if a step took so many rows of data? None: as many as at the beginning.

        Every argument that is data, and whose first dim is as long as that of the first, gets so many rows.

        Raises:
          InvalidOption: `rows` is no whole number >= 1, or no argument is data.
        """
        if rows is not None and (isinstance(rows, bool) or not isinstance(rows, int) or rows < 1):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOption(
                f"batch({rows!r}): pass how many rows of data a step takes, a whole number >= 1"
            )
        return self._ask(f"batch({rows})", rows=None if rows == self._function.rows else rows)

    def undo(self) -> Answer:
        """Takes the last question back; the answer is that to it, the other way round.

        Raises:
          InvalidOption: nothing was asked.
        """
        *rest, last = self._history
        if last.answer is None:
            raise InvalidOption("undo(): nothing was asked that could be taken back")
        self._history = tuple(rest)
        question = f"undo of {last.answer.question}"
        return Answer(question, last.answer.after, last.answer.before)

    def front(self, points: int = 10) -> Front:
        """The fastest plans for all amounts of memory, as `autopar.front`, with all that is asked but the limit.

        Raises:
          InvalidOption: `points` is no whole number >= 2.
        """
        bound = self._unlimited().bound
        planned = bound.planned
        found = find_front(
            [planned.task], [planned.ground.mesh], checked_points(points), planned.ground
        )
        return Front(tuple(Plan.of(replace(bound, planned=point.planned)) for point in found))

    def panel(self) -> Panel:
        """The session as widgets in a notebook: it shows itself as the last line of a cell.

        Raises:
          MissingExtra: ipywidgets is not installed.
        """
        from autopar.api.panel import Panel  # late: it is an extra

        return Panel(self)

    def report(self) -> str:
        """What was asked so far, and what became of the plan, as text."""
        return plain(rich_sections((history_section(self.history, self.start.summary),)))

    def __str__(self) -> str:
        return self.report()

    def __repr__(self) -> str:
        count = len(self.history)
        return f"Session({self.plan.summary.in_short}, {count} question{'' if count == 1 else 's'} asked)"

    def _repr_html_(self) -> str:
        return session_html(self.plan.summary, self.history, self.start.summary)

    # Questions ------------------------------------------------------------------------------------------------------

    @property
    def _now(self) -> Moment:
        return self._history[-1]

    def _ask(self, question: str, *, full: bool = False, **change: Any) -> Answer:
        """The answer to what changes with `change`, a part of Asked; the session has taken it up then."""
        before = self._now
        asked = replace(before.asked, **change)
        plan = self._planned(asked, full)
        answer = Answer(question, before.plan.summary, plan.summary)
        self._history = (*self._history, Moment(asked, plan, answer))
        return answer

    def _planned(self, asked: Asked, full: bool) -> Plan:
        """The plan for `asked`, from the nearest that is there."""
        known = self._last(lambda earlier: earlier == asked)
        if known is not None and not full:
            return known

        limit = asked.memory_limit_bytes
        if limit is None:
            return self._resolved(asked)

        free = self._planned(asked.without_limit, full=False)
        is_small = len(free.bound.traced.graph.ops) <= _FEW_OPERATORS
        if full or is_small or free.peak_memory_bytes <= limit:
            return Plan.of(free.bound.resolved(None, limit, None))
        return self._met_within(asked, free, limit)

    def _resolved(self, asked: Asked) -> Plan:
        """The plan for constraints and links on the mesh and for the rows that are asked for."""
        start = self._function.plan(*asked.of_start)
        if not asked.constraints and not asked.links:
            return start

        near = self._last(
            lambda earlier: (earlier.of_start, earlier.links) == (asked.of_start, asked.links)
        )
        are_priced = near is not None or not asked.links
        bound = (near or start).bound.resolved(
            (*start.constraints, *asked.constraints),
            start.summary.memory_limit_bytes,
            None if are_priced else self._function.cluster(asked.links),
        )
        return Plan.of(bound)

    def _last(self, is_like: Callable[[Asked], bool]) -> Plan | None:
        """The last plan for what is like this; None if there was none."""
        return next((one.plan for one in reversed(self._history) if is_like(one.asked)), None)

    def _met_within(self, asked: Asked, free: Plan, limit: int) -> Plan:
        """The best plan met within a limit that binds.

        Raises:
          Unsolved: none was met.
        """
        key = asked.without_limit
        plans = self._within.setdefault(key, PlansWithin(free.bound.planned))
        found = plans.best(limit)

        if found is None:
            least = plans.least_peak_bytes()
            raise Unsolved(
                f"no plan met keeps within {exact_bytes(limit)} a device with everything kept"
                f"{'' if least is None else f': the smallest peak met is {exact_bytes(least)}'}. Ask for "
                f"more, or limit(..., full=True), which looks into recomputation and may take minutes.",
                least,
            )

        settings = replace(free.bound.settings, memory_limit_bytes=limit)
        return Plan.of(replace(free.bound, settings=settings, planned=found))

    def _unlimited(self) -> Plan:
        return self._planned(self.asked.without_limit, full=False)


def _pins(constraint: Constraint, target: Target) -> bool:
    return isinstance(constraint, Pin) and constraint.target == target


@overload
def explore(fn: Function, *args: Any, **options: Unpack[PlanOptions]) -> Session: ...
@overload
def explore(fn: Function, *args: Any, **keywords: Any) -> Session: ...
@takes_options
def explore(fn: Function, *args: Any, **keywords: Any) -> Session:
    """A session about the plan of `fn` for arguments like these: what if this lay there, or links were slower?

    Args:
      fn: any function of pytrees that JAX can trace.
      *args: example arguments; jax.ShapeDtypeStructs will do.
      **keywords: options, those of `autopar.PlanOptions` but `dump`; all others are arguments of `fn` by name.

    Raises:
      AutoparError: as `plan`.
    """
    options, kwargs = split_options(fn, keywords, without=("dump",))
    return Session(ExploredFunction(fn, args, kwargs, options))
