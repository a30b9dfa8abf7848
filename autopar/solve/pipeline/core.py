"""The search on what the reductions leave: exact elimination, or bound and choices, window, reduce again, CP-SAT.

`minimise` is given a cost that is known to be reachable (`upper`) and looks for something cheaper. Its answer's bound
holds for every choice that costs less than `upper`; a bound of inf says that there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from autopar.solve.certificate.proof import FREE, Prices
from autopar.solve.elimination.exact import NOTHING, exactly, lifted, reduced, reduced_fully
from autopar.solve.pipeline.rounds import in_rounds
from autopar.solve.pipeline.stages import closed_by_messages
from autopar.solve.problem.incumbent import Inner, Watch
from autopar.solve.problem.options import SolveOptions
from autopar.solve.problem.problem import Infeasible, Problem
from autopar.solve.problem.reduction import Reduction
from autopar.solve.trws.ascent import Answer, Ascent


def minimise(problem: Problem, options: SolveOptions, watch: Watch, upper: float = np.inf, depth: int = 0) -> Answer:
    """The cheapest choice found: by elimination where it fits, else by messages alone where they close, else by all."""
    return _after(reduced, by_all if depth else by_messages, problem, options, watch, upper, depth)


def by_messages(
    problem: Problem, options: SolveOptions, watch: Watch, upper: float, depth: int = 0, ascent: Ascent | None = None
) -> Answer:
    """The optimum where messages prove a choice that they decode, as on most training steps; else as `by_all` does."""
    return closed_by_messages(problem, options, watch, upper, depth, by_all, ascent)


def by_all(
    problem: Problem, options: SolveOptions, watch: Watch, upper: float, depth: int, prices: Prices = FREE
) -> Answer:
    """After all reductions, by elimination where it fits, or by bounds, choices, windows and CP-SAT.

    `prices` of times are those to begin with.
    """
    search = partial(in_rounds, prices=prices, within=minimise)
    return _after(reduced_fully, search, problem, options, watch, upper, depth, at_last=True)


def _after(
    reduce: Callable[[Problem, SolveOptions], Reduction],
    search: Callable[[Problem, SolveOptions, Watch, float, int], Answer],
    problem: Problem,
    options: SolveOptions,
    watch: Watch,
    upper: float,
    depth: int,
    *,
    at_last: bool = False,
) -> Answer:
    """What elimination finds after reductions, or, where it does not fit, what a search does.

    `at_last`: that search has no quick means left.
    """
    try:
        reduction = reduce(problem, options)
    except Infeasible as error:
        watch.raise_bound(upper, error.witness or ())
        return NOTHING
    inner = Inner(watch, reduction, upper)
    found = exactly(reduction.problem, options, at_last=at_last)
    if found is None:
        found = search(reduction.problem, options, inner, upper - reduction.offset, depth)
    else:
        inner.raise_bound(found.bound, found.proof)
    if found.choice is not None:
        inner.offer(found.choice)
    return lifted(reduction, found)
