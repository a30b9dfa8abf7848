"""front: the best plan for every amount of memory, as one search."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack, overload

from autopar.api.bound import Bound, leading_arguments, task_of
from autopar.api.calls import Calls
from autopar.api.collection import collection_paused
from autopar.api.following import followed
from autopar.api.make import alternatives
from autopar.api.options import Function, PlanOptions, Settings, split_options, takes_options
from autopar.api.plan import Plan
from autopar.api.shardings import Shapes, kept, pinned
from autopar.api.sizes import limit_of
from autopar.api.target import PlanningTarget
from autopar.core.sizes import exact_bytes
from autopar.errors import InvalidOption, NoFeasiblePlan
from autopar.report.axes import axes_or_new
from autopar.report.front import front_points, front_section
from autopar.report.notebook import front_html
from autopar.report.render import plain, rich_sections
from autopar.report.units import format_quantity
from autopar.search.front import find_front


@dataclass(frozen=True, eq=False, repr=False)
class Front:
    """The time/memory front of a function: plans, the least memory first, each faster than all that need less.

    Each plan is the best found within its memory limit (`plan.summary.memory_limit_bytes`), and its `lower_bound_s`
    holds for that limit. Time is `objective_s`, what the solver minimises; `step_time_s` may be lower,
    and need not fall from point to point.
    """

    points: tuple[Plan, ...]

    def __iter__(self) -> Iterator[Plan]:
        return iter(self.points)

    def __len__(self) -> int:
        return len(self.points)

    @property
    def fastest(self) -> Plan:
        """The plan of the smallest objective, which needs the most memory."""
        return self.points[-1]

    @property
    def smallest(self) -> Plan:
        """The plan of the smallest peak."""
        return self.points[0]

    def within(self, memory_limit_bytes: int | str) -> Plan:
        """The fastest point whose peak is within the limit, a number or text ("30GiB").

        A plan between two points may be faster.

        Raises:
          NoFeasiblePlan: no point is.
        """
        limit = limit_of(memory_limit_bytes)
        fitting = [plan for plan in self.points if plan.peak_memory_bytes <= limit]
        if not fitting:
            least = self.smallest.peak_memory_bytes
            raise NoFeasiblePlan(
                f"no point of the front fits in {exact_bytes(limit)} a device: the smallest peak is "
                f"{exact_bytes(least)}. Give more, or use more devices.",
                least,
            )
        return fitting[-1]

    def report(self) -> str:
        """The front as text."""
        return plain(rich_sections((front_section([plan.summary for plan in self.points]),)))

    def to_html(self, path: str | Path | None = None, *, compare: bool | None = None) -> str:
        """The page of the fastest plan (`Plan.to_html`), with the front.

        Raises:
          NoFeasiblePlan: there is no point.
          AutoparError: it cannot be written.
        """
        if not self.points:
            raise NoFeasiblePlan("the front has no points, so there is no plan to show")
        points = front_points([plan.summary for plan in self.points])
        return self.fastest.to_html(path, compare=compare, front=points)

    def __str__(self) -> str:
        return self.report()

    def __repr__(self) -> str:
        if not self.points:
            return "Front(no points)"
        ends = [plan.summary for plan in (self.smallest, self.fastest)]
        memory = " to ".join(format_quantity(end.peak_memory_bytes, "bytes") for end in ends)
        times = " to ".join(format_quantity(end.objective_s, "time") for end in ends)
        return f"Front({len(self)} plans of {ends[0].function}: {memory} a device, {times})"

    def _repr_html_(self) -> str:
        return front_html([plan.summary for plan in self.points])

    def plot(self, axes: Any = None) -> Any:
        """Draws peak memory (GiB) against the objective (ms) and its bound; returns the matplotlib axes.

        Args:
          axes: where to draw; None: new ones.

        Raises:
          MissingExtra: matplotlib is not installed.
        """
        drawn = axes_or_new(axes)
        memory = [plan.peak_memory_bytes / 2**30 for plan in self.points]
        drawn.step(
            memory,
            [plan.objective_s * 1e3 for plan in self.points],
            "o-",
            where="post",
            label="plans",
        )
        limits = [
            (plan.summary.memory_limit_bytes or plan.peak_memory_bytes) / 2**30
            for plan in self.points
        ]
        drawn.plot(
            limits, [plan.lower_bound_s * 1e3 for plan in self.points], "_", label="lower bounds"
        )
        drawn.set_xlabel("peak memory of a device (GiB)")
        drawn.set_ylabel("objective (ms a step)")
        drawn.legend()

        return drawn


@overload
def front(fn: Function, *args: Any, points: int = 10, **options: Unpack[PlanOptions]) -> Front: ...
@overload
def front(fn: Function, *args: Any, points: int = 10, **keywords: Any) -> Front: ...
@takes_options
def front(fn: Function, *args: Any, points: int = 10, **keywords: Any) -> Front:
    """The fastest plans of `fn` for arguments like these, from the least memory found possible to all that is of use.

    The function is traced once, and candidates and prices are made once. Points of little memory recompute what they do
    not keep, unless `SearchOptions.recompute` is "never".

    On small problems limits stand in equal ratios from the smallest peak found to the peak of the fastest plan, and a
    point is worked on until its gap is `SearchOptions.front_gap` (1 %). On large ones, and where plans may recompute,
    all limits share one curve of choices and bounds, the limits are the peaks of plans on it, and every plan says what
    its gap is; with a `front_gap` of 0 those that keep everything are solved as small ones are. Interrupted from the
    keyboard, or out of time, the front is the points found so far, which say so (`plan.summary.stopped`).

    Args:
      fn: any function of pytrees that JAX can trace.
      *args: example arguments; jax.ShapeDtypeStructs will do.
      points: how many there are at most (>= 2); limits that gain nothing give no point.
      **keywords: options, those of `autopar.PlanOptions` but `dump` and `cache`; no point exceeds
        `memory_limit_bytes`. All others are arguments of `fn` by name.

    Raises:
      InvalidOption: `points` is no whole number >= 2.
      AutoparError: as `compile`.
      KeyboardInterrupt: interrupted before any plan was found.
    """
    checked_points(points)
    options, kwargs = split_options(fn, keywords, without=("dump", "cache"))
    with Calls(fn, Settings.of(options), None).opened(args, kwargs) as call:
        return _front(call.pure.fn, call.pure.settings, call.args, call.kwargs, points)


def checked_points(points: int) -> int:
    """`points`.

    Raises:
      InvalidOption: it is no whole number >= 2.
    """
    if isinstance(points, bool) or not isinstance(points, int) or points < 2:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidOption(
            f"points is {points!r}: pass how many memory limits to search, a whole number >= 2"
        )
    return points


def _front(
    fn: Function, settings: Settings, args: tuple[Any, ...], kwargs: dict[str, Any], points: int
) -> Front:
    with collection_paused():
        settings = kept(followed(settings, fn, args, kwargs), fn, args, kwargs)
        target = PlanningTarget.of(settings)
        traces = alternatives(fn, settings, args, kwargs, target.cluster)
        settings = pinned(settings, Shapes.of(traces[0]), leading_arguments(fn))
        tasks = [task_of(traced, settings, target.cluster) for traced in traces]
        found = find_front(tasks, target.meshes_of(traces[0]), points)
        bounds = (
            Bound(fn, settings, traces[point.position], point.planned, target.cluster)
            for point in found
        )
        return Front(tuple(Plan.of(bound) for bound in bounds))
