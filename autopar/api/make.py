"""make_plan: trace, search; what a plan says of itself, made when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from autopar.api.collection import collection_paused
from autopar.api.following import followed
from autopar.api.keeping import kept
from autopar.api.opened import Opened, own_function
from autopar.api.plan import Plan
from autopar.api.plan_cache import Shelf
from autopar.api.plan_file import PlanFile, Signature, plan_file
from autopar.api.runner import Bound
from autopar.api.settings import Settings, Target
from autopar.api.shardings import Shapes, pinned
from autopar.core.mesh import DeviceMesh
from autopar.core.regions import LOOPS
from autopar.discover import find_rule
from autopar.errors import NoFeasiblePlan, PlanFileError, Unsolved
from autopar.operators import KEEP
from autopar.report.summary import Report, summarise
from autopar.search.alternatives import search_best
from autopar.search.constraints.carried import released
from autopar.search.constraints.modes import constraints_of
from autopar.search.constraints.part import constraints_of_part
from autopar.search.pinned import own_mesh
from autopar.search.resolve import found_rules
from autopar.search.search import announced, find_on, restore
from autopar.search.task import Task
from autopar.trace import Capture, Traced, capture, fingerprint, graph_of, padded_choices
from autopar.trace.flat import FlatFunction
from cost_models import Cluster

Function = Callable[..., Any]


def make_plan(
    fn: Function, settings: Settings, args: tuple[Any, ...], kwargs: dict[str, Any], known: Sequence[Plan] = ()
) -> Plan:
    """The plan of `fn` under `settings`: trace, then search.

    `known` are plans of it for such arguments, made while other meshes were set. One is taken for this one if the mesh
    makes no difference.
    """
    with collection_paused():
        settings = kept(followed(settings, fn, args, kwargs), fn, args, kwargs)
        target = settings.target()
        traces = alternatives(fn, settings, args, kwargs, target.cluster)
        settings = _held(fn, settings, traces[0])
        for plan in known:
            bound = plan.bound
            traced = next((t for t in traces if _are_same(t, bound.traced)), None)
            if traced is not None and bound.cluster == target.cluster:
                return made_plan(replace(bound, traced=traced))
        return _found(fn, settings, target, traces)


def _held(fn: Function, settings: Settings, traced: Traced) -> Settings:
    """`settings` with shardings as constraints; without constraints on what is not in a part of a function."""
    held = pinned(settings, Shapes.of(traced), fn.leading if isinstance(fn, Opened) else 0)
    if not (isinstance(fn, FlatFunction) and fn.part):
        return held
    return replace(held, constraints=constraints_of_part(held.constraints, traced.graph))


def _are_same(one: Traced, other: Traced) -> bool:
    return one.mesh == other.mesh and fingerprint(one.graph) == fingerprint(other.graph)


def _found(fn: Function, settings: Settings, target: Target, traces: Sequence[Traced]) -> Plan:
    """The plan that is kept for this, else one that is searched, and kept then."""
    tasks = [task_of(traced, settings, target.cluster) for traced in traces]
    meshes = meshes_of(traces[0], settings, target)
    if settings.cache is None or settings.pricing is not None:
        return _searched(fn, settings, target.cluster, traces, tasks, meshes)
    shelf = Shelf.of(settings.cache, traces, tasks, target.cluster, meshes)
    found = _kept(shelf, fn, settings, target.cluster, traces)
    if found is None:
        found = _searched(fn, settings, target.cluster, traces, tasks, meshes)
        shelf.write(found.bound.record, found.bound.settings.mode, name_of(fn))
    return found


def _kept(shelf: Shelf, fn: Function, settings: Settings, cluster: Cluster, traces: Sequence[Traced]) -> Plan | None:
    """The plan that is kept, with its program made anew; None if there is none that can be used."""
    entry = shelf.read()
    traced = next((t for t in traces if entry is not None and fingerprint(t.graph) == entry.plan.fingerprint), None)
    if entry is None or traced is None:
        return None
    settings = replace(settings, mode=entry.mode)
    task = task_of(traced, settings, cluster)
    try:
        planned = restore(task, entry.plan)
    except PlanFileError as error:
        shelf.complain(error)
        return None
    return made_plan(Bound(fn, settings, traced, announced(task, planned), cluster))


def _searched(
    fn: Function,
    settings: Settings,
    cluster: Cluster,
    traces: Sequence[Traced],
    tasks: Sequence[Task],
    meshes: Sequence[DeviceMesh],
) -> Plan:
    position, planned = search_best(tasks, meshes)
    found = made_plan(Bound(fn, settings, traces[position], planned, cluster))
    if settings.options.data_parallel == "never" or settings.mode != "auto" or settings.constraints:
        return found
    return _or_data_parallel(found)


def made_plan(bound: Bound) -> Plan:
    """The plan that was found, as the user holds it."""
    return Plan(bound.planned.plan, lambda: _report_of(bound), lambda report: _file_of(bound, report), bound)


def _or_data_parallel(found: Plan) -> Plan:
    """`found`, or the plan of data parallelism on its mesh where there is one whose step takes less time.

    Ctrl-C and the time limit leave `found`.
    """
    bound, planned = found.bound, found.bound.planned
    try:
        other = find_on(replace(planned.task, mode="data_parallel"), [planned.ground])
    except (NoFeasiblePlan, Unsolved, KeyboardInterrupt):
        return found
    settings = replace(bound.settings, mode="data_parallel")
    rival = made_plan(replace(bound, settings=settings, planned=other))
    if found.step_time_s <= rival.step_time_s:
        return found
    announced(other.task, other)
    return rival


def _report_of(bound: Bound) -> Report:
    planned = bound.planned
    with collection_paused():
        found = tuple(f"{kind} ({op.source})" for kind, (op, _) in found_rules(planned.graph, find_rule).items())
        return summarise(
            planned,
            function=name_of(bound.fn),
            cluster=bound.cluster.name,
            memory_limit_bytes=planned.task.memory_limit_bytes,
            found_rules=found,
            priced_for=priced_for(bound),
        )


def _file_of(bound: Bound, report: Report) -> PlanFile:
    with collection_paused():
        _, settings = own_function(bound.fn, bound.settings)
        return plan_file(bound.record, report, bound.cluster.to_dict(), signature_of(bound.traced, settings))


def meshes_of(traced: Traced, settings: Settings, target: Target) -> tuple[DeviceMesh, ...]:
    """The meshes to try.

    Where none was asked for, that which the function names, else that of which types speak if it fits: results of
    other meshes are refused by what is computed from them there.

    Raises:
      InvalidMesh: if the one that the function names is not of as many devices as there are.
    """
    own = own_mesh(traced.graph)
    typed = tuple((name, size) for name, size, _ in traced.mesh)
    if own is None and typed and prod(size for _, size in typed) == target.cluster.topology.device_count:
        own = typed
    return settings.meshes(target, own)


def priced_for(bound: Bound) -> Cluster | None:
    """The cluster whose roofline the plan is priced by; None for a pricing of the user's own."""
    return bound.cluster if bound.settings.pricing is None else None


