"""A problem as a sum of tables over nodes, and the few operations on it that a proof is made of. Plain and unhurried.

    cost(choice) = sum of constants + sum over tables of table[strategies of the nodes in its scope]

This and `excess` are what `check` trusts; none of them shares code with the search.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from autopar.solve.problem.problem import InvalidSolution, Problem

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
Scope = tuple[int, ...]

# 8 MB: a sum of tables is made as a whole up to that, else strategy by strategy
_WHOLE_ENTRIES = 1 << 20


class Once:
    """Results of functions of arrays, remembered: equal layers share their arrays, and are worked on once."""

    def __init__(self) -> None:
        self._known: dict[tuple[Hashable, ...], Any] = {}
        self._held: list[Any] = []  # keeps the ids in keys valid

    def __call__(self, function: Callable[..., Any], *values: Any) -> Any:
        """function(*values): tables count as equal if they are one object, indices if their numbers are the same."""
        key = (function, *map(_name, values))
        if key not in self._known:
            self._known[key] = function(*values)
            self._held.append(values)
        return self._known[key]


def _name(value: Any) -> Hashable:
    if isinstance(value, np.ndarray):
        return _name_of_array(cast("NDArray[Any]", value))
    return value


def _name_of_array(array: NDArray[Any]) -> Hashable:
    return array.tobytes() if array.dtype == np.intp else id(array)


class Tables:
    """The tables of a problem while nodes, strategies and edges are taken out of it.

    Every node left has a table of its own, and any two nodes at most one. `names` are the nodes left, in order: a step
    of a proof calls them 0, 1, ... `usages` are each node's bytes: (start, stop, size of each strategy). `live` is
    false once a node has no strategy left.
    """

    def __init__(self, problem: Problem) -> None:
        self.once = Once()
        self.live = True
        self.names = list(range(len(problem.node_costs)))
        self.constants: list[float] = []
        self.tables: dict[Scope, Floats] = {}
        self.near: list[set[Scope]] = [set() for _ in self.names]
        self.usages: list[list[tuple[int, int, Floats]]] = [[] for _ in self.names]
        self.limit = problem.usage_limit
        same: dict[tuple[tuple[int, ...], bytes], Floats] = {}
        for v, cost in enumerate(problem.node_costs):
            self.add(
                (v,),
                same.setdefault((cost.shape, cost.tobytes()), np.asarray(cost, dtype=np.float64)),
            )

        for edge in problem.edges:
            self.add((edge.u, edge.v), np.asarray(edge.cost, dtype=np.float64))

        for use in problem.usages:
            self.usages[use.node].append((use.start, use.stop, use.size_bytes))

    def copy(self) -> Tables:
        """The same tables, from which nodes, strategies and edges can be taken without a trace here."""
        result = object.__new__(Tables)
        result.__dict__.update(self.__dict__)
        result.once = Once()
        result.names = list(self.names)
        result.constants = list(self.constants)
        result.tables = dict(self.tables)
        result.near = [set(scopes) for scopes in self.near]
        result.usages = [list(parts) for parts in self.usages]
        return result

    def add(self, scope: Scope, table: Floats) -> None:
        """Adds a table to the one with this scope, if there is one. Axes are put in order of the nodes."""
        if not scope:
            self.constants.append(float(table))
            return
        if list(scope) != sorted(scope):
            table = self.once(_transposed, table, *np.argsort(scope).tolist())
            scope = tuple(sorted(scope))
        if scope in self.tables:
            table = self.once(np.add, self.tables[scope], table)
        self.tables[scope] = table
        if len(scope) > 1:
            for v in scope:
                self.near[v].add(scope)

    def pop(self, scope: Scope) -> Floats:
        """Takes a table out."""
        if len(scope) > 1:
            for v in scope:
                self.near[v].discard(scope)
        return self.tables.pop(scope)

    def around(self, v: int) -> list[Scope]:
        """The scopes with v, its own first."""
        return [(v,), *sorted(self.near[v])]

    def beside(self, v: int, scope: Scope) -> Floats:
        """The table of an edge with rows for v."""
        table = self.tables[scope]
        return table if scope[0] == v else self.once(_transposed, table, 1, 0)

    def name(self, i: int) -> int:
        """The node that a step calls i."""
        if not 0 <= i < len(self.names):
            raise InvalidSolution(f"there is no node {i}: {len(self.names)} are left")
        return self.names[i]

    def count(self, v: int) -> int:
        """How many strategies v has left."""
        return len(self.tables[v,])

    def forget(self, nodes: Sequence[int]) -> None:
        """Nodes that have no tables left are no more."""
        gone = set(nodes)
        self.names = [v for v in self.names if v not in gone]

    def keep(self, v: int, ids: Ints) -> None:
        """Only these strategies of v are left."""
        self.live = self.live and len(ids) > 0
        for scope in self.around(v):
            self.tables[scope] = self.once(np.take, self.tables[scope], ids, scope.index(v))
        self.usages[v] = [(start, stop, size[ids]) for start, stop, size in self.usages[v]]

    def eliminate(self, v: int) -> None:
        """Takes v out: its neighbours get the least, over its strategies, of the sum of its tables.

        Of more than two neighbours those with one strategy get nothing: an array has 64 axes at most. No step names
        what more than two get.
        """
        if len({u for scope in self.near[v] for u in scope}) > 3:
            self._narrow(v)
        scopes = self.around(v)
        left = tuple(sorted({u for scope in scopes for u in scope} - {v}))
        places = tuple(tuple(-1 if u == v else left.index(u) for u in scope) for scope in scopes)
        shape = tuple(self.count(u) for u in left)
        tables = [self.pop(scope) for scope in scopes]
        self.add(left, self.once(least, shape, places, *tables))

    def _narrow(self, v: int) -> None:
        """Takes the other nodes that have one strategy out of v's tables."""
        for scope in sorted(self.near[v]):
            alone = tuple(i for i, u in enumerate(scope) if u != v and self.count(u) == 1)
            if alone:
                left = tuple(u for i, u in enumerate(scope) if i not in alone)
                self.add(left, self.once(np.squeeze, self.pop(scope), alone))

    def take_limit(self) -> None:
        """The limit goes."""
        self.limit, self.usages = None, [[] for _ in self.usages]

    def bound(self) -> float:
        """The sum of the constants and of every table's least entry: no choice costs less."""
        if not self.live:
            return math.inf
        return math.fsum(
            [*self.constants, *(self.once(np.min, table) for table in self.tables.values())]
        )


def _transposed(table: Floats, *order: int) -> Floats:
    return np.ascontiguousarray(table.transpose(order))


def aligned(table: Floats, place: Sequence[int], dims: int) -> Floats:
    """The table with axis i at place[i] + 1 of `dims` axes, of length 1 where it has none; places are all different."""
    lengths = [1] * dims
    for length, i in zip(table.shape, place, strict=True):
        lengths[i + 1] = length
    return table.transpose(np.argsort(place)).reshape(lengths)


def least(shape: tuple[int, ...], places: Sequence[Sequence[int]], *tables: Floats) -> Floats:
    """Min over k of the sum of tables: axis i of table t is the result's axis places[t][i], or k where that is -1."""
    parts = [
        aligned(table, place, len(shape) + 1) for table, place in zip(tables, places, strict=True)
    ]
    count = parts[0].shape[0]
    if count * math.prod(shape) <= _WHOLE_ENTRIES:
        return np.broadcast_to(sum(parts[1:], start=parts[0]).min(axis=0), shape).copy()
    result = np.full(shape, np.inf)
    for k in range(count):
        np.minimum(result, sum((part[k] for part in parts[1:]), start=parts[0][k]), out=result)
    return result
