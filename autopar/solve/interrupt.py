"""Runs CP-SAT so that Ctrl-C stays Python's: its own handler would leave none behind, and the next Ctrl-C end all."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ortools.sat.python import cp_model


def run(solver: cp_model.CpSolver, model: cp_model.CpModel) -> Any:
    """The status that the solver ends with; Ctrl-C ends it soon.

    Raises:
      KeyboardInterrupt: interrupted, after the solver has stopped.
    """
    parameters: Any = solver.parameters
    parameters.catch_sigint_signal = False
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(solver.solve, model)
        try:
            return ended.result()
        except KeyboardInterrupt:
            solver.stop_search()
            raise
