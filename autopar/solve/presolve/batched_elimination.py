"""Variable elimination in rounds: nodes of at most two neighbours, no two of a round adjacent, those alike at once.

    left_v[x, y] = min over k of cost_v[k] + cost_va[k, x] + cost_vb[k, y]        a, b: the neighbours of v

is added to what is between a and b, to the costs of a where there is no b, and to a constant where there is neither.
Which nodes go, in which order, depends on edges alone. Costs and matrices are given by their kinds, so equal layers
are eliminated alike, and cost little more than one.

`reduce_alike` is what `functional_edges`, `fold_constant` and `variable_elimination` do edge by edge, for problems in
which few of the matrices differ: a hundred equal layers take hardly longer than one.

J. Larrosa, "Boosting search with variable elimination", CP 2000.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from autopar.solve.certificate.proof import Eliminate
from autopar.solve.elimination.min_sum import MinSum
from autopar.solve.presolve.folding import FoldedNodes, joined
from autopar.solve.presolve.reduce import is_at_rest
from autopar.solve.problem.hash_consing import NONE, Kinds, ascending, distinct, is_among, present
from autopar.solve.problem.options import SolveOptions
from autopar.solve.problem.problem import Edge, Floats, Problem, derived
from autopar.solve.problem.reduction import Bools, Choice, Ints, Reduction, unchanged
from autopar.solve.problem.stop import is_up

NOWHERE = -1
"""In place of a node or a pair: there is none."""
_FEW = 2  # neighbours: with more, a problem of pairs would not stay one


@dataclass(frozen=True, eq=False)
class Round:
    """Nodes that go together; `scope[i]` are the neighbours of nodes[i], the lower first; `by[i]` the pairs with these.

    `to[i]` is the pair of both neighbours. Where one is missing, so is its pair, and `to` too.
    """

    nodes: Ints
    scope: Ints
    by: Ints
    to: Ints


@dataclass(frozen=True, eq=False)
class Chains:
    """The rounds, and what they leave: nodes (ascending) and pairs of them.

    Pairs are all that ever have a matrix, low[p] < high[p]; `pair_of` says which each edge is, and whether its matrix
    is the other way up.
    """

    counts: Ints
    low: Ints
    high: Ints
    pair_of: Ints
    is_flipped: Bools
    rounds: tuple[Round, ...]
    nodes: Ints
    pairs: Ints

    @property
    def order(self) -> tuple[int, ...]:
        """The nodes that go, one after the other."""
        return tuple(v for round_ in self.rounds for v in round_.nodes.tolist())

    def between(self, kinds: Kinds, matrices: Ints) -> Ints:
        """The kind of what is between each pair before any node goes, from the kinds of the edges' matrices."""
        found = np.full(len(self.low), NONE, dtype=np.intp)
        own = matrices.copy()
        kind: int
        for kind in present(matrices[self.is_flipped]).tolist():
            upright = kinds.made(("turned", kind), lambda kind=kind: kinds.arrays[kind].T)
            own[self.is_flipped & (matrices == kind)] = upright
        kinds.add(found, self.pair_of, own)
        return found

    def left_of(self, kinds: Kinds, eliminated: Eliminated, layers: Ints | None = None) -> Problem:
        """The problem that is left: of `nodes`, renumbered in order, and `pairs`; `layers`: of all nodes."""
        place = np.empty(len(self.counts), dtype=np.intp)
        place[self.nodes] = np.arange(len(self.nodes))
        low: list[int] = place[self.low[self.pairs]].tolist()
        high: list[int] = place[self.high[self.pairs]].tolist()
        matrices = kinds.arrays_of(eliminated.between[self.pairs])
        edges = tuple(map(Edge._make, zip(low, high, matrices, strict=True)))
        left = None if layers is None else layers[self.nodes]
        return derived(tuple(kinds.arrays_of(eliminated.costs[self.nodes])), edges, layers=left)


@dataclass(frozen=True, eq=False)
class Eliminated:
    """The kinds of nodes' costs and of what is between pairs, each when it goes, or as it is left; and the constant."""

    costs: Ints
    between: Ints
    constant: float


def eliminated(
    chains: Chains, kinds: Kinds, costs: Ints, between: Ints, most_entries: int
) -> Eliminated | None:
    """The rounds done with costs of nodes and matrices of pairs of these kinds.

    None if that makes more than `most_entries`, or the time is up.
    """
    costs = costs.copy()
    between = between.copy()
    constant = 0.0
    kernel = MinSum()
    for round_ in chains.rounds:
        left = _tables(chains, round_, kinds, costs, between, kernel)
        if is_up() or kinds.entries > most_entries:
            return None
        is_pair = round_.to != NOWHERE
        is_lone = (round_.scope == NOWHERE).all(axis=1)
        is_single = ~is_pair & ~is_lone
        kinds.add(between, round_.to[is_pair], left[is_pair])
        kinds.add(costs, round_.scope[is_single, 0], left[is_single])
        constant += sum(map(float, kinds.arrays_of(left[is_lone])))

    return Eliminated(costs, between, constant)


