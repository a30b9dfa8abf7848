"""Incremental solve: a problem without a limit, kept when it is solved: a change of node costs then takes little.

Followers are joined to their leaders (`joined`), nodes of few neighbours eliminated (`chains`); what is then left, if
anything, is solved by messages (`remainder`). Which nodes go how depends on edges alone, and is worked out once. After
a change of node costs only tables of a kind that there was not yet are made, and sweeps start from the messages of
before. Equal tables are made once, so a hundred equal layers cost little more than one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import is_

import numpy as np

from autopar.solve.certificate.proof import Eliminate, Proof
from autopar.solve.periodic.layers import with_layers
from autopar.solve.pipeline.remainder import NOTHING, Settled, settle
from autopar.solve.presolve.batched_elimination import Chains, Eliminated, chains_of, chosen, eliminated
from autopar.solve.presolve.folding import Joined, joined
from autopar.solve.problem.hash_consing import Kinds, present
from autopar.solve.problem.options import SolveOptions
from autopar.solve.problem.problem import Floats, Infeasible, Problem, Solution, objective
from autopar.solve.problem.reduction import Choice, Ints
from autopar.solve.problem.verifier import TOLERANCE, verify_choice

_MOST_ENTRIES = 2_000_000  # of distinct matrices: on more (three axes) messages alone rarely prove a choice
_GIVEN = 2  # times as many may be given, as some of them are equal
_KEPT_ENTRIES = 30_000_000  # 8 bytes each, for as long as the plan is held


@dataclass(frozen=True, eq=False)
class Known:
    """How the problem was solved at some costs of nodes: `choice` is of all nodes."""

    eliminated: Eliminated
    settled: Settled
    choice: Choice


@dataclass(frozen=True, eq=False)
class Standing:
    """A solved problem, and what is needed to solve it again with other costs of some nodes.

    `chains` are about the nodes of `joined`; `between` are the kinds of the matrices of its pairs.
    """

    problem: Problem
    options: SolveOptions
    joined: Joined
    chains: Chains
    kinds: Kinds
    between: Ints
    known: Known

    @property
    def choice(self) -> Choice:
        """The choice for the problem itself."""
        return self.known.choice

    def solve(self, problem: Problem) -> Solution | None:
        """The optimum of `problem`, which differs in node costs only: verified, and proven up to rounding.

        None where messages do not prove it.

        Raises:
          Infeasible: if no choice avoids the forbidden entries.
          ValueError: if it has other edges, or a limit.
        """
        if problem.usage_limit is not None or not _same(problem.edges, self.problem.edges):
            raise ValueError("the problem differs in more than the costs of nodes")
        known = self.known
        if not _same(problem.node_costs, self.problem.node_costs):
            known = self._known_anew(problem.node_costs)
        if known is None:
            return None
        bound = known.settled.bound + known.eliminated.constant
        if not np.isfinite(bound):
            raise Infeasible("no choice avoids the forbidden entries")
        cost = objective(problem, known.choice)
        if bound < cost - TOLERANCE * abs(cost):
            return None
        solution = Solution(known.choice, cost, cost, 0.0, self._proof(known.settled))
        verify_choice(problem, solution)
        return solution

    def _proof(self, settled: Settled) -> Proof:
        """Of the optimum, whatever nodes cost, given how what the rounds leave was solved."""
        order = self.chains.order
        return self.joined.steps + ((Eliminate(order),) if order else ()) + settled.proof

    def _known_anew(self, node_costs: Sequence[Floats]) -> Known | None:
        kinds = self.kinds.fork()
        costs = self.joined.costs(kinds, node_costs)
        return _solved(self.joined, self.chains, kinds, costs, self.between, self.options, self.known)


def standing(problem: Problem, options: SolveOptions) -> Standing | None:
    """`problem`, which has no limit, solved so that it can be solved again; None where `options` do not allow that.

    That is where tables become too large, or messages prove nothing and elimination of what is left does not fit.

    Raises:
      Infeasible: if forbidden entries leave a node no strategy.
    """
    if sum(matrix.size for matrix in problem.matrices[0]) > _GIVEN * _MOST_ENTRIES:
        return None
    kinds = Kinds()
    whole = joined(with_layers(problem) if options.periodic.few_periods else problem, kinds)
    if sum(cost.size for cost in kinds.arrays_of(present(whole.edges.kind))) > _MOST_ENTRIES:
        return None
    chains = chains_of(whole.counts, whole.edges.u, whole.edges.v, options.max_table_entries)
    costs, between = whole.costs(kinds, problem.node_costs), chains.between(kinds, whole.edges.kind)
    known = _solved(whole, chains, kinds, costs, between, options, None)
    return None if known is None else Standing(problem, options, whole, chains, kinds, between, known)


def _solved(
    whole: Joined, chains: Chains, kinds: Kinds, costs: Ints, between: Ints, options: SolveOptions, known: Known | None
) -> Known | None:
    """The optimum with these costs and matrices, if it is proven; what the rounds leave may be as it was."""
    made = eliminated(chains, kinds, costs, between, min(options.max_total_entries, _KEPT_ENTRIES))
    if made is None:
        return None
    settled = NOTHING
    if known is not None and _leaves_same(chains, made, known.eliminated):
        settled = known.settled
    elif len(chains.nodes):
        found = settle(
            chains.left_of(kinds, made, whole.layers), options, None if known is None else known.settled.messages
        )
        if found is None or not found.is_proven:
            return None
        settled = found
    return Known(made, settled, whole.lift(chosen(chains, kinds, made, settled.choice)))


def _leaves_same(chains: Chains, one: Eliminated, other: Eliminated) -> bool:
    nodes, pairs = chains.nodes, chains.pairs
    same = one.costs[nodes] == other.costs[nodes], one.between[pairs] == other.between[pairs]
    return all(bool(part.all()) for part in same)


def _same(some: Sequence[object], others: Sequence[object]) -> bool:
    """Whether both are of the same objects."""
    return len(some) == len(others) and all(map(is_, some, others))
