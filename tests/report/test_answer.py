"""Answer: what changed is told, what did not is left out, and many rows are few."""

from __future__ import annotations

from dataclasses import replace

from autopar.report.answer import Answer, history_section
from tests.report import make

SLOWER = {"step_time_s": 4.5e-3, "peak_memory_bytes": 6 * make.MIB}


def test_figures_that_differ_are_told_with_their_change() -> None:
    text = str(Answer("limit('8 MiB')", make.report(), make.report(**SLOWER, memory_limit_bytes=8)))
    assert ["step time", "2.25 ms", "4.5 ms", "+100 %"] in rows(text)
    assert ["peak memory", "12 MiB", "6 MiB", "-50 %"] in rows(text)
    assert ["memory limit", "16 MiB", "8 B"] in rows(text)
    assert "compute" not in text
    assert "What moved" not in text


def test_where_nothing_changes_that_is_told() -> None:
    text = str(Answer("links(1)", make.report(), make.report()))
    assert ["step time", "2.25 ms", "2.25 ms", "none"] in rows(text)


def test_more_rows_of_data_are_told_with_their_rate() -> None:
    before, after = (
        replace(report, throughput=replace(report.throughput, rows=n))
        for n, report in ((9, make.report()), (18, make.report()))
    )
    assert ["rows a second", "4,000", "8,000", "+100 %"] in rows(
        str(Answer("batch", before, after))
    )


def test_what_moved_is_grouped_and_of_many_rows_the_first_are_told() -> None:
    before = make.report(layers=96)
    moved = tuple(
        replace(row, placement=f"[-, -] {n}") if "w1" in row.name else row
        for n, row in enumerate(before.inputs)
    )
    answer = Answer("pin", before, replace(before, inputs=moved))
    (_, part) = answer.sections
    assert (part.title, len(part.rows), part.note) == ("What moved", 12, "And 84 more rows.")

    alike = tuple(
        replace(row, placement="[-, -]") if "w1" in row.name else row for row in before.inputs
    )
    (_, part) = Answer("pin", before, replace(before, inputs=alike)).sections
    assert part.rows == (("params['layers'][*]['w1']", "[-, model]", "[-, -]", "96"),)


def test_the_history_has_a_row_for_each_question() -> None:
    answer = Answer("links(0.5)", make.report(), make.report(**SLOWER))
    section = history_section([answer], make.report())
    assert [row[:3] for row in section.rows] == [
        ("at the start", "2.25 ms", "12 MiB"),
        ("links(0.5)", "4.5 ms", "6 MiB"),
    ]


def rows(text: str) -> list[list[str]]:
    """The cells of every line: two blanks stand between cells."""
    return [
        [cell.strip() for cell in line.split("  ") if cell.strip()] for line in text.splitlines()
    ]
