"""Options that take the solver along each of its ways, and what comes of it."""

from __future__ import annotations

from autopar.solve import Infeasible, Problem, Solution, SolveOptions, Unsolved, solve

LAZY = SolveOptions(max_table_entries=1, max_sweeps=1, max_cp_sat_entries=0, anneal_passes=0)
PATHS = {
    "default": SolveOptions(),
    "core": SolveOptions(max_table_entries=1, max_sweeps=15),
    "cp_sat": SolveOptions(max_table_entries=1, max_sweeps=1, anneal_passes=0),
}


def outcome(problem: Problem, options: SolveOptions) -> Solution | Infeasible | Unsolved:
    """The solution, or the reason why there is none."""
    try:
        return solve(problem, options=options)
    except (Infeasible, Unsolved) as error:
        return error
