"""Verification: whether a plan's program computes what plain JAX does, by the collectives planned, as one table."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import TypeAdapter

from autopar.report.render import plain, rich_sections
from autopar.report.sections import Heading, Section
from autopar.report.units import format_quantity

_MOST_ROWS = 10
_NOTE = (
    "Values are those of the compiled program on virtual CPU devices beside plain JAX's on one. A difference is "
    "allowed up to a share of the largest element, or four times what plain JAX's own result changes by when its "
    "inputs do in their last place."
)


@dataclass(frozen=True)
class ResultRow:
    """One result: its path, the largest difference, the largest element of plain JAX's, and what is allowed.

    `noise` is what plain JAX's own result changes by when its inputs do in their last place. `is_same_shape` says that
    structure, shape, type and the places of what is not finite agree; without, the difference says nothing.
    """

    name: str
    dtype: str
    difference: float
    largest: float
    noise: float
    allowed: float
    is_same_shape: bool = True

    @property
    def passed(self) -> bool:
        """Whether it is plain JAX's."""
        return self.is_same_shape and self.difference <= self.allowed

    def __str__(self) -> str:
        if not self.is_same_shape:
            return f"{self.name}: of another type, or not finite elsewhere"
        return f"{self.name} off by {self.difference:.2g} of {self.largest:.2g}, {self.allowed:.2g} allowed"


@dataclass(frozen=True)
class Verification:
    """What was verified of the plan of `function`: `results` against plain JAX's, collectives against the plan's.

    `collectives` says in words how planned and compiled ones compare, `unexplained` those that differ without a reason.
    Seconds are those of this run: of planning, of plain JAX, of the program, and of compiling it for its collectives.
    """

    function: str
    mesh: tuple[tuple[str, int], ...]
    results: tuple[ResultRow, ...]
    collectives: str
    unexplained: tuple[str, ...]
    plan_s: float
    plain_s: float
    program_s: float
    collectives_s: float

    @property
    def passed(self) -> bool:
        """Whether all of it holds."""
        return not self.unexplained and all(row.passed for row in self.results)

    @property
    def total_s(self) -> float:
        """Seconds in all."""
        return self.plan_s + self.plain_s + self.program_s + self.collectives_s

    def to_json(self) -> str:
        """All of it as JSON."""
        return TypeAdapter(Verification).dump_json(self, indent=1).decode() + "\n"

    def __str__(self) -> str:
        return plain(rich_sections((self._section,)))

    @property
    def _section(self) -> Section:
        failed = [row for row in self.results if not row.passed]
        values_s = self.plain_s + self.program_s
        rows = [
            ("plan", f"mesh {_axes(self.mesh)}", "", _seconds(self.plan_s)),
            ("values", self._values, _verdict(not failed), _seconds(values_s)),
            *(("", str(row), "FAIL", "") for row in failed[:_MOST_ROWS]),
            (
                "collectives",
                self.collectives,
                _verdict(not self.unexplained),
                _seconds(self.collectives_s),
            ),
            *(("", line, "FAIL", "") for line in self.unexplained[:_MOST_ROWS]),
        ]

        columns = (Heading("check"), Heading("found"), Heading("verdict"), Heading("time", True))
        said = _verdict(self.passed)
        rows.append(("in all", "", said, _seconds(self.total_s)))
        return Section(f"Verification of {self.function}: {said}", columns, tuple(rows), _NOTE)

    @property
    def _values(self) -> str:
        if not self.results:
            return "no results"
        worst = max(self.results, key=lambda row: row.difference / (row.allowed or 1.0))
        return f"{len(self.results)} results; the furthest is {worst}"


def _axes(mesh: tuple[tuple[str, int], ...]) -> str:
    return " x ".join(f"{name}={size}" for name, size in mesh)


def _verdict(passed: bool) -> str:
    return "pass" if passed else "FAIL"


def _seconds(time_s: float) -> str:
    return format_quantity(time_s, "time")
