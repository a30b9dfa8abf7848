"""Sections: a Report as titled tables of strings, from which every rendering is made."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import prod

from autopar.core.stages import Stages
from autopar.report.donation import Donation
from autopar.report.groups import (
    CollectiveGroup,
    OperatorGroup,
    group_tensors,
    weighty,
)
from autopar.report.summary import OperatorRow, Report, TensorRow
from autopar.report.units import format_quantity
from autopar.search.replan import ConstraintPrice

FORECAST = (
    "Times are what the plan's pricing predicts, not measurements. Computing and communicating overlap in the step "
    "time, where the cluster can, and in no other time. Bytes are those of one device."
)


_SHOWN = 6


@dataclass(frozen=True)
class Heading:
    """The heading of a column; numbers stand to the right."""

    name: str
    right: bool = False


@dataclass(frozen=True)
class Section:
    """A table under a title, with a note below. Every row has as many cells as there are columns."""

    title: str
    columns: tuple[Heading, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def price_section(prices: Sequence[ConstraintPrice], report: Report) -> Section:
    """A row for every constraint: what the objective would save without it."""
    columns = (
        Heading("without"),
        *(Heading(name, right=True) for name in ("saves at least", "at most", "of objective")),
    )
    rows = tuple(
        (
            price.constraint,
            format_quantity(price.at_least_s, "time"),
            format_quantity(price.at_most_s, "time"),
            show_share(price.at_most_s, report.objective_s),
        )
        for price in prices
    )
    note = "Each alone, the others kept: a plan without it that saves as much was found, and none saves more."
    if report.gap:
        gap = format_quantity(report.objective_s - report.lower_bound_s, "time")
        note += f" Of that up to {gap} may be what the search missed, rather than what the constraint costs."

    return Section("What the constraints cost", columns, rows, note)


def show_error(report: Report) -> str:
    """The error of the step time, and what most of it is due to."""
    if report.step_error_s is None:
        return ""
    share = (
        format_quantity(report.step_error_s / report.step_time_s, "percent")
        if report.step_time_s
        else "0 %"
    )
    return f" +- {share} (one standard error, mostly of {report.errors[0].source})"


def tensor_section(
    title: str, rows: Sequence[TensorRow], among: Sequence[TensorRow] = ()
) -> Section:
    """A row for every group of tensors; `among` as in `group_tensors`."""
    columns = (
        *(Heading(name) for name in ("tensor", "type", "placement")),
        *(Heading(name, right=True) for name in ("count", "bytes each", "bytes")),
    )
    groups = group_tensors(rows, among)
    cells = tuple(
        (
            group.label,
            show_type(group.members[0]),
            group.members[0].placement,
            format_quantity(len(group.members), "count"),
            format_quantity(group.members[0].local_bytes, "bytes"),
            format_quantity(group.local_bytes, "bytes"),
        )
        for group in groups
    )

    return Section(title, columns, cells, "" if cells else "None.")


def operator_section(
    title: str,
    groups: Sequence[OperatorGroup],
    compute_time_s: float,
    unpriced: Collection[str],
    least_share: float = 0.01,
) -> Section:
    """Contractions and whatever takes `least_share` of `compute_time_s`, a row each; the others in one row.

    No time is said of the `unpriced`, which are kinds with source lines as in a Report.
    """
    shown = [group for group in groups if weighty(group, compute_time_s, least_share)]
    others = [group for group in groups if not weighty(group, compute_time_s, least_share)]
    rows = [_operator_cells(group, compute_time_s, unpriced) for group in shown]
    if others:
        count = sum(group.runs for group in others)
        time = sum(group.time_s for group in others)
        figures = (
            format_quantity(count, "count"),
            format_quantity(time, "time"),
            show_share(time, compute_time_s),
        )
        rows.append(("all others", "", "", "", "", *figures))

    columns = (
        *(Heading(name) for name in ("operator", "phase", "source", "operands -> results")),
        *(Heading(name, right=True) for name in ("parts", "count", "time", "share")),
    )
    return Section(title, columns, tuple(rows))


def phase_section(
    phase: str, groups: Sequence[OperatorGroup], compute_time_s: float, unpriced: Collection[str]
) -> Section:
    """As `operator_section`, of the operators of one phase, to fit a narrow page."""
    whole = operator_section(f"Operators, {phase}", groups, compute_time_s, unpriced)
    kept = (0, 2, 3, 5, 6, 7)
    return Section(
        whole.title,
        tuple(whole.columns[n] for n in kept),
        tuple(tuple(_line(row[n]) if n == 2 else row[n] for n in kept) for row in whole.rows),
    )


def _line(source: str) -> str:
    """The line of a source without its function: "model.py:41"."""
    return source.partition(" (")[0]


def collective_section(title: str, groups: Sequence[CollectiveGroup]) -> Section:
    """A row for every group, and their sum; what the step is longer by, where that is known of all."""
    exposed = [group.exposed_s for group in groups]
    total = sum(seconds for seconds in exposed if seconds is not None)
    is_known = bool(groups) and None not in exposed
    figures = ("count", "bytes each", "bytes", "time", *(("exposed",) if is_known else ()))
    columns = (
        *(Heading(name) for name in ("role", "kind", "axes", "source")),
        *(Heading(name, right=True) for name in figures),
    )
    if not groups:
        return Section(title, columns, (), "None: nothing crosses a link.")

    runs = sum(group.runs for group in groups)
    size = format_quantity(sum(group.size_bytes for group in groups), "bytes")
    time = format_quantity(sum(group.time_s for group in groups), "time")
    rows = [
        *(_collective_cells(group) for group in groups),
        ("all", "", "", "", format_quantity(runs, "count"), "", size, time, show_exposed(total)),
    ]
    note = (
        "Exposed is the part of the step that is due to it; the rest is hidden behind computing."
        if is_known
        else ""
    )
    return Section(title, columns, tuple(row[: len(columns)] for row in rows), note)


def show_exposed(seconds: float | None) -> str:
    """The part of collectives that is not hidden, where it is known."""
    return "-" if seconds is None else format_quantity(seconds, "time")


def placed_operands(row: OperatorRow) -> str:
    """The placements of an operator's operands and results."""
    return f"{', '.join(row.ins)} -> {', '.join(row.outs)}"


