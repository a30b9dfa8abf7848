"""Numbers only: a Problem in, a verified Solution out. Knows no graph, no tensor and no JAX."""

from autopar.errors import Unsolved
from autopar.solve.certificate.check import Proven, proven
from autopar.solve.conflict.irreducible import Clash, Requirement, clashing
from autopar.solve.pipeline.driver import NothingCheaper, alike, solve
from autopar.solve.problem.incumbent import Progress
from autopar.solve.problem.options import SolveOptions
from autopar.solve.problem.problem import (
    Edge,
    Infeasible,
    InvalidSolution,
    Problem,
    Solution,
    Usage,
)
from autopar.solve.problem.verifier import verify, verify_choice

__all__ = [
    "Clash",
    "Edge",
    "Infeasible",
    "InvalidSolution",
    "NothingCheaper",
    "Problem",
    "Progress",
    "Proven",
    "Requirement",
    "Solution",
    "SolveOptions",
    "Unsolved",
    "Usage",
    "alike",
    "clashing",
    "proven",
    "solve",
    "verify",
    "verify_choice",
]
