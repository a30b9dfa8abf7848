"""Diff: what differs between two plans: what they were made for, what they cost, where tensors lie, what moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from textwrap import fill

from autopar.report.compare import compare
from autopar.report.folding import fold
from autopar.report.groups import group_tensors
from autopar.report.render import WIDTH, plain, rich_sections
from autopar.report.sections import Heading, Section, show_axes, show_mesh
from autopar.report.summary import CollectiveRow, Report, TensorRow
from autopar.report.units import Quantity, format_quantity

_ABSENT = "-"
_SIDES = ("this", "other")
Sides = tuple[str, str]
"""What the two plans are called."""
_Figure = tuple[str, Quantity, Callable[[Report], float]]

_FIGURES: tuple[_Figure, ...] = (
    ("step time", "time", lambda report: report.step_time_s),
    ("one by one", "time", lambda report: report.serial_time_s),
    ("compute", "time", lambda report: report.compute_time_s),
    ("communication", "time", lambda report: report.communication_time_s),
    ("objective", "time", lambda report: report.objective_s),
    ("lower bound", "time", lambda report: report.lower_bound_s),
    ("gap", "percent", lambda report: report.gap),
    ("peak memory", "bytes", lambda report: report.peak_memory_bytes),
    ("inputs", "bytes", lambda report: sum(row.local_bytes for row in report.inputs)),
    ("outputs", "bytes", lambda report: sum(row.local_bytes for row in report.outputs)),
)


def diff(a: Report, b: Report) -> str:
    """What `b` ("other") says otherwise than `a` ("this"), as text; only what differs is listed."""
    parts = (
        _settings(a, b),
        _costs(a, b),
        placements_section("Inputs", a.inputs, b.inputs, _SIDES),
        placements_section("Outputs", a.outputs, b.outputs, _SIDES),
        collectives_section(a, b, _SIDES),
    )
    shown = [part for part in parts if part.rows]
    if not shown:
        return "No differences in settings, costs, memory, placements of inputs and outputs, or collectives.\n"
    verdict = _verdict(a, b)
    return plain(rich_sections(shown)) + (f"\n{verdict}" if verdict else "")


def _verdict(a: Report, b: Report) -> str:
    """Whether the step times differ by more than the model can tell; "" if that is not known."""
    return fill(f"Step time: {compare(a, b)}", WIDTH) + "\n" if a.errors and b.errors else ""


def _settings(a: Report, b: Report) -> Section:
    pairs = [
        (name, left, right)
        for (name, left), (_, right) in zip(_setting(a), _setting(b), strict=True)
    ]
    rows = tuple(row for row in pairs if row[1] != row[2])
    return Section("Made for", _columns("", "this", "other"), rows)


def _setting(report: Report) -> tuple[tuple[str, str], ...]:
    limit = report.memory_limit_bytes
    return (
        ("function", report.function),
        ("cluster", report.cluster),
        ("mesh", show_mesh(report.mesh)),
        ("searched", report.space),
        ("memory limit", "none" if limit is None else format_quantity(limit, "bytes")),
    )


def _costs(a: Report, b: Report) -> Section:
    rows: list[tuple[str, ...]] = []
    for name, kind, figure in _FIGURES:
        left = figure(a)
        right = figure(b)
        if left != right:
            change = show_change(left, right) if kind != "percent" else ""
            rows.append((name, format_quantity(left, kind), format_quantity(right, kind), change))
    return Section("Costs", _columns("", "this", "other", "change", right=1), tuple(rows))


def show_change(left: float, right: float) -> str:
    """By which share of it `left` became `right`: "+3.1 %"; "" where it was nothing."""
    if left == 0:
        return ""
    change = format_quantity(right / left - 1, "percent")
    return change if right < left else f"+{change}"


def placements_section(
    title: str, a: Sequence[TensorRow], b: Sequence[TensorRow], sides: Sides
) -> Section:
    """Tensors whose type or placement differ, or that only one has. Grouped as in a report."""
    left, right = ({row.name: row for row in rows} for rows in (a, b))
    names = list(dict.fromkeys([*left, *right]))
    texts = {name: _differing(left.get(name), right.get(name)) for name in names}

    # Equal ones are grouped too: a label with "*" must stand for all that it matches.
    paired = [
        replace(left.get(name) or right[name], placement=repr(texts[name]), local_bytes=0)
        for name in names
    ]
    groups = group_tensors(paired)
    differing = [group for group in groups if _differs(texts[group.members[0].name])]

    rows = tuple(
        (row.label, *texts[row.members[0].name], format_quantity(len(row.members), "count"))
        for row in fold(differing)
    )
    return Section(title, _columns("tensor", *sides, "count", right=3), rows)


def _differs(texts: tuple[str, str]) -> bool:
    this, other = texts
    return this != other


def _differing(left: TensorRow | None, right: TensorRow | None) -> tuple[str, str]:
    """How a tensor lies in both, with its type where that is not the same."""
    if left is None or right is None or (left.dtype, left.shape) != (right.dtype, right.shape):
        return _placed(left), _placed(right)
    return left.placement, right.placement


def _placed(row: TensorRow | None) -> str:
    return _ABSENT if row is None else f"{row.dtype}{list(row.shape)} {row.placement}"


def collectives_section(a: Report, b: Report, sides: Sides) -> Section:
    """Those collectives, summed by role, kind and axes, of which count, bytes or time differ."""
    left = _summed(a.collectives)
    right = _summed(b.collectives)
    rows: list[tuple[str, ...]] = []
    for key in dict.fromkeys([*left, *right]):
        this = left.get(key, _ABSENT)
        other = right.get(key, _ABSENT)
        if this != other:
            rows.append((*key, this, other))
    return Section("Collectives", _columns("role", "kind", "axes", *sides), tuple(rows))


def _summed(rows: Sequence[CollectiveRow]) -> dict[tuple[str, str, str], str]:
    """Count, bytes and time of the collectives of each role, kind and axes."""
    found: dict[tuple[str, str, str], list[CollectiveRow]] = {}
    for row in rows:
        found.setdefault((row.role, row.kind, show_axes(row.axes)), []).append(row)
    return {key: _total(members) for key, members in found.items()}


def _total(rows: Sequence[CollectiveRow]) -> str:
    size = format_quantity(sum(row.runs * row.size_bytes for row in rows), "bytes")
    time = format_quantity(sum(row.runs * row.time_s for row in rows), "time")
    return f"{format_quantity(sum(row.runs for row in rows), 'count')}: {size}, {time}"


def _columns(*names: str, right: int | None = None) -> tuple[Heading, ...]:
    """Columns of these names, numbers from column `right` on."""
    return tuple(
        Heading(name, right is not None and number >= right) for number, name in enumerate(names)
    )
