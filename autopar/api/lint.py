"""Lint: a program that its author sharded by hand, beside the plan found on the same mesh."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, permutations
from math import prod
from typing import Any, NamedTuple

from jax.sharding import NamedSharding, Sharding

from autopar._compat import untyped_jax
from autopar.api.bound import Bound, task_of
from autopar.api.options import Settings, split_options
from autopar.api.plan import Plan
from autopar.api.target import PlanningTarget
from autopar.core.graph import OpGraph, OpNode
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.core.program import Move, ShardedProgram
from autopar.errors import InvalidMesh, InvalidOption, SignatureMismatch, TraceError
from autopar.inspect.compare import axis_groups
from autopar.inspect.lines import LocatedCollective, SourceLine, located_collectives
from autopar.inspect.narrow import narrowed, widths_of
from autopar.report.findings import Finding, Findings
from autopar.report.units import format_quantity
from autopar.search.alternatives import search_best
from autopar.trace import Traced, capture, graph_of
from autopar.trace.arguments import function_name, positions

_STATED = frozenset({"reshard", "sharding_constraint"})
"""The operators that hold a value where the user's function says, which a search can be freed of."""
_REDISTRIBUTING = frozenset({"all_gather", "all_to_all", "permute"})
"""The collectives that only change where a value lies."""
_QUICK = {"xla_backend_optimization_level": 0}
"""Compiled to be read, not to be run."""
_LEAST_SHARE = 0.01
_LEAST_BYTES = 2**20
_LONGEST = 400
"""Of what JAX says in an error, in characters."""
_SAVES = 0.1
"""A share of the plan's step: the program's communication is a finding if the plan would save so much."""
StepCost = Callable[[Any, tuple[str, ...], int], float]


def lint(
    fn: Callable[..., Any],
    *args: Any,
    plain: Callable[..., Any] | None = None,
    least_share: float = _LEAST_SHARE,
    least_bytes: int = _LEAST_BYTES,
    **keywords: Any,
) -> Findings:
    """What a function sharded by hand pays for, and the plan found on the same mesh does not.

    It is compiled for the devices of its own mesh, which must be there (virtual ones will do), and nothing is run.
    Its own shardings are those of `with_sharding_constraint` and `reshard`, of a jitted function's `in_shardings` and
    `out_shardings`, of `shard_map`, and of its arguments. The plan keeps none of them but what is in a `shard_map`; it
    keeps nothing of that either if it is made of `plain`.

    Args:
      fn: jitted, with its shardings; or plain, with `in_shardings` and `out_shardings` among the keywords.
      *args: example arguments; jax.ShapeDtypeStructs will do, with shardings if it goes by these.
      plain: the same function for one device, where `fn` is written in a `shard_map`: the plan is of this one.
      least_share: of the plan's step: redistributions that cost less are no findings.
      least_bytes: of one device: arguments that are held whole are no findings if less would be saved.
      **keywords: options of `autopar.plan`, of which `mesh` is the function's own; all others are arguments by name.

    Raises:
      InvalidOption: neither the function nor its arguments say how anything is sharded.
      InvalidMesh: `mesh` is another than theirs.
      SignatureMismatch: `plain` gives other results.
      AutoparError: as `autopar.plan`.
    """
    options, kwargs = split_options(fn, keywords)
    settings = Settings.of(options)
    lowered = _lowered(fn, settings, args, kwargs)
    compiled = lowered.compile(compiler_options=_QUICK)

    placed = _placed_arguments(compiled)
    collectives = located_collectives(compiled.as_text())
    plan, stated = _free_plan(plain or fn, settings, args, kwargs, _mesh_of(placed))
    _check_results(plan, lowered.out_info)

    widths = widths_of(stated, plan.mesh)
    narrow = [narrowed(one, widths) for one in collectives]
    program = _HandSharded(
        plan, stated, placed, narrow, least_share, least_bytes, plain is not None
    )
    return replace(program.findings(), function=function_name(fn))


