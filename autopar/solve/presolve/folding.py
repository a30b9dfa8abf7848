"""Folding: a problem without what depends on edges alone: followers are with their leaders, one-sided edges with nodes.

What is worked out here holds whatever nodes cost, so a change of their costs is a change of the costs of a few nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autopar.solve.certificate.proof import Fold, Follow, Messages, Pass, Proof
from autopar.solve.presolve.functional_edges import Follower, contracted, is_functional, leaders
from autopar.solve.problem.factored_matrix import whole
from autopar.solve.problem.hash_consing import NONE, Kinds, ascending, is_among, present
from autopar.solve.problem.problem import Edge, Floats, Problem, derived
from autopar.solve.problem.reduction import Bools, Choice, Ints


@dataclass(frozen=True, eq=False)
class Edges:
    """Edges u[e] -> v[e] with matrices by their kinds."""

    u: Ints
    v: Ints
    kind: Ints

    def where(self, mask: Bools) -> Edges:
        """Those that `mask` is true of."""
        return Edges(self.u[mask], self.v[mask], self.kind[mask])


@dataclass(frozen=True, eq=False)
class FoldedNodes:
    """The nodes that stay, renumbered, and their edges.

    `stay` are their numbers in the whole problem, `layers` what is known of theirs; `fixed` is the kind of what edges
    add to their costs; `led` are the nodes that follow each, by its number here, each with its strategy for each of the
    leader's. `followers` are in the order in which they went. `steps` say this in a proof.
    """

    counts: Ints
    edges: Edges
    stay: Ints
    layers: Ints | None
    fixed: Ints
    led: Mapping[int, tuple[tuple[int, Ints], ...]]
    followers: tuple[Follower, ...]
    steps: Proof

    def costs(self, kinds: Kinds, node_costs: Sequence[Floats]) -> Ints:
        """The kinds of the costs of nodes that stay, from those of all nodes of the whole problem."""
        stay: list[int] = self.stay.tolist()
        found = kinds.of([node_costs[v] for v in stay])
        followers = [node_costs[v][to_v] for members in self.led.values() for v, to_v in members]
        places = np.repeat(
            np.array([*self.led], dtype=np.intp), [len(members) for members in self.led.values()]
        )
        kinds.add(found, places, kinds.of(followers))
        return kinds.sums(found, self.fixed)

    def lift(self, choice: Ints) -> Choice:
        """The choice of all nodes that a choice of those that stay is."""
        full = np.zeros(len(self.stay) + len(self.followers), dtype=np.intp)
        full[self.stay] = choice
        for v, u, to_v in reversed(self.followers):
            full[v] = to_v[full[u]]
        return tuple(full.tolist())


def joined(problem: Problem, kinds: Kinds) -> FoldedNodes:
    """`problem`, its limit left out, with followers and one-sided edges joined to nodes."""
    counts = np.array(problem.counts, dtype=np.intp)
    u, v = problem.ends.T
    matrices, which = problem.matrices
    fixed, edges, followers = _contracted(
        counts, Edges(u, v, kinds.of([*map(whole, matrices)])[which]), kinds
    )
    stays = np.ones(len(counts), dtype=np.bool_)
    stays[[v for v, _, _ in followers]] = False
    stay = np.flatnonzero(stays)
    place = np.cumsum(stays) - 1
    edges = Edges(place[edges.u], place[edges.v], edges.kind)
    fixed, edges, steps = _folded(fixed[stay], edges, kinds)
    steps = (Follow(followers), *steps) if followers else steps
    led: dict[int, list[tuple[int, Ints]]] = {}
    for v, (root, to_v) in leaders(followers).items():
        led.setdefault(int(place[root]), []).append((v, to_v))

    by_leader = {u: tuple(members) for u, members in led.items()}
    layers = None if problem.layers is None else problem.layers[stay]
    return FoldedNodes(counts[stay], edges, stay, layers, fixed, by_leader, followers, steps)


def _contracted(
    counts: Ints, edges: Edges, kinds: Kinds
) -> tuple[Ints, Edges, tuple[Follower, ...]]:
    """What edges add to each node, the edges between the nodes that follow nobody, and the others in their order.

    Only what has to do with functional edges is looked at: all edges of their nodes, and of those that follow then.
    """
    fixed = np.full(len(counts), NONE, dtype=np.intp)
    known = present(edges.kind)
    functional = known[[is_functional(cost) for cost in kinds.arrays_of(known)]]
    if not len(functional):
        return fixed, edges, ()

    first = np.isin(edges.kind, functional)
    touched = np.zeros(len(counts), dtype=np.bool_)
    touched[edges.u[first]] = touched[edges.v[first]] = True
    while True:
        near = touched[edges.u] | touched[edges.v]
        part = edges.where(near)
        nodes = ascending(np.concatenate([edges.u[near], edges.v[near]]))
        smaller, stay, gone = contracted(_problem(counts[nodes], nodes, part, kinds))
        names: list[int] = nodes.tolist()
        followers = tuple([(names[v], names[u], to_v) for v, u, to_v in gone])
        if all(touched[v] for v, _, _ in followers):
            break
        touched[[v for v, _, _ in followers]] = True

    others = edges.where(~near)
    left = nodes[stay]
    fixed[left] = kinds.of(smaller.node_costs)
    u, v = (left[[getattr(edge, end) for edge in smaller.edges]] for end in ("u", "v"))
    moved = Edges(u, v, kinds.of([edge.cost for edge in smaller.edges]))
    return fixed, _both(others, moved), followers


def _problem(counts: Ints, nodes: Ints, edges: Edges, kinds: Kinds) -> Problem:
    """The edges as a problem of their nodes (ascending), which cost nothing."""
    u: list[int] = np.searchsorted(nodes, edges.u).tolist()
    v: list[int] = np.searchsorted(nodes, edges.v).tolist()
    zeros: dict[int, Floats] = {int(count): np.zeros(count) for count in present(counts)}
    return derived(
        tuple([zeros[int(count)] for count in counts]),
        tuple(map(Edge, u, v, kinds.arrays_of(edges.kind))),
    )


def _both(a: Edges, b: Edges) -> Edges:
    return Edges(
        np.concatenate([a.u, b.u]), np.concatenate([a.v, b.v]), np.concatenate([a.kind, b.kind])
    )


def _folded(fixed: Ints, edges: Edges, kinds: Kinds) -> tuple[Ints, Edges, Proof]:
    """`fixed`, and what edges that depend on one end only add to each node; and the other edges."""
    fixed = fixed.copy()
    # 1: depends on its row only; 2: on its column only
    along = np.zeros(len(kinds.arrays), dtype=np.intp)
    part = np.full(len(kinds.arrays), NONE, dtype=np.intp)
    known = present(edges.kind)
    for kind, cost in zip(known, kinds.arrays_of(known), strict=True):
        if not np.isfinite(cost).all():  # what is forbidden stays with edges: it is no message
            continue
        along[kind] = 1 if (cost == cost[:, :1]).all() else 2 if (cost == cost[:1]).all() else 0
        if along[kind]:
            (part[kind],) = kinds.of([cost[:, 0] if along[kind] == 1 else cost[0]])

    moves = along[edges.kind] > 0
    gone = edges.where(moves)
    others = edges.where(~moves)
    by_row = along[gone.kind] == 1
    kinds.add(fixed, np.where(by_row, gone.u, gone.v), part[gone.kind])
    return fixed, others, _steps(len(fixed), gone, by_row, others, kinds)


def _steps(count: int, gone: Edges, by_row: Bools, others: Edges, kinds: Kinds) -> Proof:
    """That one-sided edges moved to a node: messages where others are between the same nodes, else they are gone."""
    own, held = (
        np.minimum(some.u, some.v) * count + np.maximum(some.u, some.v) for some in (gone, others)
    )
    is_beside = is_among(own, np.sort(held))
    beside = gone.where(is_beside)
    rows: list[bool] = by_row[is_beside].tolist()
    parts = tuple(map(_one_sided, kinds.arrays_of(beside.kind), rows))
    messages = Messages(np.stack([beside.u, beside.v], axis=1), parts)
    keys: list[int] = ascending(own[~is_beside]).tolist()
    pairs = tuple([divmod(key, count) for key in keys])
    return (Pass(messages),) * bool(parts) + (Fold(pairs),) * bool(pairs)


def _one_sided(cost: Floats, by_row: bool) -> tuple[Floats, Floats]:
    """What a matrix that depends on its row only, or its column only, adds to the costs of either node."""
    none: Floats = np.zeros(len(cost.T) if by_row else len(cost))
    return (cost[:, 0], none) if by_row else (none, cost[0])
