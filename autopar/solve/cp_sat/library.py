"""OR-Tools' CP-SAT, imported when it is first called: it brings pandas, and most searches end without it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ortools.sat.python import cp_model as cp_model
else:

    class _Late:
        """A module in whose place this stands until one of its names is asked for."""

        def __getattr__(self, name: str) -> Any:
            found = getattr(import_module("ortools.sat.python.cp_model"), name)
            setattr(self, name, found)
            return found

    cp_model = _Late()
