"""What is exact: reductions, one after the other, and elimination of what they leave where its tables fit."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from autopar.solve.certificate.proof import Eliminate
from autopar.solve.elimination.bucket_elimination import minimise_exactly, plan_elimination
from autopar.solve.presolve.batched import reduce_alike
from autopar.solve.presolve.reduce import reduce_cheaply, reduce_fully
from autopar.solve.presolve.variable_elimination import contract_chains
from autopar.solve.problem.factored_matrix import finite_entries
from autopar.solve.problem.options import SolveOptions
from autopar.solve.problem.problem import Infeasible, Problem
from autopar.solve.problem.reduction import Reduction, shrank, unchanged
from autopar.solve.problem.rows import drop_slack
from autopar.solve.problem.stop import TimeUp, is_up
from autopar.solve.trws.ascent import Answer

NOTHING = Answer(None, np.inf, np.inf)
"""That there is no choice."""


def exactly(problem: Problem, options: SolveOptions, *, at_last: bool = False) -> Answer | None:
    """The optimum of a problem without usages by elimination; None if it has some, or that does not fit, or in time.

    `at_last`: what comes after it takes longer, so that another order is worth planning, on few nodes.
    """
    if problem.usages or (problem.edges and not options.elimination.bucket_elimination):
        return None
    plan = plan_elimination(problem, options.max_table_entries)
    if not plan.fits(options):
        if not at_last or not options.elimination.min_fill or len(problem.node_costs) > _FEW_NODES:
            return None
        plan = plan_elimination(problem, options.max_table_entries, by_fill=True)
        if not plan.fits(options) or plan.work > _MOST_WORK:
            return None
    try:
        choice, cost = minimise_exactly(problem, plan)
    except TimeUp:
        return None
    return Answer(choice if np.isfinite(cost) else None, cost, cost, (Eliminate(plan.order),) if plan.order else ())


_FEW_NODES = 300  # their min-fill order is planned in hundredths of a second
_MOST_WORK = 4e9  # additions of that order: some seconds, where CP-SAT takes ten


def reduced(problem: Problem, options: SolveOptions) -> Reduction:
    """Cheap reductions.

    Raises:
      Infeasible: if forbidden entries leave a node no strategy.
    """
    result = unchanged(problem).then(drop_slack).then(partial(reduce_alike, options=options))
    result = result.then(partial(reduce_cheaply, options=options.presolve))
    return result.then(partial(contract_chains, options=options))


def reduced_fully(problem: Problem, options: SolveOptions) -> Reduction:
    """All reductions, as long as they achieve much.

    Raises:
      Infeasible: if forbidden entries leave a node no strategy.
    """
    result = unchanged(problem)
    while True:
        before = result.problem
        result = result.then(partial(reduce_fully, options=options.presolve)).then(drop_slack)
        result = result.then(partial(contract_chains, options=options))
        if is_up() or not shrank(before, result.problem):
            return result


def eliminated(problem: Problem, options: SolveOptions, most: float) -> Answer | None:
    """The optimum by elimination after the cheap reductions or, up to a weight, after all; None if it does not fit."""
    try:
        reduction = reduced(problem, options)
        found = exactly(reduction.problem, options)
        if found is None and weight(reduction.problem) <= most:
            reduction = reduction.then(partial(reduced_fully, options=options))
            found = exactly(reduction.problem, options)
    except Infeasible as error:
        return replace(NOTHING, proof=error.witness or ())
    return None if found is None else lifted(reduction, found)


def lifted(reduction: Reduction, found: Answer) -> Answer:
    """What an answer on what a reduction leaves says of the whole."""
    choice = reduction.lift(found.choice) if found.choice is not None else None
    costs = found.objective + reduction.offset, found.bound + reduction.offset
    return Answer(choice, *costs, reduction.steps + found.proof)


def weight(problem: Problem) -> int:
    """The entries of its edges and the strategies of its nodes: what work on it grows with."""
    return sum(edge.matrix.size for edge in problem.edges) + sum(problem.counts)


def finite(problem: Problem) -> int:
    """The finite entries of its edges and the strategies of its nodes: what is left to choose from."""
    matrices, which = problem.matrices
    count = np.array([finite_entries(matrix) for matrix in matrices], dtype=np.intp)
    return int(count[which].sum()) + sum(problem.counts)
