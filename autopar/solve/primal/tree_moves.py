"""Exact re-solves of a forest among some nodes, the others held: the move of every search for choices.

A forest has no cycle, so it is solved by one pass from the leaves to the roots and one back. All work goes on a desk
that is laid out once, so that a move costs no more than the nodes that it looks at.

F. Hamze, N. de Freitas, "From fields to trees", UAI 2004.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autopar._jit import compiled_inner
from autopar.solve.problem.problem import Floats
from autopar.solve.problem.reduction import Ints
from autopar.solve.trws.arrays import Flat
from autopar.solve.trws.kernels import add_row


class Desk(NamedTuple):
    """Room to work on: the costs of strategies to be minimised (set by the caller), and what a move writes down.

    inside: 1 for the nodes of the forest; root and seen: of union-find. walk: the nodes, parents first; via: the arc
    into each from its parent (-1: none). total: the costs beside the nodes outside; kept: the best strategy of a child
    for each of its parent; best: one row of costs.
    """

    costs: Floats
    inside: Ints
    root: Ints
    seen: Ints
    walk: Ints
    via: Ints
    total: Floats
    kept: Ints
    best: Floats


def desk_for(flat: Flat) -> Desk:
    """A clean desk, with the costs of the problem."""
    nodes = len(flat.start) - 1
    inside, root, seen, walk, via = (np.zeros(nodes, dtype=np.intp) for _ in range(5))
    total, kept, best = np.zeros(len(flat.cost)), np.zeros(flat.size, dtype=np.intp), np.zeros(flat.widest)
    return Desk(flat.cost.copy(), inside, root, seen, walk, via, total, kept, best)


@compiled_inner
def find(root: Ints, v: int) -> int:
    """The root of v's tree; paths are halved on the way."""
    while root[v] != v:
        root[v] = root[root[v]]
        v = root[v]
    return v


@compiled_inner
def grow_forest(p: Flat, order: Ints, desk: Desk) -> None:
    """Writes 1 inside for the nodes of a maximal forest, taken greedily in `order`: no cycle among them.

    Nodes outside `order` must be 0 inside already.
    """
    for v in order:
        desk.inside[v], desk.seen[v], desk.root[v] = 0, -1, v
    for v in order:
        fits = True
        for k in range(p.near[v], p.near[v + 1]):
            if desk.inside[p.other[k]]:
                tree = find(desk.root, p.other[k])
                fits = fits and desk.seen[tree] != v
                desk.seen[tree] = v
        if fits:
            desk.inside[v] = 1
            for k in range(p.near[v], p.near[v + 1]):
                if desk.inside[p.other[k]]:
                    desk.root[find(desk.root, p.other[k])] = v


@compiled_inner
def walk_forest(p: Flat, order: Ints, choice: Ints, desk: Desk) -> int:
    """Writes the forest's nodes, parents first, and their costs beside the nodes outside. Returns how many."""
    for v in order:
        desk.via[v] = -2
    found = 0
    for i in range(len(order)):
        if not desk.inside[order[i]] or desk.via[order[i]] != -2:
            continue
        desk.via[order[i]], desk.walk[found] = -1, order[i]
        done, found = found, found + 1
        while done < found:
            v = desk.walk[done]
            done += 1
            first, count = p.start[v], p.start[v + 1] - p.start[v]
            for t in range(first, first + count):
                desk.total[t] = desk.costs[t]
            for k in range(p.near[v], p.near[v + 1]):
                u = p.other[k]
                if not desk.inside[u]:
                    add_row(p, k, int(choice[u]), desk.total[first : first + count])
                elif desk.via[u] == -2:
                    desk.via[u], desk.walk[found] = p.back[k], u
                    found += 1
    return found


@compiled_inner
def hand_up(p: Flat, v: int, desk: Desk) -> None:
    """Adds to v's parent's costs, for each of its strategies, the least of v's tree, and keeps v's strategy."""
    k, u = p.back[desk.via[v]], p.other[desk.via[v]]
    wide, kept = p.wide[k], p.mail[k]
    for c in range(wide):
        desk.best[c] = np.inf
    for s in range(p.start[v + 1] - p.start[v]):
        own, base = desk.total[p.start[v] + s], p.thin[k] + p.class_of[p.rows_at[k] + s] * wide
        for c in range(wide):
            value = own + p.pool[base + c]
            if value < desk.best[c]:
                desk.best[c] = value
                desk.kept[kept + c] = s
    for t in range(p.start[u + 1] - p.start[u] - 1, -1, -1):  # downwards: a class stands for none before its number
        c = p.class_of[p.columns_at[k] + t]
        desk.kept[kept + t] = desk.kept[kept + c]
        desk.total[p.start[u] + t] += desk.best[c]


@compiled_inner
def solve_forest(p: Flat, order: Ints, choice: Ints, desk: Desk) -> None:
    """Makes the choice the cheapest on the forest among `order`, at the desk's costs; the others stay."""
    found = walk_forest(p, order, choice, desk)
    for i in range(found - 1, -1, -1):
        if desk.via[desk.walk[i]] >= 0:
            hand_up(p, desk.walk[i], desk)
    for i in range(found):
        v = desk.walk[i]
        if desk.via[v] < 0:
            choice[v] = np.argmin(desk.total[p.start[v] : p.start[v + 1]])
        else:
            choice[v] = desk.kept[p.mail[p.back[desk.via[v]]] + choice[p.other[desk.via[v]]]]
