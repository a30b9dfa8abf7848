"""Rivals: the layouts that people write by hand, as pins: data parallelism, FSDP, Megatron's tensor parallelism.

What the pins leave open is searched, so a rival is at least as good as the layout that it is named after.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from autopar.core.graph import OpGraph, OpNode
from autopar.core.mesh import DeviceMesh
from autopar.errors import NoFeasiblePlan, Unsolved
from autopar.ops.rules.factor_rule import FactorRule
from autopar.search.constraints.matching import matching_operators
from autopar.search.constraints.modes import data_parallel
from autopar.search.constraints.records import (
    ALL_AXES,
    At,
    Constraint,
    Layout,
    Named,
    Pin,
    Role,
    Steps,
)
from autopar.search.dims import is_again, labels_of_data, rules_of
from autopar.search.resolve import FindRule
from autopar.search.search import find_on, on_ground
from autopar.search.task import Planned, Task, begun, quickly, roughly

_SHARDED_STEPS = Steps(("all_gather", "reduce_scatter", "all_reduce", "slice", "mask"))
_PRODUCTS = ("dot_general", "ragged_dot_general")
_FORWARD = "jvp(*"
"""The scopes of what is differentiated, in the forward pass; those of the backward pass begin otherwise."""
_MEGATRON_STEPS = Steps(("all_reduce", "slice", "mask"))


@dataclass(frozen=True)
class Rival:
    """A layout by its name, as constraints of axes of `mesh`."""

    name: str
    mesh: DeviceMesh
    constraints: tuple[Constraint, ...]
    holds_steps: bool = False
    """Whether a plan that redistributes by other steps than its own is none of it."""


@dataclass(frozen=True, eq=False)
class RivalPlan:
    """The best plan of a rival, within the memory limit if it `fits`, else without one.

    None where its pins leave no plan: then `reason` says why.
    """

    rival: Rival
    planned: Planned | None
    fits: bool
    reason: str = ""


def known_rivals(task: Task, mesh: DeviceMesh, tensor_parts: int) -> tuple[Rival, ...]:
    """Data parallelism, FSDP and Megatron, for a function on as many devices as `mesh` has; none on one device.

    There is no Megatron of a function without products of weights that divide.

    Args:
      task: what is planned.
      mesh: that of its plan, which the rivals share where they can.
      tensor_parts: over how many devices Megatron splits a layer where `mesh` does not say: those of a server.
    """
    graph = task.graph
    if mesh.size == 1:
        return ()
    grid = _grid(mesh, tensor_parts)
    weights = tensor_parallel_dims(graph, task.find, grid.sizes[-1])
    return (
        Rival("data parallel", mesh, data_parallel()),
        Rival("FSDP", mesh, fsdp(graph, task.find, mesh)),
        *([Rival("Megatron", grid, megatron(graph, weights, grid), True)] if weights else []),
    )


def solved(planned: Planned, rival: Rival) -> RivalPlan:
    """The best plan of a rival. The work is bounded, and its prices are those of `planned`.

    It is searched without the memory limit first, as that is quick: only what does not fit is searched within it, with
    little work, and nothing is recomputed for it.
    """
    task = planned.task
    options = replace(task.options, recompute="never", on_progress=None)
    free = replace(
        task,
        mode="auto",
        constraints=rival.constraints,
        memory_limit_bytes=None,
        options=options,
        dump=None,
    )
    (free,) = begun([free])
    ground = planned.ground
    if rival.mesh != ground.mesh or ground.graph is not task.graph:
        ground = free.ground(task.graph, ground.flow, rival.mesh)

    try:
        found = find_on(free, [ground])
    except (NoFeasiblePlan, Unsolved) as error:
        return RivalPlan(rival, None, fits=False, reason=str(error))

    if rival.holds_steps and not found.plan.step_kinds:
        return RivalPlan(rival, None, fits=False, reason="sums alone do not join what it splits")

    limit = task.memory_limit_bytes
    if limit is None or found.account.peak_memory_bytes <= limit:
        return RivalPlan(rival, found, fits=True)
    little = replace(options, solve=roughly(quickly(options.solve)))
    within = on_ground(replace(free, memory_limit_bytes=limit, options=little), ground).planned
    return RivalPlan(rival, within or found, fits=within is not None)


def fsdp(graph: OpGraph, find: FindRule, mesh: DeviceMesh) -> tuple[Constraint, ...]:
    """Data is split along its first dim over all devices, and so is the first dim that divides of every other input.

    The results of products stay split along the batch, so that it is the weights which are gathered.
    """
    data = set(graph.batch_inputs)
    pins: list[Constraint] = [Pin(Role("data"), Layout(((ALL_AXES,),)), uneven="replicate")]
    for position, tensor in enumerate(graph.inputs):
        dim = next((d for d, size in enumerate(tensor.shape) if size % mesh.size == 0), None)
        if position not in data and dim is not None:
            pins.append(Pin(Named(tensor.name), Layout((*((),) * dim, (ALL_AXES,)))))
    return (*pins, *_along_the_batch(graph, find), _SHARDED_STEPS)


def _along_the_batch(graph: OpGraph, find: FindRule) -> Iterator[Pin]:
    """Pins of the products of the forward pass: their results are split along the batch, over all devices.

    Those at one line are named together, and left alone where the batch is not the same dim of all of them.
    """
    labels = labels_of_data(graph, find)
    found: dict[At, set[int | None]] = defaultdict(set)
    for op in graph.ops:
        if op.kind == "dot_general" and op.source and op.phase == "forward":
            own = labels.get(op.outs[0].id, ())
            dims = (dim for dim, label in enumerate(own) if label[0] == "batch")
            scope = _FORWARD if op.scope.startswith(_FORWARD[:-1]) else ""
            found[At(op.source, op.kind, scope)].add(next(dims, None))

    for target, dims in found.items():
        (dim, *others) = dims
        is_forward = target.scope or all(
            op.phase == "forward" for op in matching_operators(target, graph)
        )
        if dim is not None and not others and is_forward:
            yield Pin(target, Layout((*((),) * dim, (ALL_AXES,))), uneven="replicate")


def megatron(
    graph: OpGraph, weights: Mapping[int, int], mesh: DeviceMesh
) -> tuple[Constraint, ...]:
    """Data is split over all axes but the last; weights by columns, then by rows, over the last. Sums are all-reduced.

    `weights` are the dims that are split, by the position of the input (`tensor_parallel_dims`).
    """
    *others, model = mesh.names
    batch = Layout((tuple(others),) if others else ())
    pins: list[Constraint] = [Pin(Role("data"), batch, uneven="replicate")]
    for position, dim in weights.items():
        tensor = graph.inputs[position]
        pins.append(Pin(Named(tensor.name), Layout((*((),) * dim, (model,)))))
    return (*pins, _MEGATRON_STEPS)


def tensor_parallel_dims(graph: OpGraph, find: FindRule, parts: int) -> dict[int, int]:
    """The dim along which Megatron splits each weight, by the position of the input.

    In the order of the forward pass: a product whose activations are split along what it sums over splits its weight
    by rows, any other by columns, and then its result is split. A table is split by what it is looked up by.
    """
    walk = _Walk(graph, parts)
    for op, rule in rules_of(graph, find):
        if op.phase == "forward":
            walk.step(op, rule)
    return walk.pinned


class _Walk:
    """What is known of the values so far: which weight they are, and along which dims they are split."""

    def __init__(self, graph: OpGraph, parts: int) -> None:
        data = set(graph.batch_inputs)
        self.pinned: dict[int, int] = {}
        self._graph = graph
        self._parts = parts
        self._split: dict[int, frozenset[int]] = {}
        self._weights: dict[int, tuple[int, tuple[int | None, ...]]] = {
            tensor.id: (position, tuple(range(tensor.ndim)))
            for position, tensor in enumerate(graph.inputs)
            if position not in data
        }

    def step(self, op: OpNode, rule: FactorRule) -> None:
        """Takes an operator of the forward pass into account."""
        if op.ins and op.ins[0].id in self._weights and is_again(op):
            self._weights[op.outs[0].id] = self._renamed(op, rule)
            return

        if op.kind == "gather" and op.ins[0].id in self._weights:
            self._pin(op, 0, op.params["dimension_numbers"]["start_index_map"][:1])
            return

        marked = self._marked(op, rule)
        if op.kind in _PRODUCTS and (position := self._weight_of(op)) is not None:
            marked = self._product(op, rule, position, marked)
        for tensor, dims in zip(op.outs, rule.outs, strict=True):
            own = frozenset(d for d, dim in enumerate(dims) if marked & {*dim[:1]})
            if own:
                self._split[tensor.id] = own

    def _product(
        self, op: OpNode, rule: FactorRule, weight: int, marked: frozenset[str]
    ) -> frozenset[str]:
        """The factors that are split in the result of a product with a weight, which is pinned for it."""
        summed, kept = _summed_and_kept(op, weight)
        rows = [d for d in summed if rule.ins[weight][d][0] in marked]
        if rows:
            self._pin(op, weight, rows)
            return marked

        free = [d for d in range(op.ins[weight].ndim) if d not in (*summed, *kept)]
        widest = sorted(free, key=lambda d: -op.ins[weight].shape[d])
        dim = self._pin(op, weight, widest)
        return marked if dim is None else marked | {rule.ins[weight][dim][0]}

    def _pin(self, op: OpNode, operand: int, dims: Sequence[int]) -> int | None:
        """The first of the operand's dims along which its input is pinned, or was; None if none divides."""
        source, own = self._weights[op.ins[operand].id]
        known = self.pinned.get(source)
        for dim in dims:
            at = own[dim]
            if at is None or known not in (None, at):
                continue
            if self._graph.inputs[source].shape[at] % self._parts == 0:
                self.pinned[source] = at
                return dim
        return None

    def _marked(self, op: OpNode, rule: FactorRule) -> frozenset[str]:
        """The factors along which an operand is split."""
        return frozenset(
            dims[d][0]
            for tensor, dims in zip(op.ins, rule.ins, strict=True)
            for d in self._split.get(tensor.id, ())
            if dims[d]
        )

    def _weight_of(self, op: OpNode) -> int | None:
        """Which operand of a product with activations is a weight; None if none or both are."""
        found = [n for n, tensor in enumerate(op.ins[:2]) if tensor.id in self._weights]
        return found[0] if len(found) == 1 else None

    def _renamed(self, op: OpNode, rule: FactorRule) -> tuple[int, tuple[int | None, ...]]:
        """The input that a view of a weight is, and for each dim that of the input which it is or begins with."""
        source, own = self._weights[op.ins[0].id]
        of_factor = {dim[0]: own[d] for d, dim in enumerate(rule.ins[0]) if dim}
        return source, tuple(of_factor.get(dim[0]) if dim else None for dim in rule.outs[0])


def _summed_and_kept(op: OpNode, operand: int) -> tuple[Sequence[int], Sequence[int]]:
    """The dims of an operand of a product that it sums over, and those of which each has its own matrix."""
    if op.kind == "dot_general":
        summed, kept = op.params["dimension_numbers"]
        return summed[operand], kept[operand]
    numbers = op.params["ragged_dot_dimension_numbers"]
    summed, kept = numbers["dot_dimension_numbers"]
    groups = numbers["rhs_group_dimensions"] if operand == 1 else ()
    return summed[operand], (*kept[operand], *groups)


def _grid(mesh: DeviceMesh, tensor_parts: int) -> DeviceMesh:
    """The mesh of Megatron: `mesh` where its last axis lies in one server, else the servers by their devices."""
    if len(mesh.axes) > 1 and mesh.sizes[-1] <= tensor_parts:
        return mesh
    if mesh.size <= tensor_parts or mesh.size % tensor_parts:
        return mesh
    return DeviceMesh.of({"data": mesh.size // tensor_parts, "model": tensor_parts})
