"""Replan: a plan after a change of constraints, limit or prices, on the ground it stands on; what constraints cost."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from math import inf

from autopar.search.constraints.carried import carried_groups
from autopar.search.constraints.records import Complete, Steps
from autopar.search.constraints.restriction import holds
from autopar.search.search import SearchOutcome, described, find_on, on_ground
from autopar.search.task import Planned, Task, begun


@dataclass(frozen=True)
class ConstraintPrice:
    """What a plan's objective would save without one of its constraints, the others kept.

    `at_least_s` is saved by a plan that was found; no plan (on this mesh) saves more than `at_most_s`: proven. They are
    equal where the plan without the constraint is proven optimal.
    """

    constraint: str
    at_least_s: float
    at_most_s: float


def replan(planned: Planned, task: Task) -> Planned:
    """The best plan of `task`, which is that of `planned` but for constraints, memory limit or pricing, on its mesh.

    Candidates are enumerated, and where the pricing is the same object priced, no more than once, whatever changes; but
    for those of recomputation, where that is looked into, and where other results are carried.

    Raises:
      NoFeasiblePlan: as `search`.
      InvalidConstraint: as `search`.
    """
    before = planned.task
    (task,) = begun([task])
    if task.graph.carry != before.graph.carry:
        return find_on(task, [planned.ground.of(task.graph, task.make_pricing)])

    task = replace(task, graph=before.graph)
    if task.make_pricing is not before.make_pricing:
        return find_on(task, [planned.ground.repriced(task.make_pricing)], near=planned)

    if _is_still_best(planned, task):
        meshes = [planned.ground.mesh]
        again = meshes if planned.plan.recomputed else ()
        space = described(task, planned.plan.step_kinds, meshes, recomputed=again)
        return replace(planned, task=task, plan=replace(planned.plan, space=space))

    unlimited = planned if planned.is_unlimited else planned.unlimited
    same = Counter(task.all_constraints) == Counter(before.all_constraints)
    return find_on(task, [planned.ground], unlimited if same else None, planned)


def constraint_prices(
    planned: Planned, kinds: tuple[type, ...] = (object,)
) -> tuple[ConstraintPrice, ...]:
    """The price of every constraint of `planned` of these kinds, in order, those of its mode included.

    Each is a search.
    """
    task = planned.task
    found = list[ConstraintPrice]()
    priced = [
        constraint for constraint in task.all_constraints if not isinstance(constraint, Complete)
    ]
    for n, constraint in enumerate(priced):
        if not isinstance(constraint, kinds):
            continue
        (freer,) = begun(
            [replace(task, mode="auto", constraints=tuple(priced[:n] + priced[n + 1 :]))]
        )
        outcome = on_ground(freer, planned.ground, near=planned)
        found.append(_price(str(constraint), planned, outcome))

    return tuple(found)


def carry_price(planned: Planned) -> ConstraintPrice | None:
    """The price of keeping what is carried in its input's placement, as of a constraint; None if nothing is carried.

    A plan without the carry leaves results wherever that is cheapest, and nobody pays for moving them back.
    """
    if not planned.task.graph.carry:
        return None
    carried = tuple(position for _, position in planned.task.graph.carry)
    free = replace(planned.task.graph, carry=(), resident=carried)
    (task,) = begun([replace(planned.task, graph=free)])
    outcome = on_ground(task, planned.ground.of(free, task.make_pricing))
    return _price(
        f"carry {', '.join(map(str, carried_groups(planned.task.graph)))}", planned, outcome
    )


def _price(constraint: str, planned: Planned, without: SearchOutcome) -> ConstraintPrice:
    """What `planned` would save, given what is known `without` the constraint."""
    objective = planned.plan.objective_s
    least = min(objective, inf if without.planned is None else without.planned.plan.objective_s)
    bound = min(without.lower_bound_s, least)
    return ConstraintPrice(constraint, objective - least, objective - bound)


def _is_still_best(planned: Planned, task: Task) -> bool:
    """Whether `task` only asks for more than what `planned` was proven optimal for, and `planned` has that too."""
    before = planned.task
    limit = task.memory_limit_bytes
    dropped = Counter(before.all_constraints) - Counter(task.all_constraints)
    added = Counter(task.all_constraints) - Counter(before.all_constraints)
    if planned.plan.gap or dropped or any(isinstance(constraint, Steps) for constraint in added):
        return False
    if limit is not None and planned.account.peak_memory_bytes > limit:
        return False

    is_tighter = (
        limit is not None
        and before.memory_limit_bytes is not None
        and limit <= before.memory_limit_bytes
    )
    return (planned.is_unlimited or is_tighter) and holds(
        planned.graph, planned.plan.stage, task.all_constraints
    )
