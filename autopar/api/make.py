"""make_plan: trace, search; and bind, which makes a plan from a file one of its function again."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from autopar._mesh import with_weakness
from autopar.api.bound import (
    Bound,
    leading_arguments,
    scheduled_for,
    signature_of,
    task_of,
)
from autopar.api.call import put_back, read_call
from autopar.api.collection import collection_paused
from autopar.api.following import followed
from autopar.api.options import Function, Settings
from autopar.api.plan import Plan
from autopar.api.plan_cache import Shelf
from autopar.api.shardings import Shapes, kept, pinned
from autopar.api.target import PlanningTarget
from autopar.core.graph import OpGraph
from autopar.core.mesh import DeviceMesh
from autopar.core.regions import LOOPS
from autopar.core.stages import Stages
from autopar.errors import (
    BatchNotCut,
    InvalidOption,
    NoStagesWarning,
    PlanFileError,
    SignatureMismatch,
    users_level,
)
from autopar.microbatch.layers import STAGES, choices_of_stages
from autopar.operators import KEEP
from autopar.report.summary import step_time_s
from autopar.search.alternatives import position_of, search_best
from autopar.search.apart import or_apart
from autopar.search.constraints.part import constraints_of_part
from autopar.search.double_buffering import with_double_buffers
from autopar.search.overlapped import shortest_step
from autopar.search.search import announced, restore
from autopar.search.task import Planned, Task
from autopar.trace import (
    CONSTANT,
    Capture,
    Traced,
    capture,
    fingerprint,
    graph_of,
    input_signature,
    padded_choices,
)
from autopar.trace.arguments import function_name
from autopar.trace.flat import FlatFunction
from cost_models import Cluster


def make_plan(
    fn: Function,
    settings: Settings,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    known: Sequence[Plan] = (),
) -> Plan:
    """The plan of `fn` under `settings`: trace, then search.

    `known` are plans of it for such arguments, made while other meshes were set. One is taken for this one if the mesh
    makes no difference.
    """
    with collection_paused():
        settings = kept(followed(settings, fn, args, kwargs), fn, args, kwargs)
        target = PlanningTarget.of(settings)
        traces = alternatives(fn, settings, args, kwargs, target.cluster)
        settings = _held(fn, settings, traces[0])
        for plan in known:
            bound = plan.bound
            traced = next((t for t in traces if _are_same(t, bound.traced)), None)
            if traced is not None and bound.cluster == target.cluster:
                return Plan.of(replace(bound, traced=traced))
        return _found(fn, settings, target, traces)


def plan_of_traces(fn: Function, settings: Settings, traces: Sequence[Traced]) -> Plan:
    """The plan of `fn`, which was traced so, under `settings` that need not be those it was traced under."""
    with collection_paused():
        target = PlanningTarget.of(settings)
        return _found(fn, _held(fn, settings, traces[0]), target, traces)


def _held(fn: Function, settings: Settings, traced: Traced) -> Settings:
    """`settings` with shardings as constraints; without constraints on what is not in a part of a function."""
    held = pinned(settings, Shapes.of(traced), leading_arguments(fn))
    if not (isinstance(fn, FlatFunction) and fn.part):
        return held
    return replace(held, constraints=constraints_of_part(held.constraints, traced.graph))


def _are_same(one: Traced, other: Traced) -> bool:
    return one.mesh == other.mesh and fingerprint(one.graph) == fingerprint(other.graph)


def _found(
    fn: Function, settings: Settings, target: PlanningTarget, traces: Sequence[Traced]
) -> Plan:
    """The plan that is kept for this, else one that is searched, and kept then."""
    tasks = [task_of(traced, settings, target.cluster) for traced in traces]
    meshes = target.meshes_of(traces[0])
    if settings.cache is None or settings.pricing is not None:
        return _searched(fn, settings, target.cluster, traces, tasks, meshes)
    shelf = Shelf.of(settings.cache, traces, tasks, target.cluster, meshes)
    found = _kept(shelf, fn, settings, target.cluster, traces)
    if found is None:
        found = _searched(fn, settings, target.cluster, traces, tasks, meshes)
        shelf.write(found.bound.record, found.bound.settings.mode, function_name(fn))
    return found


def _kept(
    shelf: Shelf, fn: Function, settings: Settings, cluster: Cluster, traces: Sequence[Traced]
) -> Plan | None:
    """The plan that is kept, with its program made anew; None if there is none that can be used."""
    entry = shelf.read()
    traced = next(
        (t for t in traces if entry is not None and fingerprint(t.graph) == entry.plan.fingerprint),
        None,
    )
    if entry is None or traced is None:
        return None

    settings = replace(settings, mode=entry.mode)
    task = task_of(traced, settings, cluster)
    try:
        planned = restore(task, entry.plan)
    except PlanFileError as error:
        shelf.complain(error)
        return None

    return Plan.of(Bound(fn, settings, traced, announced(task, planned), cluster))


def _searched(
    fn: Function,
    settings: Settings,
    cluster: Cluster,
    traces: Sequence[Traced],
    tasks: Sequence[Task],
    meshes: Sequence[DeviceMesh],
) -> Plan:
    position, planned = search_best(tasks, meshes)
    bound = Bound(fn, settings, traces[position], planned, cluster)
    priced_for = bound.priced_for
    overlap = None if priced_for is None else priced_for.device.overlap
    schedule = scheduled_for(priced_for)

    def emitted_time_s(found: Planned) -> float:
        return step_time_s(with_double_buffers(found, schedule), priced_for)

    if settings.options.overlap == "never" or overlap is None:
        return Plan.of(replace(bound, planned=or_apart(planned, emitted_time_s)))

    best = shortest_step(planned, tasks, meshes, overlap, emitted_time_s)
    bound = replace(bound, traced=traces[position_of(best, tasks)], planned=best)
    return Plan.of(replace(bound, settings=replace(settings, mode=best.task.mode)))


def alternatives(
    fn: Function,
    settings: Settings,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    cluster: Cluster,
) -> list[Traced]:
    """The traces of `fn` that may be planned.

    Functions that were made operators are kept whole, then expanded. Loops over samples go round by round, then in a
    part for each device of `cluster`; then, where dims are uneven that much lies in, these are padded for the devices;
    then layers that may be stages are, of each number.

    Raises:
      InvalidOption: layers are to be stages always, and there are none that could be.
    """
    devices = cluster.topology.device_count
    wanted = settings.options.loops
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
    traces += [_trace(captures[-1], settings, parts, sizes) for sizes in choices]
    stages = settings.options.stages
    in_stages = (
        []
        if stages == "never" or plain.mesh
        else _in_stages(fn, settings, args, kwargs, plain.graph, devices)
    )
    if stages == "always" and not in_stages:
        raise InvalidOption(
            f"stages is 'always', and {function_name(fn)} has no layers that {devices} devices could be stages of: put "
            f"them under autopar.scan_layers, as many as stages divide, or pass 'best'"
        )
    return in_stages if stages == "always" else [*traces, *in_stages]


def _in_stages(
    fn: Function,
    settings: Settings,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    graph: OpGraph,
    devices: int,
) -> list[Traced]:
    """The traces of `fn` whose layers are pipeline stages; `graph` is that in which they are not.

    Layers whose rows depend on one another are no stages, which a warning says.
    """
    keep = settings.options.operators == "kept"
    found: list[Traced] = []

    for stages in choices_of_stages(graph, devices):
        try:
            with STAGES(stages):
                captured = _captured(fn, settings, args, kwargs, keep=keep)
        except BatchNotCut as error:
            warnings.warn(str(error), NoStagesWarning, stacklevel=users_level())
            break
        found.append(_trace(captured, settings, loop_parts=1, stages=stages))
    return found


def _has_loops(traced: Traced) -> bool:
    return any(region.kind in LOOPS for region in traced.graph.regions)


def _captured(
    fn: Function, settings: Settings, args: tuple[Any, ...], kwargs: dict[str, Any], *, keep: bool
) -> Capture:
    """What JAX traces of `fn`, functions that were made operators kept whole or not."""
    with KEEP(keep):
        return capture(fn, args, kwargs, static_argnums=settings.static_argnums)


def _trace(
    captured: Capture,
    settings: Settings,
    loop_parts: int,
    padding: Mapping[int, int] | None = None,
    stages: Stages | None = None,
) -> Traced:
    return graph_of(
        captured,
        donate_argnums=settings.donate_argnums,
        donate_argnames=tuple(settings.donate_argnames),
        carry=settings.carry,
        while_trips=settings.options.while_trips,
        loop_parts=loop_parts,
        padding=padding,
        stages=stages,
    )


# Plans from files -----------------------------------------------------------------------------------------------------


def bind(
    given: Plan, fn: Function, settings: Settings, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Plan:
    """`given` bound to `fn` as traced with these arguments; refused if it is another function."""
    signature = given.file.signature
    passed = input_signature(fn, args, kwargs, settings.static_argnums)
    wanted = signature.inputs[: len(passed)]
    rest = signature.inputs[len(passed) :]
    if wanted != passed or not all(name.startswith(CONSTANT) for name, _, _ in rest):
        raise SignatureMismatch(_mismatch(signature.inputs, passed))

    cluster = Cluster.from_dict(given.file.cluster)
    if signature.weak is not None:
        args, kwargs = _as_weak(args, kwargs, settings.static_argnums, signature.weak)
    traces = alternatives(fn, settings, args, kwargs, cluster)
    expected = given.file.plan.fingerprint
    traced = next((t for t in traces if fingerprint(t.graph) == expected), traces[0])
    if signature.inputs != signature_of(traced, settings).inputs:
        raise PlanFileError(
            f"the plan was made for another function than {function_name(fn)}: its constants differ. Plan again."
        )

    if fingerprint(traced.graph) != expected:
        raise PlanFileError(
            f"the plan was made for another function than {function_name(fn)}: inputs agree, but the traced "
            f"operators do not (plan {expected[:12]}, function {fingerprint(traced.graph)[:12]}). Plan it again."
        )

    planned = restore(task_of(traced, settings, cluster), given.record)
    return given.bound_to(Bound(fn, settings, traced, planned, cluster))


def _as_weak(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    static_argnums: int | Sequence[int],
    weak: Collection[int],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of which those at these positions alone are of weak types: 0.1 and float32(0.1) are one value."""
    call = read_call(args, kwargs, static_argnums)
    return put_back(call, [with_weakness(leaf, n in weak) for n, leaf in enumerate(call.leaves)])


def _mismatch(wanted: Sequence[Any], found: Sequence[Any]) -> str:
    differing = [(*w, f) for w, f in zip(wanted, found, strict=False) if w != f]
    if not differing:
        names = [", ".join(row[0] for row in rows) for rows in (wanted, found)]
        return (
            f"the plan is for {len(wanted)} input arrays ({names[0]}), given are {len(found)} ({names[1]}). "
            f"Pass what was planned, or plan again for these arguments."
        )
    name, shape, dtype, other = differing[0]
    return (
        f"the plan is for {name}: {dtype}{list(shape)}, given is {other[0]}: {other[2]}{list(other[1])}. "
        f"Pass what was planned, or plan again for these arguments."
    )
