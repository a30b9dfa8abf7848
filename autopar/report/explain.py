"""Explain: what a plan does with one input, with all under a path, or at one line of the user's source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from math import prod

from autopar.errors import AutoparError
from autopar.report.groups import group_collectives, group_operators, group_tensors
from autopar.report.placements import parse_placement
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


@dataclass(frozen=True)
class Why:
    """Why an input lies as it does: the constraints that name it, and what the next best placement would cost.

    `costs_s` is how much more the objective is with it, a step; where `next_best` is "" no other leaves a plan.
    """

    constraints: tuple[str, ...]
    next_best: str
    costs_s: float


def explain(report: Report, name: str, why: Why | None = None) -> str:
    """What the plan does with `name`, as text.

    Args:
      report: of the plan.
      name: the path of an input or output ("params['w1']"), the beginning of paths ("params['layers']"), a path as
        the report groups it ("params['layers'][*]['w1']"), or a source line or file ("model.py:41", "model.py").
      why: where `name` is one input, and that is known.

    Raises:
      AutoparError: if there is no such thing; lists what is called similarly.
    """
    tensors = _tensors_called(report, name)
    if len(tensors) == 1:
        return plain(rich_sections(_of_tensor(report, tensors[0], why)))
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


def one_input(report: Report, name: str) -> TensorRow | None:
    """The input that `name` is the whole path of; None if it is something else."""
    return next((row for row in report.inputs if row.name == name), None)


def _of_tensor(report: Report, row: TensorRow, why: Why | None) -> tuple[Section, ...]:
    is_input = row in report.inputs
    facts = [
        ("type", show_type(row)),
        ("placement", row.placement),
        *_lying(report, row),
        ("bytes", f"{format_quantity(row.local_bytes, 'bytes')} on every device"),
    ]
    if any(row.name == held.name for held in report.peak):
        facts.append(("memory", "among the largest tensors at the peak"))
    if why is not None:
        facts += _reasons(report, why)

    title = f"{row.name}, {'an input' if is_input else 'an output'} of {report.function}"
    section = Section(title, (Heading(""), Heading("")), tuple(facts))
    if not is_input:
        return (section,)

    used = _readers(report, row.name)
    return (section, *([used] if used.rows else []), _touching(report, {row.name}))


def _lying(report: Report, row: TensorRow) -> list[tuple[str, str]]:
    """Each dim that is split, or could not be; what is unreduced, and over what it is replicated."""
    dims, unreduced = parse_placement(row.placement)
    size = dict(report.mesh)
    named = {axis for axes in dims for axis in axes} | set(unreduced)
    whole = {axis: count for axis, count in report.mesh if axis not in named and count > 1}
    facts: list[tuple[str, str]] = []
    for number, axes in enumerate(dims):
        if axes:
            parts = " x ".join(f"{axis}={size[axis]}" for axis in axes)
            shared = _share_of(row.shape[number], axes, size)
            facts.append((f"dim {number}", f"split over {parts}: {shared}"))
        elif uneven := _uneven(report, row.shape[number], whole):
            facts.append((f"dim {number}", uneven))

    if unreduced:
        parts = f"over {show_axes(unreduced)}: devices hold parts that are still to be combined"
        facts.append(("unreduced", parts))
    if whole:
        shown = " x ".join(f"{axis}={count}" for axis, count in whole.items())
        facts.append(("replicated", f"over {shown}"))
    return facts


def _uneven(report: Report, length: int, axes: Mapping[str, int]) -> str:
    """Why a dim could not be split over any of `axes`, and what would help; "" if it could be."""
    if length == 1 or not axes or any(length % count == 0 for count in axes.values()):
        return ""
    padded = dict(report.padding).get(length)
    if padded is not None:
        cost = format_quantity(report.padding_time_s, "time")
        return f"{length:,} does not divide: inside it is padded to {padded:,}, which costs at most {cost}"
    shown = " or ".join(f"{axis}={count}" for axis, count in axes.items())
    parts = prod(axes.values())
    longer = -(-length // parts) * parts
    return f"whole: {length:,} does not divide by {shown}; {longer:,} would"


def _reasons(report: Report, why: Why) -> list[tuple[str, str]]:
    """What forced the placement, and the next best."""
    facts = [("forced by", constraint) for constraint in why.constraints]
    if not why.next_best:
        return [*facts, ("next best", "none: no other placement leaves a plan")]
    if why.costs_s <= 0:
        return [*facts, ("next best", f"{why.next_best}, which costs no more")]
    share = format_quantity(why.costs_s / report.objective_s, "percent")
    cost = format_quantity(why.costs_s, "time")
    return [*facts, ("next best", f"{why.next_best}, which costs {cost} more a step ({share})")]


def _readers(report: Report, name: str) -> Section:
    """The operators that compute with an input, in which type and how placed they read it."""
    found: dict[tuple[str, ...], int] = {}
    for use in report.uses:
        if use.input == name:
            cells = use.kind, use.phase, use.source or "-", use.dtype, use.placement
            found[cells] = found.get(cells, 0) + 1
    columns = tuple(Heading(text) for text in ("reader", "phase", "source", "reads", "placed"))
    return Section("What reads it", columns, tuple(found))


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
            f"Operators at {line}",
            group_operators(operators),
            report.compute_time_s,
            report.unpriced,
            least_share=0,
        ),
        collective_section(f"Collectives for {line}", group_collectives(collectives)),
    )


def _touching(report: Report, names: Iterable[str]) -> Section:
    """The collectives that move the inputs called so, as they are, cast or reshaped: what each does, and for whom."""
    wanted = set(names)
    columns = (
        *(Heading(name) for name in ("collective", "does", "for")),
        *(Heading(name, right=True) for name in ("bytes", "time", "exposed")),
    )
    rows = tuple(
        (
            f"{row.kind} over {show_axes(row.axes)}",
            row.reason,
            row.source or "a result",
            format_quantity(row.runs * row.size_bytes, "bytes"),
            format_quantity(row.runs * row.time_s, "time"),
            show_exposed(row.exposed_s),
        )
        for row in report.collectives
        if wanted.intersection((*row.tensors, *row.inputs))
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
