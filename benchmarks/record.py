"""Records: the tables that a benchmark shows, kept as `benchmarks/results/<benchmark>/<machine>.json`.

A benchmark adds `--record` to its parser, shows its tables on a `Screen`, and calls `record` when all are shown. What a
machine had before is replaced: history is git's. `python -m benchmarks.results` makes docs/results.md of the records.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax
from rich import box
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"


@dataclass(frozen=True)
class Shown:
    """A table as it was shown: every row has a cell for every head."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.heads):
                raise ValueError(
                    f"table {self.title!r}: {row} has not one cell for each of {self.heads}"
                )


@dataclass(frozen=True)
class Record:
    """The latest run of one benchmark on one machine.

    `date` is YYYY-MM-DD; `commit` is the code that was measured, with a "+" if files differed from it. `notes` say
    what no table does.
    """

    benchmark: str
    machine: str
    date: str
    commit: str
    command: str
    software: Mapping[str, str]
    tables: tuple[Shown, ...]
    notes: tuple[str, ...] = ()

    @classmethod
    def read(cls, path: Path) -> Record:
        """The record in the file at `path`.

        Raises:
          ValueError: it is no record, or not where one of its benchmark belongs.
        """
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        tables = tuple(
            Shown(t["title"], tuple(t["heads"]), tuple(map(tuple, t["rows"])))
            for t in content["tables"]
        )
        found = cls(**{**content, "tables": tables, "notes": tuple(content["notes"])})
        if found.benchmark != path.parent.name:
            raise ValueError(f"{path} holds a record of {found.benchmark}")
        return found

    def write(self, path: Path) -> None:
        """Writes the record to the file at `path`, whose folder is made if need be."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )


class Screen(Console):
    """A console that remembers the tables it shows."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.tables: list[Table] = []

    def print(self, *objects: Any, **options: Any) -> None:
        """Prints, and remembers what is a table."""
        self.tables += [one for one in objects if isinstance(one, Table)]
        super().print(*objects, **options)


def table(title: str, heads: Sequence[str], words: int = 1) -> Table:
    """A table with these heads: words in the first columns, numbers in the others."""
    shown = Table(title=title, title_justify="left", title_style="bold", box=box.MARKDOWN)
    for number, head in enumerate(heads):
        shown.add_column(head, justify="left" if number < words else "right")
    return shown


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """The options that every benchmark has: --json and --record."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    add_record_option(parser)
    return parser


def add_record_option(parser: argparse.ArgumentParser) -> None:
    """Adds `--record [MACHINE]`."""
    parser.add_argument(
        "--record",
        nargs="?",
        const=machine_name(),
        metavar="MACHINE",
        help="keep the tables as benchmarks/results/<benchmark>/MACHINE.json; default: named by processor and cores",
    )


def machine_name() -> str:
    """The machine by processor, family and cores, as a file's name: "amd-epyc-family-25-2-cores"."""
    info = Path("/proc/cpuinfo")
    lines = (
        line.partition(":") for line in (info.read_text().splitlines() if info.exists() else ())
    )
    fields = {name.strip(): value.strip() for name, _, value in lines}
    family = f"family {fields['cpu family']}" if "cpu family" in fields else ""
    text = f"{fields.get('model name') or platform.machine()} {family} {os.cpu_count()} cores"
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


def record(
    benchmark: str, machine: str | None, tables: Sequence[Table], folder: Path = RESULTS
) -> Path | None:
    """Keeps `tables` as what the benchmark, a module's file, last found on `machine`; nothing if that is None.

    Raises:
      ValueError: there are no tables.
    """
    if machine is None:
        return None
    if not tables:
        raise ValueError("nothing to record: no table was shown")
    name = Path(benchmark).stem
    arguments = shlex.join(_shown(sys.argv[1:]))
    software = {"Python": platform.python_version(), "JAX": jax.__version__}
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    command = f"python -m benchmarks.{name} {arguments}".strip()
    shown = tuple(map(shown_table, tables))
    path = folder / name / f"{machine}.json"
    Record(name, machine, date, _commit(), command, software, shown).write(path)
    return path


def shown_table(table: Table) -> Shown:
    """The texts of a table."""
    columns = [[str(cell) for cell in column.cells] for column in table.columns]
    return Shown(
        str(table.title or ""),
        tuple(str(c.header) for c in table.columns),
        tuple(zip(*columns, strict=True)),
    )


def _shown(arguments: Sequence[str]) -> list[str]:
    """The arguments but those of where figures go, `--record` and `--json`; files by their names."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--record", nargs="?")
    parser.add_argument("--json")
    rest = parser.parse_known_args(arguments)[1]
    return [Path(text).name if Path(text).is_file() else text for text in rest]


def _commit() -> str:
    """The commit that is checked out, with a "+" if files differ from it."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout.strip()

    return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain") else "")
