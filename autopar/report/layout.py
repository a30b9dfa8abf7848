"""Layout: of a plan and its program, the facts that its description in the field's words follows from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from autopar.core.graph import OpGraph, OpNode
from autopar.core.memo import once_per_graph
from autopar.core.placement import Placement
from autopar.core.strategy import Strategy
from autopar.ops.traits import traits_of, work_flops
from autopar.report.parallelism import Axes, Facts, Product, State
from autopar.search.dims import Labels, is_again, labels_of_data, origins
from autopar.search.task import Planned

_LOOKS_UP = frozenset({"gather", "dynamic_slice"})


def facts_of(planned: Planned) -> Facts:
    """What `planned` splits, in the forward pass and between steps."""
    graph = planned.graph
    stage = planned.plan.stage
    labels = labels_of_data(graph, planned.task.find)
    known = origins(graph)
    reading = _Reading(graph, labels, known)
    gathered = _gathered(graph, stage.inputs, stage.strategies, known)
    data = set(graph.batch_inputs)

    return Facts(
        stage.mesh.axes,
        tuple(reading.products(stage.strategies)),
        tuple(
            State(t.name, t.size_bytes, p.split_axes, gathered.get(n, ()), n in gathered)
            for n, (t, p) in enumerate(zip(graph.inputs, stage.inputs, strict=True))
            if n not in data
        ),
        _scattered(planned),
        tuple(reading.between(stage.strategies)),
        graph.stages,
        any(op.phase != "forward" for op in graph.ops),
        any(placement.split_axes for placement in (*stage.inputs, *stage.outputs)),
    )


class _Reading:
    """A graph with the labels of its values, and the inputs that they are."""

    def __init__(
        self, graph: OpGraph, labels: Mapping[int, Labels], known: Mapping[int, int]
    ) -> None:
        self._graph = graph
        self._labels = labels
        self._known = known
        self._state = set(range(len(graph.inputs))) - set(graph.batch_inputs)

    def products(self, strategies: Iterable[Strategy]) -> Iterable[Product]:
        """The products of the forward pass."""
        for op, strategy in zip(self._graph.ops, strategies, strict=True):
            if op.phase == "forward" and is_product(op):
                flops = self._graph.tree.weight(op.region) * work_flops(op)
                yield self._product(op, strategy, flops)

    def between(self, strategies: Iterable[Strategy]) -> Iterable[tuple[float, Axes]]:
        """The bytes of what other operators of the forward pass make, with the axes that split its sequence."""
        for op, strategy in zip(self._graph.ops, strategies, strict=True):
            if op.phase == "forward" and not is_product(op) and not is_again(op) and op.outs:
                labels = self._labels.get(op.outs[0].id)
                if labels is not None:
                    along = _split(strategy.outs[0], labels, "sequence")
                    yield self._graph.tree.weight(op.region) * op.outs[0].size_bytes, along

    def _product(self, op: OpNode, strategy: Strategy, flops: float) -> Product:
        found: dict[str, list[str]] = {}
        shared = _one_each(op)
        weights = [t for t in op.ins if self._is_state(t.id)]
        for position, (tensor, placement) in enumerate(
            zip((*op.ins, *op.outs), (*strategy.ins, *strategy.outs), strict=True)
        ):
            labels = self._labels.get(tensor.id, ())
            for dim, axes in enumerate(placement.dims):
                label = labels[dim][0] if dim < len(labels) else ""
                is_one_each = (position, dim) in shared and bool(weights)
                found.setdefault(label or ("expert" if is_one_each else "tensor"), []).extend(axes)

        # An axis that splits the batch of one operand splits the same index of the others, whatever these are called.
        taken: set[str] = set()
        by_label: dict[str, Axes] = {}
        for label in ("batch", "sequence", "expert", "tensor"):
            by_label[label] = tuple(
                axis for axis in dict.fromkeys(found.get(label, [])) if axis not in taken
            )
            taken.update(by_label[label])

        stages = self._graph.stages
        counts = {op.ins[p].shape[d] for p, d in shared if p < len(op.ins)}
        if stages is not None and stages.count in counts:
            by_label["expert"] = ()  # it is stages that these axes split
        name = self._graph.inputs[self._known[weights[0].id]].name if weights else ""
        return Product(flops, name, **by_label)

    def _is_state(self, tensor: int) -> bool:
        return self._known.get(tensor, -1) in self._state


def is_product(op: OpNode) -> bool:
    """Whether an operator is a product of matrices, of one each of groups of rows, or a convolution."""
    return traits_of(op.kind).is_contraction or op.kind in ("ragged_dot_general", "scaled_dot")


def _one_each(op: OpNode) -> set[tuple[int, int]]:
    """The dims, by operand (or result behind these) and number, of which a product has one matrix each."""
    if op.kind == "dot_general":
        _, (lhs, rhs) = op.params["dimension_numbers"]
        results = ((2, n) for n in range(len(lhs)))
        return {*((0, d) for d in lhs), *((1, d) for d in rhs), *results}
    if op.kind == "ragged_dot_general":
        groups = op.params["ragged_dot_dimension_numbers"]["rhs_group_dimensions"]
        return {(1, d) for d in groups}
    return set()


def _split(placement: Placement, labels: Labels, label: str) -> Axes:
    """The axes that split the dims of a label."""
    pairs = zip(placement.dims, labels, strict=True)
    return tuple(axis for axes, own in pairs if own[0] == label for axis in axes)


def _gathered(
    graph: OpGraph,
    inputs: tuple[Placement, ...],
    strategies: tuple[Strategy, ...],
    known: Mapping[int, int],
) -> dict[int, Axes]:
    """For every input that what is differentiated reads, the axes that split it and of which a reader sees all."""
    differentiated = _differentiated(graph)
    found: dict[int, Axes] = {}
    for op, strategy in zip(graph.ops, strategies, strict=True):
        if op.id not in differentiated or is_again(op):
            continue
        for position, (tensor, placement) in enumerate(zip(op.ins, strategy.ins, strict=True)):
            source = known.get(tensor.id)
            if source is None or (op.kind in _LOOKS_UP and position):
                continue
            missing = tuple(a for a in inputs[source].split_axes if a not in placement.split_axes)
            found[source] = max(found.get(source, ()), missing, key=len)
    return found


@once_per_graph
def _differentiated(graph: OpGraph) -> set[int]:
    """The operators of the forward pass that the backward pass needs; all operators where there is none.

    An optimizer that scales its moments does so in the forward phase too, and nothing there needs it.
    """
    if all(op.phase == "forward" for op in graph.ops):
        return {op.id for op in graph.ops}

    wanted: set[int] = set()
    found: set[int] = set()
    for op in reversed(graph.ops):
        is_needed = op.phase == "forward" and any(tensor.id in wanted for tensor in op.outs)
        if is_needed:
            found.add(op.id)
        if is_needed or op.phase == "backward":
            wanted.update(tensor.id for tensor in op.ins)
    return found


def _scattered(planned: Planned) -> Axes:
    """The axes over which more bytes of gradients are reduced to parts than to the whole."""
    program = planned.program
    balance: dict[str, float] = {}
    for move in program.collectives:
        if move.role == "mirror" and move.kind in ("all_reduce", "reduce_scatter"):
            sign = 1 if move.kind == "reduce_scatter" else -1
            for axis in move.axes:
                balance[axis] = balance.get(axis, 0.0) + sign * program.runs(move) * move.size_bytes
    return tuple(axis for axis, amount in balance.items() if amount > 0)
