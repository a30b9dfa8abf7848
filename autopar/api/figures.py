"""Figures: what a plan says of its costs, its bound and its choices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from autopar.core import plan as core
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.core.strategy import Strategy
from autopar.report.summary import CollectiveRow, Report


@dataclass(frozen=True, eq=False)
class Figures:
    """The figures of a plan: of `record`, the choices themselves, and of `summary`, the Report behind every other."""

    record: core.Plan
    _make_report: Callable[[], Report] = field(repr=False)

    @cached_property
    def summary(self) -> Report:
        """Every figure of the plan, typed; made when it is first asked for."""
        return self._make_report()

    @property
    def step_time_s(self) -> float:
        """How long the emitted program takes, with communicating beside computing where the cluster can do both."""
        return self.summary.step_time_s

    @property
    def serial_time_s(self) -> float:
        """The price of the emitted program if nothing overlaps: `compute_time_s` + `communication_time_s`."""
        return self.summary.serial_time_s

    @property
    def step_error_s(self) -> float | None:
        """One standard error of `step_time_s`, as the cluster's numbers and the formulas err; None if not known."""
        return self.summary.step_error_s

    @property
    def objective_s(self) -> float:
        """The sum that the solver minimised: gradients reduced in buckets, nothing else fused, nothing overlapped."""
        return self.record.objective_s

    @property
    def compute_time_s(self) -> float:
        """What the emitted program computes, with nothing beside it."""
        return self.summary.compute_time_s

    @property
    def communication_time_s(self) -> float:
        """What the emitted program communicates, with nothing beside it."""
        return self.summary.communication_time_s

    @property
    def peak_memory_bytes(self) -> int:
        """The predicted peak of one device's memory."""
        return self.summary.peak_memory_bytes

    @property
    def lower_bound_s(self) -> float:
        """Proven: no plan in the space searched (`summary.space`) has a smaller objective."""
        return self.record.lower_bound_s

    @property
    def gap(self) -> float:
        """(objective - lower bound) / objective; 0 means proven optimal in the space searched."""
        return self.record.gap

    @property
    def step_bound_s(self) -> float:
        """Proven with `SearchOptions(overlap="compared")`: no plan in the space searched has a shorter step; else 0.

        By the sum that the solver minimises: what a program fuses besides gradients' buckets, a step may take less.
        """
        return self.record.step_bound_s

    @property
    def step_gap(self) -> float:
        """(step time - its bound) / step time, as `gap` is of the objective; 1 where nothing is known of steps."""
        return self.summary.step_gap

    @property
    def mesh(self) -> DeviceMesh:
        """The mesh, with all its axes."""
        return self.record.stage.mesh.whole

    @property
    def strategies(self) -> tuple[Strategy, ...]:
        """The strategy of every operator, in the order of the traced program."""
        return self.record.stage.strategies

    @property
    def collectives(self) -> tuple[CollectiveRow, ...]:
        """Every collective of the program, in order: kind, axes, bytes, time, role, source line."""
        return self.summary.collectives

    @property
    def placements(self) -> dict[str, Placement]:
        """The placement of every input, by its path."""
        return {
            row.name: p
            for row, p in zip(self.summary.inputs, self.record.stage.inputs, strict=True)
        }
