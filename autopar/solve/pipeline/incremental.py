"""Incremental solve: a problem without a limit, kept when it is solved: a change of node costs then takes little.

Followers are joined to their leaders (`folding`), nodes of few neighbours eliminated (`batched_elimination`); what is
then left, if anything, is solved by messages that are kept (`settle`). Which nodes go how depends on edges alone, and
is worked out once. After a change of node costs only tables of a kind that there was not yet are made, and passes start
from the messages of before: any messages prove a bound. Equal tables are made once, so a hundred equal layers cost
little more than one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import is_

import numpy as np

from autopar.solve.certificate.proof import Eliminate, Forbid, Proof
from autopar.solve.elimination.bucket_elimination import exactly
from autopar.solve.periodic.few_periods import shortened
from autopar.solve.periodic.layers import with_layers
from autopar.solve.presolve.arc_consistency import possible
from autopar.solve.presolve.batched_elimination import (
    Chains,
    Eliminated,
    chains_of,
    chosen,
    eliminated,
)
from autopar.solve.presolve.folding import FoldedNodes, joined
from autopar.solve.problem.hash_consing import Kinds, present
from autopar.solve.problem.incumbent import Best, Watch
from autopar.solve.problem.options import SolveOptions
from autopar.solve.problem.problem import Floats, Infeasible, Problem, Solution, objective
from autopar.solve.problem.reduction import Bools, Choice, Ints, restrict
from autopar.solve.problem.verifier import TOLERANCE, verify_choice
from autopar.solve.trws.arrays import owners
from autopar.solve.trws.ascent import Answer, Ascent, better
from autopar.solve.trws.dual import Certificate

_ENOUGH = TOLERANCE / 10  # of the cost: the rest is for rounding
_FEW_NODES = 3_000
_QUICK = 3e7  # nodes, additions: elimination is tried before sweeps
_SHORTER = 2 / 3  # of the nodes, at least, have to be left out


@dataclass(frozen=True, eq=False)
class Settled:
    """A choice of the nodes that are left, its cost, a bound and its proof, and the messages (0: of what is ruled out).

    These are in the order of `flat` for the problem with all its strategies.
    """

    choice: Choice
    cost: float
    bound: float
    proof: Proof
    messages: Floats

    @property
    def is_proven(self) -> bool:
        """Whether the bound is the cost, up to the rounding of sums over many layers."""
        return _meet(self.bound, self.cost)


NOTHING = Settled((), 0.0, 0.0, (), np.zeros(0))
"""Where no nodes are left."""


def settle(
    problem: Problem, options: SolveOptions, messages: Floats | None = None
) -> Settled | None:
    """The best choice and bound that sweeps give, starting from `messages`, or that elimination does.

    Where that is quick, it comes first: of equal choices it takes the first, where messages take what rounding says.
    None if neither finds a finite choice.

    Raises:
      Infeasible: if forbidden entries leave a node no strategy.
    """
    keep = possible(problem)
    small = restrict(problem, keep, Forbid)
    quick = _quickly(small.problem, options)
    if quick is not None and quick.choice is not None:
        unmoved = (
            np.zeros(sum(problem.counts[int(v)] for v in owners(problem)))
            if messages is None
            else messages
        )
        return Settled(
            small.lift(quick.choice),
            quick.objective,
            quick.bound,
            small.steps + quick.proof,
            unmoved,
        )

    mask = None if small.problem is problem else _kept_messages(problem, keep)
    start = messages if messages is None or mask is None else messages[mask]
    ascent, is_hopeful = _begun(small.problem, options, start)
    best, certificate = _swept(
        ascent, is_hopeful, options, Best(problem, options.time_limit_s, None)
    )
    bound = certificate.bound
    proof = certificate.proof()
    if not _meet(bound, best.objective) and (exact := exactly(small.problem, options)) is not None:
        best = exact
        bound = exact.bound
        proof = exact.proof

    if best.choice is None or not np.isfinite(best.objective):
        return None

    kept = ascent.held.messages
    if mask is not None:
        kept = np.zeros(len(mask))
        kept[mask] = ascent.held.messages

    return Settled(small.lift(best.choice), best.objective, bound, small.steps + proof, kept)


def _quickly(problem: Problem, options: SolveOptions) -> Answer | None:
    """The optimum by elimination, if that takes less than sweeps; None otherwise."""
    if len(problem.node_costs) > _FEW_NODES:
        return None
    return exactly(
        problem, replace(options, max_elimination_work=min(options.max_elimination_work, _QUICK))
    )


def _begun(problem: Problem, options: SolveOptions, messages: Floats | None) -> tuple[Ascent, bool]:
    """The ascent at `messages`; without, at those that a problem of few of the equal layers settles at, if any are.

    And whether sweeps may prove the problem: where they do not prove few of its layers, they do not prove all.
    """
    ascent = Ascent(problem, options, messages, eager=True, enough=_ENOUGH)
    short = shortened(problem) if messages is None else None
    if short is None or len(short.problem.counts) > (1 - _SHORTER) * len(problem.counts):
        return ascent, True
    few = Ascent(short.problem, options, eager=True, enough=_ENOUGH)
    best, certificate = few.sweeps(np.inf, Best(short.problem, options.time_limit_s, None))
    ascent.start_from(short.messages(ascent.dual.flat, few.dual.flat, few.held.messages))
    ascent.options = replace(options, max_sweeps=1)
    return ascent, _meet(certificate.bound, best.objective)


def _swept(
    ascent: Ascent, is_hopeful: bool, options: SolveOptions, watch: Watch
) -> tuple[Answer, Certificate]:
    """What sweeps give: few of them, where the ascent is to take few; as many as usual, if these do not prove it."""
    best, certificate = ascent.sweeps(np.inf, watch)
    if (
        is_hopeful
        and not _meet(certificate.bound, best.objective)
        and ascent.options is not options
    ):
        ascent.options = options
        more, certificate = ascent.sweeps(best.objective, watch)
        best = better(best, more)
    return best, certificate


def _meet(bound: float, cost: float) -> bool:
    return bool(np.isfinite(cost)) and bound >= cost - TOLERANCE * abs(cost)


def _kept_messages(problem: Problem, keep: Sequence[Bools]) -> Bools:
    """Which messages of all are those of strategies that are kept."""
    own = [keep[int(v)] for v in owners(problem)]
    return np.concatenate([np.zeros(0, dtype=np.bool_), *own])


_MOST_ENTRIES = (
    2_000_000  # of distinct matrices: on more (three axes) messages alone rarely prove a choice
)
_GIVEN = 2  # times as many may be given, as some of them are equal
_KEPT_ENTRIES = 30_000_000  # 8 bytes each, for as long as the plan is held


@dataclass(frozen=True, eq=False)
class SolvedBefore:
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
    joined: FoldedNodes
    chains: Chains
    kinds: Kinds
    between: Ints
    known: SolvedBefore

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

    def _known_anew(self, node_costs: Sequence[Floats]) -> SolvedBefore | None:
        kinds = self.kinds.fork()
        costs = self.joined.costs(kinds, node_costs)
        return _solved(
            self.joined, self.chains, kinds, costs, self.between, self.options, self.known
        )


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
    costs = whole.costs(kinds, problem.node_costs)
    between = chains.between(kinds, whole.edges.kind)
    known = _solved(whole, chains, kinds, costs, between, options, None)
    return (
        None if known is None else Standing(problem, options, whole, chains, kinds, between, known)
    )


def _solved(
    whole: FoldedNodes,
    chains: Chains,
    kinds: Kinds,
    costs: Ints,
    between: Ints,
    options: SolveOptions,
    known: SolvedBefore | None,
) -> SolvedBefore | None:
    """The optimum with these costs and matrices, if it is proven; what the rounds leave may be as it was."""
    made = eliminated(chains, kinds, costs, between, min(options.max_total_entries, _KEPT_ENTRIES))
    if made is None:
        return None

    settled = NOTHING
    if known is not None and _leaves_same(chains, made, known.eliminated):
        settled = known.settled
    elif len(chains.nodes):
        found = settle(
            chains.left_of(kinds, made, whole.layers),
            options,
            None if known is None else known.settled.messages,
        )
        if found is None or not found.is_proven:
            return None
        settled = found

    return SolvedBefore(made, settled, whole.lift(chosen(chains, kinds, made, settled.choice)))


def _leaves_same(chains: Chains, one: Eliminated, other: Eliminated) -> bool:
    nodes = chains.nodes
    pairs = chains.pairs
    same = one.costs[nodes] == other.costs[nodes], one.between[pairs] == other.between[pairs]
    return all(bool(part.all()) for part in same)


def _same(some: Sequence[object], others: Sequence[object]) -> bool:
    """Whether both are of the same objects."""
    return len(some) == len(others) and all(map(is_, some, others))
