"""Answer: what a question to a session changes: figures before and after, arrays that move, collectives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from autopar.report.compare import compare
from autopar.report.diff import (
    Sides,
    collectives_section,
    placements_section,
    show_change,
)
from autopar.report.render import html_part, plain, rich_sections
from autopar.report.sections import Heading, Section, show_mesh
from autopar.report.summary import Report
from autopar.report.units import Quantity, format_quantity

_SIDES: Sides = ("before", "after")
_MOST_ROWS = 12
_Figure = tuple[str, Quantity, Callable[[Report], float]]
_FIGURES: tuple[_Figure, ...] = (
    ("step time", "time", lambda report: report.step_time_s),
    ("compute", "time", lambda report: report.compute_time_s),
    ("exposed communication", "time", lambda report: report.exposed_time_s),
    ("peak memory", "bytes", lambda report: report.peak_memory_bytes),
)


@dataclass(frozen=True, repr=False)
class Answer:
    """What a question changes: the plan before it, and the plan after it.

    `question` is what was asked, as the call that asks it.
    """

    question: str
    before: Report
    after: Report

    @property
    def in_short(self) -> str:
        """The question, and what became of the step time and the peak, in a line."""
        figures = (
            f"{name} {format_quantity(figure(self.before), kind)} -> {_became(self, figure, kind)}"
            for name, kind, figure in (_FIGURES[0], _FIGURES[-1])
        )
        return f"{self.question}: {', '.join(figures)}"

    @property
    def sections(self) -> tuple[Section, ...]:
        """The figures, then what lies otherwise and what is sent otherwise, if anything is."""
        before = self.before
        after = self.after
        changed = (
            placements_section("What moved", before.inputs, after.inputs, _SIDES),
            collectives_section(before, after, _SIDES),
        )
        return (_figures(self), *(_cut(part) for part in changed if part.rows))

    def __str__(self) -> str:
        return plain(rich_sections(self.sections))

    def __repr__(self) -> str:
        return f"Answer({self.in_short})"

    def _repr_html_(self) -> str:
        return html_part(self.sections)


def history_section(answers: Sequence[Answer], start: Report) -> Section:
    """A row for the plan at the start, and one for each question since."""
    columns = (
        Heading("question"),
        *(Heading(name, right=True) for name in ("step time", "peak memory", "gap")),
    )
    rows = [("", start), *((answer.question, answer.after) for answer in answers)]
    return Section("Asked", columns, tuple(_asked(question, report) for question, report in rows))


def _asked(question: str, report: Report) -> tuple[str, ...]:
    return (
        question or "at the start",
        format_quantity(report.step_time_s, "time"),
        format_quantity(report.peak_memory_bytes, "bytes"),
        format_quantity(report.gap, "percent"),
    )


def _figures(answer: Answer) -> Section:
    """The step time and the peak; of all other lines those that differ."""
    before = answer.before
    after = answer.after
    rows = [
        (name, *_pair(before, after, figure, kind))
        for name, kind, figure in _FIGURES
        if name in ("step time", "peak memory") or figure(before) != figure(after)
    ]
    if before.throughput.rows != after.throughput.rows:
        rows.append(("rows a second", *_pair(before, after, _rows_a_second, "count")))
    rows += [
        (name, left, right, "")
        for (name, left), (_, right) in zip(_words(before), _words(after), strict=True)
        if left != right
    ]

    columns = (Heading(""), *(Heading(name) for name in _SIDES), Heading("change", right=True))
    return Section(answer.question, columns, tuple(rows), _verdict(before, after))


def _verdict(before: Report, after: Report) -> str:
    """Whether the step times differ by more than the model can tell; "" if they do not, or that is not known.

    Plans for other links, or for more rows, are not chosen between.
    """
    is_choice = before.cluster == after.cluster and before.throughput.rows == after.throughput.rows
    is_known = bool(before.errors and after.errors)
    if not is_choice or not is_known or before.step_time_s == after.step_time_s:
        return ""
    return f"Step time: {compare(before, after).told(*_SIDES)}"


def _pair(
    before: Report, after: Report, figure: Callable[[Report], float], kind: Quantity
) -> tuple[str, str, str]:
    left = figure(before)
    right = figure(after)
    change = "none" if left == right else show_change(left, right)
    return format_quantity(left, kind), format_quantity(right, kind), change


def _rows_a_second(report: Report) -> float:
    return report.throughput.rows / report.step_time_s if report.step_time_s else 0.0


def _words(report: Report) -> tuple[tuple[str, str], ...]:
    """What else is told where it differs: what was asked for, and the plan in the field's words."""
    limit = report.memory_limit_bytes
    return (
        ("cluster", report.cluster),
        ("mesh", show_mesh(report.mesh).partition(" (")[0]),
        ("rows a step", format_quantity(report.throughput.rows, "count")),
        ("memory limit", "none" if limit is None else format_quantity(limit, "bytes")),
        ("layout", "" if report.parallelism is None else str(report.parallelism)),
        ("gap", format_quantity(report.gap, "percent")),
    )


def _became(answer: Answer, figure: Callable[[Report], float], kind: Quantity) -> str:
    left = figure(answer.before)
    right = figure(answer.after)
    change = "" if left == right else f" ({show_change(left, right)})"
    return f"{format_quantity(right, kind)}{change}"


def _cut(part: Section) -> Section:
    """The first rows of many."""
    left = len(part.rows) - _MOST_ROWS
    if left <= 0:
        return part
    return replace(part, rows=part.rows[:_MOST_ROWS], note=f"And {left} more rows.")
