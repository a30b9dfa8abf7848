"""Plan: a choice for every operator of a graph, as a record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement, StepKind
from autopar.core.recompute import Recomputed
from autopar.core.strategy import Strategy


@dataclass(frozen=True)
class Stage:
    """The choices on one mesh: placements of inputs and outputs (by position), of copies and strategies (by id)."""

    mesh: DeviceMesh
    inputs: tuple[Placement, ...]
    strategies: tuple[Strategy, ...]
    copies: tuple[Placement, ...]
    outputs: tuple[Placement, ...]


class DoubleBuffered(NamedTuple):
    """How many collectives of a scan, by its region, run a round ahead of readers, and how many behind makers.

    Ahead are those that are needed first in a round, behind those whose operands are made last.
    """

    region: int
    ahead: int
    behind: int


@dataclass(frozen=True)
class Plan:
    """A plan of one graph.

    `objective_s` is the sum that the solver minimised, in seconds (another unit under another pricing), with what it
    takes to write the arguments that come anew with every call; `lower_bound_s` is proven for that sum, over the space
    that `space` describes. `step_kinds` are the redistribution steps that the space allows; () means all. `recomputed`
    is what runs once more: the stage is one of the graph rewritten so (`core.recompute.with_recomputed`).
    `communication_weight` is what a second of communicating counts in the sum: less than 1 where a part of it was held
    to hide behind computing, and `hidden_weight` what one of what gathers parameters or reduces gradients counts beside
    another. `double_buffered` says which scans communicate for the round after or before (None: that is not decided),
    and `in_flight_bytes` what collectives may hold beyond the peak of the program in order. `step_bound_s` is proven
    for the step of every plan in the space, with communicating beside computing; 0: nothing is known of it. `stopped`
    says what ended the search before its end, "" if nothing did: another run may then find another plan. `fingerprint`
    is that of the graph where the plan is in a file or comes from one, else "": it takes a pass over the graph.
    """

    stages: tuple[Stage, ...]
    objective_s: float
    lower_bound_s: float
    space: str = ""
    step_kinds: tuple[StepKind, ...] = ()
    recomputed: tuple[Recomputed, ...] = ()
    stopped: str = ""
    fingerprint: str = ""
    communication_weight: float = 1.0
    hidden_weight: float = 1.0
    double_buffered: tuple[DoubleBuffered, ...] | None = None
    in_flight_bytes: int = 0
    step_bound_s: float = 0.0

    @property
    def stage(self) -> Stage:
        """The only stage."""
        (stage,) = self.stages
        return stage

    @property
    def gap(self) -> float:
        """(objective - lower bound) / objective; 0 means proven optimal."""
        if self.objective_s <= self.lower_bound_s:
            return 0.0
        return (self.objective_s - self.lower_bound_s) / self.objective_s