def chosen(chains: Chains, kinds: Kinds, done: Eliminated, remaining: Sequence[int]) -> Ints:
    """The optimal choice of all nodes, from that of those left: of equals the first strategy."""
    choice = np.zeros(len(chains.counts), dtype=np.intp)
    choice[chains.nodes] = remaining
    for round_ in reversed(chains.rounds):
        beside = np.where(round_.scope == NOWHERE, NOWHERE, choice[round_.scope])
        columns = _columns(round_, done.costs, done.between)
        first, each = distinct(*columns, beside[:, 0], beside[:, 1])
        best: list[int] = []
        for n in first.tolist():
            total: Floats = np.zeros(1)
            for (table, axes), given in zip(
                _parts(kinds, columns, n), (None, *beside[n].tolist()), strict=False
            ):
                total = total + table[tuple(slice(None) if axis < 0 else given for axis in axes)]
            best.append(int(total.argmin()))
        choice[round_.nodes] = np.array(best, dtype=np.intp)[each]

    return choice


def _tables(
    chains: Chains, round_: Round, kinds: Kinds, costs: Ints, between: Ints, kernel: MinSum
) -> Ints:
    """The kinds of what the nodes of a round leave."""
    columns = _columns(round_, costs, between)
    first, each = distinct(*columns)
    made: list[int] = []
    for n in first.tolist():
        shape = tuple([int(chains.counts[u]) for u in round_.scope[n].tolist() if u != NOWHERE])
        key = ("left", *[int(column[n]) for column in columns])
        made.append(
            kinds.made(
                key, lambda n=n, shape=shape: kernel.eliminate(shape, _parts(kinds, columns, n))
            )
        )
    return np.array(made, dtype=np.intp)[each]


def _columns(round_: Round, costs: Ints, between: Ints) -> tuple[Ints, ...]:
    """What nodes of a round that are alike agree in: the kinds of costs and matrices, and which way up these are."""
    kinds = np.append(between, NONE)[round_.by]  # NOWHERE is the last
    is_row = (round_.nodes[:, None] < round_.scope).astype(np.intp)
    return costs[round_.nodes], kinds[:, 0], is_row[:, 0], kinds[:, 1], is_row[:, 1]


def _parts(kinds: Kinds, columns: tuple[Ints, ...], n: int) -> list[tuple[Floats, tuple[int, ...]]]:
    """The tables of the n-th node of a round, each with its axes: -1 for the node, else a position in its scope."""
    cost, *beside = (int(column[n]) for column in columns)
    parts: list[tuple[Floats, tuple[int, ...]]] = [(kinds.arrays[cost], (-1,))]
    for position, (kind, is_row) in enumerate(zip(beside[::2], beside[1::2], strict=True)):
        if kind != NONE:
            parts.append((kinds.arrays[kind], (-1, position) if is_row else (position, -1)))
    return parts


def chains_of(counts: Ints, u: Ints, v: Ints, most_entries: int) -> Chains:
    """What rounds take out of the nodes, given edges u -> v: those of few neighbours, while tables stay small enough.

    In a round those of fewest neighbours come first, then the lower ones.
    """
    graph = _ClassGraph(counts, u, v)
    rounds = list[Round]()
    pair_of = graph.pairs(np.minimum(u, v), np.maximum(u, v))
    while len(nodes := graph.ready(most_entries)):
        rounds.append(graph.take(nodes))
    low = np.concatenate(graph.low)
    high = np.concatenate(graph.high)
    return Chains(
        counts, low, high, pair_of, u > v, tuple(rounds), np.flatnonzero(graph.stays), graph.names
    )


