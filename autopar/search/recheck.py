"""Recheck: what is proven of a plan, proven anew from its Problem and the witness that came with its bound."""

from __future__ import annotations

from dataclasses import dataclass

from autopar.core.mesh import DeviceMesh
from autopar.search.task import Planned
from autopar.solve import verify


@dataclass(frozen=True)
class Recheck:
    """No plan on `mesh` has an objective below `bound_s`, seconds, if its tensors take at most `limit_bytes`.

    A limit of None is none. `stated_by` names the searches whose word that rests on; none if all was re-checked.
    `repeated` are those that were done again, by a model of their own. The lower bound of the plan is at most this one:
    it holds on all meshes that were searched, and within the memory limit that was asked for, whereas a limit is
    tightened where programs take more than their tensors.
    """

    mesh: DeviceMesh
    limit_bytes: float | None
    bound_s: float
    stated_by: tuple[str, ...]
    repeated: tuple[str, ...]

    def __str__(self) -> str:
        within = "" if self.limit_bytes is None else f" with at most {self.limit_bytes:,.0f} bytes of tensors"
        said = f"no plan on mesh {self.mesh}{within} has an objective below {self.bound_s:.9g} s"
        if not self.stated_by:
            again = "".join(f", {search}'s search done again" for search in self.repeated)
            return f"bound re-checked{again}: {said}"
        return f"bound re-checked but for what {', '.join(self.stated_by)} searched through: {said}"


def recheck(planned: Planned, search_work: float) -> Recheck | None:
    """What the witness of a plan's bound proves, searches done again for `search_work`; None if it was not solved for.

    Raises:
      InvalidSolution: it does not prove what was said: a bug.
    """
    problem, solution = planned.problem, planned.solution
    if problem is None or solution is None:
        return None
    found = verify(problem, solution, search_work)
    limit = problem.usage_limit if problem.usages else None
    return Recheck(planned.ground.mesh, limit, min(found.bound, solution.objective), found.stated_by, found.repeated)
