"""Render: a Report as text and as a rich renderable."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from io import StringIO

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from autopar.report.brief import Detail, brief
from autopar.report.rivals import RivalRow
from autopar.report.sections import Section, price_section
from autopar.report.summary import Report
from autopar.search.replan import ConstraintPrice

WIDTH = 80
_BLANK = re.compile(r"\n{3,}")


def text(
    report: Report,
    prices: Sequence[ConstraintPrice] = (),
    rivals: Sequence[RivalRow] = (),
    details: Collection[Detail] = (),
) -> str:
    """`report` as plain text of 80 columns, without colour: the same for the same report wherever it runs.

    Args:
      report: what the plan says.
      prices: those of the plan's constraints, where they are known.
      rivals: what other layouts would cost, where that is known.
      details: what is told in full.
    """
    return plain(rich_report(report, prices, rivals, details))


def rich_report(
    report: Report,
    prices: Sequence[ConstraintPrice] = (),
    rivals: Sequence[RivalRow] = (),
    details: Collection[Detail] = (),
) -> RenderableType:
    """`report` for a rich console; arguments as of `text`."""
    parts = brief(report, rivals, details)
    return rich_sections((*parts, price_section(prices, report)) if prices else parts)


def rich_sections(parts: Sequence[Section]) -> RenderableType:
    """Sections for a rich console, one below the other."""
    return Group(*(renderable for part in parts for renderable in _rich(part)))


def plain(renderable: RenderableType, width: int | None = None) -> str:
    """What a terminal without colour would show, of `WIDTH` columns by default; lines without trailing blanks."""
    out = StringIO()
    console = Console(
        file=out,
        width=width or WIDTH,
        color_system=None,
        force_terminal=False,
        force_jupyter=False,
        _environ={},
    )
    console.print(renderable)
    lines = "\n".join(line.rstrip() for line in out.getvalue().strip("\n").splitlines()) + "\n"
    return _BLANK.sub("\n\n", lines)


def _rich(part: Section) -> list[RenderableType]:
    shown: list[RenderableType] = [Text(part.title, style="bold")]
    if part.rows:
        shown.append(_rich_table(part))
    if part.note:
        shown.append(Padding(Text(part.note, style="dim"), (0, 0, 0, 2)))
    return [*shown, Text("")]


def _rich_table(part: Section) -> Table:
    headed = any(column.name for column in part.columns)
    table = Table(
        box=box.SIMPLE_HEAD if headed else None,
        show_header=headed,
        padding=(0, 1, 0, 0) if headed else (0, 1),
    )

    for column in part.columns:
        table.add_column(
            Text(column.name),
            justify="right" if column.right else "left",
            no_wrap=column.right,
            overflow="fold",
        )

    for row in part.rows:
        table.add_row(*(Text(cell) for cell in row))

    return table
