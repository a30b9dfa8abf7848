"""Bound: a plan with the function that it is for, and all that it was made with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial, update_wrapper
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from autopar.api.collection import collection_paused
from autopar.api.constraints import checked
from autopar.api.options import ClusterLike, Function, Settings
from autopar.api.plan_file import PlanFile, PlanSignature, plan_file
from autopar.api.sizes import limit_of
from autopar.api.target import PlanningTarget
from autopar.core.graph import OpGraph
from autopar.core.mesh import DeviceMesh
from autopar.core.plan import Plan as PlanRecord
from autopar.cost.pricing import MakePricing, Pricing, Roofline
from autopar.discover import find_rule
from autopar.emit.wrap import device_mesh
from autopar.errors import InvalidOption
from autopar.report.rivals import RivalRow, rival_row
from autopar.report.step import Step, step_of
from autopar.report.summary import Report, step_schedule, summarise
from autopar.search.constraints.carried import released
from autopar.search.constraints.modes import constraints_of
from autopar.search.constraints.records import Constraint
from autopar.search.double_buffering import Schedule, with_double_buffers
from autopar.search.replan import replan
from autopar.search.resolve import found_rules
from autopar.search.rivals import Rival, RivalPlan, known_rivals, solved
from autopar.search.task import Planned, Task
from autopar.trace import Traced, fingerprint
from autopar.trace.arguments import CARRIED, function_name
from cost_models import Cluster


class ArrayFunction:
    """A function of arrays made of `own`, the user's, for its calls under `settings`.

    Its arguments are `leading` ones and then those of the call.
    """

    def __init__(self, function: Function, own: Function, settings: Settings, leading: int) -> None:
        self.own = own
        self.settings = settings
        self.leading = leading
        self._function = function
        update_wrapper(self, function)
        self.__name__ = function_name(own)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the function of arrays returns."""
        return self._function(*args, **kwargs)


def leading_arguments(fn: Function) -> int:
    """How many arguments stand before those of the user's call."""
    return fn.leading if isinstance(fn, ArrayFunction) else 0


def own_function(fn: Function, settings: Settings) -> tuple[Function, Settings]:
    """The user's function behind `fn`, and `settings` with the arguments counted as in its calls."""
    if not isinstance(fn, ArrayFunction):
        return fn, settings
    own = fn.settings
    return fn.own, settings.counted_as(own.static_argnums, own.donate_argnums)


