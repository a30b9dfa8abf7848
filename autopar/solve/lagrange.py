"""Memory prices around exact solves: the relaxed problem at prices is eliminated exactly, again and again.

    bound(prices) = min over choices of cost + sum over rows of price * (use - limit)        for any prices >= 0

Tighter than message passing wherever the graph is loopy; usable where elimination fits the options several times over.
"""

from __future__ import annotations

import numpy as np

from autopar.solve.ascent import Answer, Prices, better, is_closed
from autopar.solve.contract_chains import contract_chains
from autopar.solve.eliminate import minimise_exactly, plan_elimination
from autopar.solve.options import SolveOptions
from autopar.solve.polish import LocalSearch
from autopar.solve.problem import Floats, Problem
from autopar.solve.reduce import reduce_cheaply, reduce_fully
from autopar.solve.reduction import Reduction, unchanged
from autopar.solve.rows import Rows, memory_rows


def price_exactly(problem: Problem, options: SolveOptions, start: Answer) -> Answer:
    """The best choice within the limit met on the way, `start` at worst, and the best bound on all such choices.

    Raises:
      Infeasible: if forbidden entries leave a node no strategy.
    """
    reduction = reduce_fully(problem)
    small, rows = reduction.problem, memory_rows(reduction.problem)
    search, prices = LocalSearch(small, rows, options), Prices(rows)
    best, bound, best_prices = start, start.bound, np.zeros(rows.count)
    now, work = best_prices, 0.0
    for _ in range(options.max_price_steps):
        inner = _relaxed(small, rows, now, options)
        plan = plan_elimination(inner.problem)
        work += plan.work
        if not plan.fits(options) or work > options.max_elimination_work:
            break
        choice, cost = minimise_exactly(inner.problem, plan)
        if not np.isfinite(cost):
            break
        local = inner.lift(choice)
        value = cost + inner.offset + reduction.offset - (float(now.sum()) * rows.limit if rows.count else 0.0)
        if value > bound:
            bound, best_prices = value, now
        moved, found = search.improve(list(local))
        if moved is not None:
            best = better(best, Answer(reduction.lift(moved), found + reduction.offset, bound))
        if is_closed(bound, best.objective) or not rows.count:
            break
        now = prices.next(now, rows.used(local), value, best.objective, bound, best_prices)
    return Answer(best.choice, best.objective, min(bound, best.objective))


def _relaxed(problem: Problem, rows: Rows, prices: Floats, options: SolveOptions) -> Reduction:
    """The problem without limit at the prices, reduced."""
    priced = Problem(tuple(rows.priced(prices, problem.node_costs)), problem.edges)
    return unchanged(priced).then(reduce_cheaply).then(lambda part: contract_chains(part, options))
