"""Explain: what a plan does with one input, with all under a path, or at one line of the user's source."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from autopar.errors import AutoparError
from autopar.report.groups import group_collectives, group_operators, group_tensors
from autopar.report.render import plain, rich_sections
from autopar.report.sections import (
    Heading,
    Section,
    collective_section,
    operator_section,
    show_axes,
    show_exposed,
    show_type,
    tensor_section,
)
from autopar.report.summary import CollectiveRow, Report, TensorRow
from autopar.report.units import format_quantity

_CLOSE = 5


def explain(report: Report, name: str) -> str:
    """What the plan does with `name`, as text.

    Args:
      report: of the plan.
      name: the path of an input or output ("params['w1']"), the beginning of paths ("params['layers']"), a path as
        the report groups it ("params['layers'][*]['w1']"), or a source line or file ("model.py:41", "model.py").

    Raises:
      AutoparError: if there is no such thing; lists what is called similarly.
    """
    tensors = _tensors_called(report, name)
    if len(tensors) == 1:
        return plain(rich_sections(_of_tensor(report, tensors[0])))
    if tensors:
        return plain(rich_sections(_of_tensors(report, name, tensors)))
    if any(_is_at(op.source, name) for op in report.operators):
        return plain(rich_sections(_of_line(report, name)))
    raise AutoparError(_unknown(report, name))


def _tensors_called(report: Report, name: str) -> tuple[TensorRow, ...]:
    rows = (*report.inputs, *report.outputs)
    exact = tuple(row for row in rows if row.name == name)
    if exact:
        return exact
    for side in (report.inputs, report.outputs):
        for group in group_tensors(side):
            if group.label == name:
                return group.members
    return tuple(row for row in rows if row.name.startswith((f"{name}[", f"{name}.")))


def _of_tensor(report: Report, row: TensorRow) -> tuple[Section, ...]:
    dims, unreduced = _parse_placement(row.placement)
    size = dict(report.mesh)
    facts = [("type", show_type(row)), ("placement", row.placement)]
    for number, axes in enumerate(dims):
        if axes:
            parts = " x ".join(f"{axis}={size[axis]}" for axis in axes)
            facts.append(
                (f"dim {number}", f"split over {parts}: {_share_of(row.shape[number], axes, size)}")
            )

    if unreduced:
        facts.append(
            (
                "unreduced",
                f"over {show_axes(unreduced)}: devices hold parts that are still to be combined",
            )
        )

    named = {axis for axes in dims for axis in axes} | set(unreduced)
    whole = [f"{axis}={count}" for axis, count in report.mesh if axis not in named and count > 1]
    if whole:
        facts.append(("replicated", f"over {' x '.join(whole)}"))

    facts.append(("bytes", f"{format_quantity(row.local_bytes, 'bytes')} on every device"))
    if any(row.name == held.name for held in report.peak):
        facts.append(("memory", "among the largest tensors at the peak"))

    is_input = row in report.inputs
    title = f"{row.name}, {'an input' if is_input else 'an output'} of {report.function}"
    section = Section(title, (Heading(""), Heading("")), tuple(facts))
    return (section, _touching(report, {row.name})) if is_input else (section,)


def _of_tensors(report: Report, name: str, rows: Sequence[TensorRow]) -> tuple[Section, ...]:
    section = tensor_section(
        f"{name}: {len(rows)} tensors", rows, (*report.inputs, *report.outputs)
    )
    names = {row.name for row in rows if row in report.inputs}
    return (section, _touching(report, names)) if names else (section,)


def _of_line(report: Report, line: str) -> tuple[Section, ...]:
    operators = [op for op in report.operators if _is_at(op.source, line)]
    collectives = [row for row in report.collectives if any(_is_at(s, line) for s in _sources(row))]
    return (
        operator_section(
            f"Operators at {line}", group_operators(operators), report.compute_time_s, least_share=0
        ),
        collective_section(f"Collectives for {line}", group_collectives(collectives)),
    )


def _touching(report: Report, names: Iterable[str]) -> Section:
    """The collectives that move the inputs called so: what each does to them, and for whom."""
    wanted = set(names)
    columns = (
        *(Heading(name) for name in ("kind", "axes", "does", "for", "role")),
        *(Heading(name, right=True) for name in ("bytes", "time", "exposed")),
    )
    rows = tuple(
        (
            row.kind,
            show_axes(row.axes),
            row.reason,
            row.source or "a result",
            row.role,
            format_quantity(row.runs * row.size_bytes, "bytes"),
            format_quantity(row.runs * row.time_s, "time"),
            show_exposed(row.exposed_s),
        )
        for row in report.collectives
        if wanted.intersection(row.tensors)
    )
    note = (
        ""
        if rows
        else "None: it is used as it is placed, or its users take a part of what a device holds."
    )

    return Section("Collectives that move it", columns, rows, note)


def _sources(row: CollectiveRow) -> list[str]:
    """The lines that a collective serves; a bucket serves several."""
    return row.source.split(", ")


def _is_at(source: str, name: str) -> bool:
    """Whether `source` ("model.py:41 (loss)") is the line ("model.py:41") or in the file ("model.py") called `name`."""
    line = source.partition(" (")[0]
    return bool(name) and name in (source, line, line.rpartition(":")[0])


def _share_of(length: int, axes: Sequence[str], size: dict[str, int]) -> str:
    parts = 1
    for axis in axes:
        parts *= size[axis]
    return f"{length // parts:,} of {length:,} on every device"


def _parse_placement(placement: str) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]:
    """The axes of every dim, and the unreduced ones, of a placement's text: "[data*model, -] sum(x,y)"."""
    inner, _, tail = placement.removeprefix("[").partition("]")
    dims = (
        tuple(() if part == "-" else tuple(part.split("*")) for part in inner.split(", "))
        if inner
        else ()
    )
    found = re.fullmatch(r" (?:sum|max|min)\((.*)\)", tail)
    return dims, tuple(found[1].split(",")) if found else ()


def _unknown(report: Report, name: str) -> str:
    inputs, outputs = (
        [group.label for group in group_tensors(rows)] for rows in (report.inputs, report.outputs)
    )
    paths = [row.name for row in (*report.inputs, *report.outputs)]
    lines = [op.source.partition(" (")[0] for op in report.operators if op.source]
    known = list(dict.fromkeys([*inputs, *outputs, *paths, *lines]))
    containing = [text for text in known if name and name.lower() in text.lower()]
    close = list(
        dict.fromkeys([*get_close_matches(name, known, n=_CLOSE, cutoff=0.5), *containing])
    )[:_CLOSE]
    hint = (
        f"Close to it: {', '.join(close)}."
        if close
        else f"There are, for example: {', '.join(known[:_CLOSE])}."
    )

    return (
        f"the plan of {report.function} has no input, output or source line called {name!r}. {hint}"
    )
