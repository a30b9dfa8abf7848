"""Findings: what a program that is sharded by hand could do better, as a table, as JSON and as GitHub's annotations."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from autopar.report.render import plain, rich_sections
from autopar.report.sections import Heading, Section
from autopar.report.units import format_quantity

FindingKind = Literal["redistribution", "replicated", "communication"]
_LEFT_OUT = (
    "Collectives are those that XLA's partitioner made of the program on virtual CPUs, priced for the cluster. "
    "The plan is the best on the same mesh without the function's own shardings. Bytes are of one "
    "device; times are predicted."
)


@dataclass(frozen=True)
class Finding:
    """One thing that a program pays for and the plan found does not, or pays less for.

    `file` and `line` are where to change it, "" and 0 where that is no line of the program's. `time_s` is a step's
    share of it and `plan_time_s` what the plan spends there; `size_bytes` is what one device moves, or holds, of it
    and `plan_size_bytes` what it does under the plan.
    """

    kind: FindingKind
    message: str
    file: str
    line: int
    time_s: float
    plan_time_s: float
    size_bytes: int
    plan_size_bytes: int

    @property
    def place(self) -> str:
        """As "model.py:41", "" where there is no line."""
        return f"{self.file.rpartition('/')[2]}:{self.line}" if self.file else ""


@dataclass(frozen=True)
class Findings:
    """What was found in a program sharded by hand, the most expensive first.

    Times are seconds a step as the cluster's model predicts them: `communication_time_s` of all collectives of the
    program as XLA partitions it, `plan_communication_time_s` of those of the plan found on the same mesh, whose step
    takes `plan_step_time_s`. `argument_bytes` are what one device holds of the arguments, and of those of the plan.
    """

    function: str
    mesh: tuple[tuple[str, int], ...]
    cluster: str
    findings: tuple[Finding, ...]
    communication_time_s: float
    plan_communication_time_s: float
    plan_step_time_s: float
    argument_bytes: int
    plan_argument_bytes: int
    collectives: int

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def to_json(self) -> str:
        """All of it as JSON, in seconds and bytes."""
        return TypeAdapter(Findings).dump_json(self, indent=1).decode() + "\n"

    def annotations(self) -> str:
        """A line for each finding, as GitHub's workflows show them at the lines of a change."""
        return "".join(
            f"::warning {_where(one)}title=autopar {one.kind}::{_escaped(one.message)}\n"
            for one in self.findings
        )

    def __str__(self) -> str:
        return plain(rich_sections((self._overview, self._table)))

    def _repr_pretty_(self, printer: object, cycle: bool) -> None:
        del cycle
        getattr(printer, "text")(str(self))  # noqa: B009 - IPython's printer has no type here

    @property
    def _overview(self) -> Section:
        axes = " x ".join(f"{name}={size}" for name, size in self.mesh)
        rows = (
            ("cluster", self.cluster),
            ("mesh", axes),
            ("collectives", f"{self.collectives}, {_times(self.communication_time_s)} a step"),
            (
                "the plan found",
                f"{_times(self.plan_communication_time_s)} of its step of {_times(self.plan_step_time_s)}",
            ),
            (
                "arguments",
                f"{_bytes(self.argument_bytes)} of a device, in the plan {_bytes(self.plan_argument_bytes)}",
            ),
        )

        return Section(f"Lint of {self.function}", (Heading(""), Heading("")), rows, _LEFT_OUT)

    @property
    def _table(self) -> Section:
        if self.is_clean:
            return Section("Nothing found", (Heading(""),), ())
        columns = (
            Heading("where"),
            Heading("what"),
            Heading("time", right=True),
            Heading("in the plan", right=True),
            Heading("bytes", right=True),
        )
        rows = tuple(
            (
                one.place or "arguments",
                one.message,
                _times(one.time_s) if one.time_s else "-",
                _times(one.plan_time_s) if one.time_s else _bytes(one.plan_size_bytes),
                _bytes(one.size_bytes),
            )
            for one in self.findings
        )

        return Section(f"{len(self.findings)} findings", columns, rows)


def _times(seconds: float) -> str:
    return format_quantity(seconds, "time")


def _bytes(size: int) -> str:
    return format_quantity(size, "bytes")


def _where(one: Finding) -> str:
    """The file as GitHub wants it, from the folder that the command runs in, if it is in there."""
    if not one.file:
        return ""
    path = Path(one.file)
    here = Path.cwd()
    shown = path.relative_to(here) if path.is_relative_to(here) else path
    return f"file={shown},line={one.line},"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
