"""A weighted constraint satisfaction problem (pairwise Markov field) with knapsack rows over time: what `solve` solves.

    minimise    sum over nodes v of cost_v[s_v]  +  sum over edges (u, v) of cost_uv[s_u, s_v]
    subject to  for every time t:  sum over usages of v with start <= t < stop of bytes_v[s_v]  <=  usage_limit
                no entry that is taken is infinite

One strategy s_v for every node v. An infinite entry is a combination that is forbidden, never a large price.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autopar.errors import AutoparError
from autopar.solve.certificate.proof import Proof
from autopar.solve.problem.factored_matrix import Floats, Matrix, at, entries_of, whole

Stopped = Literal["", "time limit", "keyboard"]
_SHARED = 8  # edges for each distinct matrix, at least: then entries are read matrix by matrix


class Infeasible(AutoparError):
    """Proven: no choice satisfies the problem.

    If a limit is to blame, `min_peak_bytes` is the smallest peak found, that of `choice`; none is below
    `least_peak_bytes`: proven. `witness` proves a bound of infinity, where the search for a choice ended so; None where
    memory alone was asked.
    """

    def __init__(
        self,
        message: str,
        min_peak_bytes: float | None = None,
        least_peak_bytes: float | None = None,
        choice: tuple[int, ...] | None = None,
        witness: Proof | None = None,
    ) -> None:
        super().__init__(message)
        self.min_peak_bytes = min_peak_bytes
        self.least_peak_bytes = least_peak_bytes
        self.choice = choice
        self.witness = witness


class InvalidSolution(AutoparError, ValueError):
    """A solution that contradicts its problem: always a bug of the solver or a tampered solution."""


class Edge(NamedTuple):
    """A cost for each pair of strategies of two different nodes: `cost[s_u, s_v]`, finite or +inf.

    Equal matrices should be the same object: the solver shares its work on them. An edge is equal to itself only.
    A tuple, as there are many, and tuples are made at once.
    """

    u: int
    v: int
    matrix: Matrix

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def __hash__(self) -> int:
        return id(self)

    @property
    def cost(self) -> Floats:
        """The matrix as one array, always the same."""
        return whole(self.matrix)


@dataclass(frozen=True, eq=False)
class Usage:
    """Bytes that a node's strategies take while start <= t < stop."""

    node: int
    start: int
    stop: int
    size_bytes: Floats


@dataclass(frozen=True, eq=False)
class Problem:
    """Costs of nodes and edges, memory usages over time, and the limit (None: no limit).

    `periods`, where it is known what repeats: nodes of one number >= 0 have one place in it, and as many strategies.
    `layers`, once that is worked out (`periodic.layers`): of every node its place, and which repetition of it it is in.

    Invariants: every node has at least one strategy; no NaN and no -inf; matrices fit their nodes; usages are
    finite and >= 0.
    """

    node_costs: tuple[Floats, ...]
    edges: tuple[Edge, ...]
    usages: tuple[Usage, ...] = ()
    usage_limit: float | None = None
    periods: NDArray[np.intp] | None = None
    layers: NDArray[np.intp] | None = None

    def __post_init__(self) -> None:
        check(self)

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """The number of strategies of each node."""
        return tuple(map(len, self.node_costs))

    @cached_property
    def ends(self) -> NDArray[np.intp]:
        """The nodes u and v of every edge: ends[edge, 0] and ends[edge, 1]."""
        u = np.fromiter([edge.u for edge in self.edges], dtype=np.intp, count=len(self.edges))
        v = np.fromiter([edge.v for edge in self.edges], dtype=np.intp, count=len(self.edges))
        return np.stack([u, v]).T

    @cached_property
    def matrices(self) -> tuple[list[Matrix], NDArray[np.intp]]:
        """The matrices, each object once, in the order in which they come first; and which of them each edge has."""
        ids = np.array([id(edge.matrix) for edge in self.edges], dtype=np.int64)
        _, first, which = np.unique(ids, return_index=True, return_inverse=True)
        order = np.argsort(first)
        number = np.empty(len(first), dtype=np.intp)
        number[order] = np.arange(len(first))
        examples: list[int] = first[order].tolist()
        return [self.edges[e].matrix for e in examples], number[which]

    @cached_property
    def _edges_of(self) -> list[NDArray[np.intp]]:
        """The edges that have each of the `matrices`."""
        found, which = self.matrices
        return np.split(
            np.argsort(which, kind="stable"),
            np.cumsum(np.bincount(which, minlength=len(found)))[:-1],
        )

    def taken(self, choice: tuple[int, ...]) -> list[float]:
        """What each edge costs under `choice`."""
        matrices, which = self.matrices
        if len(which) <= _SHARED * len(matrices):
            return [float(at(edge.matrix, choice[edge.u], choice[edge.v])) for edge in self.edges]
        s, t = np.array(choice, dtype=np.intp)[self.ends.T]
        costs = np.empty(len(which))
        for matrix, mine in zip(matrices, self._edges_of, strict=True):
            costs[mine] = at(matrix, s[mine], t[mine])
        return costs.tolist()


