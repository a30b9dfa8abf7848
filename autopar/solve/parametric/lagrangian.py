"""Memory prices around exact solves: the relaxed problem at prices is eliminated exactly, again and again.

    bound(prices) = min over choices of cost + sum over rows of price * (use - limit)        for any prices >= 0

Tighter than message passing wherever the graph is loopy; usable where elimination fits the options several times over.

A. Geoffrion, "Lagrangean relaxation for integer programming", Mathematical Programming Study 2 (1974).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from autopar.solve.certificate.proof import Eliminate, ExceedExactly, Price, Proof
from autopar.solve.elimination.bucket_elimination import eliminate, minimise_exactly, plan_elimination
from autopar.solve.elimination.min_marginals import min_marginals
from autopar.solve.presolve.reduce import reduce_cheaply, reduce_fully
from autopar.solve.presolve.variable_elimination import contract_chains
from autopar.solve.primal.repair import LocalSearch
from autopar.solve.problem.incumbent import Inner, Watch
from autopar.solve.problem.options import SolveOptions
from autopar.solve.problem.problem import Floats, Problem, derived
from autopar.solve.problem.reduction import Bools, Reduction, kept, restrict, unchanged
from autopar.solve.problem.rows import Rows, memory_rows
from autopar.solve.problem.stop import TimeUp, is_up
from autopar.solve.trws.ascent import Answer, Prices, better, is_closed

_SHRUNK = 0.9


@dataclass(frozen=True, eq=False)
class Priced:
    """The prices with the best bound found, that bound, the best choice within the limit, if any, and the proof."""

    prices: Floats
    bound: float
    best: Answer
    proof: Proof


def solve_at_prices(
    problem: Problem, options: SolveOptions, start: Answer, watch: Watch
) -> tuple[Problem, Reduction, Answer]:
    """Prices and reductions by exact marginals in turn, until nothing shrinks.

    Returns what is left of the problem (every choice that would be news beside the answer's is in it), the way back,
    and the best choice with a bound on all choices.

    Raises:
      Infeasible: if forbidden entries leave a node no strategy.
    """
    fully = partial(reduce_fully, options=options.presolve)
    reduction = unchanged(problem).then(fully)
    best, bound, proof = start, start.bound, start.proof
    while True:
        small, rows = reduction.problem, memory_rows(reduction.problem)
        local = Answer(None, best.objective - reduction.offset, bound - reduction.offset)
        priced = _priced(small, rows, options, local, Inner(watch, reduction))
        if priced.best.choice is not None:
            choice, cost = reduction.lift(priced.best.choice), priced.best.objective + reduction.offset
            best = Answer(choice, cost, bound)
        if priced.bound + reduction.offset > bound:
            bound, proof = min(priced.bound + reduction.offset, best.objective), reduction.steps + priced.proof
        done, cutoff = replace(best, bound=bound, proof=proof), watch.news(best.objective)
        if is_closed(bound, cutoff) or not rows.count or is_up():
            return small, reduction, done
        keep = within_window(small, rows, priced.prices, cutoff - reduction.offset, options)
        if keep is None or sum(int(mask.sum()) for mask in keep) > _SHRUNK * sum(small.counts):
            return small, reduction, done
        exceed = partial(ExceedExactly, prices=rows.at_times(priced.prices), order=plan_elimination(small).order)
        if not all(mask.any() for mask in keep):
            proof = (*reduction.steps, exceed(kept(keep)))
            return small, reduction, replace(done, bound=cutoff, proof=proof)
        reduction = reduction.then(partial(restrict, keep=keep, because=exceed)).then(fully)


def _priced(problem: Problem, rows: Rows, options: SolveOptions, start: Answer, watch: Watch) -> Priced:
    """Prices by exact eliminations, as long as they fit the options."""
    search, schedule = LocalSearch(problem, rows, options.primal), Prices(rows)
    best, bound, best_prices = start, -np.inf, np.zeros(rows.count)
    now, work, proof = best_prices, 0.0, Proof()
    for _ in range(options.max_price_steps):
        inner = _relaxed(problem, rows, now, options)
        plan = plan_elimination(inner.problem)
        work += plan.work
        if not plan.fits(options) or work > options.max_elimination_work:
            break
        try:
            choice, cost = minimise_exactly(inner.problem, plan)
        except TimeUp:
            break
        local = inner.lift(choice)
        value = cost + inner.offset - _constant(rows, now)
        if value > bound:
            bound, best_prices = value, now
            proof = (Price(rows.at_times(now)), *inner.steps, Eliminate(plan.order))
        if best.choice is not None and not search.fits(local):
            best = better(best, Answer(*search.splice(best.choice, local), bound=bound))
        best = better(best, Answer(*search.improve(list(local)), bound=bound))
        if is_closed(bound, watch.news(best.objective)) or not rows.count or not np.isfinite(value):
            break
        now = schedule.next(now, rows.used(local), value, best.objective, bound, best_prices)
    return Priced(best_prices, bound, best, proof)


def _constant(rows: Rows, prices: Floats) -> float:
    """What the limit takes off the priced cost of every choice."""
    return float(prices.sum()) * rows.limit if rows.count else 0.0


def within_window(
    problem: Problem, rows: Rows, prices: Floats, upper: float, options: SolveOptions
) -> list[Bools] | None:
    """The strategies that a choice cheaper than `upper` can have, by exact marginals; None if they are too dear."""
    relaxed = derived(tuple(rows.priced(prices, problem.node_costs)), problem.edges)
    plan = plan_elimination(relaxed)
    if not plan.fits(options) or not np.isfinite(upper):
        return None
    try:
        elimination = eliminate(relaxed, plan)
        marginals = min_marginals(elimination, options)
    except TimeUp:
        return None
    constant = _constant(rows, prices)
    tolerance = 1e-9 * (abs(upper) + abs(elimination.cost) + constant)
    keep: list[Bools] = []
    for marginal, count in zip(marginals, problem.counts, strict=True):
        unknown = np.ones(count, dtype=bool)
        keep.append(unknown if marginal is None else marginal - constant <= upper + tolerance)
    return keep


def _relaxed(problem: Problem, rows: Rows, prices: Floats, options: SolveOptions) -> Reduction:
    """The problem without limit at the prices, reduced."""
    priced = derived(tuple(rows.priced(prices, problem.node_costs)), problem.edges)
    cheaply = unchanged(priced).then(partial(reduce_cheaply, options=options.presolve))
    return cheaply.then(partial(contract_chains, options=options))
