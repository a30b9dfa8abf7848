"""Reduction: followers, one-sided edges and nodes of at most two neighbours, in whole arrays, those alike at once.

It is what `contract`, `merge` and `contract_chains` do edge by edge, for problems in which few of the matrices differ:
a hundred equal layers take hardly longer than one.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from autopar.solve.certificate.proof import Eliminate
from autopar.solve.presolve.batched_elimination import Chains, Eliminated, chains_of, chosen, eliminated
from autopar.solve.presolve.folding import Joined, joined
from autopar.solve.presolve.reduce import is_at_rest
from autopar.solve.problem.hash_consing import Kinds
from autopar.solve.problem.options import SolveOptions
from autopar.solve.problem.problem import Problem
from autopar.solve.problem.reduction import Choice, Reduction, unchanged

_ALIKE = 8  # edges for each distinct matrix, at least


def reduce_alike(problem: Problem, options: SolveOptions) -> Reduction:
    """Followers joined to leaders, one-sided edges folded, chains eliminated; nothing where there are usages.

    Nor where more than a few matrices differ, tables would become too large, or all choices are forbidden.
    """
    if not options.presolve.batched_elimination:
        return unchanged(problem)
    if problem.usages or not problem.edges or len(problem.edges) < _ALIKE * len(problem.matrices[0]):
        return unchanged(problem)
    if is_at_rest(problem) and not _has_chains(problem):
        return unchanged(problem)
    kinds = Kinds()
    whole = joined(problem, kinds)
    chains = chains_of(whole.counts, whole.edges.u, whole.edges.v, options.max_table_entries)
    costs, between = whole.costs(kinds, problem.node_costs), chains.between(kinds, whole.edges.kind)
    made = eliminated(chains, kinds, costs, between, options.max_total_entries)
    if made is None or not np.isfinite(made.constant):
        return unchanged(problem)
    steps = whole.steps + ((Eliminate(chains.order),) if chains.rounds else ())
    lift = partial(_lift, whole, chains, kinds, made)
    return Reduction(chains.left_of(kinds, made, whole.layers), made.constant, lift, steps)


def _has_chains(problem: Problem) -> bool:
    """Whether a node has at most two edges."""
    return bool((np.bincount(problem.ends.ravel(), minlength=len(problem.node_costs)) <= 2).any())


def _lift(whole: Joined, chains: Chains, kinds: Kinds, made: Eliminated, choice: Choice) -> Choice:
    return whole.lift(chosen(chains, kinds, made, choice))
