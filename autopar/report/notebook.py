"""Notebook: what a plan, a front or a function shows as the last line of a cell: short, no script, no style sheet."""

from __future__ import annotations

from collections.abc import Sequence

from autopar.report.answer import Answer, history_section
from autopar.report.brief import brief
from autopar.report.front import front_section
from autopar.report.page import html_part, rendered
from autopar.report.summary import Report

_SHOWN = ("Plan of", "Summary", "Layers")


def report_html(report: Report) -> str:
    """What a report says first: the plan in words and figures, the summary, the layers."""
    return html_part([part for part in brief(report) if part.title.startswith(_SHOWN)])


def front_html(reports: Sequence[Report]) -> str:
    """The points of a front as a table."""
    return html_part((front_section(reports),))


def session_html(now: Report, answers: Sequence[Answer], start: Report) -> str:
    """What a plan says first, and under it what was asked so far."""
    shown = [part for part in brief(now) if part.title.startswith(_SHOWN[:2])]
    return html_part([*shown, *([history_section(answers, start)] if answers else [])])


def line_html(text: str) -> str:
    """One line of text."""
    return lines_html(text, ())


def lines_html(title: str, lines: Sequence[str]) -> str:
    """A title with an item for each line."""
    return rendered("lines.html.j2", title=title, lines=lines)
