"""Page: a plan as one HTML file that needs no other, its pictures drawn from the report's JSON; parts for notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from autopar.report.brief import full
from autopar.report.data import as_data
from autopar.report.front import FrontPoint
from autopar.report.rivals import RivalRow
from autopar.report.sections import Section
from autopar.report.summary import Report

if TYPE_CHECKING:
    from jinja2 import Template

_HERE = Path(__file__).parent
_LISTED = frozenset({"inputs", "outputs", "operators", "collectives", "peak", "uses"})
"""Fields of a report with a row for each array or operator: tables of the page show them grouped."""


def html(report: Report, rivals: Sequence[RivalRow] = (), front: Sequence[FrontPoint] = ()) -> str:
    """`report` as an HTML page that needs no other file and loads none.

    Args:
      report: what the plan says; with `alternatives` in its step where these are to be shown.
      rivals: what other layouts would cost, where that is known.
      front: the points of the front that the plan is of.
    """
    head, *parts = full(report, rivals)
    data = as_data(report, rivals, front)

    return rendered(
        "page.html.j2",
        head=head,
        parts=parts,
        has_step=report.step is not None,
        has_rivals=bool(rivals),
        has_front=bool(front),
        data={name: value for name, value in data.items() if name not in _LISTED},
        style=_text("page.css"),
        script=_text("page.js"),
    )


def html_part(parts: Sequence[Section]) -> str:
    """Sections as a part of a page, as notebooks show it: tables under titles, no script and no style sheet."""
    return rendered("part.html.j2", parts=parts)


def rendered(name: str, **values: object) -> str:
    """The template of this room called `name`, filled with values, which are escaped."""
    return _template(name).render(**values)


@cache
def _template(name: str) -> Template:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # late: few reports are pages

    loader = FileSystemLoader(_HERE, encoding="utf-8")
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    return made.get_template(name)


def _text(name: str) -> str:
    """A file of this room as it stands, for a page: it is the page's own, not somebody's input."""
    from markupsafe import Markup

    return Markup((_HERE / name).read_text(encoding="utf-8"))
