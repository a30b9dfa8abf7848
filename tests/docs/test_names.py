"""What the documents name is there: files, public names, options, proof steps, pages of the site."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

import autopar
from autopar.errors import AutoparError
from autopar.solve.certificate import proof
from benchmarks.record import RESULTS, Record
from tests.docs.pages import DOCS, ROOT, WRITTEN, name_of

SHOWN = (
    "model",
    "planned, ms",
    "data parallel, ms",
    "by hand, ms",
    "one device, ms",
    "predicted for the plan, ms",
)
ROOMS = [ROOT, ROOT / "autopar", ROOT / "autopar" / "solve"]
OPTIONS = {
    "SearchOptions": autopar.SearchOptions,
    "SolveOptions": autopar.SolveOptions,
}


def code_of(text: str) -> Iterator[str]:
    """The pieces of code in the prose and tables of a page."""
    yield from re.findall(
        r"`([^`\n]+)`", re.sub(r"^( *)```.*?^\1```", "", text, flags=re.DOTALL | re.MULTILINE)
    )


def missing_files(text: str) -> list[str]:
    """The files that a page names and that are nowhere; the user's own are `model.py` and `train.py`."""
    named = [name for piece in code_of(text) for name in re.findall(r"^[\w/]+\.py$", piece)]
    own = [name for name in named if name not in ("model.py", "train.py")]
    return [
        name
        for name in own
        if not any((room / name).is_file() for room in ROOMS) and not _is_module(name)
    ]


def _is_module(name: str) -> bool:
    """Whether a bare name is that of a file of the packages."""
    return "/" not in name and any((ROOT / "autopar").rglob(name))


def missing_names(text: str) -> list[str]:
    """The attributes of autopar that a page names and that it does not have."""
    named = [
        name for piece in code_of(text) for name in re.findall(r"\bautopar\.([A-Za-z_]\w*)", piece)
    ]
    return [
        name
        for name in named
        if not hasattr(autopar, name) and not (ROOT / "autopar" / name).exists()
    ]


def missing_options(text: str) -> list[str]:
    """The fields of options that a page gives and that they do not have."""
    found: list[str] = []
    for kind, record in OPTIONS.items():
        fields = {field.name for field in dataclasses.fields(record)}
        found += [name for name in re.findall(rf"{kind}\((\w+)=", text) if name not in fields]
    return found


@pytest.mark.parametrize("page", WRITTEN, ids=name_of)
def test_what_a_page_names_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert (missing_files(text), missing_names(text), missing_options(text)) == ([], [], [])


def test_what_is_not_there_is_told() -> None:
    text = "`solve/nowhere.py` and `nowhere.py`, `search/front.py`, `front.py`, `autopar.nothing`, `autopar.pin`."
    assert missing_files(text) == ["solve/nowhere.py", "nowhere.py"]
    assert missing_names(text) == ["nothing"]
    assert missing_options("SearchOptions(nothing=1), SearchOptions(loops='parts')") == ["nothing"]


def test_every_proof_step_is_explained() -> None:
    text = (DOCS / "design" / "certificate.md").read_text(encoding="utf-8")
    assert [
        step.__name__ for step in get_args(proof.Step) if f"`{step.__name__}`" not in text
    ] == []


def test_every_switch_of_the_solver_has_a_row_and_no_other_has() -> None:
    text = (DOCS / "design" / "solver.md").read_text(encoding="utf-8")
    switches = set(autopar.SolveOptions().switches)
    rooms = "|".join({switch.partition(".")[0] for switch in switches})
    rows = [line for line in text.splitlines() if line.startswith("|")]
    shown = set(re.findall(rf"`((?:{rooms})\.\w+)`", "\n".join(rows)))
    assert (switches - shown, shown - switches) == (set(), set())


def test_every_package_has_a_row_in_the_architecture() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = " ".join(line.split("|")[1] for line in text.splitlines() if line.startswith("|"))
    packages = [path.parent.name for path in (ROOT / "autopar").glob("*/__init__.py")]
    assert packages
    assert [name for name in packages if not re.search(rf"`(autopar/)?{name}`", rows)] == []


def test_every_public_name_is_in_the_reference() -> None:
    text = (DOCS / "reference" / "api.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"^::: autopar\.(\w+)", text, re.MULTILINE))
    assert set(autopar.__all__) - shown - {AutoparError.__name__} == set()


def test_every_warning_has_a_row_in_troubleshooting() -> None:
    text = (DOCS / "guide" / "troubleshooting.md").read_text(encoding="utf-8")
    kinds = [
        kind
        for kind in vars(autopar.errors).values()
        if isinstance(kind, type) and issubclass(kind, Warning)
    ]
    assert kinds
    assert [kind.__name__ for kind in kinds if kind.__name__ not in text] == []


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")]
    assert [page for page in pages if f": {page}\n" not in navigation] == []


@pytest.mark.parametrize("page", [ROOT / "README.md", DOCS / "index.md"], ids=name_of)
def test_the_measured_table_is_that_of_the_results(page: Path) -> None:
    kept = Record.read(RESULTS / "end_to_end" / "amd-epyc-family-26-2-cores.json").tables[0]
    order = [kept.heads.index(head) for head in SHOWN]
    for row in kept.rows:
        cells = " | ".join(row[n] for n in order)
        assert f"| {cells} |\n" in page.read_text(encoding="utf-8")
