"""The notebooks: they run from end to end, each .ipynb says what its .py says, and holds outputs."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jupytext
import nbformat
import pytest

ROOT = Path(__file__).parents[1]
HERE = ROOT / "notebooks"
SHOWN = {
    "first_plan": ("bound re-checked", "params['up']", "planned 1.4653", "plain 1.4653"),
    "l2_normalize_rule": ("plain_normalize.vjp", "{'image': True, 'text': True}"),
    "long_context": ("131,072", "context parallel 8", "dot_product_attention"),
    "mixture_of_experts": ("all_to_all", "[-, gpu, -, -]"),
    "one_to_512": (" 512 GPUs", "batch over 512", "tokens/s a GPU"),
    "reading_a_report": ("instead  data parallel", "an input of train_step", "What reads it"),
    "rivals": ("Megatron", "ZeRO-3 (FSDP)", "all_gather"),
    "trade_offs": ("the smallest peak found is", "16 x 4"),
}
"""What each notebook prints, among other things."""


def cells(path: Path) -> list[tuple[str, str]]:
    return [(cell.cell_type, cell.source) for cell in jupytext.read(path).cells]


def kept(name: str) -> Any:
    return nbformat.read(HERE / f"{name}.ipynb", as_version=4)


def outputs(notebook: Any) -> Iterator[Any]:
    for cell in notebook.cells:
        yield from cell.get("outputs", ())


def printed(notebook: Any) -> str:
    return "".join(one.text for one in outputs(notebook) if one.output_type == "stream")


def kinds(notebook: Any) -> list[tuple[str, ...]]:
    """Of every output that is no text how it may be shown: a table, a picture."""
    return [tuple(sorted(one.data)) for one in outputs(notebook) if "data" in one]


def execute(name: str) -> Any:
    spec = importlib.util.spec_from_file_location("execute", HERE / "execute.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.executed(name)


def test_every_notebook_is_kept() -> None:
    written = {path.stem for path in HERE.glob("*.py")} - {"execute"}
    assert written == {path.stem for path in HERE.glob("*.ipynb")} == set(SHOWN)


@pytest.mark.parametrize("name", SHOWN)
def test_what_is_kept_is_what_is_written_and_has_outputs(name: str) -> None:
    path = HERE / f"{name}.ipynb"
    assert cells(path) == cells(path.with_suffix(".py")), f"run: notebooks/execute.py {name}"
    notebook = kept(name)
    assert all(text in printed(notebook) for text in SHOWN[name])
    assert kinds(notebook)
    assert all(one.output_type != "error" for one in outputs(notebook))
    assert all(one.get("name") != "stderr" for one in outputs(notebook))
    assert len(nbformat.writes(notebook)) < 300_000


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWN)
def test_a_notebook_runs_and_shows_what_is_kept(name: str) -> None:
    notebook = execute(name)
    assert all(text in printed(notebook) for text in SHOWN[name])
    assert kinds(notebook) == kinds(kept(name))