@dataclass(frozen=True, eq=False)
class Bound:
    """A plan with the function that it is for, and the cluster whose prices it was made with."""

    fn: Function
    settings: Settings
    traced: Traced
    planned: Planned
    cluster: Cluster

    @property
    def name(self) -> str:
        """What the function is called."""
        return function_name(self.fn)

    @property
    def mesh(self) -> DeviceMesh:
        """The mesh of the plan, with all its axes."""
        return self.planned.plan.stage.mesh.whole

    @cached_property
    def emitted(self) -> Planned:
        """What runs: the plan as it was found, its loops double buffered where that makes a step shorter."""
        with collection_paused():
            return with_double_buffers(self.planned, scheduled_for(self.priced_for))

    @cached_property
    def record(self) -> PlanRecord:
        """The plan as it stands in a file, with the fingerprint of its function."""
        return replace(self.emitted.plan, fingerprint=fingerprint(self.traced.graph))

    @property
    def priced_for(self) -> Cluster | None:
        """The cluster whose roofline the plan is priced by; None for a pricing of the user's own."""
        return self.cluster if self.settings.pricing is None else None

    def jax_mesh(self, devices: Sequence[Any]) -> Mesh:
        """The mesh over `devices`, row-major."""
        return device_mesh(self.mesh, devices, self.traced.explicit_axes(self.mesh))

    def report(self) -> Report:
        """Every figure of the plan."""
        with collection_paused():
            rules = found_rules(self.planned.graph, find_rule)
            return summarise(
                self.emitted,
                function=self.name,
                cluster=self.cluster.name,
                memory_limit_bytes=self.planned.task.memory_limit_bytes,
                found_rules=tuple(f"{kind} ({op.source})" for kind, (op, _) in rules.items()),
                priced_for=self.priced_for,
            )

    def step(self) -> Step:
        """What runs in a step: as a graph, in time and in memory."""
        schedule = step_schedule(self.emitted, self.priced_for)
        with collection_paused():
            return step_of(self.emitted, schedule, self.priced_for)

    def rivals(self, given: Mapping[str, Sequence[Constraint]]) -> tuple[RivalRow, ...]:
        """What data parallelism, FSDP, Megatron and the `given` constraints, by name, would cost on as many devices."""
        planned = self.planned
        mesh = planned.plan.stage.mesh
        server = self.cluster.topology.levels[-1].size
        known = known_rivals(planned.task, mesh, server)
        own = (Rival(name, mesh, checked(constraints)) for name, constraints in given.items())
        with collection_paused():
            return tuple(self._rival_row(solved(planned, rival)) for rival in (*known, *own))

    def _rival_row(self, found: RivalPlan) -> RivalRow:
        if found.planned is None:
            return RivalRow(found.rival.name, found.rival.mesh.whole.axes, reason=found.reason)
        report = replace(self, planned=found.planned).report()
        return rival_row(found.rival.name, report, found.fits)

    def file(self, report: Report) -> PlanFile:
        """All that is known of the plan without its function; `report` is that of the plan, its step left out."""
        whole = replace(report, step=self.step())
        with collection_paused():
            _, settings = own_function(self.fn, self.settings)
            return plan_file(
                self.record, whole, self.cluster.to_dict(), signature_of(self.traced, settings)
            )

    def resolved(
        self,
        constraints: Sequence[Constraint] | None,
        memory_limit_bytes: int | str | None,
        cluster: ClusterLike,
    ) -> Bound:
        """The best plan after a change, from what is there of this one already; arguments as of `Plan.resolve`."""
        settings = self.settings
        if constraints is not None:
            settings = replace(settings, mode="auto", constraints=checked(constraints))
        if memory_limit_bytes is not None:
            settings = replace(settings, memory_limit_bytes=limit_of(memory_limit_bytes))

        target = self.cluster
        if cluster is not None:
            if settings.pricing is not None:
                raise InvalidOption(
                    "the plan has a pricing of its own, which no cluster changes: plan again with another"
                )
            settings = replace(settings, cluster=cluster, mesh=dict(self.mesh.axes), devices=None)
            target = PlanningTarget.of(settings).cluster

        weights = self.record.communication_weight, self.record.hidden_weight
        task = task_of(self.traced, settings, target).at_weights(*weights)
        if cluster is None:
            task = replace(task, make_pricing=self.planned.task.make_pricing)

        with collection_paused():
            planned = replan(self.planned, task)

        return replace(self, settings=settings, planned=planned, cluster=target)


def scheduled_for(cluster: Cluster | None) -> Schedule | None:
    """When what of a plan for `cluster` runs; None where nothing runs beside anything, or that is not known."""
    if cluster is None or cluster.device.overlap is None or not cluster.device.overlap.pays:
        return None
    return partial(step_schedule, overlapping=cluster)


def task_of(traced: Traced, settings: Settings, cluster: Cluster) -> Task:
    """What is to be planned: pins override what the trace took for carried."""
    limit = (
        int(cluster.device.memory_bytes)
        if settings.memory_limit_bytes is None
        else settings.memory_limit_bytes
    )

    return Task(
        released(traced.graph, constraints_of(settings.mode, settings.constraints)),
        settings.pricing or _roofline(cluster),
        settings.mode,
        settings.constraints,
        memory_limit_bytes=limit,
        strict=settings.strict,
        options=settings.options,
        dump=None if settings.dump is None else Path(settings.dump),
        find=find_rule,
        prices_devices=settings.pricing is None,
    )


def _roofline(cluster: Cluster) -> MakePricing:
    def roofline(graph: OpGraph, mesh: DeviceMesh) -> Pricing:
        return Roofline(graph, mesh, cluster)

    return roofline


def signature_of(traced: Traced, settings: Settings) -> PlanSignature:
    """What a file says of the function that its plan is for, and of the settings that a plan depends on."""
    static = settings.static_argnums
    donated = settings.donate_argnums
    if isinstance(donated, int):
        donated = (donated,)
    carry: Any = settings.carry

    return PlanSignature(
        inputs=tuple((t.name, t.shape, t.dtype) for t in traced.graph.inputs),
        outputs=tuple((t.shape, t.dtype) for t in traced.graph.outputs),
        static_argnums=(static,) if isinstance(static, int) else tuple(static),
        donate_argnums=CARRIED if donated == CARRIED else tuple(donated),
        carry=carry if carry is None or carry == "auto" else tuple(map(tuple, carry)),
        while_trips=settings.options.while_trips,
        constraints=constraints_of(settings.mode, settings.constraints),
        data=traced.graph.batch_inputs,
        static_argnames=tuple(settings.static_argnames),
        donate_argnames=tuple(settings.donate_argnames),
        gap_tolerance=float(settings.options.gap_tolerance),
        weak=tuple(n for n, aval in enumerate(traced.input_avals) if aval.weak_type),
    )
