"""FrontAgain: plans of one graph within all memory limits in which activations may be computed once more.

The Problem that holds both choices (`recompute`) holds all plans that keep everything too. So what its curve proves of
a limit is proven of all plans on that mesh.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

from autopar.errors import InvalidConstraint, NoFeasiblePlan, Unsolved
from autopar.search.batch_rows import within_limit_with_rows_split
from autopar.search.equal_layers import equally
from autopar.search.front_curve import FrontCurve, Lane, Point
from autopar.search.mesh_search import MeshSearch
from autopar.search.recompute_solve import recompute_solve, with_twins
from autopar.search.search import described
from autopar.search.task import Planned, Task


@dataclass(eq=False)
class FrontAgain:
    """The plans of `task`, the one at `position`, along all limits, on the meshes of `places`."""

    task: Task
    position: int
    places: Sequence[MeshSearch]

    @cached_property
    def curve(self) -> FrontCurve:
        """One of each mesh that has a plan; of none, where there is nothing to compute once more."""
        lanes: list[Lane] = []
        twins = with_twins(self.task.graph)
        if twins is None:
            return FrontCurve(())

        for place in self.places:
            try:
                again = recompute_solve(self.task, place.attempt(), twins)
            except (NoFeasiblePlan, Unsolved, InvalidConstraint):
                continue
            # nothing is known of all its plans: recomputing may save redistributing even without a limit
            lanes.append(Lane(again, 0.0, equally(again)))
        return FrontCurve(tuple(lanes))

    def bound_s(self, limit: int) -> float:
        """What no plan on these meshes undercuts within a limit."""
        return min((lane.bound_s(limit) for lane in self.curve.lanes), default=inf)

    def points(self, fastest: Planned, count: int) -> Iterator[Point]:
        """Points that need less than the fastest, `count` of them if there are, until the search is stopped."""
        for limit in self.curve.peaks_bytes(fastest, count):
            if self.task.stop.is_over:
                return
            found = self.curve.within(limit)
            if found is not None:
                yield Point(limit, self.position, self._within(found, limit))

    def _within(self, found: Planned, limit: int) -> Planned:
        """A plan met on the way, as one within a limit."""
        task = replace(self.task, memory_limit_bytes=limit)
        mesh = found.plan.stage.mesh
        free = next(place.found for place in self.places if place.ground.mesh == mesh)
        meshes = [place.ground.mesh for place in self.places]
        space = described(task, found.plan.step_kinds, meshes, recomputed=meshes)
        plan = replace(found.plan, space=space)
        return within_limit_with_rows_split(replace(found, task=task, plan=plan, unlimited=free))
