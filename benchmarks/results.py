"""What was measured: docs/results.md from the records of all benchmarks, the latest of each machine.

    python -m benchmarks.results

Records are written by `--record` of each benchmark (see `benchmarks.record`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.record import RESULTS, ROOT, Record, Shown

TARGET = ROOT / "docs" / "results.md"
HEAD = """# Results

What was measured, by which code, on which machine? `python -m benchmarks.results` writes this page from the records in
`benchmarks/results/`. It shows the latest run of each machine; a run with `--record` replaces it. The commit is the
code that was measured, or the one that brought the figures. Ratios within one table are of one run."""


def page(folder: Path = RESULTS) -> str:
    """The page, as Markdown."""
    records = [Record.read(path) for path in sorted(folder.glob("*/*.json"))]
    return "\n\n".join([HEAD, *_parts(records)]) + "\n"


def question(benchmark: str) -> str:
    """What a benchmark asks: the first line of its docstring."""
    text = (ROOT / "benchmarks" / f"{benchmark}.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(text)) or "").partition("\n\n")[0].replace("\n", " ")


def _parts(records: Sequence[Record]) -> Iterator[str]:
    for benchmark in dict.fromkeys(record.benchmark for record in records):
        yield f"## {benchmark.replace('_', ' ').capitalize()}"
        yield question(benchmark)
        mine = [record for record in records if record.benchmark == benchmark]
        for record in sorted(mine, key=lambda record: record.date, reverse=True):
            yield f"### {benchmark.replace('_', ' ').capitalize()} on {record.machine}"
            yield caption(record)
            yield from map(markdown, record.tables)
            yield from record.notes


def caption(record: Record) -> str:
    """When, by which code and with what a record was measured."""
    software = "".join(f", {name} {version}" for name, version in record.software.items())
    return f"*{record.date}, commit `{record.commit}`, `{record.command}`{software}.*"


def markdown(table: Shown) -> str:
    """A table in Markdown, its title before it; columns of words to the left, others to the right."""
    lines = [
        table.heads,
        tuple("---" if _is_text(column) else "---:" for column in _columns(table)),
        *table.rows,
    ]
    text = "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    )
    return f"**{table.title}**\n\n{text}" if table.title else text


def _columns(table: Shown) -> list[list[str]]:
    return [[row[n] for row in table.rows] for n in range(len(table.heads))]


def _is_text(column: Sequence[str]) -> bool:
    """Whether the first cell that is not empty begins with a letter."""
    return next((cell for cell in column if cell), "a")[0].isalpha()


def main() -> None:
    """Writes the page."""
    TARGET.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
