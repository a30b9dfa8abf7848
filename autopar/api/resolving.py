"""Resolving: a plan after a change, from what is there of it already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autopar.api.collection import collection_paused
from autopar.api.constraints import checked
from autopar.api.make import made_plan, task_of
from autopar.api.plan import Plan
from autopar.api.settings import ClusterLike
from autopar.api.sizes import limit_of
from autopar.errors import InvalidOption
from autopar.search.constraints.records import Constraint
from autopar.search.replan import replan


def resolved(
    plan: Plan, constraints: Sequence[Constraint] | None, memory_limit_bytes: int | str | None, cluster: ClusterLike
) -> Plan:
    """As `Plan.resolve`."""
    bound = plan.bound
    settings = bound.settings
    if constraints is not None:
        settings = replace(settings, mode="auto", constraints=checked(constraints))
    if memory_limit_bytes is not None:
        settings = replace(settings, memory_limit_bytes=limit_of(memory_limit_bytes))
    target = bound.cluster
    if cluster is not None:
        if settings.pricing is not None:
            raise InvalidOption("the plan has a pricing of its own, which no cluster changes: plan again with another")
        settings = replace(settings, cluster=cluster, mesh=dict(plan.mesh.axes), devices=None)
        target = settings.target().cluster
    task = task_of(bound.traced, settings, target)
    if cluster is None:
        task = replace(task, make_pricing=bound.planned.task.make_pricing)
    with collection_paused():
        planned = replan(bound.planned, task)
    return made_plan(replace(bound, settings=settings, planned=planned, cluster=target))
