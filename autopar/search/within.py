"""Within: plans of one function on one mesh within the memory limits that are asked about, one after another.

A limit that binds takes a search of its own to prove. Who tries one limit after another is told at once what is met
about each of them at prices of memory (`memory_loop`), with how far off it may be: where layers repeat, of plans that
place them alike. Prices and programs of one limit serve the next. Everything is kept: recomputation is not looked into.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from autopar.errors import NoFeasiblePlan
from autopar.search.batch_rows import within_limit_with_rows_split
from autopar.search.equal_layers import EqualLayersSolve, equally
from autopar.search.limited_solve import FEW_ENTRIES, LimitedSolve
from autopar.search.memory_loop import MemoryLoop
from autopar.search.mesh_search import MeshSearch
from autopar.search.search import described
from autopar.search.task import Planned, begun
from autopar.search.tried import entries_of, focused, peak_of
from autopar.solve.parametric.archive import Met
from autopar.solve.parametric.single_limit import Focus


@dataclass(eq=False)
class PlansWithin:
    """The plans of a task within any memory limit; `free` is its best plan without one.

    `_made` are the programs of what was met so far, `_split` those with rows of data split, where that was looked at.
    """

    free: Planned
    _made: dict[Met, Planned] = field(default_factory=dict[Met, Planned], init=False)
    _split: dict[Met, Planned] = field(default_factory=dict[Met, Planned], init=False)

    def least_peak_bytes(self) -> int | None:
        """The smallest peak of a plan met; None if none was."""
        return min(map(peak_of, self._made.values()), default=None)

    def best(self, limit: int) -> Planned | None:
        """The cheapest plan met that keeps within `limit` bytes, with a bound for that limit; None if none was met."""
        loop = MemoryLoop(self._alike, limit, self.free, prices=self._focus)
        loop.made = self._made
        try:
            loop.search()
            if not loop.fitting:
                loop.searched()
        except NoFeasiblePlan:
            return None

        met = min(loop.fitting, key=lambda met: met.cost, default=None)
        if met is None:
            return None
        found = self._within(met, limit)
        is_whole = self._alike is self._attempt
        bound = loop.bound if is_whole else self.free.plan.lower_bound_s
        plan = replace(found.plan, lower_bound_s=min(bound, found.plan.objective_s))
        return replace(found, plan=plan)

    def _within(self, met: Met, limit: int) -> Planned:
        """The plan of what was met, within a limit that its program keeps."""
        whole = self._whole(met, limit)
        if met not in self._split:
            self._split[met] = within_limit_with_rows_split(whole)
        found = self._split[met]
        found = whole if peak_of(found) > limit else found
        space = described(whole.task, found.plan.step_kinds, [self.free.ground.mesh])
        plan = replace(found.plan, space=space)
        return replace(found, task=whole.task, plan=plan, problem=whole.problem)

    def _whole(self, met: Met, limit: int) -> Planned:
        """The plan of what was met, of the Problem in which each layer is placed for itself."""
        found = self._made[met]
        assert found.solution is not None
        alike = self._alike
        is_alike = isinstance(alike, EqualLayersSolve)
        return replace(
            found,
            task=replace(self.free.task, memory_limit_bytes=limit),
            solution=alike.lifted(found.solution) if is_alike else found.solution,
            problem=self._attempt.problem(float(limit)),
            unlimited=self.free,
        )

    @cached_property
    def _attempt(self) -> LimitedSolve:
        (task,) = begun([self.free.task])
        return MeshSearch(task, self.free.ground, self.free, self.free).attempt()

    @cached_property
    def _alike(self) -> LimitedSolve:
        """The attempt; where layers repeat, that which places them alike."""
        attempt = self._attempt
        return (equally(attempt) if entries_of(attempt) > FEW_ENTRIES else None) or attempt

    @cached_property
    def _focus(self) -> Focus:
        """Prices of memory, which go on from one limit to the next."""
        return focused(self._alike, self._alike.problem(0.0))
