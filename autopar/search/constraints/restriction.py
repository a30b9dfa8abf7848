"""Restriction: what constraints leave of a space, as numbers: the candidates that stay, and variables that are tied.

A constraint adds no candidate, changes no price and renumbers nothing. So what is proven without it holds with it, and
a plan under constraints is never cheaper than one without.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autopar.core.graph import OpGraph
from autopar.core.mesh import DeviceMesh
from autopar.core.plan import Stage
from autopar.core.space import Space
from autopar.search.constraints.matching import Matcher
from autopar.search.constraints.narrowing import Narrowing, axes_of
from autopar.search.constraints.records import Constraint
from autopar.solve import Edge, Problem
from autopar.solve.problem.problem import derived

Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Restriction:
    """The candidates that stay, by variable (all of those that are not named), and the edges that tie variables."""

    keep: Mapping[int, Bools]
    ties: tuple[Edge, ...] = ()

    def apply(self, problem: Problem) -> Problem:
        """`problem` with what does not stay forbidden, and with the ties; the nodes are the space's variables."""
        if not self.keep and not self.ties:
            return problem
        costs = list(problem.node_costs)
        for variable, mask in self.keep.items():
            costs[variable] = np.where(mask, costs[variable], np.inf)
        edges = (*problem.edges, *self.ties) if self.ties else problem.edges
        return derived(tuple(costs), edges, problem.usages, problem.usage_limit, problem.periods)


def restriction(graph: OpGraph, space: Space, constraints: Sequence[Constraint]) -> Restriction:
    """What `constraints` leave of `space`.

    Raises:
      InvalidConstraint: one is about nothing, names an axis that the mesh lacks, cannot hold, or contradicts others.
    """
    work = Narrowing(Matcher(graph, space))
    work.take(constraints)
    return Restriction(work.keep, work.ties())


def each_alone(
    graph: OpGraph, space: Space, constraints: Sequence[Constraint]
) -> tuple[Restriction, ...]:
    """What each of `constraints` leaves of `space` by itself, be it nothing; together they leave what all do.

    Raises:
      InvalidConstraint: one is about nothing, or names an axis that the mesh lacks.
    """
    matcher = Matcher(graph, space)
    found = list[Restriction]()
    for constraint in constraints:
        work = Narrowing(matcher, strict=False)
        work.take((constraint,))
        found.append(Restriction(work.keep, work.ties()))
    return tuple(found)


def holds(graph: OpGraph, stage: Stage, constraints: Sequence[Constraint]) -> bool:
    """Whether the choices of `stage` satisfy `constraints`, which are about something in `graph`.

    Raises:
      InvalidConstraint: one is about nothing, or names an axis that the mesh lacks.
    """
    carried = dict(graph.carry)
    loop_carries = graph.loop_carries
    alone = Space(
        stage.mesh,
        tuple((placement,) for placement in stage.inputs),
        tuple(
            () if op in loop_carries else (strategy,)
            for op, strategy in enumerate(stage.strategies)
        ),
        tuple((placement,) for placement in stage.copies),
        tuple(
            () if n in carried or graph.outputs[n].literal is not None else (placement,)
            for n, placement in enumerate(stage.outputs)
        ),
        graph.carry,
        tuple(loop_carries.items()),
    )
    work = Narrowing(Matcher(graph, alone), strict=False)
    work.take(constraints)

    return all(mask.all() for mask in work.keep.values())


def can_name(constraint: Constraint, mesh: DeviceMesh) -> bool:
    """Whether `mesh` has the axes that `constraint` names."""
    return axes_of(constraint) <= set(mesh.whole.names)
