"""Front: the points of a time/memory front as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autopar.report.compare import indistinct
from autopar.report.sections import Heading, Section, show_mesh
from autopar.report.summary import Report
from autopar.report.units import format_quantity

_NOTE = (
    "Every point is a plan with its own bound: within its limit no plan in the space searched has an objective smaller "
    "by more than the gap. Times are what the pricing predicts; bytes are of one device."
)


@dataclass(frozen=True)
class FrontPoint:
    """A point of a front: the figures of its plan, and the layout in the field's words."""

    memory_limit_bytes: int | None
    peak_memory_bytes: int
    objective_s: float
    lower_bound_s: float
    step_time_s: float
    mesh: tuple[tuple[str, int], ...]
    layout: str = ""


def front_points(reports: Sequence[Report]) -> tuple[FrontPoint, ...]:
    """The points whose plans `reports` are of."""
    return tuple(
        FrontPoint(
            report.memory_limit_bytes,
            report.peak_memory_bytes,
            report.objective_s,
            report.lower_bound_s,
            report.step_time_s,
            report.mesh,
            "" if report.parallelism is None else str(report.parallelism),
        )
        for report in reports
    )


def front_section(reports: Sequence[Report]) -> Section:
    """A row for every point, the least memory first."""
    names = ("memory limit", "peak memory", "objective", "step time", "communication", "gap")
    columns = (*(Heading(name, right=True) for name in names), Heading("mesh"))
    name = reports[0].function if reports else ""
    return Section(
        f"Time and memory of {name}",
        columns,
        tuple(map(_row, reports)),
        _NOTE + _to_measure(reports),
    )


def _to_measure(reports: Sequence[Report]) -> str:
    """Which neighbours the model cannot tell apart."""
    pairs = [f"{a + 1} and {b + 1}" for a, b in indistinct(tuple(reports))]
    if not pairs:
        return ""
    return f" Step times of points {', '.join(pairs)} are within the model's error: measure these."


def _row(report: Report) -> tuple[str, ...]:
    limit = (
        "-"
        if report.memory_limit_bytes is None
        else format_quantity(report.memory_limit_bytes, "bytes")
    )
    times = (report.objective_s, report.step_time_s, report.communication_time_s)

    return (
        limit,
        format_quantity(report.peak_memory_bytes, "bytes"),
        *(format_quantity(time, "time") for time in times),
        format_quantity(report.gap, "percent"),
        show_mesh(report.mesh).partition(" (")[0],
    )
