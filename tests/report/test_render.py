import json
import os
import subprocess
import sys
from dataclasses import asdict, fields, replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from autopar.report.errors import ErrorShare
from autopar.report.render import WIDTH, html, rich_report, text, to_json
from autopar.report.sections import sections
from autopar.report.summary import Report

from . import make

ROOT = Path(__file__).resolve().parents[2]


def line_of(report: Report, start: str) -> str:
    lines = (" ".join(line.split()) for line in text(report).splitlines())
    return next(line for line in lines if line.startswith(start))


def test_the_overview_says_what_it_costs() -> None:
    report = make.report()
    assert line_of(report, "mesh") == "mesh data=2 x model=4 (8 devices)"
    assert line_of(report, "searched") == "searched mode auto, mesh (data=2, model=4)"
    assert line_of(report, "step time") == "step time 2.25 ms"
    assert (
        line_of(report, "one by one")
        == "one by one 2.25 ms = compute 1.5 ms + communication 750 us, nothing hidden"
    )
    hiding = make.report(
        step_time_s=1.95e-3, errors=(ErrorShare("links", 3e-4), ErrorShare("launch", 4e-4))
    )
    assert line_of(hiding, "one by one").endswith("communication 750 us, of which 40 % hidden")
    assert (
        line_of(hiding, "step time")
        == "step time 1.95 ms +- 25.6 % (one standard error, mostly of links)"
    )
    assert "lower bound 2.5 ms" in line_of(report, "objective")
    assert "not measurements" in text(report)


def test_optimal_is_claimed_only_without_a_gap() -> None:
    assert "proven the best in the space searched" in text(make.report(gap=0.0))
    for gap in (1e-12, 0.02):
        assert "proven the best" not in text(make.report(gap=gap))
    assert "proven within 2 % of the best in the space searched" in text(make.report(gap=0.02))


def test_memory_adds_up() -> None:
    report = make.report()
    assert line_of(report, "inputs") == "inputs 6.03 MiB"
    assert line_of(report, "the rest") == "the rest, at the peak 5.97 MiB"
    assert line_of(report, "peak") == "peak 12 MiB"
    assert line_of(report, "limit") == "limit 16 MiB, of which 75 % used"
    assert line_of(make.report(memory_limit_bytes=None), "limit") == "limit none"
    assert line_of(report, "And") == "And 5.94 MiB in smaller tensors and buffers."


def test_a_star_at_the_peak_stands_for_all_inputs_that_it_matches() -> None:
    report = make.report(layers=3)
    shown = text(replace(report, peak=report.peak[:4]))
    assert "params['layers'][0-1]['w1']" in shown
    twice = text(replace(report, peak=(report.peak[-1], report.peak[-1])))
    assert (
        "dot_general (model.py:41 (mlp))   float32[32, 2048]   [data, model]       2       64 KiB   128 KiB"
        in twice
    )


def test_tables_group_and_sum() -> None:
    report = make.report(layers=12)
    assert line_of(report, "params['layers'][*]['w2']").endswith(
        "float32[2048, 512] [model, -] 12 1 MiB 12 MiB"
    )
    assert line_of(report, "all others") == "all others 12 9 us 0.6 %"
    forward = "forward all_reduce model model.py:42 (mlp) 12 32 KiB 384 KiB 1.2 ms"
    assert line_of(report, "forward all_reduce") == forward
    assert "model.py:41 (mlp) and 1 more" in text(report)
    assert len(text(make.report(layers=12)).splitlines()) == len(
        text(make.report(layers=24)).splitlines()
    )


def test_collectives_of_several_sizes_show_the_range() -> None:
    report = make.report()
    other = replace(report.collectives[0], size_bytes=64 * 1024)
    assert "32 KiB to 64 KiB" in text(replace(report, collectives=(*report.collectives, other)))


def test_an_empty_report() -> None:
    empty = make.report(
        inputs=(),
        outputs=(),
        operators=(),
        collectives=(),
        peak=(),
        compute_time_s=0.0,
        peak_memory_bytes=0,
    )
    assert "None: nothing crosses a link." in text(empty)
    assert "<h2>Collectives</h2>" in html(empty)


def test_text_fits_the_width_and_has_no_escapes_or_trailing_blanks() -> None:
    long = "params" + "".join(f"['{'module' * 5}{n}']" for n in range(8))
    report = make.report()
    shown = text(replace(report, inputs=(replace(report.inputs[0], name=long),)))
    assert all(len(line) <= WIDTH and line == line.rstrip() for line in shown.splitlines())
    assert "\x1b" not in shown
    assert long in "".join(line.split()[0] for line in shown.splitlines() if "module" in line)


def test_names_are_not_markup() -> None:
    shown = text(make.report(function="[bold]f[/bold] <b>&"))
    assert "Plan of [bold]f[/bold] <b>&" in shown
    assert "<b>&" not in html(make.report(function="<b>&"))


def test_text_is_the_same_in_every_environment() -> None:
    code = "from tests.report import make; from autopar.report.render import text; print(text(make.report()), end='')"
    environment = os.environ | {
        "FORCE_COLOR": "1",
        "COLUMNS": "40",
        "PYTHONPATH": str(ROOT),
        "PYTHONUTF8": "1",
    }
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout == text(make.report())


def test_a_terminal_gets_the_same_cells() -> None:
    console = Console(width=200, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(rich_report(make.report()))
    console.file.close()
    shown = console.export_text()
    assert all(
        cell in shown for part in sections(make.report()) for cells in part.rows for cell in cells
    )


class Cells(HTMLParser):
    """The texts of the cells of every row of a page; refuses tags that do not close."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: list[list[str]] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag != "meta":
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


def test_html_holds_every_cell_and_no_link() -> None:
    page = html(make.report())
    cells = Cells()
    cells.feed(page)
    assert cells.open == []
    wanted = [list(row) for part in sections(make.report()) for row in part.rows]
    assert all(row in cells.rows for row in wanted)
    assert "http" not in page
    assert "src=" not in page


def test_json_holds_every_field() -> None:
    report = make.report()
    data = json.loads(to_json(report))
    assert set(data) == {field.name for field in fields(Report)}
    assert data == json.loads(json.dumps(asdict(report)))


@pytest.mark.parametrize("field", ["step_time_s", "peak_memory_bytes", "gap"])
def test_another_figure_is_another_text(field: str) -> None:
    report = make.report()
    assert text(replace(report, **{field: getattr(report, field) * 2 + 1})) != text(report)
