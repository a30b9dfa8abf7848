"""Executes notebooks, and keeps their outputs: `python notebooks/execute.py [NAME ...]`, all where none is named.

The .py is what is written by hand; its .ipynb is made of it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent


def names() -> list[str]:
    """The notebooks that there are."""
    return sorted(path.stem for path in HERE.glob("*.py") if path != Path(__file__))


def executed(name: str, timeout_s: int = 300) -> Any:
    """The notebook with the outputs of its cells.

    Raises:
      nbclient.exceptions.CellExecutionError: a cell raises an error.
    """
    notebook = jupytext.read(HERE / f"{name}.py")
    client = NotebookClient(
        notebook,
        timeout=timeout_s,
        record_timing=False,
        resources={"metadata": {"path": str(HERE)}},
    )
    client.execute()
    return notebook


def main(wanted: list[str]) -> None:
    """Executes and keeps."""
    for name in wanted or names():
        nbformat.write(_numbered(executed(name)), HERE / f"{name}.ipynb")
        print(name, flush=True)


def _numbered(notebook: Any) -> Any:
    """Cells by their places: names drawn at random would differ each time."""
    for number, cell in enumerate(notebook.cells):
        cell["id"] = str(number)
    return notebook


if __name__ == "__main__":
    main(sys.argv[1:])
