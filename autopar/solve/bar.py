"""Reduction: strategies, and pairs of strategies, go that no choice within a window above a bound can contain.

With costs moved between edges and nodes as the messages of the bound say (cost', see `dual`), a choice costs at least

    bound + beyond_v[s]                                                               with strategy s at v
    bound + beyond_u[s] - row[s] + beyond_v[t] - column[t] + cost'_uv[s, t] - low     with s at u and t at v

    row[s] = min over t of cost'_uv[s, t] - low    column[t]: alike    low = min cost'_uv
    beyond_v = cost'_v - min cost'_v + sum over v's edges of row (or column)

Strategies that go leave most edges as wide as they were; pairs that go leave them nearly functional, so that the cheap
reductions go far. Costs stay moved: sweeps on what is left begin where the messages were.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autopar.solve.dual import Certificate, rounding_error
from autopar.solve.forbid import drop_forbidden
from autopar.solve.problem import Edge, Floats, Infeasible, Problem, derived
from autopar.solve.proof import Bar, Exceed, Messages, Pass
from autopar.solve.reduction import Bools, Reduction, restrict

_SAMPLE = 2_000_000  # entries of edges

Bits = NDArray[np.uint8]

_UNMOVED = Messages(np.zeros((0, 2), dtype=np.intp), ())


def barred(certificate: Certificate, window: float) -> Reduction:
    """What can be part of a choice within `window` of the bound, up to rounding; costs are moved.

    The certificate is of a problem with at most one edge between any two nodes.

    Raises:
      Infeasible: if a node loses all its strategies.
    """
    prices, messages = certificate.parts()
    keep = certificate.keep(window)
    left = restrict(certificate.problem, keep, lambda ids: Exceed(ids, prices, _UNMOVED))
    if not all(mask.any() for mask in keep):
        raise Infeasible("no choice lies within the window", witness=(Pass(messages), *left.steps))
    if any(edge.cost.min() == np.inf for edge in left.problem.edges):
        left = Reduction(left.problem, 0.0, left.lift, (Pass(messages), *left.steps)).then(drop_forbidden)
        raise AssertionError("two nodes without a finite pair, and yet a finite choice")
    costs, edges = _moved(left.problem, certificate.messages, keep)
    priced = [cost[mask] for cost, mask in zip(certificate.node_costs, keep, strict=True)]
    edges, bars = _without_dear(priced, edges, window + rounding_error(certificate))
    smaller = derived(tuple(costs), edges, left.problem.usages, left.problem.usage_limit)
    return Reduction(smaller, 0.0, left.lift, (Pass(messages), *left.steps, *((Bar(bars, prices),) if bars else ())))


def window_of(certificate: Certificate, pairs: int) -> float:
    """The window in which about as many pairs are left, judged by some of the edges; inf if there are no more."""
    total = sum(edge.cost.size for edge in certificate.problem.edges)
    stride = max(1, total // _SAMPLE)
    values: list[Floats] = []
    for e in range(0, len(certificate.messages), stride):
        edge, (to_u, to_v) = certificate.problem.edges[e], certificate.messages[e]
        over = edge.cost - to_u[:, None] - to_v
        over -= over.min()
        u, v = certificate.excess[edge.u] - over.min(axis=1), certificate.excess[edge.v] - over.min(axis=0)
        values.append((over + u[:, None] + v).ravel())
    found = np.concatenate([np.zeros(0), *values])
    wanted = pairs * len(found) // max(total, 1)
    return float(np.partition(found, wanted)[wanted]) if wanted < len(found) else np.inf


def _moved(
    problem: Problem, messages: Sequence[tuple[Floats, Floats]], keep: Sequence[Bools]
) -> tuple[list[Floats], list[Edge]]:
    """Nodes' costs and edges after what is left of the messages went from edges to nodes."""
    costs, edges = list(problem.node_costs), list[Edge]()
    for edge, (to_u, to_v) in zip(problem.edges, messages, strict=True):
        to_u, to_v = to_u[keep[edge.u]], to_v[keep[edge.v]]
        costs[edge.u] = costs[edge.u] + to_u
        costs[edge.v] = costs[edge.v] + to_v
        edges.append(Edge(edge.u, edge.v, edge.cost - to_u[:, None] - to_v))
    return costs, edges


def _without_dear(
    costs: Sequence[Floats], edges: Sequence[Edge], most: float
) -> tuple[tuple[Edge, ...], dict[tuple[int, int], Bits]]:
    """The edges, with infinity in place of pairs that cost more than `most` above the bound; and where that was put."""
    beyond = [cost - cost.min() for cost in costs]
    above: list[tuple[Floats, Floats, Floats]] = []
    for edge in edges:
        over = edge.cost - edge.cost.min()
        rows, columns = over.min(axis=1), over.min(axis=0)
        beyond[edge.u] += rows
        beyond[edge.v] += columns
        above.append((over, rows, columns))
    left, bars = list[Edge](), dict[tuple[int, int], Bits]()
    for edge, (over, rows, columns) in zip(edges, above, strict=True):
        with np.errstate(invalid="ignore"):  # inf - inf: strategies that no pair is left of
            least = over + (beyond[edge.u] - rows)[:, None] + (beyond[edge.v] - columns)
            gone = ~(least <= most) & np.isfinite(edge.cost)
        if gone.any():
            bars[edge.u, edge.v] = np.packbits(gone)
            edge = Edge(edge.u, edge.v, np.where(gone, np.inf, edge.cost))
        left.append(edge)
    return tuple(left), bars