def derived(
    node_costs: tuple[Floats, ...],
    edges: tuple[Edge, ...],
    usages: tuple[Usage, ...] = (),
    usage_limit: float | None = None,
    periods: NDArray[np.intp] | None = None,
    layers: NDArray[np.intp] | None = None,
) -> Problem:
    """A problem made of the parts of a checked one: not checked again, which would take as long as the reductions."""
    problem = object.__new__(Problem)
    problem.__dict__.update(
        node_costs=node_costs, edges=edges, usages=usages, usage_limit=usage_limit
    )
    problem.__dict__.update(periods=periods, layers=layers)
    return problem


@dataclass(frozen=True, eq=False)
class EdgesByMatrix:
    """Edges, where it is known which of few matrices each has: `ends` and `matrices` are those of their Problem."""

    edges: tuple[Edge, ...]
    ends: NDArray[np.intp]
    matrices: tuple[list[Matrix], NDArray[np.intp]]

    @classmethod
    def of(
        cls, ends: NDArray[np.intp], matrices: Sequence[Matrix], which: NDArray[np.intp]
    ) -> EdgesByMatrix:
        """The edges ends[e, 0] -> ends[e, 1] with matrices[which[e]]; a matrix may be there twice."""
        first: dict[int, int] = {}
        number = [first.setdefault(id(matrix), n) for n, matrix in enumerate(matrices)]
        every, at, which = np.unique(
            np.array(number, dtype=np.intp)[which], return_index=True, return_inverse=True
        )

        order = np.argsort(at)
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        kept: list[int] = every[order].tolist()
        found = [matrices[n] for n in kept]
        of_edges: NDArray[np.intp] = place[which]
        numbers: list[int] = of_edges.tolist()
        u: list[int] = ends[:, 0].tolist()
        v: list[int] = ends[:, 1].tolist()
        each = map(found.__getitem__, numbers)
        edges = tuple(map(Edge._make, zip(u, v, each, strict=True)))
        return cls(edges, ends, (found, of_edges))


def joined(
    node_costs: tuple[Floats, ...],
    linked: EdgesByMatrix,
    usages: tuple[Usage, ...] = (),
    usage_limit: float | None = None,
    periods: NDArray[np.intp] | None = None,
) -> Problem:
    """The problem of these nodes and edges.

    Raises:
      ValueError: as `check`.
    """
    problem = derived(node_costs, linked.edges, usages, usage_limit, periods)
    problem.__dict__.update(ends=linked.ends, matrices=linked.matrices)
    check(problem)
    return problem


@dataclass(frozen=True)
class Solution:
    """A choice for every node, with its objective and a proven lower bound of the optimum.

    Invariants (checked by `verify`): the choice is feasible, `objective` is its cost recomputed, `lower_bound` is
    not above it and is what `witness` proves. `peak` is the largest usage over time. `stopped` says what ended the
    search before its end, if anything did: then another run may find something else. Solutions are equal whatever their
    witnesses.
    """

    choice: tuple[int, ...]
    objective: float
    lower_bound: float
    peak: float
    witness: Proof | None = field(default=None, compare=False, repr=False)
    stopped: Stopped = ""

    @property
    def gap(self) -> float:
        """(objective - lower bound) / objective, >= 0; 0 means proven optimal."""
        if self.objective <= self.lower_bound:
            return 0.0
        return (self.objective - self.lower_bound) / abs(self.objective)


