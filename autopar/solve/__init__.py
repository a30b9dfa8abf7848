"""Numbers only: a Problem in, a verified Solution out. Knows no graph, no tensor and no JAX."""

from autopar.solve.check import Proven, proven
from autopar.solve.driver import NothingCheaper, Unsolved, solve
from autopar.solve.options import SolveOptions
from autopar.solve.problem import Edge, Infeasible, InvalidSolution, Problem, Solution, Usage
from autopar.solve.verifier import verify, verify_choice
from autopar.solve.watch import Progress

__all__ = [
    "Edge",
    "Infeasible",
    "InvalidSolution",
    "NothingCheaper",
    "Problem",
    "Progress",
    "Proven",
    "Solution",
    "SolveOptions",
    "Unsolved",
    "Usage",
    "proven",
    "solve",
    "verify",
    "verify_choice",
]
