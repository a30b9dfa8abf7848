"""Verify a plan: what is proven of a plan, proven anew from its Problem and the witness that came with its bound."""

from __future__ import annotations

from dataclasses import dataclass

from autopar.core.mesh import DeviceMesh
from autopar.core.sizes import exact_bytes
from autopar.search.task import Planned
from autopar.solve import verify
from autopar.solve.problem.verifier import TOLERANCE


@dataclass(frozen=True)
class Recheck:
    """No plan on `mesh` has an objective below `bound_s`, seconds, if its tensors take at most `limit_bytes`.

    A limit of None is none. `stated_by` names the searches whose word that rests on; none if all was re-checked.
    `repeated` are those that were done again, by a model of their own. `stated_s` is the plan's own bound, seconds. It
    holds on all meshes that were searched and may be less. It is more where it rests on another Problem than the
    plan's, of which no witness is kept: on that of plans which recompute, where keeping everything turned out best.
    """

    mesh: DeviceMesh
    limit_bytes: float | None
    bound_s: float
    stated_by: tuple[str, ...]
    repeated: tuple[str, ...]
    stated_s: float

    def __str__(self) -> str:
        within = (
            ""
            if self.limit_bytes is None
            else f" with at most {exact_bytes(self.limit_bytes)} of tensors"
        )
        said = f"no plan on mesh {self.mesh}{within} has an objective below {self.bound_s:.9g} s"
        if self.stated_s > self.bound_s * (1 + TOLERANCE):
            said += f"; that none has one below {self.stated_s:.9g} s, as the plan says, was proven of another Problem"
        if not self.stated_by:
            again = "".join(f", {search}'s search done again" for search in self.repeated)
            return f"bound re-checked{again}: {said}"
        return f"bound re-checked but for what {', '.join(self.stated_by)} searched through: {said}"


def verify_plan(planned: Planned, stated_s: float, search_work: float) -> Recheck | None:
    """What the witness of a plan's bound proves, searches done again for `search_work`; None if it was not solved for.

    Where the best plan without the limit is known, and its bound is higher, it is that one: it holds within the limit.

    Raises:
      InvalidSolution: it does not prove what was said: a bug.
    """
    problem = planned.problem
    solution = planned.solution
    free = planned.unlimited
    if problem is None or solution is None:
        return None

    found = verify(problem, solution, search_work)
    bound = min(found.bound, solution.objective)
    if (
        free is not None
        and planned.rewritten is None
        and free.problem is not None
        and free.solution is not None
    ):
        of_free = (
            verify(free.problem, free.solution, search_work)
            if free.solution.lower_bound > bound
            else found
        )
        found = of_free if of_free.bound > bound else found
        bound = min(max(bound, of_free.bound), solution.objective)

    limit = problem.usage_limit if problem.usages else None
    return Recheck(planned.ground.mesh, limit, bound, found.stated_by, found.repeated, stated_s)
