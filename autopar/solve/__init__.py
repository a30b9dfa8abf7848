"""Numbers only: a Problem in, a verified Solution out. Knows no graph, no tensor and no JAX."""

from autopar.errors import Unsolved
from autopar.solve.clash import Clash, Group, clashing
from autopar.solve.driver import NothingCheaper, solve
from autopar.solve.options import SolveOptions
from autopar.solve.problem import Edge, Infeasible, Problem, Solution, Usage
from autopar.solve.verifier import InvalidSolution, verify
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
    "Solution",
    "SolveOptions",
    "Unsolved",
    "Usage",
    "clashing",
    "solve",
    "verify",
]
