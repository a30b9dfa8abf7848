"""Data: all that a report says as plain values, for JSON and for pages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter

from autopar.report.front import FrontPoint
from autopar.report.placements import parse_placement
from autopar.report.rivals import RivalRow
from autopar.report.summary import Report


def to_json(
    report: Report, rivals: Sequence[RivalRow] = (), front: Sequence[FrontPoint] = ()
) -> str:
    """`as_data` as JSON."""
    return json.dumps(as_data(report, rivals, front), indent=1, allow_nan=False) + "\n"


def as_data(
    report: Report, rivals: Sequence[RivalRow], front: Sequence[FrontPoint]
) -> dict[str, Any]:
    """`report` as plain values: every row, in base units (seconds, bytes), placements as text and as data.

    A row with a `placement` has `dims`, for each dim the mesh axes that split it, and the axes over which it is
    `unreduced`, too; an operator, and what runs in a step, has `in_dims` and `out_dims`, for each operand and result.
    Beside the fields of a report there are `rivals` and `front`, empty where they are not known.
    """
    fields: dict[str, Any] = json.loads(TypeAdapter(Report).dump_json(report))
    nodes: list[dict[str, Any]] = [] if report.step is None else fields["step"]["nodes"]
    options: list[dict[str, Any]] = [one for node in nodes for one in node["alternatives"]]
    inputs: list[dict[str, Any]] = [] if report.step is None else fields["step"]["inputs"]
    placed: list[dict[str, Any]] = [one for row in inputs for one in row["alternatives"]]
    tensors: list[dict[str, Any]] = [
        row for name in ("inputs", "outputs", "peak", "uses") for row in fields[name]
    ]
    for row in (*tensors, *placed):
        dims, unreduced = parse_placement(row["placement"])
        row |= {"dims": dims, "unreduced": unreduced}

    operators: list[dict[str, Any]] = fields["operators"]
    for row in (*operators, *nodes, *options):
        for side in ("in", "out"):
            row[f"{side}_dims"] = [parse_placement(text)[0] for text in row[f"{side}s"]]
    for row in (*nodes, *options):
        row["out_unreduced"] = [parse_placement(text)[1] for text in row["outs"]]

    rows = TypeAdapter(tuple[RivalRow, ...]), TypeAdapter(tuple[FrontPoint, ...])
    fields["rivals"] = rows[0].dump_python(tuple(rivals), mode="json")
    fields["front"] = rows[1].dump_python(tuple(front), mode="json")
    return fields
