"""search: a graph and a cluster in, the best plan and its program out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path

from autopar.core.dataflow import dataflow
from autopar.core.graph import OpGraph
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import StepKind
from autopar.core.plan import Plan
from autopar.core.recompute import Recomputed, with_recomputed
from autopar.cost.cached_pricing import Remembered
from autopar.cost.exchange_costs import exchange_cost
from autopar.cost.pricing import pack_price, restricted
from autopar.errors import AutoparError, PlanFileError
from autopar.passes.pipeline import program_states, write_dump
from autopar.search.batch_rows import within_limit_with_rows_split
from autopar.search.best_bound_first import TIE, Entrant, RaceResult, race, reaches
from autopar.search.constraints.narrowing import axes_of
from autopar.search.constraints.records import show, step_kinds_of
from autopar.search.constraints.restriction import can_name, holds
from autopar.search.double_buffering import check_stated
from autopar.search.explain_infeasible import explained, refusal
from autopar.search.limited_solve import WORTH, account_of, program_of
from autopar.search.mesh_context import MeshContext
from autopar.search.mesh_search import MeshSearch
from autopar.search.mesh_shapes import promise, refines
from autopar.search.recompute import may_recompute, or_recomputed
from autopar.search.refuse_at_once import refused_at_once
from autopar.search.replicated import warn_unpriced, warn_unsplit, warn_unwritten, warn_whole_bits
from autopar.search.space import check_strategies
from autopar.search.task import Planned, Task, begun


def search(task: Task, meshes: Sequence[DeviceMesh]) -> Planned:
    """The best plan of `task` over `meshes`, by the solver's objective; its bound holds over all of them.

    Raises:
      NoFeasiblePlan: proven that none is within the memory limit and the constraints; what clashes is named.
      Unsolved: none was found, within the limits on work.
    """
    (task,) = begun([task])
    return announced(task, find_plan(task, meshes))


def announced(task: Task, planned: Planned) -> Planned:
    """`planned`, after the user was told of its operators without a rule, and after every stage was dumped."""
    if not task.strict:
        warn_unwritten(task.graph, planned.plan.stage.mesh, planned.pricing, task.find)
    warn_unpriced(task.graph)
    warn_unsplit(task.graph, planned.plan.stage, task.all_constraints)
    warn_whole_bits(task.graph, planned.plan.stage, planned.pricing, planned.plan.objective_s)
    if task.dump is not None:
        _dump(planned, task.dump)
    return planned


def find_plan(task: Task, meshes: Sequence[DeviceMesh]) -> Planned:
    """As `search`; nothing is said or written."""
    return find_at(places_of(task, meshes))


def places_of(task: Task, meshes: Sequence[DeviceMesh]) -> list[MeshSearch]:
    """The task on those of the meshes that have the axes which its constraints name."""
    flow = dataflow(task.graph)
    return [
        MeshSearch(task, ground)
        for ground in nameable(task, [task.ground(task.graph, flow, mesh) for mesh in meshes])
    ]


def nameable(task: Task, grounds: Sequence[MeshContext]) -> Sequence[MeshContext]:
    """Those of `grounds` whose meshes have the axes that the constraints name; all, to be refused, if none has."""
    named = [
        g
        for g in grounds
        if all(can_name(constraint, g.mesh) for constraint in task.all_constraints)
    ]
    return named or grounds


def find_on(
    task: Task,
    grounds: Sequence[MeshContext],
    unlimited: Planned | None = None,
    near: Planned | None = None,
) -> Planned:
    """As `search`, on grounds that are there already.

    `unlimited` is the best plan without a memory limit, if it is known; `near` as for `on_ground`, on a single one.
    """
    return find_at([MeshSearch(task, ground, unlimited, near) for ground in grounds])


def find_at(places: Sequence[MeshSearch]) -> Planned:
    """The best plan of all places, which are one search: tasks that differ in their graphs, on meshes.

    Its bound holds over all of them. Every place gets a choice and a bound with little work before any is worked on.

    Raises: as `search`.
    """
    refused = refused_at_once(places)
    if refused is not None:
        raise explained(refused)

    finish, again = _raced(places)
    if finish.found is None:
        raise explained(refusal(finish.misfits))
    return settled(
        finish.found.task, [place.ground for place in places], finish, finish.found, again
    )


def _raced(places: Sequence[MeshSearch]) -> tuple[RaceResult[Planned], tuple[DeviceMesh, ...]]:
    """How the search ends, and the meshes on which recomputation was looked into: near a plan that has it, always."""
    task = places[0].task
    near = places[0].near
    limit = task.memory_limit_bytes
    inside = _inside(places)
    worth = 0.0 if near is not None and near.plan.recomputed else WORTH

    def ruled_out(position: int) -> None:
        if len(places) > 1:
            places[position].ground.forget()

    tolerance = task.options.gap_tolerance
    order = in_order_of_promise(places)
    # where recomputation is looked into, what is proven of it is all that counts
    runs = [
        place.run(
            limit,
            roughly=len(places) > 1,
            proven_if_within=partial(_proven_if_within, place.task, worth),
            puts_off=True,
        )
        for place in places
    ]
    finish = race(
        runs, inside, stop=task.stop, gap_tolerance=tolerance, ruled_out=ruled_out, order=order
    )
    if finish.found is not None and task.stop.is_over:
        return finish, ()

    tried: tuple[int, ...] = ()
    try:
        finish, tried = or_recomputed(places, finish, inside, worth)
        finish = _kept_too(places, finish, tried, worth)
        finish = _proven(places, finish, tried)
    except KeyboardInterrupt:
        if finish.found is None:
            raise
        task.stop.note("keyboard")

    return finish, tuple(places[n].ground.mesh for n in tried)


def _proven_if_within(task: Task, worth: float) -> float:
    """As `plan_within`: the share of the objective up to which recomputation is not looked into."""
    return worth if may_recompute(task) else inf


def _proven(
    places: Sequence[MeshSearch], finish: RaceResult[Planned], tried: Collection[int]
) -> RaceResult[Planned]:
    """`finish`, after the places but those `tried` with recomputation proved what they had put off for that."""
    task = places[0].task
    limit = task.memory_limit_bytes
    tolerance = task.options.gap_tolerance
    if limit is None or finish.found is None:
        return finish

    left = [
        n
        for n, bound in enumerate(finish.bounds)
        if n not in tried
        and not reaches(bound, finish.objective, max(TIE, tolerance))
        and (binding := places[n].binding(limit)) is not None
        and bound <= binding[1].plan.lower_bound_s
    ]
    if not left:
        return finish

    return _searched(places, finish, left, [places[n].run(limit) for n in left])


def _kept_too(
    places: Sequence[MeshSearch],
    finish: RaceResult[Planned],
    tried: Collection[int],
    worth: float,
) -> RaceResult[Planned]:
    """`finish`, after plans that keep everything were looked for on the mesh that recomputation won on, if put off."""
    limit = places[0].task.memory_limit_bytes
    n = finish.winner
    if n is None or limit is None or n not in tried or limit not in places[n].put_off:
        return finish
    return _searched(places, finish, [n], [places[n].run(limit, proven_if_within=lambda: worth)])


def _searched(
    places: Sequence[MeshSearch],
    finish: RaceResult[Planned],
    positions: Sequence[int],
    runs: Sequence[Entrant[Planned]],
) -> RaceResult[Planned]:
    """`finish` after `runs`, which go on at the places of these positions, with what they found or proved."""
    task = places[0].task
    known = [finish.bounds[n] for n in positions]
    tolerance = task.options.gap_tolerance
    rest = race(runs, [()] * len(runs), finish.objective, known, task.stop, tolerance)
    bounds = list(finish.bounds)
    for n, bound in zip(positions, rest.bounds, strict=True):
        bounds[n] = bound
    finish = replace(finish, bounds=tuple(bounds))
    if rest.found is None or rest.winner is None:
        return finish

    return replace(
        finish, winner=positions[rest.winner], found=rest.found, objective=rest.objective
    )


def in_order_of_promise(places: Sequence[MeshSearch]) -> list[int]:
    """The positions of places, those first that are to be looked at first: of equals the first one is the simplest.

    The first place is first, as any plan at all is something to undercut.
    """
    return sorted(range(len(places)), key=lambda n: (n > 0, promise(places[n].ground.mesh), n))


def _inside(places: Sequence[MeshSearch]) -> list[list[int]]:
    """For every place those of the same graph all of whose plans are among its own, by position."""
    found: list[list[int]] = [[] for _ in places]
    for graph in {id(place.task.graph): place.task.graph for place in places}.values():
        own = [n for n, place in enumerate(places) if place.task.graph is graph]
        inside = contained(places[own[0]].task, [places[n].ground for n in own])
        for n, others in zip(own, inside, strict=True):
            found[n] = [own[other] for other in others]
    return found


def settled(
    task: Task,
    grounds: Sequence[MeshContext],
    finish: RaceResult[Planned],
    planned: Planned,
    recomputed: Sequence[DeviceMesh] = (),
) -> Planned:
    """`planned`, which came out of a race on `grounds`, with the bound over all of them and the space searched.

    A mesh on which several graphs were searched was searched if one was, and to the end if all were.
    """
    own = planned.plan.stage.mesh
    least = planned.plan.objective_s
    enough = max(TIE, task.options.gap_tolerance)
    meshes = list(dict.fromkeys(ground.mesh for ground in grounds))
    ends = list(
        zip((ground.mesh for ground in grounds), finish.finished, finish.bounds, strict=True)
    )
    searched = [
        mesh
        for mesh in meshes
        if mesh == own or any(is_done for g, is_done, _ in ends if g == mesh)
    ]
    stopped = {
        mesh for mesh, is_done, bound in ends if not is_done and not reaches(bound, least, enough)
    }
    cut_off = [mesh for mesh in meshes if mesh in stopped and mesh not in searched]
    ruled_out = [mesh for mesh in meshes if mesh not in searched and mesh not in cut_off]
    plan = replace(
        planned.plan,
        lower_bound_s=max(0.0, min(least, *finish.bounds)),
        space=described(task, planned.plan.step_kinds, searched, ruled_out, recomputed, cut_off),
        stopped=str(task.stop),
    )

    return within_limit_with_rows_split(replace(planned, plan=plan))


def contained(task: Task, grounds: Sequence[MeshContext]) -> list[list[int]]:
    """For every ground the positions of those all of whose plans are among its own, at the same prices.

    None, unless the pricing looks only at which devices talk, and the constraints say the same on every mesh.
    """
    meshes = [ground.mesh for ground in grounds]
    named = any(axes_of(constraint) for constraint in task.all_constraints)
    if named or not task.prices_devices or len(step_kinds_of(task.all_constraints)) > 1:
        return [[] for _ in meshes]
    return [
        [n for n, coarse in enumerate(meshes) if coarse != fine and refines(fine, coarse)]
        for fine in meshes
    ]


def described(
    task: Task,
    step_kinds: tuple[StepKind, ...],
    meshes: Sequence[DeviceMesh],
    ruled_out: Sequence[DeviceMesh] = (),
    recomputed: Sequence[DeviceMesh] = (),
    cut_off: Sequence[DeviceMesh] = (),
) -> str:
    """The space that was searched, for the user: meshes that were ruled out by their bounds are part of it."""
    steps = f" (redistributing by {', '.join(step_kinds)} only)" if step_kinds else ""
    held = f", {show(task.constraints)}" if task.constraints else ""
    ruled = f" ({' and '.join(map(str, ruled_out))} ruled out by bounds)" if ruled_out else ""
    cut = f" ({' and '.join(map(str, cut_off))} not searched to the end)" if cut_off else ""
    again = f", kept or recomputed on {' or '.join(map(str, recomputed))}" if recomputed else ""
    return f"mode {task.mode}{steps}{held}, mesh {' or '.join(map(str, meshes))}{ruled}{cut}{again}"


@dataclass(frozen=True, eq=False)
class SearchOutcome:
    """What came of one mesh: a plan or the reason why there is none, and a bound that holds for it either way."""

    planned: Planned | None
    lower_bound_s: float
    misfit: AutoparError | None = None


def on_ground(task: Task, ground: MeshContext, near: Planned | None = None) -> SearchOutcome:
    """What comes of one mesh; `near` is another plan on the same candidates, from which the solver may start."""
    finish, _ = _raced([MeshSearch(task, ground, near=near)])
    return SearchOutcome(
        finish.found, finish.bounds[0], finish.misfits[0] if finish.misfits else None
    )


def _dump(planned: Planned, directory: Path) -> None:
    """Writes every stage of a plan to `directory` as numbered files: the graph, the plan, the program pass by pass."""
    graph = planned.graph
    plan = planned.plan
    pricing = planned.pricing
    router = planned.ground.router(plan.step_kinds)

    states = program_states(
        graph,
        dataflow(graph),
        plan.stage,
        router,
        pricing.step_cost,
        pack_price(pricing),
        partial(exchange_cost, pricing),
    )
    write_dump(directory, [("graph", graph), ("plan", _lines(graph, plan)), *states])


def _lines(graph: OpGraph, plan: Plan) -> str:
    """The plan line by line: inputs, operators, outputs with their placements."""
    stage = plan.stage
    lines = [
        f"mesh {stage.mesh}, objective {plan.objective_s:.6g} s, lower bound {plan.lower_bound_s:.6g} s"
    ]
    lines += [
        f"{t.name} {t.dtype}{list(t.shape)} {p}"
        for t, p in zip(graph.inputs, stage.inputs, strict=True)
    ]
    for op, strategy in zip(graph.ops, stage.strategies, strict=True):
        ins, outs = (" ".join(map(str, side)) for side in (strategy.ins, strategy.outs))
        lines.append(f"{op.id} {op.kind} {ins} -> {outs}  # {op.source}")

    lines += [f"{graph.output_name(n)} {p}" for n, p in enumerate(stage.outputs)]
    return "\n".join(lines)


def restore(task: Task, plan: Plan) -> Planned:
    """The program and account of `plan`, made earlier for `task`: nothing is searched.

    Raises:
      PlanFileError: if an operator has a strategy that is not one of its own, or is recomputed where it cannot be, or
        a constraint does not hold or says nothing about the function, or no prices lead from one choice to another.
    """
    try:
        return _restored(task, plan)
    except PlanFileError:
        raise
    except AutoparError as error:  # of what the file says, since nothing of it was checked against the function before
        raise PlanFileError(
            f"the plan cannot be made again: {str(error).rstrip('.')}. The file is damaged. Plan again."
        ) from error


def _restored(task: Task, plan: Plan) -> Planned:
    graph = _rewritten(task.graph, plan.recomputed)
    check_strategies(graph, plan.stage, task.find)
    if not holds(graph, plan.stage, task.all_constraints):
        raise PlanFileError(
            f"the plan does not keep to its own constraints, {show(task.all_constraints)}: the file is damaged. Plan "
            f"again."
        )

    task = task.at_weights(plan.communication_weight, plan.hidden_weight)
    whole = task.graph
    ground = task.ground(whole, dataflow(whole), plan.stage.mesh)
    pricing = ground.pricing(plan.step_kinds)
    router = ground.router(plan.step_kinds)
    if graph is not whole:
        pricing = restricted(
            Remembered(task.make_pricing(graph, plan.stage.mesh), graph), plan.step_kinds
        )

    program = program_of(graph, dataflow(graph), plan.stage, router, pricing)
    check_stated(program, plan.double_buffered or ())
    spent = account_of(graph, program, pricing)
    return Planned(
        task, plan, program, spent, pricing, ground, rewritten=graph if plan.recomputed else None
    )


def _rewritten(graph: OpGraph, recomputed: Sequence[Recomputed]) -> OpGraph:
    try:
        return with_recomputed(graph, recomputed).graph
    except ValueError as error:
        raise PlanFileError(f"the plan recomputes what cannot be: {error}. Plan again.") from error