def _lowered(
    fn: Callable[..., Any], settings: Settings, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """The function as its author runs it."""
    lower = getattr(fn, "lower", None)
    if lower is None:
        shardings = {
            name: given
            for name in ("in_shardings", "out_shardings")
            if (given := getattr(settings, name)) is not None
        }
        lower = untyped_jax.jit(
            fn,
            static_argnums=settings.static_argnums,
            donate_argnums=positions(settings.donate_argnums, len(args), "donate_argnums"),
            **shardings,
        ).lower

    try:
        return lower(*args, **kwargs)
    except (TypeError, ValueError) as error:
        said = " ".join(str(error).split())[:_LONGEST]
        raise TraceError(
            f"JAX cannot lower {function_name(fn)} with its shardings: {type(error).__name__}: {said}"
        ) from error


def _placed_arguments(compiled: Any) -> list[Any]:
    """The shardings of the flat arguments."""

    def is_sharding(value: Any) -> bool:
        return value is None or isinstance(value, Sharding)

    return untyped_jax.tree.leaves(compiled.input_shardings, is_leaf=is_sharding)


def _mesh_of(placed: Sequence[Any]) -> dict[str, int] | None:
    """The mesh of the arguments; None where they are on none of several devices.

    Raises:
      InvalidOption: nothing is sharded.
    """
    meshes = [one.mesh for one in placed if isinstance(one, NamedSharding)]
    if not any(len(one.device_set) > 1 for one in placed if one is not None):
        raise InvalidOption(
            "nothing is sharded: neither fn nor its arguments name shardings of several devices. Lint a jitted "
            "function with in_shardings, or one with constraints; autopar.plan finds shardings for one that has none"
        )
    return {str(name): int(size) for name, size in meshes[0].shape.items()} if meshes else None


def _free_plan(
    fn: Callable[..., Any],
    settings: Settings,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    mesh: dict[str, int] | None,
) -> tuple[Plan, OpGraph]:
    """The plan of the function without shardings of its own, and the graph with them."""
    free = replace(settings, in_shardings=None, out_shardings=None, mesh=settings.mesh or mesh)
    target = PlanningTarget.of(free)
    if mesh is not None and target.meshes[0].whole.axes != tuple(mesh.items()):
        raise InvalidMesh(
            f"mesh is {target.meshes[0].whole}, and the function's own shardings are for "
            f"{DeviceMesh.of(mesh)}: leave out mesh, or give that one"
        )

    traced = graph_of(
        capture(fn, args, kwargs, static_argnums=settings.static_argnums),
        donate_argnums=settings.donate_argnums,
        carry=settings.carry,
    )
    freed = replace(traced, graph=_without_pins(traced.graph))
    task = task_of(freed, free, target.cluster)
    _, planned = search_best([task], target.meshes_of(freed))
    return Plan.of(Bound(fn, free, freed, planned, target.cluster)), traced.graph


def _check_results(plan: Plan, results: Any) -> None:
    """Whether the function that was planned gives what the one that was lowered does, by shapes and types.

    Raises:
      SignatureMismatch: it does not: names both.
    """
    wanted = [(tuple(one.shape), str(one.dtype)) for one in untyped_jax.tree.leaves(results)]
    found = [(tuple(one.shape), str(one.dtype)) for one in plan.bound.traced.output_avals]
    if found != wanted:
        raise SignatureMismatch(
            f"plain gives {_shown_types(found)} for these arguments, and the function {_shown_types(wanted)}: "
            f"pass what computes the same on one device"
        )


def _shown_types(types: Sequence[tuple[tuple[int, ...], str]]) -> str:
    return ", ".join(f"{dtype}[{', '.join(map(str, shape))}]" for shape, dtype in types)


def _without_pins(graph: OpGraph) -> OpGraph:
    """`graph`, whose constraints hold nothing."""
    ops = tuple(
        replace(op, params={**op.params, "axes": ()}) if op.kind in _STATED else op
        for op in graph.ops
    )
    return replace(graph, ops=ops)


class _PlanLine(NamedTuple):
    """What a plan spends on redistributions at a line: seconds a step, and bytes of one device."""

    time_s: float = 0.0
    size_bytes: int = 0

    def with_move(self, move: Move, times: float) -> _PlanLine:
        """With a further collective, which runs so often."""
        size = self.size_bytes + int(move.size_bytes * times)
        return _PlanLine(self.time_s + move.time_s * times, size)


@dataclass(frozen=True)
class _HandSharded:
    """A program as XLA partitions it, beside the plan found; `is_written_out` if that is of a function without it."""

    plan: Plan
    stated: OpGraph
    placed: Sequence[Any]
    collectives: Sequence[LocatedCollective]
    least_share: float
    least_bytes: int
    is_written_out: bool

    def findings(self) -> Findings:
        """All of them."""
        summary = self.plan.summary
        prices = [self._price(one) for one in self.collectives]
        found = [*self._redistributions(prices), *self._replicated()]
        plan_s, plan_bytes = _all_of(self.plan.program())
        excess_s = sum(prices) - plan_s
        if excess_s > _SAVES * summary.step_time_s:
            found.append(_of_all(sum(prices), plan_s, self.collectives, plan_bytes))
        found.sort(key=_saved)
        sizes = self._argument_bytes

        return Findings(
            function=self.plan.function_name,
            mesh=self._mesh.whole.axes,
            cluster=summary.cluster,
            findings=tuple(found),
            communication_time_s=sum(prices),
            plan_communication_time_s=plan_s,
            plan_step_time_s=summary.step_time_s,
            argument_bytes=sum(mine for mine, _ in sizes),
            plan_argument_bytes=sum(plans for _, plans in sizes),
            collectives=len(self.collectives),
        )

    @property
    def _mesh(self) -> DeviceMesh:
        return self.plan.mesh

    @property
    def _traced(self) -> Traced:
        return self.plan.bound.traced

    # Collectives ------------------------------------------------------------------------------------------------------

    def _price(self, one: LocatedCollective) -> float:
        """Seconds a step."""
        planned = self.plan.bound.planned
        cost: StepCost = planned.task.make_pricing(planned.graph, planned.plan.stage.mesh).step_cost
        collective = one.collective
        axes = self._axes(one)
        return cost(collective.kind, axes, collective.size_bytes) * (collective.times or 1)

    def _axes(self, one: LocatedCollective) -> tuple[str, ...]:
        """The mesh axes that a collective goes over; for pairs, and groups that are no axes, those of their size."""
        groups = {tuple(sorted(group)) for group in one.collective.groups}
        mesh = self.plan.bound.planned.plan.stage.mesh
        choices = [
            axes for n in range(1, len(mesh.names) + 1) for axes in combinations(mesh.names, n)
        ]
        for axes in choices:
            if {tuple(sorted(group)) for group in axis_groups(mesh, axes)} == groups:
                return axes
        if one.collective.kind == "permute":
            return next((axes for axes in choices if _joins(mesh, axes, groups)), mesh.names)
        size = max(map(len, groups))
        return next((axes for axes in choices if mesh.product(axes) >= size), mesh.names)

    def _redistributions(self, prices: Sequence[float]) -> Iterator[Finding]:
        """A finding for every line at which values change their places for more than in the plan."""
        by_line: dict[SourceLine, list[tuple[LocatedCollective, float]]] = defaultdict(list)
        for one, price in zip(self.collectives, prices, strict=True):
            if one.collective.kind in _REDISTRIBUTING:
                by_line[one.line].append((one, price))

        for line, members in by_line.items():
            time_s = sum(price for _, price in members)
            plans = self._plan_by_line[line.short] if line.file else _PlanLine()
            if time_s - plans.time_s < self.least_share * self.plan.summary.step_time_s:
                continue
            yield self._redistribution(line, members, time_s, plans)

    def _redistribution(
        self,
        line: SourceLine,
        members: Sequence[tuple[LocatedCollective, float]],
        time_s: float,
        plans: _PlanLine,
    ) -> Finding:
        dearest, _ = max(members, key=lambda member: member[1])
        others = f", and {len(members) - 1} more" if len(members) > 1 else ""
        reason, at = self._reason(dearest)

        where = f" at {line}" if line.file else ""
        message = f"{self._shown(dearest)}{others}{where}: {reason}"
        size = sum(one.collective.size_bytes * (one.collective.times or 1) for one, _ in members)
        place = at if at.file else line
        return Finding(
            "redistribution",
            message,
            place.file,
            place.line,
            time_s,
            plans.time_s,
            size,
            plans.size_bytes,
        )

    def _shown(self, one: LocatedCollective) -> str:
        axes = ", ".join(self._axes(one))
        array = one.results[0]
        shape = ", ".join(map(str, array.dims))
        often = f", {one.collective.times} times" if (one.collective.times or 1) > 1 else ""
        return f"{one.collective.kind} over {axes} to {array.dtype}[{shape}]{often}"

    def _reason(self, one: LocatedCollective) -> tuple[str, SourceLine]:
        """What asks for a redistribution, and the line of it, where it is another than that of the collective."""
        shapes = [array.dims for array in one.results]
        for op in self.stated.ops:
            if op.kind in _STATED and op.params["axes"] and self._local_shape(op) in shapes:
                spec = _stated_placement(op)
                file, line = _place(op.source, one.line)
                return f"the constraint at {op.source} asks for {spec}", SourceLine(file, line)

        named = [
            f"{name} comes in as {sharding.spec}"
            for name, sharding, local in self._inputs
            if isinstance(sharding, NamedSharding) and _grows(local, shapes, one)
        ]
        if named:
            return f"{named[0]} and is needed whole along that dim", SourceLine()
        if self.is_written_out:
            return "it is written so by hand", SourceLine()
        return "what meets there lies differently, or is needed otherwise", SourceLine()

    def _local_shape(self, op: OpNode) -> tuple[int, ...]:
        placement = _stated_placement(op)
        return placement.local_shape(op.outs[0].shape, self._mesh.whole)

    @cached_property
    def _plan_by_line(self) -> Mapping[str, _PlanLine]:
        """What the plan redistributes at each line ("model.py:41")."""
        program = self.plan.program()
        found: dict[str, _PlanLine] = defaultdict(_PlanLine)
        for move in program.collectives:
            if move.kind in _REDISTRIBUTING:
                line = move.source.partition(" ")[0]
                found[line] = found[line].with_move(move, program.tree.weight(move.region))
        return found

    # Arguments --------------------------------------------------------------------------------------------------------

    @cached_property
    def _inputs(self) -> list[tuple[str, Any, tuple[int, ...]]]:
        """Path, sharding and local shape of every argument that is used."""
        tensors = zip(
            self._traced.graph.inputs, self._traced.input_avals, self.placed, strict=False
        )
        return [
            (tensor.name, sharding, tuple(sharding.shard_shape(aval.shape)))
            for tensor, aval, sharding in tensors
            if sharding is not None
        ]

    @cached_property
    def _argument_bytes(self) -> list[tuple[int, int]]:
        """What one device holds of every argument that is used, here and in the plan."""
        program = self.plan.program()
        found: list[tuple[int, int]] = []
        for n, sharding in enumerate(self.placed):
            if sharding is not None:
                aval = self._traced.input_avals[n]
                tensor = self._traced.graph.inputs[n]
                scale = tensor.size_bytes // max(prod(aval.shape), 1)
                mine = prod(sharding.shard_shape(aval.shape)) * scale
                found.append((mine, program.local_bytes(program.inputs[n])))
            else:
                found.append((0, 0))
        return found

    def _replicated(self) -> Iterator[Finding]:
        """A finding for every part of the state that a device holds more of than under the plan."""
        batch = set(self._traced.graph.batch_inputs)
        groups: dict[str, list[int]] = defaultdict(list)
        for n, (mine, plans) in enumerate(self._argument_bytes):
            if n not in batch and mine > plans:
                groups[_group(self._traced.graph.inputs[n].name)].append(n)

        for name, members in groups.items():
            mine = sum(self._argument_bytes[n][0] for n in members)
            plans = sum(self._argument_bytes[n][1] for n in members)
            if mine - plans >= self.least_bytes:
                yield Finding("replicated", self._held(name, members), "", 0, 0.0, 0.0, mine, plans)

    def _held(self, name: str, members: Sequence[int]) -> str:
        largest = max(members, key=lambda n: self._argument_bytes[n][0])
        sharding = self.placed[largest]
        spec = sharding.spec if isinstance(sharding, NamedSharding) else sharding
        path = self._traced.graph.inputs[largest].name
        count = f"{len(members)} arrays" if len(members) > 1 else "an array"
        return (
            f"{name} ({count}, {path} as {spec}) is held by more devices than need be: the plan has "
            f"{path} {self.plan.placements[path]}"
        )


def _of_all(
    time_s: float, plan_s: float, collectives: Sequence[LocatedCollective], plan_bytes: int
) -> Finding:
    """The finding that all collectives together take more than those of the plan."""
    size = sum(one.collective.size_bytes * (one.collective.times or 1) for one in collectives)
    saved = format_quantity(time_s - plan_s, "time")
    message = f"communication takes {saved} a step more than in the plan found on this mesh"
    return Finding("communication", message, "", 0, time_s, plan_s, size, plan_bytes)


def _all_of(program: ShardedProgram) -> tuple[float, int]:
    """Seconds and bytes of a step in all collectives of a program."""
    runs = [(move, program.tree.weight(move.region)) for move in program.collectives]
    time_s = sum(move.time_s * times for move, times in runs)
    return time_s, int(sum(move.size_bytes * times for move, times in runs))


def _saved(one: Finding) -> tuple[float, int]:
    """What findings are sorted by: the time that the plan saves, then the bytes."""
    return one.plan_time_s - one.time_s, one.plan_size_bytes - one.size_bytes


def _stated_placement(op: OpNode) -> Placement:
    (spec, *_) = op.params["outs"]
    return Placement(tuple(axes or () for axes in spec))


def _place(source: str, like: SourceLine) -> tuple[str, int]:
    """The file and line of "model.py:41 (loss)"; the file has its path where `like` is of the same."""
    name, _, line = source.partition(" ")[0].rpartition(":")
    same = like.file.rpartition("/")[2] == name
    return (like.file if same else name), int(line or 0)


def _grows(
    local: tuple[int, ...], shapes: Sequence[tuple[int, ...]], one: LocatedCollective
) -> bool:
    """Whether gathering an array of shape `local` gives one of `shapes`."""
    size = len(one.collective.groups[0])
    grown = {(*local[:d], local[d] * size, *local[d + 1 :]) for d in range(len(local))}
    return one.collective.kind == "all_gather" and any(
        any(shape in _turned(made) for made in grown) for shape in shapes
    )


def _turned(shape: tuple[int, ...]) -> set[tuple[int, ...]]:
    """The shapes that transposing an array of this one gives."""
    return set(permutations(shape)) if len(shape) <= 4 else {shape}


def _joins(mesh: DeviceMesh, axes: tuple[str, ...], pairs: set[tuple[int, ...]]) -> bool:
    """Whether every pair is within a group along `axes`."""
    group_of = {device: n for n, group in enumerate(axis_groups(mesh, axes)) for device in group}
    return all(len({group_of[device] for device in pair}) == 1 for pair in pairs)


def _group(name: str) -> str:
    """The argument, and its first key, that an input's path begins with: "state['opt']"."""
    head, bracket, rest = name.partition("[")
    return f"{head}{bracket}{rest.partition(']')[0]}]" if bracket else head
