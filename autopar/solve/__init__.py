"""Numbers only: a Problem in, a verified Solution out. Knows no graph, no tensor and no JAX."""

from autopar.errors import Unsolved
from autopar.solve.check import Proven, proven
from autopar.solve.clash import Clash, Group, clashing
from autopar.solve.driver import NothingCheaper, solve
from autopar.solve.options import SolveOptions
from autopar.solve.problem import Edge, Infeasible, InvalidSolution, Problem, Solution, Usage
from autopar.solve.verifier import verify, verify_choice
from autopar.solve.watch import Progress

__all__ = [
    "Clash",
    "Edge",
    "Group",
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
    "clashing",
    "proven",
    "solve",
    "verify",
    "verify_choice",
]
