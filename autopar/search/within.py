"""Within: plans of one function on one mesh within one memory limit after another, all from one curve.

A limit that binds takes a search of its own to prove. Who tries one limit after another is told at once what is met on
the way along all of them (`front_curve`), with how far off it may be. Everything is kept: recomputation is not looked
into.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from autopar.search.front_curve import FrontCurve, Lane
from autopar.search.mesh_search import MeshSearch
from autopar.search.search import described
from autopar.search.task import Planned, begun


@dataclass(eq=False)
class PlansWithin:
    """The plans of a task within any memory limit; `free` is its best plan without one.

    The curve is drawn when a plan is first asked for, which takes a few searches; each plan after that takes a program.
    """

    free: Planned

    @cached_property
    def _curve(self) -> FrontCurve:
        (task,) = begun([self.free.task])
        search = MeshSearch(task, self.free.ground, self.free, self.free)
        return FrontCurve((Lane(search.attempt(), self.free.plan.lower_bound_s),))

    def least_peak_bytes(self) -> int | None:
        """The smallest peak of a plan met; None if none was."""
        found = self._curve.smallest()
        return None if found is None else found.account.peak_memory_bytes

    def best(self, limit: int) -> Planned | None:
        """The cheapest plan met that keeps within `limit` bytes, with a bound for that limit; None if none was met."""
        found = self._curve.within(limit)
        if found is None:
            return None

        task = replace(self.free.task, memory_limit_bytes=limit)
        space = described(task, found.plan.step_kinds, [self.free.ground.mesh])
        plan = replace(found.plan, space=space)
        return replace(found, task=task, plan=plan, unlimited=self.free)
