"""Calibration: how far the fitted model is from what was measured, as tables and as a plot."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import prod
from statistics import mean, median
from typing import Any

from autopar.report.sections import Heading, Section
from autopar.report.units import format_quantity
from cost_models.fit import Residual


def residual_section(residuals: Sequence[Residual], seconds: float, name: str) -> Section:
    """A row for every kind that was measured: how many times, between which, and how far the model is from them."""
    groups: dict[tuple[str, str], list[Residual]] = defaultdict(list)
    for residual in residuals:
        groups[residual.sample.what, _label(residual)].append(residual)
    rows = tuple(_row(label, mine) for (_, label), mine in sorted(groups.items()))
    names = ("samples", "shortest", "longest", "mean error", "median", "largest")
    columns = (Heading("measured"), *(Heading(name, right=True) for name in names))
    note = f"Errors are of the model fitted to these samples, without sign. Measuring took {seconds:.0f} s."
    return Section(f"Residuals of {name}", columns, rows, note)


def missing_section(missing: Sequence[tuple[str, str]]) -> Section:
    """A row for every reason: how many cases were not measured for it, and the first of them."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for case, reason in missing:
        by_reason[reason].append(case)
    rows = tuple((str(len(cases)), reason, cases[0]) for reason, cases in by_reason.items())
    columns = (Heading("cases", True), Heading("reason"), Heading("the first"))
    return Section("Not measured", columns, rows, "The profile does without them.")


def draw_residuals(residuals: Sequence[Residual], axes: Any) -> Any:
    """Draws measured against predicted times on matplotlib's `axes`, by what was measured, and where both are equal."""
    groups: dict[str, list[Residual]] = defaultdict(list)
    for residual in residuals:
        groups[residual.sample.what].append(residual)

    for what, mine in sorted(groups.items()):
        axes.loglog(
            [r.sample.time_s for r in mine],
            [r.predicted_s for r in mine],
            "o",
            label=what,
            markersize=4,
        )

    ends = [f(r.sample.time_s for r in residuals) for f in (min, max)]
    axes.loglog(ends, ends, "-", color="gray", linewidth=1)
    axes.set_xlabel("measured (s)")
    axes.set_ylabel("predicted (s)")
    axes.legend()
    return axes


def _label(residual: Residual) -> str:
    sample = residual.sample
    if sample.what == "fresh":
        return f"{sample.kind} {sample.dtype}, fresh"
    if sample.what == "collective":
        return f"{sample.kind} over {prod(sample.mesh[a] for a in sample.axes)}"
    return sample.kind if sample.what == "moving" else f"{sample.kind} {sample.dtype}"


def _row(label: str, residuals: Sequence[Residual]) -> tuple[str, ...]:
    times = [r.sample.time_s for r in residuals]
    errors = [abs(r.error) for r in residuals]
    figures = (mean(errors), median(errors), max(errors))
    ends = (format_quantity(time, "time") for time in (min(times), max(times)))
    return (
        label,
        str(len(residuals)),
        *ends,
        *(format_quantity(error, "percent") for error in figures),
    )