def task_of(traced: Traced, settings: Settings, cluster: Cluster) -> Task:
    """What is to be planned: pins override what the trace took for carried."""
    return Task(
        released(traced.graph, constraints_of(settings.mode, settings.constraints)),
        settings.make_pricing(cluster),
        settings.mode,
        settings.constraints,
        memory_limit_bytes=settings.limit_bytes(cluster),
        strict=settings.strict,
        options=settings.options,
        dump=None if settings.dump is None else Path(settings.dump),
        find=find_rule,
        prices_devices=settings.pricing is None,
    )


def alternatives(
    fn: Function, settings: Settings, args: tuple[Any, ...], kwargs: dict[str, Any], cluster: Cluster
) -> list[Traced]:
    """The traces of `fn` that may be planned.

    Functions that were made operators are kept whole, then expanded. Loops over samples go round by round, then in a
    part for each device of `cluster`; then, where dims are uneven that much lies in, these are padded for the devices.
    """
    devices, wanted = cluster.topology.device_count, settings.options.loops
    parts = devices if wanted == "parts" else 1
    operators = settings.options.operators
    captures = [_captured(fn, settings, args, kwargs, keep=operators != "expanded")]
    traces = [_trace(captures[0], settings, parts)]
    if operators == "best" and any(op.body is not None for op in traces[0].graph.ops):
        captures.append(_captured(fn, settings, args, kwargs, keep=False))
        traces.append(_trace(captures[1], settings, parts))
    plain = traces[-1]
    if wanted == "best" and _has_loops(plain):
        in_parts = [_trace(captured, settings, devices) for captured in captures]
        traces = [*traces, *(traced for traced in in_parts if traced.has_parts)]
    choices = [] if plain.mesh else padded_choices(plain.graph, devices)
    return [*traces, *(_trace(captures[-1], settings, parts, sizes) for sizes in choices)]


def _has_loops(traced: Traced) -> bool:
    return any(region.kind in LOOPS for region in traced.graph.regions)


def _captured(
    fn: Function, settings: Settings, args: tuple[Any, ...], kwargs: dict[str, Any], *, keep: bool
) -> Capture:
    """What JAX traces of `fn`, functions that were made operators kept whole or not."""
    with KEEP(keep):
        return capture(fn, args, kwargs, static_argnums=settings.static_argnums)


def _trace(captured: Capture, settings: Settings, loop_parts: int, padding: Mapping[int, int] | None = None) -> Traced:
    return graph_of(
        captured,
        donate_argnums=settings.donate_argnums,
        donate_argnames=tuple(settings.donate_argnames),
        carry=settings.carry,
        while_trips=settings.options.while_trips,
        loop_parts=loop_parts,
        padding=padding,
    )


def name_of(fn: Function) -> str:
    """What `fn` is called."""
    return getattr(fn, "__name__", type(fn).__name__)


def signature_of(traced: Traced, settings: Settings) -> Signature:
    """What a file says of the function that its plan is for, and of the settings that a plan depends on."""
    static, donated = settings.static_argnums, settings.donate_argnums
    carry: Any = settings.carry
    return Signature(
        tuple((t.name, t.shape, t.dtype) for t in traced.graph.inputs),
        tuple((t.shape, t.dtype) for t in traced.graph.outputs),
        (static,) if isinstance(static, int) else tuple(static),
        (donated,) if isinstance(donated, int) else tuple(donated),
        carry if carry is None or carry == "auto" else tuple(map(tuple, carry)),
        settings.options.while_trips,
        constraints_of(settings.mode, settings.constraints),
        traced.graph.batch_inputs,
        tuple(settings.static_argnames),
        tuple(settings.donate_argnames),
    )