def short_source(source: str) -> str:
    """The first of the source lines that a bucket serves, and how many more there are."""
    first, *rest = source.split(", ")
    return f"{first} and {len(rest)} more" if rest else first or "-"


def show_axes(axes: Sequence[str]) -> str:
    """Mesh axes as in a placement."""
    return "*".join(axes)


def show_mesh(mesh: Sequence[tuple[str, int]]) -> str:
    """A mesh and how many devices it has."""
    count = prod(size for _, size in mesh)
    return f"{' x '.join(f'{name}={size}' for name, size in mesh)} ({count} device{'s' if count > 1 else ''})"


def show_type(row: TensorRow) -> str:
    """Element type and global shape."""
    return f"{row.dtype}{list(row.shape)}"


def facts_of_search(report: Report) -> tuple[tuple[str, str], ...]:
    """What was searched, and what a reader has to know of the function beside the costs."""
    return (
        *(
            (("stopped", f"by {report.stopped}: the best so far, another run may differ"),)
            if report.stopped
            else ()
        ),
        ("searched", report.space or "not stated"),
        *((("carried", _carried(report)),) if report.carried else ()),
        *((("donate", _donation(report.donation)),) if report.donation else ()),
        *((("padded", _padded(report)),) if report.padding else ()),
        *(
            (("loops", f"in up to {report.loop_parts} parts side by side"),)
            if report.loop_parts > 1
            else ()
        ),
        *((("stages", _stages(report.stages)),) if report.stages else ()),
        *(("rules found by trial", operator) for operator in report.found_rules),
        *(("no price inside", operator) for operator in report.unpriced),
        *_recomputed(report),
    )


def _carried(report: Report) -> str:
    """The results that keep their inputs' placements, the first of them by name, and what moving them there takes."""
    shown = ", ".join(map(str, report.carried[:_SHOWN]))
    more = f" and {len(report.carried) - _SHOWN} more" if len(report.carried) > _SHOWN else ""
    moved = format_quantity(report.carry_time_s, "time")
    return f"{shown}{more}" + (f", moved there in {moved}" if report.carry_time_s else "")


def _donation(found: Donation) -> str:
    """What to donate, and what it saves."""
    saved = format_quantity(found.saved_bytes, "bytes")
    return f"{found.option} would save {saved} of the peak, if nothing reads them afterwards"


