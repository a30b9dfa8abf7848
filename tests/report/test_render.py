import json
import os
import re
import subprocess
import sys
from dataclasses import fields, replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from pydantic import TypeAdapter
from rich.console import Console

from autopar.report.blocks import BlockRow
from autopar.report.brief import Detail, brief, full
from autopar.report.data import to_json
from autopar.report.errors import ErrorShare
from autopar.report.page import html
from autopar.report.parallelism import Parallelism
from autopar.report.render import WIDTH, plain, rich_report, text
from autopar.report.rivals import RivalRow
from autopar.report.summary import Report
from autopar.report.throughput import Throughput
from autopar.search.constraints.carried import CarriedGroup

from . import make

ROOT = Path(__file__).resolve().parents[2]


def line_of(report: Report, start: str, *details: Detail) -> str:
    """A line of the report that is long enough for no cell to be broken."""
    lines = (
        " ".join(line.split())
        for line in plain(rich_report(report, details=details), width=200).splitlines()
    )
    return next(line for line in lines if line.startswith(start))


def test_it_says_first_what_the_plan_is_and_how_fast() -> None:
    report = make.report(
        parallelism=Parallelism(8, batch=(2,), parameters=(4,), tensor=(4,)),
        throughput=Throughput(32, 4096, 1e12, 0.9e-3),
    )
    title, *lines = (" ".join(line.split()) for line in text(report).splitlines()[:5])
    assert title == "Plan of train_step"
    assert lines[0] == "cluster 8xh100, mesh data=2 x model=4 (8 devices)"
    assert lines[1] == "layout batch over 2, parameters over 4: data parallel, tensor parallel 4"
    assert lines[2] == "speed a step in 2.25 ms, 1,820,000 tokens/s (228,000 a device), MFU 40 %"


def test_rows_are_counted_where_there_are_no_tokens_and_no_peak_is_made_up() -> None:
    report = make.report(throughput=Throughput(32))
    assert line_of(report, "speed") == "speed a step in 2.25 ms, 14,200 rows/s (1,780 a device)"
    assert line_of(make.report(), "speed") == "speed a step in 2.25 ms"


def test_no_rate_is_said_of_what_has_no_price() -> None:
    report = make.report(
        throughput=Throughput(32, 4096, 1e12, 0.9e-3), unpriced=("add (model.py:43 (mlp))",)
    )
    assert (
        line_of(report, "speed")
        == "speed a step in 2.25 ms, without what add (model.py:43 (mlp)) takes, which has no price"
    )
    everything = tuple(replace(op, time_s=0.1) for op in report.operators)
    assert line_of(replace(report, operators=everything), "add", "ops").endswith("no price -")


def test_rivals_stand_beside_the_plan() -> None:
    rivals = (
        RivalRow("FSDP", (("x", 8),), "batch over 8", 2.7e-3, 2e-3, 1e-3, 0.7e-3, 2**30, fits=True),
        RivalRow("data parallel", (("x", 8),), step_time_s=1.0, peak_memory_bytes=2**34),
        RivalRow("mine", (("x", 8),), reason="the pins clash"),
    )
    said = plain(rich_report(make.report(), rivals=rivals), width=200)
    expected = (
        "FSDP 2.7 ms (+20 %), data parallel does not fit (16 GiB), mine has no plan: the pins clash"
    )
    assert expected in said
    table = plain(rich_report(make.report(), rivals=rivals, details=("compare",)), width=200)
    rows = {line.split("  ")[0].strip(): line.split() for line in table.splitlines()}
    assert rows["to the plan"][3:] == ["+20", "%", "does", "not", "fit", "no", "plan"]
    assert rows["peak memory"][2:] == ["12", "MiB", "1", "GiB", "16", "GiB", "-"]


def test_the_summary_says_what_it_costs() -> None:
    report = make.report()
    assert line_of(report, "searched") == "searched mode auto, mesh (data=2, model=4)"
    assert line_of(report, "step time") == "step time 2.25 ms"
    assert line_of(report, "compute").startswith("compute 1.5 ms, 49.7 % of it dot_general")
    assert line_of(report, "exposed") == "exposed 750 us of communication, all of it"
    hiding = make.report(
        step_time_s=1.95e-3, errors=(ErrorShare("links", 3e-4), ErrorShare("launch", 4e-4))
    )
    assert line_of(hiding, "exposed") == "exposed 450 us of 750 us of communication; 40 % is hidden"
    assert (
        line_of(hiding, "step time")
        == "step time 1.95 ms +- 25.6 % (one standard error, mostly of links)"
    )
    assert line_of(report, "memory") == "memory peak 12 MiB of 16 MiB (75 %), inputs 6.03 MiB"
    assert "not measurements" in " ".join(text(report).split())


def test_layers_are_one_row() -> None:
    blocks = (BlockRow("mlp", "forward", 96, 3e-3, 2e-3, 1e-3), BlockRow("", "update", 1, 0, 0, 0))
    assert line_of(make.report(blocks=blocks), "mlp") == "mlp forward 96 3 ms 2 ms 1 ms 100 %"