class _ClassGraph:
    """The nodes and pairs that are left while rounds are taken out. `keys`: of pairs, ascending; `names`: theirs."""

    def __init__(self, counts: Ints, u: Ints, v: Ints) -> None:
        self.counts = counts
        self.stays = np.ones(len(counts), dtype=np.bool_)
        self.keys = ascending(np.minimum(u, v) * len(counts) + np.maximum(u, v))
        self.names = np.arange(len(self.keys))
        self.low, self.high = [self.keys // len(counts)], [self.keys % len(counts)]
        self.made = len(self.keys)
        self.scope = self.by = np.zeros((0, 2), dtype=np.intp)

    def pairs(self, low: Ints, high: Ints) -> Ints:
        """The names of pairs that are left."""
        return self.names[np.searchsorted(self.keys, low * len(self.counts) + high)]

    def ready(self, most_entries: int) -> Ints:
        """The nodes of the next round; what they have to do with is in `scope` and `by`."""
        low = self.keys // len(self.counts)
        high = self.keys % len(self.counts)
        ends = np.concatenate([low, high])
        others = np.concatenate([high, low])
        names = np.tile(self.names, 2)
        degree = np.bincount(ends, minlength=len(self.counts))
        few = self.stays & (degree <= _FEW)
        mine = np.flatnonzero(few[ends])
        mine = mine[np.lexsort((others[mine], ends[mine]))]
        second = np.zeros(len(mine), dtype=np.intp)
        second[1:] = ends[mine[1:]] == ends[mine[:-1]]
        self.scope, self.by = (np.full((len(self.counts), _FEW), NOWHERE) for _ in range(2))
        self.scope[ends[mine], second] = others[mine]
        self.by[ends[mine], second] = names[mine]
        entries = np.where(self.scope == NOWHERE, 1, self.counts[self.scope]).prod(axis=1)
        nodes = np.flatnonzero(few & (entries <= most_entries))

        return self._apart(nodes[np.argsort(degree[nodes], kind="stable")])

    def _apart(self, nodes: Ints) -> Ints:
        """The first of the nodes, without neighbours of those before."""
        taken = list[int]()
        blocked = {NOWHERE}
        for v, a, b in zip(nodes.tolist(), *self.scope[nodes].T.tolist(), strict=True):
            if v not in blocked:
                taken.append(v)
                blocked.add(a)
                blocked.add(b)
        return np.array(taken, dtype=np.intp)

    def take(self, nodes: Ints) -> Round:
        """Takes the nodes out; their neighbours become pairs."""
        scope = self.scope[nodes]
        by = self.by[nodes]
        count = len(self.counts)
        self.stays[nodes] = False
        stays = self.stays[self.keys // count] & self.stays[self.keys % count]
        self.keys, self.names = self.keys[stays], self.names[stays]
        joins = (scope != NOWHERE).all(axis=1)
        wanted = ascending(scope[joins, 0] * count + scope[joins, 1])
        fresh = wanted[~is_among(wanted, self.keys)]
        keys = np.concatenate([self.keys, fresh])
        names = np.concatenate([self.names, np.arange(self.made, self.made + len(fresh))])
        self.made += len(fresh)
        self.low.append(fresh // count)
        self.high.append(fresh % count)
        order = np.argsort(keys, kind="stable")
        self.keys = keys[order]
        self.names = names[order]
        to = np.full(len(nodes), NOWHERE)
        to[joins] = self.pairs(scope[joins, 0], scope[joins, 1])

        return Round(nodes, scope, by, to)


_ALIKE = 8  # edges for each distinct matrix, at least


def reduce_alike(problem: Problem, options: SolveOptions) -> Reduction:
    """Followers joined to leaders, one-sided edges folded, chains eliminated; nothing where there are usages.

    Nor where more than a few matrices differ, tables would become too large, or all choices are forbidden.
    """
    if not options.presolve.batched_elimination:
        return unchanged(problem)

    if (
        problem.usages
        or not problem.edges
        or len(problem.edges) < _ALIKE * len(problem.matrices[0])
    ):
        return unchanged(problem)

    if is_at_rest(problem) and not _has_chains(problem):
        return unchanged(problem)

    kinds = Kinds()
    whole = joined(problem, kinds)
    chains = chains_of(whole.counts, whole.edges.u, whole.edges.v, options.max_table_entries)
    costs = whole.costs(kinds, problem.node_costs)
    between = chains.between(kinds, whole.edges.kind)
    made = eliminated(chains, kinds, costs, between, options.max_total_entries)
    if made is None or not np.isfinite(made.constant):
        return unchanged(problem)

    steps = whole.steps + ((Eliminate(chains.order),) if chains.rounds else ())
    lift = partial(_lift, whole, chains, kinds, made)
    return Reduction(chains.left_of(kinds, made, whole.layers), made.constant, lift, steps)


def _has_chains(problem: Problem) -> bool:
    """Whether a node has at most two edges."""
    return bool((np.bincount(problem.ends.ravel(), minlength=len(problem.node_costs)) <= 2).any())


def _lift(
    whole: FoldedNodes, chains: Chains, kinds: Kinds, made: Eliminated, choice: Choice
) -> Choice:
    return whole.lift(chosen(chains, kinds, made, choice))
