"""Render: a Report as text, as a rich renderable, as an HTML page and as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from html import escape
from io import StringIO
from typing import Any

from pydantic import TypeAdapter
from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from autopar.report.brief import Detail, brief, full
from autopar.report.placements import parse_placement
from autopar.report.rivals import RivalRow
from autopar.report.sections import Heading, Section, price_section
from autopar.report.summary import Report
from autopar.search.replan import ConstraintPrice

WIDTH = 80
_BLANK = re.compile(r"\n{3,}")

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; color: #1c2024; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .4rem; }
table { border-collapse: collapse; } .scroll { overflow-x: auto; }
th, td { text-align: left; vertical-align: top; padding: .2rem .9rem .2rem 0; border-bottom: 1px solid #e3e6e9; }
td { font: 13px/1.5 ui-monospace, monospace; } .right { text-align: right; white-space: nowrap; }
p { color: #5a626a; margin: .4rem 0; }
"""


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


def html(report: Report) -> str:
    """`report` as an HTML page that needs no other file."""
    first, *rest = full(report)
    title = escape(first.title)
    body = "\n".join([f"<h1>{title}</h1>", _html_table(first), *(_html(part) for part in rest)])
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def html_part(parts: Sequence[Section]) -> str:
    """Sections as a part of a page, as notebooks show it: tables under titles, no script and no style sheet."""
    return f"<div>{''.join(map(_html, parts))}</div>"


def to_json(report: Report) -> str:
    """`report` as JSON: every row, in base units (seconds, bytes), placements as text and as data.

    A row with a `placement` has `dims`, for each dim the mesh axes that split it, and the axes over which it is
    `unreduced`, too; an operator has `in_dims` and `out_dims`, for each operand and result.
    """
    fields: dict[str, Any] = json.loads(TypeAdapter(Report).dump_json(report))
    for name in ("inputs", "outputs", "peak", "uses"):
        for row in fields[name]:
            dims, unreduced = parse_placement(row["placement"])
            row |= {"dims": dims, "unreduced": unreduced}
    for row in fields["operators"]:
        for side in ("in", "out"):
            row[f"{side}_dims"] = [parse_placement(text)[0] for text in row[f"{side}s"]]
    return json.dumps(fields, indent=1, allow_nan=False) + "\n"


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


def _html(part: Section) -> str:
    return f"<h2>{escape(part.title)}</h2>\n{_html_table(part)}"


def _html_table(part: Section) -> str:
    lines: list[str] = []
    if part.rows:
        heads = "".join(f"<th{_right(c)}>{escape(c.name)}</th>" for c in part.columns)
        lines.append('<div class="scroll"><table>')
        lines += [f"<tr>{heads}</tr>"] if any(column.name for column in part.columns) else []
        for row in part.rows:
            cells = zip(row, part.columns, strict=True)
            lines.append(
                f"<tr>{''.join(f'<td{_right(c)}>{escape(cell)}</td>' for cell, c in cells)}</tr>"
            )
        lines.append("</table></div>")

    if part.note:
        lines.append(f"<p>{escape(part.note)}</p>")

    return "\n".join(lines)


def _right(column: Heading) -> str:
    return ' class="right"' if column.right else ""