def test_a_report_of_many_layers_is_a_page() -> None:
    shown = text(make.report(layers=96, blocks=(BlockRow("mlp", "forward", 96, 1, 1, 1),)))
    assert len(shown.splitlines()) < 60
    assert all(len(line) <= 80 for line in shown.splitlines())


def test_results_that_lie_as_inputs_do_are_not_listed() -> None:
    report = make.report(carried=(CarriedGroup("output[1]", "params['layers'][0]['w1']", 1),))
    assert "1 result lies as the input that it becomes." in text(report)
    shown = text(report).partition("Other results")[2].partition("Collectives")[0]
    assert "output[0]" in shown
    assert "output[1]" not in shown


def test_optimal_is_claimed_only_without_a_gap() -> None:
    assert "proven the best in the space searched" in text(make.report(gap=0.0))
    for gap in (1e-12, 0.02):
        assert "proven the best" not in text(make.report(gap=gap))
    assert "proven within 2 % of the best in the space searched" in text(make.report(gap=0.02))


def test_memory_adds_up() -> None:
    report = make.report()
    assert line_of(report, "inputs", "memory") == "inputs 6.03 MiB"
    assert line_of(report, "the rest", "memory") == "the rest, at the peak 5.97 MiB"
    assert line_of(report, "peak", "memory") == "peak 12 MiB"
    assert line_of(report, "limit", "memory") == "limit 16 MiB, of which 75 % used"
    assert line_of(make.report(memory_limit_bytes=None), "limit", "memory") == "limit none"
    expected = "And 5.94 MiB in smaller tensors and buffers."
    assert line_of(report, "And", "memory") == expected


def test_a_star_at_the_peak_stands_for_all_inputs_that_it_matches() -> None:
    report = make.report(layers=3)
    first = replace(report, peak=report.peak[:4])
    assert line_of(first, "params['layers'][0-1]['w1']", "memory")
    twice = replace(report, peak=(report.peak[-1], report.peak[-1]))
    assert (
        line_of(twice, "dot_general (model.py:41 (mlp))", "memory")
        == "dot_general (model.py:41 (mlp)) float32[32, 2048] [data, model] 2 64 KiB 128 KiB"
    )


def test_tables_group_and_sum() -> None:
    report = make.report(layers=12)
    assert line_of(report, "params['layers'][*]['w2']").endswith(
        "float32[2048, 512] [model, -] 12 12 MiB"
    )
    assert line_of(report, "all others", "ops") == "all others 12 9 us 0.6 %"
    assert line_of(report, "forward all_reduce") == "forward all_reduce model 12 384 KiB 1.2 ms -"
    forward = "forward all_reduce model model.py:42 (mlp) 12 32 KiB 384 KiB 1.2 ms"
    assert line_of(report, "forward all_reduce", "collectives") == forward
    assert "model.py:41 (mlp) and 1 more" in line_of(report, "mirror", "collectives")
    assert len(text(make.report(layers=12)).splitlines()) == len(
        text(make.report(layers=24)).splitlines()
    )


def test_collectives_of_several_sizes_show_the_range() -> None:
    report = make.report()
    other = replace(report.collectives[0], size_bytes=64 * 1024)
    several = replace(report, collectives=(*report.collectives, other))
    assert "32 KiB to 64 KiB" in line_of(several, "forward all_reduce", "collectives")


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
    inputs = shown.partition("Inputs")[2].partition("Results")[0]
    folded = (line.split("  ")[0].strip() for line in inputs.splitlines())
    assert long in "".join(folded)


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
        cell in shown for part in brief(make.report()) for cells in part.rows for cell in cells
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


def loads(page: str) -> list[str]:
    """What a page loads, or leads to outside of itself."""
    return re.findall(r"https?://[^\s\"']*|\bsrc=|@import|\burl\((?!#)|href=\"(?!#)", page)


def test_html_holds_every_cell_and_no_link() -> None:
    page = html(make.report())
    cells = Cells()
    cells.feed(page)
    assert cells.open == []
    wanted = [list(row) for part in full(make.report()) for row in part.rows]
    assert all(row in cells.rows for row in wanted)
    assert loads(page) == []


def test_json_holds_every_field() -> None:
    report = make.report()
    data = json.loads(to_json(report))
    assert set(data) == {field.name for field in fields(Report)} | {"rivals", "front"}
    assert TypeAdapter(Report).validate_python(data, extra="ignore") == report


def test_json_holds_placements_as_data() -> None:
    row = replace(make.report().inputs[0], placement="[data*model, -] sum(pod)")
    data = json.loads(to_json(make.report(inputs=(row,))))
    assert data["inputs"][0]["dims"] == [["data", "model"], []]
    assert data["inputs"][0]["unreduced"] == ["pod"]
    assert data["operators"][1]["in_dims"] == [[["data"], ["model"]], [["model"], []]]
    assert data["operators"][1]["out_dims"] == [[["data"], []]]


@pytest.mark.parametrize("field", ["step_time_s", "peak_memory_bytes", "gap"])
def test_another_figure_is_another_text(field: str) -> None:
    report = make.report()
    assert text(replace(report, **{field: getattr(report, field) * 2 + 1})) != text(report)
