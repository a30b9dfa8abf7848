"""Lines: the user's source line that each collective of a compiled program comes from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from autopar.inspect.hlo import HloCollective, collective_instructions
from autopar.inspect.hlo_text import HloArray

_FRAME = re.compile(r"stack_frame_id=(\d+)")
_NAME = re.compile(r'op_name="([^"]*)"')
_INLINE = re.compile(r'source_file="([^"]*)" source_line=(\d+)')
_ROW = re.compile(r"^(\d+) (.*)$")
_QUOTED = re.compile(r'^"(.*)"$')
_FIELD = re.compile(r"(\w+)=(\d+)")
_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python")


@dataclass(frozen=True)
class SourceLine:
    """A line of a file, and the function that it is in; line 0 of no file where none is known."""

    file: str = ""
    line: int = 0
    function: str = ""

    @property
    def short(self) -> str:
        """As plans name it, "model.py:41"; "" where it is not known."""
        return f"{self.file.rpartition('/')[2]}:{self.line}" if self.file else ""

    def __str__(self) -> str:
        return f"{self.short} ({self.function})" if self.function else self.short


@dataclass(frozen=True)
class LocatedCollective:
    """A collective of a compiled program, the arrays that it gives, and where it comes from."""

    collective: HloCollective
    results: tuple[HloArray, ...]
    line: SourceLine
    operation: str


def located_collectives(text: str) -> tuple[LocatedCollective, ...]:
    """The collectives of a compiled program's HLO text, each with its line."""
    frames = _Frames.read(text)
    found: list[LocatedCollective] = []
    for collective, instruction in collective_instructions(text):
        name = _NAME.search(instruction.attributes)
        line = frames.line_of(instruction.attributes)
        found.append(
            LocatedCollective(collective, instruction.result, line, name[1] if name else "")
        )
    return tuple(found)


@dataclass(frozen=True)
class _Frames:
    """The tables that stack frames are in: rows by number."""

    tables: Mapping[str, Mapping[int, str]]

    @classmethod
    def read(cls, text: str) -> _Frames:
        """Those of HLO text; empty ones where it has none."""
        tables: dict[str, dict[int, str]] = {name: {} for name in _TABLES}
        current: dict[int, str] | None = None
        for line in text.splitlines():
            if line in tables:
                current = tables[line]
            elif current is not None and (row := _ROW.match(line)):
                current[int(row[1])] = row[2]
            elif line.strip():
                current = None
        return cls(tables)

    def line_of(self, attributes: str) -> SourceLine:
        """The innermost line outside of libraries that an instruction comes from; else the innermost."""
        inline = _INLINE.search(attributes)
        if inline is not None:
            return SourceLine(inline[1], int(inline[2]))
        frame = _FRAME.search(attributes)
        lines = list(self._lines(int(frame[1]))) if frame else []
        own = (line for line in lines if not any(part in line.file for part in _LIBRARIES))
        return next(own, lines[0] if lines else SourceLine())

    def _lines(self, frame: int) -> Iterator[SourceLine]:
        """The lines from a frame on outwards."""
        seen: set[int] = set()
        while frame in self.tables["StackFrames"] and frame not in seen:
            seen.add(frame)
            fields = _fields(self.tables["StackFrames"][frame])
            place = _fields(self.tables["FileLocations"].get(fields["file_location_id"], ""))
            function = self._name("FunctionNames", place.get("function_name_id", 0))
            yield SourceLine(
                self._name("FileNames", place.get("file_name_id", 0)),
                place.get("line", 0),
                function.rpartition("<locals>.")[2],
            )
            frame = fields.get("parent_frame_id", 0)

    def _name(self, table: str, number: int) -> str:
        found = _QUOTED.match(self.tables[table].get(number, ""))
        return found[1] if found else ""


def _fields(text: str) -> dict[str, int]:
    return {name: int(value) for name, value in _FIELD.findall(text)}