def _padded(report: Report) -> str:
    """The sizes of dims that are longer inside, and what computing on what was added takes."""
    sizes = ", ".join(f"{size} to {padded}" for size, padded in report.padding)
    return f"{sizes}: at most {format_quantity(report.padding_time_s, 'time')} of computing is on what is added"


def _stages(stages: Stages) -> str:
    """How layers are divided among stages, and how much of the time of a stage goes to waste for it."""
    rounds = f" in {stages.rounds} rounds" if stages.rounds > 1 else ""
    divided = f"{stages.count} of layers{rounds}, {stages.micro_batches} micro-batches"
    return f"{divided}; idle in {stages.bubble:.0%} of {stages.ticks} ticks"


def show_quality(report: Report) -> str:
    """How far from the best the plan is, at most."""
    weighed = "".join(
        f", {what} at {weight:.3g} of its time"
        for what, weight in (
            ("communication", report.communication_weight),
            ("what hides", report.hidden_weight),
        )
        if weight != 1
    )
    step = ""
    if report.step_bound_s:
        step = f"; its step within {format_quantity(report.step_gap, 'percent')} of the shortest"

    if report.gap == 0:
        return f"proven the best in the space searched{weighed}{step}"
    gap = format_quantity(report.gap, "percent")
    return f"proven within {gap} of the best in the space searched{weighed}{step}"


def memory_section(report: Report) -> Section:
    """Of what a device's memory is at the peak."""
    inputs, outputs = (
        sum(row.local_bytes for row in rows) for rows in (report.inputs, report.outputs)
    )
    peak = report.peak_memory_bytes
    limit = report.memory_limit_bytes
    rows = (
        ("inputs", format_quantity(inputs, "bytes")),
        ("the rest, at the peak", format_quantity(max(peak - inputs, 0), "bytes")),
        ("peak", format_quantity(peak, "bytes")),
        (
            "limit",
            "none"
            if limit is None
            else f"{format_quantity(limit, 'bytes')}, of which {show_share(peak, limit)} used",
        ),
        ("outputs", format_quantity(outputs, "bytes")),
    )
    note = "Inputs live throughout a step unless donated; outputs count as part of the rest once they are made."

    return Section("Memory of a device", (Heading(""), Heading("")), rows, note)


def _recomputed(report: Report) -> tuple[tuple[str, str], ...]:
    what = report.recomputation
    if what is None:
        return ()
    count = format_quantity(what.operators, "count")
    time = format_quantity(what.time_s, "time")
    saved = format_quantity(what.saved_bytes, "bytes")
    return (
        (
            "recomputed",
            f"{count} operators, {time} a step, in place of {saved} kept for the backward pass",
        ),
    )


def alive_section(report: Report) -> Section:
    """The largest tensors at the peak of memory."""
    listed = sum(row.local_bytes for row in report.peak)
    note = ""
    if report.peak_memory_bytes > listed:
        note = f"And {format_quantity(report.peak_memory_bytes - listed, 'bytes')} in smaller tensors and buffers."
    section = tensor_section("Largest at the peak of memory", report.peak, report.inputs)
    return Section(section.title, section.columns, section.rows, note)


def _operator_cells(
    group: OperatorGroup, compute_time_s: float, unpriced: Collection[str]
) -> tuple[str, ...]:
    row = group.members[0]
    is_priced = f"{row.kind} ({row.source})" not in unpriced
    return (
        row.kind,
        row.phase,
        row.source or "-",
        placed_operands(row),
        format_quantity(row.split, "count"),
        format_quantity(group.runs, "count"),
        format_quantity(group.time_s, "time") if is_priced else "no price",
        show_share(group.time_s, compute_time_s) if is_priced else "-",
    )


def _collective_cells(group: CollectiveGroup) -> tuple[str, ...]:
    row = group.members[0]
    smallest, largest = (f(member.size_bytes for member in group.members) for f in (min, max))
    sizes = dict.fromkeys((format_quantity(smallest, "bytes"), format_quantity(largest, "bytes")))

    return (
        row.role,
        row.kind,
        show_axes(row.axes),
        short_source(row.source),
        format_quantity(group.runs, "count"),
        " to ".join(sizes),
        format_quantity(group.size_bytes, "bytes"),
        format_quantity(group.time_s, "time"),
        show_exposed(group.exposed_s),
    )


def show_share(part: float, whole: float) -> str:
    """A part of a whole in percent; "-" of nothing."""
    return format_quantity(part / whole, "percent") if whole else "-"
