"""Errors: how far off a plan's step time may be, and what that is due to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot

from autopar.core.program import Compute, Move
from autopar.core.strategy import Strategy
from autopar.cost.cached_pricing import Remembered
from autopar.cost.local_steps import FUSED_S
from autopar.cost.operators.local_work import LocalWork
from autopar.cost.pricing import Roofline
from autopar.passes.schedule import Event, StepSchedule
from autopar.search.task import Planned
from cost_models import Cluster, formula_error, group, slower_cluster, uncertain_figures

NEGLIGIBLE = 1e-5
"""Of the step time: shares that move it by less are not listed."""
_SLOWDOWNS = ("device.overlap.computing_slowdown", "device.overlap.communicating_slowdown")


@dataclass(frozen=True)
class ErrorShare:
    """By how many seconds the step takes longer if `source` is worse by one standard error.

    A source is a number of the cluster ("device.peak_flops_per_s.bfloat16"), or the formula of one kernel or of one
    kind of collective. Sources are independent of each other, and each errs alike in all plans.
    """

    source: str
    time_s: float


def standard_error_s(shares: Sequence[ErrorShare]) -> float:
    """One standard error of the step time: the root of the sum of squares."""
    return hypot(*(share.time_s for share in shares))


def error_shares(planned: Planned, step: StepSchedule, cluster: Cluster) -> tuple[ErrorShare, ...]:
    """What the uncertainty of the step time is due to, the largest first. First order: each source alone.

    Args:
      planned: priced by the roofline of `cluster`.
      step: the schedule of its program.
      cluster: with the errors of its numbers (`cost_models.uncertain_figures`).
    """
    kernels = _kernels(planned, step, cluster)
    found: dict[str, float] = {}
    for path, error in uncertain_figures(cluster).items():
        if path in _SLOWDOWNS:
            found[path] = _by_slowdown(step, cluster, _SLOWDOWNS.index(path), error)
        else:
            slower = Roofline(
                planned.graph, planned.plan.stage.mesh, slower_cluster(cluster, path, error)
            )
            of_links = path.startswith("levels.")
            found[path] = sum(
                kernel.grows(slower) for kernel in kernels if kernel.is_collective == of_links
            )

    for kernel in kernels:
        found[kernel.name] = found.get(kernel.name, 0.0) + formula_error(cluster) * kernel.weight_s

    shares = (ErrorShare(source, time_s) for source, time_s in found.items())
    listed = [share for share in shares if abs(share.time_s) > NEGLIGIBLE * step.makespan_s]
    return tuple(sorted(listed, key=lambda share: (-abs(share.time_s), share.source)))


@dataclass(frozen=True)
class _PriceEvents:
    """Events of one price: one of them, and by how much the step takes longer if all do.

    `work` is what a device computes in it, where that is one operator.
    """

    name: str
    event: Event
    weight_s: float
    work: LocalWork | None

    @property
    def is_collective(self) -> bool:
        return self.event.communicates

    def grows(self, slower: Roofline) -> float:
        """What the step takes longer under another pricing of these events."""
        if not self.event.time_s:
            return 0.0
        return self.weight_s * (self._price(slower) / self.event.time_s - 1)

    def _price(self, pricing: Roofline) -> float:
        one = self.event.instruction
        if isinstance(one, Move):
            return pricing.step_cost(one.kind, one.axes, one.size_bytes)
        return (
            pricing.op_cost(one.op, one.strategy)
            if self.work is None
            else self.work.time_s(pricing.cluster.device)
        )


def _kernels(planned: Planned, step: StepSchedule, cluster: Cluster) -> list[_PriceEvents]:
    """The events of `step` in groups of one price each.

    Those that weigh nothing are left out, and local moves that are done in their reader's loop, whatever numbers say.
    """
    numbered = _numbered(planned)
    pricing = Roofline(planned.graph, planned.plan.stage.mesh, cluster)
    weights: dict[object, float] = {}
    first: dict[object, Event] = {}
    for event in step.events:
        one = event.instruction
        is_fused = not event.communicates and event.time_s <= FUSED_S
        if event.weight_s > 0 and not is_fused:
            if isinstance(one, Compute):
                key: tuple[object, ...] = numbered.context(one.op), id(one.strategy)
            else:
                key = one.kind, one.axes, one.size_bytes, event.time_s
            weights[key] = weights.get(key, 0.0) + event.weight_s
            first.setdefault(key, event)

    return [
        _PriceEvents(_name(planned, event, cluster), event, weights[key], _work(pricing, event))
        for key, event in first.items()
    ]


def _numbered(planned: Planned) -> Remembered:
    """A pricing of the graph of `planned` that numbers operators by all that prices depend on."""
    pricing = planned.pricing
    return pricing if isinstance(pricing, Remembered) else Remembered(pricing, planned.graph)


def _work(pricing: Roofline, event: Event) -> LocalWork | None:
    one = event.instruction
    if (
        isinstance(one, Move)
        or one.op.body is not None
        or one.op.crosses_memories
        or not event.time_s
    ):
        return None
    return pricing.local_work(one.op, one.strategy)


def _by_slowdown(step: StepSchedule, cluster: Cluster, which: int, error: float) -> float:
    """What the step takes longer if one slowdown s is 1 + (s - 1)(1 + error)."""
    overlap = cluster.device.overlap
    assert overlap is not None
    slowdown = (overlap.computing_slowdown, overlap.communicating_slowdown)[which]
    return step.slowed_s[which] * (slowdown - 1) * error / slowdown


def _name(planned: Planned, event: Event, cluster: Cluster) -> str:
    """The kernel or the collective, the same in all plans in which it is the same."""
    one = event.instruction
    mesh = planned.plan.stage.mesh
    if isinstance(one, Compute):
        return f"{one.op.kind} {_local_types(planned, one, one.strategy)}"
    if not one.is_collective:
        return one.kind
    members = group(
        cluster.topology, mesh.sizes, tuple(mesh.names.index(axis) for axis in one.axes)
    )
    links = "*".join(span.level.name for span in members.spans if span.sharing)
    return f"{one.kind} of {members.size} over {links}"


def _local_types(planned: Planned, one: Compute, strategy: Strategy) -> str:
    """Types and local shapes of operands and results."""
    mesh = planned.plan.stage.mesh
    placed = zip((*one.op.ins, *one.op.outs), (*strategy.ins, *strategy.outs), strict=True)
    return " ".join(f"{t.dtype}{list(p.local_shape(t.shape, mesh))}" for t, p in placed)
