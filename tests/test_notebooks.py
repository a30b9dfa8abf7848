"""The notebooks: they run from end to end, and each .ipynb says what its .py says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jupytext
import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def cells(path: Path) -> list[tuple[str, str]]:
    return [(cell.cell_type, cell.source) for cell in jupytext.read(path).cells]


def texts(notebook: Any) -> Iterator[str]:
    """What the notebook's code printed."""
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if output.output_type == "stream":
                yield output.text


def test_there_are_notebooks() -> None:
    assert [path.name for path in NOTEBOOKS] == ["trade_offs.ipynb"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_and_script_are_in_sync(path: Path) -> None:
    assert cells(path) == cells(path.with_suffix(".py")), f"run: jupytext --sync {path.name}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_kept_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert [cell.source for cell in notebook.cells if cell.get("outputs")] == []


@pytest.mark.slow
def test_trade_offs_runs_and_shows_what_it_tells() -> None:
    notebook = nbformat.read(ROOT / "notebooks" / "trade_offs.ipynb", as_version=4)
    client = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(ROOT)}})
    client.execute()
    printed = "".join(texts(notebook))
    assert all(f"{cluster} " in printed for cluster in ("8xh100", "8x8xh100", "tpu-v5e-4x4"))
    assert "state['params']['head'], an input of train_step" in printed
    assert "the smallest peak found is" in printed
    drawn = [
        output
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if "image/png" in str(output)
    ]
    assert len(drawn) == 3
