"""The page of results is what the generator makes of the records; a record is what a benchmark showed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from rich.table import Table

from benchmarks import results
from benchmarks.record import RESULTS, Record, Screen, Shown, machine_name, record, shown_table

BENCHMARKS = Path(results.__file__).parent
RECORDS = sorted(RESULTS.glob("*/*.json"))


def a_record(**changed: object) -> Record:
    fields: dict[str, object] = {
        "benchmark": "calls",
        "machine": "here",
        "date": "2026-01-02",
        "commit": "abc1234",
        "command": "python -m benchmarks.calls",
        "software": {"JAX": "1.2"},
        "tables": (Shown("A table", ("name", "ms"), (("one", "1.5"), ("a|b", "2.5"))),),
        "notes": ("A note.",),
    }
    return Record(**{**fields, **changed})  # pyright: ignore[reportArgumentType]


def test_the_page_is_up_to_date() -> None:
    assert results.TARGET.read_text(encoding="utf-8") == results.page(), (
        "run `python -m benchmarks.results`"
    )


def test_there_are_records() -> None:
    assert len(RECORDS) >= 15


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_record_stands_where_it_belongs(path: Path) -> None:
    found = Record.read(path)
    assert (found.benchmark, found.machine) == (path.parent.name, path.stem)
    assert (BENCHMARKS / f"{found.benchmark}.py").is_file()
    assert len(found.date.split("-")) == 3
    assert found.command.startswith(f"python -m benchmarks.{found.benchmark}")


def test_the_page_shows_the_latest_machine_first_with_all_cells(tmp_path: Path) -> None:
    a_record().write(tmp_path / "calls" / "here.json")
    a_record(machine="there", date="2026-02-03", notes=()).write(tmp_path / "calls" / "there.json")
    text = results.page(tmp_path)
    assert text.count("## Calls\n") == 1
    assert text.index("on there") < text.index("on here")
    assert "| one | 1.5 |" in text
    assert "| a\\|b | 2.5 |" in text
    assert "| --- | ---: |" in text
    assert "*2026-01-02, commit `abc1234`, `python -m benchmarks.calls`, JAX 1.2.*" in text
    assert "A note." in text
    assert results.question("calls") in text


def test_what_is_shown_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = tmp_path / "figures.json"
    instance = tmp_path / "A.json"
    instance.touch()
    given = ["--record", "here", "--leaves", "1", "--json", str(figures), str(instance)]
    monkeypatch.setattr(sys, "argv", ["calls.py", *given])
    table, screen = Table("arrays", "ratio", title="A call"), Screen(quiet=True)
    table.add_row("1", "1.2")
    screen.print("words", table)
    path = record("benchmarks/calls.py", "here", screen.tables, tmp_path)
    assert path == tmp_path / "calls" / "here.json"
    found = Record.read(path)
    assert found.tables == (Shown("A call", ("arrays", "ratio"), (("1", "1.2"),)),)
    assert found.command == "python -m benchmarks.calls --leaves 1 A.json"
    assert found.commit


def test_nothing_is_recorded_unasked(tmp_path: Path) -> None:
    assert record("benchmarks/calls.py", None, [], tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_tables_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing to record"):
        record("benchmarks/calls.py", "here", [], tmp_path)


def test_a_row_without_its_cells_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "calls" / "here.json"
    a_record().write(path)
    content = json.loads(path.read_text())
    content["tables"][0]["rows"][0].pop()
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="not one cell for each"):
        Record.read(path)


def test_a_record_of_another_benchmark_is_refused(tmp_path: Path) -> None:
    a_record().write(tmp_path / "fuzz" / "here.json")
    with pytest.raises(ValueError, match="a record of calls"):
        Record.read(tmp_path / "fuzz" / "here.json")


def test_a_table_is_read_as_its_texts() -> None:
    table = Table("a", "b")
    table.add_row("1", "2")
    table.add_row("3", "4")
    assert shown_table(table) == Shown("", ("a", "b"), (("1", "2"), ("3", "4")))


def test_a_machine_is_a_file_name() -> None:
    assert Path(machine_name()).name == machine_name()
    assert machine_name() == machine_name().lower()
