"""Rivals: what the layouts that people write by hand would cost, beside the plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autopar.report.sections import Heading, Section, show_mesh
from autopar.report.summary import Report
from autopar.report.units import format_quantity

_NOTE = "Pins hold the layout of inputs; what they leave open is searched, so each is the best of its kind found."
_UNFIT = "does not fit"


@dataclass(frozen=True)
class RivalRow:
    """A layout by its name, and what its best plan costs: seconds of a step, bytes of a device.

    `fits` says that it keeps within the memory limit; where it does not, the figures are those of its fastest plan
    without one. `reason` says why there is no plan, and no figures, "" if there is one.
    """

    name: str
    mesh: tuple[tuple[str, int], ...]
    layout: str = ""
    step_time_s: float = 0.0
    compute_time_s: float = 0.0
    communication_time_s: float = 0.0
    exposed_time_s: float = 0.0
    peak_memory_bytes: int = 0
    fits: bool = False
    reason: str = ""


def rival_row(name: str, report: Report, fits: bool) -> RivalRow:
    """The row of a rival whose plan `report` is of."""
    return RivalRow(
        name,
        report.mesh,
        "" if report.parallelism is None else str(report.parallelism),
        report.step_time_s,
        report.compute_time_s,
        report.communication_time_s,
        report.exposed_time_s,
        report.peak_memory_bytes,
        fits,
    )


def rival_line(report: Report, rivals: Sequence[RivalRow]) -> str:
    """What each of the rivals would cost, in a line: "FSDP 432 ms (+0.7 %), Megatron does not fit (97 GiB)"."""
    return ", ".join(f"{rival.name} {_verdict(report, rival)}" for rival in rivals)


def rival_section(report: Report, rivals: Sequence[RivalRow]) -> Section:
    """The plan and its rivals in columns."""
    plan = rival_row("the plan", report, fits=True)
    shown = (plan, *rivals)
    lines = {
        "mesh": [show_mesh(row.mesh).partition(" (")[0] for row in shown],
        "step time": [_figure(row, row.step_time_s) for row in shown],
        "to the plan": ["", *(_change(report, row) for row in rivals)],
        "compute": [_figure(row, row.compute_time_s) for row in shown],
        "communication": [_figure(row, row.communication_time_s) for row in shown],
        "exposed": [_figure(row, row.exposed_time_s) for row in shown],
        "peak memory": [
            "-" if row.reason else format_quantity(row.peak_memory_bytes, "bytes") for row in shown
        ],
        "layout": [row.layout or row.reason for row in shown],
    }

    columns = (Heading(""), *(Heading(row.name) for row in shown))
    return Section(
        "Beside other layouts",
        columns,
        tuple((name, *cells) for name, cells in lines.items()),
        _NOTE,
    )


def _verdict(report: Report, rival: RivalRow) -> str:
    if rival.reason:
        return f"has no plan: {rival.reason}"
    if not rival.fits:
        return f"{_UNFIT} ({format_quantity(rival.peak_memory_bytes, 'bytes')})"
    return f"{format_quantity(rival.step_time_s, 'time')} ({_change(report, rival)})"


def _figure(row: RivalRow, time_s: float) -> str:
    return "-" if row.reason else format_quantity(time_s, "time")


def _change(report: Report, rival: RivalRow) -> str:
    if rival.reason:
        return "no plan"
    if not rival.fits:
        return _UNFIT
    if not report.step_time_s:
        return "-"
    change = rival.step_time_s / report.step_time_s - 1
    return f"{'+' if change >= 0 else ''}{format_quantity(change, 'percent')}"
