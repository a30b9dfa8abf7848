"""Brief: what a report says first: what the plan is, how fast, beside what; then a summary, layers folded, and inputs.

All else is said on demand.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from math import prod
from typing import Literal

from autopar.report.folding import fold
from autopar.report.groups import (
    CollectiveGroup,
    group_collectives,
    group_operators,
    group_tensors,
)
from autopar.report.rivals import RivalRow, rival_line, rival_section
from autopar.report.sections import (
    FORECAST,
    Heading,
    Section,
    alive_section,
    collective_section,
    facts_of_search,
    memory_section,
    operator_section,
    phase_section,
    show_axes,
    show_error,
    show_mesh,
    show_quality,
    show_share,
    show_type,
    tensor_section,
)
from autopar.report.summary import CollectiveRow, Report, TensorRow
from autopar.report.units import format_quantity

Detail = Literal["ops", "collectives", "memory", "compare"]
_FEW = 8
_FACTS = (Heading(""), Heading(""))


def brief(
    report: Report, rivals: Sequence[RivalRow] = (), details: Collection[Detail] = ()
) -> tuple[Section, ...]:
    """The first page of `report`, and what else is asked for; `rivals` where they are known."""
    return (
        _head(report, rivals),
        *([rival_section(report, rivals)] if "compare" in details else []),
        _summary(report),
        *([_blocks(report)] if report.blocks else []),
        *_tensors(report),
        *([_collectives(report)] if "collectives" not in details else []),
        *_asked(report, details),
    )


def full(report: Report, rivals: Sequence[RivalRow] = ()) -> tuple[Section, ...]:
    """All that `report` says, in reading order; `rivals` where they are known."""
    return (
        _head(report, rivals),
        _summary(report),
        *([_blocks(report)] if report.blocks else []),
        memory_section(report),
        alive_section(report),
        tensor_section("Inputs", report.inputs),
        tensor_section("Outputs", report.outputs),
        operator_section(
            "Operators", group_operators(report.operators), report.compute_time_s, report.unpriced
        ),
        collective_section("Collectives", group_collectives(report.collectives)),
    )


def _head(report: Report, rivals: Sequence[RivalRow]) -> Section:
    """What the plan is, how fast, and beside what."""
    rows = [("cluster", f"{report.cluster}, mesh {show_mesh(report.mesh)}")]
    if report.parallelism is not None:
        rows.append(("layout", str(report.parallelism)))
    rows.append(("speed", _speed(report)))
    if rivals:
        rows.append(("instead", rival_line(report, rivals)))
    return Section(f"Plan of {report.function}", _FACTS, tuple(rows))


def _speed(report: Report) -> str:
    """Seconds of a step, tokens or rows a second, and the share of the peak."""
    said = [f"a step in {format_quantity(report.step_time_s, 'time')}"]
    amounts = report.throughput
    number = amounts.tokens or amounts.rows
    unit = "tokens" if amounts.tokens else "rows"
    if number and report.step_time_s and not report.unpriced:
        rate = number / report.step_time_s
        devices = prod(size for _, size in report.mesh)
        each = f" ({_rate(rate / devices)} a device)" if devices > 1 else ""
        said.append(f"{_rate(rate)} {unit}/s{each}")
    if report.utilisation is not None and not report.unpriced:
        said.append(f"MFU {format_quantity(report.utilisation, 'percent')}")
    return ", ".join(said) + _without(report)


def _without(report: Report) -> str:
    """What has no price, and is in no time."""
    if not report.unpriced:
        return ""
    first, *others = report.unpriced
    more = f" and {len(others)} more" if others else ""
    return f", without what {first}{more} takes, which has no price"


def _rate(number: float) -> str:
    """Three digits of a number a second, such as 415,000."""
    if number < 1000:
        return f"{number:.3g}"
    unit = 10 ** (len(f"{number:.0f}") - 3)
    return f"{round(number / unit) * unit:,}"


def _summary(report: Report) -> Section:
    compute = format_quantity(report.compute_time_s, "time")
    rows = [
        ("step time", f"{format_quantity(report.step_time_s, 'time')}{show_error(report)}"),
        ("compute", f"{compute}{_mostly(report)}"),
        ("exposed", _exposed(report)),
        ("memory", _memory(report)),
        ("quality", show_quality(report)),
        *facts_of_search(report),
    ]
    return Section("Summary", _FACTS, tuple(rows), FORECAST)


def _mostly(report: Report) -> str:
    """The operators at one line that take most of the time of computing."""
    groups = group_operators(report.operators)
    times: dict[tuple[str, str], float] = defaultdict(float)
    for group in groups:
        times[group.members[0].kind, group.members[0].source] += group.time_s
    if not times or not report.compute_time_s:
        return ""
    (kind, source), time_s = max(times.items(), key=lambda item: item[1])
    return f", {show_share(time_s, report.compute_time_s)} of it {kind} ({source or 'no source'})"


def _exposed(report: Report) -> str:
    whole = format_quantity(report.communication_time_s, "time")
    if not report.collectives:
        return "nothing: nothing crosses a link"
    if not report.hidden_time_s:
        return f"{whole} of communication, all of it"
    hidden = show_share(report.hidden_time_s, report.communication_time_s)
    exposed = format_quantity(report.exposed_time_s, "time")
    return f"{exposed} of {whole} of communication; {hidden} is hidden"


def _memory(report: Report) -> str:
    peak = format_quantity(report.peak_memory_bytes, "bytes")
    limit = report.memory_limit_bytes
    inputs = format_quantity(sum(row.local_bytes for row in report.inputs), "bytes")
    of_limit = (
        "without a limit"
        if limit is None
        else f"of {format_quantity(limit, 'bytes')} ({show_share(report.peak_memory_bytes, limit)})"
    )
    return f"peak {peak} {of_limit}, inputs {inputs}"


def _asked(report: Report, details: Collection[Detail]) -> list[Section]:
    found: list[Section] = []
    if "memory" in details:
        found += [memory_section(report), alive_section(report)]

    if "ops" in details:
        groups = group_operators(report.operators)
        for phase in dict.fromkeys(group.members[0].phase for group in groups):
            own = [group for group in groups if group.members[0].phase == phase]
            found.append(phase_section(phase, own, report.compute_time_s, report.unpriced))

    if "collectives" in details:
        found.append(collective_section("Collectives", group_collectives(report.collectives)))
    return found


def _blocks(report: Report) -> Section:
    """A row for what runs as often in each phase, layers folded."""
    names = ("count", "compute", "communication", "exposed", "share")
    columns = (Heading("layers"), Heading("phase"), *(Heading(name, right=True) for name in names))

    whole = sum(row.compute_s + row.exposed_s for row in report.blocks)
    rows = tuple(
        (
            row.name or "-",
            row.phase,
            format_quantity(row.count, "count"),
            format_quantity(row.compute_s, "time"),
            format_quantity(row.communication_s, "time"),
            format_quantity(row.exposed_s, "time"),
            show_share(row.compute_s + row.exposed_s, whole),
        )
        for row in report.blocks
    )
    note = "Times are of all of a row. Equal layers are one row, named by the function that takes longest in it."
    return Section("Layers", columns, rows, note)


def _tensors(report: Report) -> list[Section]:
    """Inputs, folded, and results that do not lie as an input does."""
    others = [row for row in report.outputs if not _is_carried(report, row)]
    kept = len(report.outputs) - len(others)
    results = "1 result lies as the input that it becomes"
    if kept > 1:
        results = f"{kept} results lie as the inputs that they become"
    said = f"{results}." if kept else ""
    return [
        _folded("Inputs", report.inputs, said),
        *([_folded("Other results" if kept else "Results", others)] if others else []),
    ]


def _is_carried(report: Report, row: TensorRow) -> bool:
    return any(
        row.name == group.output or row.name.startswith((f"{group.output}[", f"{group.output}."))
        for group in report.carried
    )


def _folded(title: str, rows: Sequence[TensorRow], note: str = "") -> Section:
    columns = (
        *(Heading(name) for name in ("tensor", "type", "placement")),
        *(Heading(name, right=True) for name in ("count", "bytes")),
    )

    cells = tuple(
        (
            row.label,
            show_type(row.members[0]),
            row.members[0].placement,
            format_quantity(len(row.members), "count"),
            format_quantity(sum(member.local_bytes for member in row.members), "bytes"),
        )
        for row in fold(group_tensors(rows))
    )
    return Section(title, columns, cells, note if cells else "None.")


def _collectives(report: Report) -> Section:
    """A row for each role, kind and axes, those first that take longest; few rows."""
    found: dict[tuple[str, str, tuple[str, ...]], list[CollectiveRow]] = defaultdict(list)
    for row in report.collectives:
        found[row.role, row.kind, row.axes].append(row)
    groups = sorted(map(CollectiveGroup, map(tuple, found.values())), key=lambda g: -g.time_s)
    names = ("count", "bytes", "time", "exposed")
    columns = (
        *(Heading(name) for name in ("role", "kind", "axes")),
        *(Heading(name, right=True) for name in names),
    )
    if not groups:
        return Section("Collectives", columns, (), "None: nothing crosses a link.")

    rows = [(*_what(group), *_amounts([group])) for group in groups[:_FEW]]
    if len(groups) > _FEW:
        rows.append(("all others", "", "", *_amounts(groups[_FEW:])))
    return Section("Collectives", columns, tuple(rows))


def _what(group: CollectiveGroup) -> tuple[str, str, str]:
    row = group.members[0]
    return row.role, row.kind, show_axes(row.axes)


def _amounts(groups: Sequence[CollectiveGroup]) -> tuple[str, str, str, str]:
    exposed = [group.exposed_s for group in groups]
    known = [seconds for seconds in exposed if seconds is not None]
    return (
        format_quantity(sum(group.runs for group in groups), "count"),
        format_quantity(sum(group.size_bytes for group in groups), "bytes"),
        format_quantity(sum(group.time_s for group in groups), "time"),
        format_quantity(sum(known), "time") if len(known) == len(exposed) else "-",
    )
