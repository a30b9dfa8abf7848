"""OR-Tools' CP-SAT, imported when it is first called: it brings pandas, and most searches end without it.

It is run so that Ctrl-C stays Python's: its own handler would leave none behind, and the next Ctrl-C end all.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
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


def _stops_at(enough: float) -> Any:
    """What ends the search at the first solution that costs no more than `enough`."""

    class Enough(cp_model.CpSolverSolutionCallback):
        """Its base is of a library that is imported late."""

        def on_solution_callback(self) -> None:
            if self.objective_value <= enough:
                self.stop_search()

    return Enough()


def run(solver: cp_model.CpSolver, model: cp_model.CpModel, enough: float = -math.inf) -> Any:
    """The status that the solver ends with, at a solution that costs no more than `enough`; Ctrl-C ends it soon.

    With several workers it is not certain at which.

    Raises:
      KeyboardInterrupt: interrupted, after the solver has stopped.
    """
    parameters: Any = solver.parameters
    parameters.catch_sigint_signal = False
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(solver.solve, model, _stops_at(enough) if enough > -math.inf else None)
        try:
            return ended.result()
        except KeyboardInterrupt:
            solver.stop_search()
            raise