def check(problem: Problem) -> None:
    """Raises ValueError if `problem` breaks an invariant."""
    for v, cost in _distinct(problem.node_costs):
        if cost.ndim != 1 or not len(cost) or not _is_cost(cost):
            raise ValueError(
                f"node {v}: costs must be a vector of at least one number, none NaN or -inf: {cost}"
            )

    counts = np.array(problem.counts, dtype=np.intp)
    (matrices, which) = problem.matrices
    shapes = np.array(
        [matrix.shape if len(matrix.shape) == 2 else (0, 0) for matrix in matrices], dtype=np.intp
    ).reshape(-1, 2)
    expected = counts[problem.ends]
    if (problem.ends[:, 0] == problem.ends[:, 1]).any():
        loop = next(edge for edge in problem.edges if edge.u == edge.v)
        raise ValueError(f"edge from node {loop.u} to itself")

    for e in np.flatnonzero((shapes[which] != expected).any(axis=1)).tolist():
        edge = problem.edges[e]
        wanted = (*expected[e].tolist(),)
        raise ValueError(
            f"edge ({edge.u}, {edge.v}): matrix {edge.matrix.shape}, nodes want {wanted}"
        )

    if not all(_is_cost(entries_of(matrix)) for matrix in matrices):
        raise ValueError("an edge matrix holds NaN or -inf")

    for usage in problem.usages:
        if (
            usage.size_bytes.shape != problem.node_costs[usage.node].shape
            or usage.start >= usage.stop
        ):
            raise ValueError(
                f"usage of node {usage.node}: shape {usage.size_bytes.shape}, {usage.start}..{usage.stop}"
            )

    for place, size in _distinct([usage.size_bytes for usage in problem.usages]):
        if not np.isfinite(size).all() or (size < 0).any():
            raise ValueError(
                f"usage of node {problem.usages[place].node} is negative or not finite"
            )


def _distinct(arrays: Sequence[Floats]) -> list[tuple[int, Floats]]:
    """The arrays, each object once, with the first place where it stands."""
    first: dict[int, int] = {}
    for place, array in enumerate(arrays):
        first.setdefault(id(array), place)
    return [(place, arrays[place]) for place in first.values()]


def _is_cost(cost: Floats) -> bool:
    return bool(cost.min(initial=np.inf) > -np.inf)  # the least of some that are NaN is NaN


def objective(problem: Problem, choice: tuple[int, ...]) -> float:
    """The cost of `choice`: inf if it takes a forbidden entry."""
    total = sum(float(cost[s]) for cost, s in zip(problem.node_costs, choice, strict=True))
    return total + sum(problem.taken(choice))


def dearest(problem: Problem) -> float:
    """No choice that takes no forbidden entry costs more: every node and edge at its dearest."""
    matrices, which = problem.matrices
    most = np.array([_largest(entries_of(matrix)) for matrix in matrices])
    nodes = {id(cost): _largest(cost) for cost in problem.node_costs}
    return sum(nodes[id(cost)] for cost in problem.node_costs) + float(
        most[which].sum() if len(which) else 0.0
    )


def _largest(cost: Floats) -> float:
    """Of what is not forbidden; where all is, there is no choice."""
    return float(cost.max(initial=-np.inf, where=np.isfinite(cost)))


def usage_over_time(problem: Problem, choice: tuple[int, ...]) -> Floats:
    """The bytes in use at every time 0, 1, ... up to the last stop."""
    end = max((usage.stop for usage in problem.usages), default=0)
    change = np.zeros(end + 1)
    for usage in problem.usages:
        size = float(usage.size_bytes[choice[usage.node]])
        change[usage.start] += size
        change[usage.stop] -= size
    return np.cumsum(change)[:end]


def peak(problem: Problem, choice: tuple[int, ...]) -> float:
    """The largest usage over time of `choice`; 0 without usages."""
    return float(usage_over_time(problem, choice).max(initial=0.0))
