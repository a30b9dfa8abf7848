"""Ties between variables that may be absent: what is there lies alike, whatever is not."""

from __future__ import annotations

from itertools import product

import numpy as np

from autopar.search.constraints.restriction import Restriction
from autopar.search.recompute_solve import padded
from autopar.solve import Edge, Problem

KINDS = (("a", "b"), ("b", "a", "c"), ("b", "c"))
"""The placements of three variables; the first and the second may be absent, too."""


def test_what_is_there_lies_alike() -> None:
    keep = [np.array([p in "b" or n == 1 for p in kinds]) for n, kinds in enumerate(KINDS)]
    star = tuple(
        Edge(0, n, np.where([[p == q for q in KINDS[n]] for p in KINDS[0]], 0.0, np.inf))
        for n in (1, 2)
    )
    counts = [len(KINDS[0]) + 1, len(KINDS[1]) + 1, len(KINDS[2])]
    problem = Problem(tuple(np.zeros(count) for count in counts), ())
    tied = padded(Restriction({0: keep[0], 2: keep[2]}, star), counts).apply(problem)
    for choice in product(*map(range, counts)):
        cost = sum(tied.node_costs[v][s] for v, s in enumerate(choice))
        cost += sum(edge.cost[choice[edge.u], choice[edge.v]] for edge in tied.edges)
        there = [kinds[s] for kinds, s in zip(KINDS, choice, strict=True) if s < len(kinds)]
        ends = [
            kinds[s] for kinds, s in zip(KINDS[::2], choice[::2], strict=True) if s < len(kinds)
        ]
        assert (cost == 0) == (len(set(there)) == 1 and set(ends) <= {"b"})
