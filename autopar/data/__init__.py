"""Data: batches of a source as the arguments of a plan, each process reading the rows of its own devices.

Names are imported when they are first used: processes that make batches need none of the planner.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autopar.data.load import Loader, loader
    from autopar.data.reading import Reading
    from autopar.data.source import Rows
    from autopar.data.waits import Waits

__all__ = ["Loader", "Reading", "Rows", "Waits", "loader"]

_HOME = {
    "Loader": "load",
    "Reading": "reading",
    "Rows": "source",
    "Waits": "waits",
    "loader": "load",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'autopar.data' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"autopar.data.{_HOME[name]}"), name)
    return found
