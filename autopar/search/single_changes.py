"""Single changes: what a plan would cost with one operator run otherwise, or one input placed otherwise.

The price of candidate k of variable v, with x the choice of the plan, is what the Problem adds up around v:

    node_v[k] + sum over neighbours u of edge_vu[k, x_u]
              + sum over neighbouring copies c of min over j of (node_c[j] + edge_vc[k, j] + edges of c at x)

Copies have no work of their own: they say where a tensor lies between operators, so they are chosen anew. The rest of
the plan stays, so the best plan with that candidate costs no more. Neither memory nor constraints are looked at.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from autopar.core.dataflow import dataflow
from autopar.core.placement import Placement
from autopar.core.plan import Stage
from autopar.core.space import Space
from autopar.core.strategy import Strategy
from autopar.search.mesh_context import MeshContext
from autopar.search.task import Planned
from autopar.solve import Problem

Floats = NDArray[np.float64]
Candidate = TypeVar("Candidate", Strategy, Placement)


@dataclass(frozen=True)
class Change(Generic[Candidate]):
    """A strategy of an operator, or a placement of an input, and by how much the objective grows: below 0 saves.

    `is_own` says that the plan chose it.
    """

    candidate: Candidate
    costs_s: float
    is_own: bool = False


class SingleChanges:
    """The changes of one operator, or one input, of a plan; none where the plan takes what is no candidate."""

    def __init__(self, planned: Planned) -> None:
        self._chosen = _chosen(planned)

    def of_operators(self, operators: Iterable[int]) -> dict[int, tuple[Change[Strategy], ...]]:
        """The strategies of these operators that leave a plan, the cheapest first, its own included.

        They are those of the plan's graph. An operator whose strategy follows from another's has none.
        """
        chosen = self._chosen
        if chosen is None:
            return {}
        found = ((op, chosen.place_of(op)) for op in operators)
        return {
            op: tuple(chosen.changes(node, strategies))
            for op, (node, strategies) in found
            if strategies
        }

    def of_inputs(self, inputs: Iterable[int]) -> dict[int, tuple[Change[Placement], ...]]:
        """The placements of these inputs that leave a plan, the cheapest first, its own included.

        What is carried into an input lies as the input.
        """
        chosen = self._chosen
        if chosen is None:
            return {}
        return {n: tuple(chosen.changes(n, chosen.space.inputs[n])) for n in inputs}


@dataclass(frozen=True, eq=False)
class _Chosen:
    """A choice of a space's candidates. `operators` are those of the plan's graph, as the space numbers them."""

    space: Space
    near: Near
    operators: Sequence[int]

    def place_of(self, op: int) -> tuple[int, tuple[Strategy, ...]]:
        """The node of an operator of the plan's graph, and its strategies."""
        own = self.operators[op]
        return self.space.operator_variables[own], self.space.strategies[own]

    def changes(self, node: int, candidates: Sequence[Candidate]) -> Iterator[Change[Candidate]]:
        """Those of `candidates`, the first of a node, that leave a plan."""
        costs = self.near.costs(node)
        costs = costs[: len(candidates)] - costs[self.near.choice[node]]
        order: list[int] = np.argsort(costs, kind="stable").tolist()
        for n in order:
            if np.isfinite(costs[n]):
                yield Change(candidates[n], float(costs[n]), n == self.near.choice[node])


def _chosen(planned: Planned) -> _Chosen | None:
    """What the plan chose, and of what: of the Problem that it came of, where it recomputes; else of its graph's."""
    attempt = planned.attempt
    if planned.rewritten is not None and attempt is not None and planned.solution is not None:
        space = attempt.ground.space
        near = Near(attempt.free_problem(inf), planned.solution.choice, space.copy_variables)
        return _Chosen(space, near, attempt.times_of(planned))

    ground = _ground(planned)
    space = ground.space
    choice = choice_of(space, planned.plan.stage)
    if choice is None:
        return None
    near = Near(ground.problem(planned.plan.step_kinds, None), choice, space.copy_variables)
    return _Chosen(space, near, range(len(planned.graph.ops)))


def _ground(planned: Planned) -> MeshContext:
    """The candidates and prices of the graph that the plan is of: another than its task's if it recomputes."""
    if planned.ground.graph is planned.graph:
        return planned.ground
    return planned.task.ground(planned.graph, dataflow(planned.graph), planned.ground.mesh)


def choice_of(space: Space, stage: Stage) -> tuple[int, ...] | None:
    """The numbers of the candidates that `stage` takes; None if one of them is no candidate."""
    outputs = zip(space.outputs, stage.outputs, strict=True)
    pairs: list[tuple[Sequence[object], object]] = [
        *zip(space.inputs, stage.inputs, strict=True),
        *(pair for pair in zip(space.strategies, stage.strategies, strict=True) if pair[0]),
        *zip(space.copies, stage.copies, strict=True),
        *(pair for pair in outputs if pair[0]),
    ]

    numbers: dict[int, dict[object, int]] = {}
    found: list[int] = []
    for candidates, taken in pairs:
        if id(candidates) not in numbers:
            numbers[id(candidates)] = {one: n for n, one in reversed([*enumerate(candidates)])}
        number = numbers[id(candidates)].get(taken)
        if number is None:
            return None
        found.append(number)
    return tuple(found)


@dataclass(frozen=True, eq=False)
class Near:
    """A problem, a choice of its nodes, and which of the nodes are copies."""

    problem: Problem
    choice: tuple[int, ...]
    copies: Collection[int]

    def costs(self, node: int) -> Floats:
        """What each candidate of `node` adds to the objective, copies beside it chosen anew."""
        total, beside = self._split(node)
        for copy, cost in beside.items():
            total += (cost + self._rest(copy, node)).min(axis=1)
        return total

    def chosen(self, node: int, candidate: int) -> tuple[int, ...]:
        """The choice with this candidate of `node`, copies beside it chosen anew: the first of the cheapest."""
        _, beside = self._split(node)
        found = list(self.choice)
        found[node] = candidate
        for copy, cost in beside.items():
            found[copy] = int((cost[candidate] + self._rest(copy, node)).argmin())
        return tuple(found)

    def _split(self, node: int) -> tuple[Floats, dict[int, Floats]]:
        """What each candidate of `node` costs without the copies beside it; and what lies between it and these."""
        total = self.problem.node_costs[node].copy()
        beside: dict[int, Floats] = {}
        for other, cost in self._around(node):
            if other in self.copies:
                beside[other] = beside[other] + cost if other in beside else cost
            else:
                total += cost[:, self.choice[other]]
        return total, beside

    def _rest(self, copy: int, node: int) -> Floats:
        """What each candidate of a copy costs, but for what lies between it and `node`."""
        rest = self.problem.node_costs[copy].copy()
        for other, own in self._around(copy):
            if other != node:
                rest += own[:, self.choice[other]]
        return rest

    def _around(self, node: int) -> list[tuple[int, Floats]]:
        """The neighbours of a node, each with what the edge to it costs, by candidates of the node."""
        found: list[tuple[int, Floats]] = []
        for number in self._edges_at[node]:
            edge = self.problem.edges[number]
            is_first = edge.u == node
            found.append((edge.v if is_first else edge.u, edge.cost if is_first else edge.cost.T))
        return found

    @cached_property
    def _edges_at(self) -> Mapping[int, list[int]]:
        found: dict[int, list[int]] = defaultdict(list)
        for number, (u, v) in enumerate(self.problem.ends.tolist()):
            found[u].append(number)
            found[v].append(number)
        return found
