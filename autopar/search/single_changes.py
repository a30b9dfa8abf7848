"""Single changes: what a plan would cost with one operator run otherwise, and all others as they are.

The price of strategy k of operator v, with x the choice of the plan, is what the Problem adds up around v:

    node_v[k] + sum over neighbours u of edge_vu[k, x_u]
              + sum over neighbouring copies c of min over j of (node_c[j] + edge_vc[k, j] + edges of c at x)

Copies have no work of their own: they say where a tensor lies between operators, so they are chosen anew. The rest of
the plan is not, so the best plan with that strategy costs no more. Neither memory nor constraints are looked at.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from autopar.core.dataflow import dataflow
from autopar.core.plan import Stage
from autopar.core.space import Space
from autopar.core.strategy import Strategy
from autopar.search.mesh_context import MeshContext
from autopar.search.task import Planned
from autopar.solve import Problem

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Change:
    """A strategy of an operator, and by how much the objective grows if the operator runs so; less than 0 saves."""

    strategy: Strategy
    costs_s: float


def single_changes(planned: Planned, operators: Collection[int]) -> dict[int, tuple[Change, ...]]:
    """The strategies of these operators of `planned.graph` that leave a plan, the cheapest first, its own included.

    An operator whose strategy follows from another's has none; nor has any where the plan takes what is no candidate.
    """
    ground = _ground(planned)
    choice = _choice_of(ground.space, planned.plan.stage)
    if choice is None:
        return {}

    space = ground.space
    first_copy = len(space.inputs) + sum(1 for candidates in space.strategies if candidates)
    copies = range(first_copy, first_copy + len(space.copies))
    near = _Near(ground.problem(planned.plan.step_kinds, None), choice, copies)
    found: dict[int, tuple[Change, ...]] = {}
    for op in operators:
        strategies = space.strategies[op]
        if strategies:
            variable = space.operator_variables[op]
            costs = near.costs(variable)
            costs = costs - costs[choice[variable]]
            order = [int(n) for n in np.argsort(costs, kind="stable") if np.isfinite(costs[n])]
            found[op] = tuple(Change(strategies[n], float(costs[n])) for n in order)
    return found


def _ground(planned: Planned) -> MeshContext:
    """The candidates and prices of the graph that the plan is of: another than its task's if it recomputes."""
    if planned.ground.graph is planned.graph:
        return planned.ground
    return planned.task.ground(planned.graph, dataflow(planned.graph), planned.ground.mesh)


def _choice_of(space: Space, stage: Stage) -> tuple[int, ...] | None:
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


@dataclass(frozen=True)
class _Near:
    """A problem, a choice of its nodes, and which of the nodes are copies."""

    problem: Problem
    choice: tuple[int, ...]
    copies: Collection[int]

    def costs(self, node: int) -> Floats:
        """What each strategy of `node` adds to the objective, copies beside it chosen anew."""
        total = self.problem.node_costs[node].copy()
        beside: dict[int, Floats] = {}
        for other, cost in self._around(node):
            if other in self.copies:
                beside[other] = beside[other] + cost if other in beside else cost
            else:
                total += cost[:, self.choice[other]]

        for copy, cost in beside.items():
            rest = self.problem.node_costs[copy].copy()
            for other, own in self._around(copy):
                if other != node:
                    rest += own[:, self.choice[other]]
            total += (cost + rest).min(axis=1)
        return total

    def _around(self, node: int) -> list[tuple[int, Floats]]:
        """The neighbours of a node, each with what the edge to it costs, by strategies of the node."""
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
