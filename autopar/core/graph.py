"""OpGraph: the traced function as a flat sequence of operators on tensors (SSA)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from autopar.core.regions import LEAVING, Region, RegionTree
from autopar.core.repeats import repeats
from autopar.core.stages import Stages

if TYPE_CHECKING:
    import networkx as nx

Phase = Literal["forward", "backward", "update"]
Effect = Literal["ordered", "unordered"]
Scalar = bool | int | float | complex
CONSTANT = "constant["
"""What the names of hoisted constants begin with."""


@dataclass(frozen=True)
class TensorInfo:
    """One value of the graph: its number, global shape and element type.

    `name` is the argument's path ("params['w1']") for inputs, "constant[0]" for hoisted constants, else "".
    `literal` is the value of a scalar constant; such a tensor has shape () and no producer. `multiple_of` is the id of
    the tensor that this one is a number times, if it is known to be one. `manual` are the mesh axes along which
    the user placed it by hand (`core.manual`): the shape is that of one position along them. `on_host`: it lies in the
    host's memory, each device's part of it behind the link of that device. `fixed`: it is read as it is made, as
    nothing is sent where it is: in a loop that every device leaves by itself.
    """

    id: int
    shape: tuple[int, ...]
    dtype: str
    itemsize: int
    name: str = ""
    literal: Scalar | None = None
    multiple_of: int | None = None
    manual: tuple[str, ...] = ()
    on_host: bool = False
    fixed: bool = False

    @property
    def root(self) -> int:
        """The id of the tensor that this one is a multiple of: its own, if of no other."""
        return self.id if self.multiple_of is None else self.multiple_of

    @property
    def residence(self) -> tuple[object, ...]:
        """All that says where it may lie and be sent."""
        return self.manual, self.on_host, self.fixed

    @property
    def ndim(self) -> int:
        """The number of dims."""
        return len(self.shape)

    @property
    def size_bytes(self) -> int:
        """The bytes of the whole tensor."""
        return prod(self.shape) * self.itemsize

    @property
    def device_bytes(self) -> int:
        """The bytes of the whole tensor in the memory of devices."""
        return 0 if self.on_host else self.size_bytes


@dataclass(frozen=True, eq=False)
class OpNode:
    """One operator: a primitive, its operands and results, and where it came from.

    `params` is plain data (numbers, strings, tuples, dicts), all that a rule may look at. `payload` is what `emit`
    needs to run it (for a traced operator, its primitive and parameters): opaque to every other stage.
    `source` is the user's line ("model.py:41 (loss)"), `scope` the name stack. `phase` is "backward" for
    transposed operators, "update" for what depends on them outside of all differentiation, else "forward": also what is
    differentiated a second time, such as inner gradients and a second model's forward pass.
    `region` is the number of the innermost region that holds the operator, or None. An operator with an `effect` does
    something outside of the program, once; the ordered ones in the order of the graph. `body` is what it computes,
    where it is a function treated as one operator: what it costs is read off it. `recomputes` is the operator that this
    one repeats later on, so that its results need not be kept; itself, if it runs later instead (`core.recompute`).
    `added` is the share of its work that padding added (`trace.padding`).
    """

    id: int
    kind: str
    ins: tuple[TensorInfo, ...]
    outs: tuple[TensorInfo, ...]
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    source: str = ""
    scope: str = ""
    phase: Phase = "forward"
    region: int | None = None
    payload: object = field(default=None, repr=False)
    effect: Effect | None = None
    body: OpGraph | None = field(default=None, repr=False)
    recomputes: int | None = None
    added: float = 0.0

    @property
    def crosses_memories(self) -> bool:
        """Whether it takes an array from the devices' memory to the host's, or back."""
        return self.kind == "device_put" and self.ins[0].on_host != self.outs[0].on_host

    @cached_property
    def signature(self) -> tuple[object, ...]:
        """What a rule's answer depends on: kind, shapes, types, related and (zero) literal operands, parameters."""
        first: dict[int, int] = {}
        ins = tuple(
            [
                (
                    t.shape,
                    t.dtype,
                    first.setdefault(t.root, i),
                    t.literal is None,
                    t.literal == 0,
                    t.residence,
                )
                for i, t in enumerate(self.ins)
            ]
        )
        outs = tuple([(t.shape, t.dtype, t.residence) for t in self.outs])

        return (self.kind, ins, outs, _text(self.params))


def _text(params: Mapping[str, Any]) -> str:
    items = list(params.items())
    if len(items) > 1:
        items.sort(key=itemgetter(0))
    return repr(items)


@dataclass(eq=False)
class _Looks:
    """Signatures of the operators of one graph as few numbers: equal where `OpNode.signature` is.

    Types of tensors are `numbers`, which `known` has by the tensor's id.
    """

    numbers: dict[tuple[object, ...], int] = field(default_factory=dict[tuple[object, ...], int])
    known: dict[int, int] = field(default_factory=dict[int, int])

    def of(self, op: OpNode) -> tuple[object, ...]:
        """What looks like the signature of `op`."""
        known = self.known
        related = None
        ins = [known.get(tensor.id) or self._number(tensor) for tensor in op.ins]
        outs = [known.get(tensor.id) or self._number(tensor) for tensor in op.outs]
        if len(ins) > 1:
            roots = [t.id if t.multiple_of is None else t.multiple_of for t in op.ins]
            if len(set(roots)) < len(roots):
                related = tuple(map(roots.index, roots))
        return (op.kind, tuple(ins), tuple(outs), related, _text(op.params) if op.params else "[]")

    def _number(self, tensor: TensorInfo) -> int:
        look = (
            tensor.shape,
            tensor.dtype,
            tensor.literal is None,
            tensor.literal == 0,
            tensor.residence,
        )
        number = self.known[tensor.id] = self.numbers.setdefault(look, len(self.numbers) + 1)
        return number


@dataclass(frozen=True, eq=False)
class OpGraph:
    """A traced function.

    `inputs` are the flattened arguments, then the hoisted constants. `outputs` are the flattened results; one may
    repeat, be an input, or be a literal. `carry` pairs (output position, input position) of the state: such an
    output becomes the next call's input and keeps its placement. `key_inputs` and `key_outputs` are the positions of
    those that are the data of typed PRNG keys: their last dim is one key, and is whole on every device. `output_names`
    are the paths of the results ("output[0]['w1']"), where they are known. `resident` are the positions of inputs that
    stay on the devices between calls though nothing is carried into them. `padding` are the sizes of dims that are
    padded inside, with what they become. `stages` says how layers are divided among pipeline stages, where they are.

    Invariants (checked by `check`): an operand is an input, a literal or the result of an earlier operator, and seen
    where it is read; every tensor has one producer; operators are numbered by position; the operators of a region,
    those of the regions in it included, are contiguous; a region comes after the one around it; carry_in and carry_out
    of a loop come in pairs.
    """

    ops: tuple[OpNode, ...]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    carry: tuple[tuple[int, int], ...] = ()
    regions: tuple[Region, ...] = ()
    batch_inputs: tuple[int, ...] = ()
    donated: tuple[int, ...] = ()
    key_inputs: tuple[int, ...] = ()
    key_outputs: tuple[int, ...] = ()
    output_names: tuple[str, ...] = ()
    resident: tuple[int, ...] = ()
    padding: tuple[tuple[int, int], ...] = ()
    stages: Stages | None = None

    def __post_init__(self) -> None:
        check(self)

    def output_name(self, position: int) -> str:
        """What the result at a position is called: its path, or its position where that is not known."""
        return self.output_names[position] if self.output_names else f"output[{position}]"

    @cached_property
    def producers(self) -> dict[int, OpNode]:
        """The producer of each tensor that has one, by tensor id."""
        return {tensor.id: op for op in self.ops for tensor in op.outs}

    @cached_property
    def alike(self) -> tuple[int, ...]:
        """For every operator the id of the first one of its signature: what is known of that one holds for it too."""
        first: dict[tuple[object, ...], int] = {}
        looks = _Looks()
        return tuple([first.setdefault(looks.of(op), op.id) for op in self.ops])

    @cached_property
    def repeats(self) -> tuple[int, ...]:
        """For every operator the first one whose place it has in what repeats, as layers do; else itself."""
        return tuple(repeats(np.array(self.alike, dtype=np.intp)).tolist())

    @cached_property
    def tree(self) -> RegionTree:
        """The regions, and what lies in which."""
        return RegionTree(self.regions)

    @cached_property
    def spans(self) -> dict[int, tuple[int, int]]:
        """The first and the last operator of each region that has any, those of the regions in it included."""
        found: dict[int, tuple[int, int]] = {}
        for op in self.ops:
            for region in self.tree.path(op.region):
                found[region] = (found.get(region, (op.id, op.id))[0], op.id)
        return found

    @cached_property
    def loop_carries(self) -> dict[int, int]:
        """For each carry_out of a loop its carry_in, by operator id: they have one placement."""
        entering = _carries(self, "carry_in")
        return {leaving: entering[carry] for carry, leaving in _carries(self, "carry_out").items()}

    def original(self, op: OpNode) -> OpNode:
        """The operator that `op` repeats; `op` itself if it repeats none."""
        return op if op.recomputes is None else self.ops[op.recomputes]

    def made_in(self, tensor: TensorInfo) -> int | None:
        """The region in which `tensor` is seen first; None for inputs."""
        producer = self.producers.get(tensor.id)
        if producer is None or producer.region is None:
            return None
        return self.tree.made_in(producer.kind, producer.region)

    def ready_at(self, op: OpNode) -> int:
        """The position after which the results of `op` can be read: what leaves a region does so when that ends."""
        return op.id if op.region is None or op.kind not in LEAVING else self.spans[op.region][1]

    @cached_property
    def view(self) -> nx.MultiDiGraph[int]:
        """The operators as a networkx graph: an edge for each operand, with its `tensor` and `operand` position."""
        import networkx as nx  # late: planning needs no such view

        view: nx.MultiDiGraph[int] = nx.MultiDiGraph()
        view.add_nodes_from(op.id for op in self.ops)
        for op in self.ops:
            for position, tensor in enumerate(op.ins):
                if tensor.id in self.producers:
                    view.add_edge(
                        self.producers[tensor.id].id, op.id, tensor=tensor.id, operand=position
                    )
        return view

    def __str__(self) -> str:
        def show(tensor: TensorInfo) -> str:
            if tensor.literal is not None:
                return repr(tensor.literal)
            return f"%{tensor.id}:{tensor.dtype}{list(tensor.shape)}"

        lines = [f"input {t.name} {show(t)}" for t in self.inputs]
        for op in self.ops:
            outs, ins = (", ".join(map(show, side)) for side in (op.outs, op.ins))
            indent = "  " if op.region is not None else ""
            lines.append(f"{indent}{outs} = {op.kind} {ins}  # {op.phase} {op.source}")
        return "\n".join([*lines, *(f"output {show(t)}" for t in self.outputs)])


def check(graph: OpGraph) -> None:
    """Raises ValueError if `graph` breaks an invariant of OpGraph."""
    known = {tensor.id for tensor in graph.inputs}
    if len(known) != len(graph.inputs):
        raise ValueError("two inputs share a tensor id")

    for position, op in enumerate(graph.ops):
        if op.id != position:
            raise ValueError(f"operator {op.id} ({op.kind}) stands at position {position}")
        for tensor in op.ins:
            if tensor.id not in known and tensor.literal is None:
                raise ValueError(
                    f"operator {op.id} ({op.kind}) reads tensor {tensor.id} before it exists"
                )
        for tensor in op.outs:
            if tensor.id in known:
                raise ValueError(f"tensor {tensor.id} has two producers")
            known.add(tensor.id)

    for tensor in graph.outputs:
        if tensor.id not in known and tensor.literal is None:
            raise ValueError(f"output tensor {tensor.id} is never produced")

    _check_regions(graph)


def _check_regions(graph: OpGraph) -> None:
    if not graph.regions and all(op.region is None for op in graph.ops):
        return

    tree = graph.tree
    opened: frozenset[int] = frozenset()
    closed: set[int] = set()
    for op in graph.ops:
        around = frozenset(tree.path(op.region))
        closed |= opened - around
        opened = around
        if opened & closed:
            raise ValueError(f"the operators of region {min(opened & closed)} are not contiguous")
        for position, tensor in enumerate(op.ins):
            _check_seen(graph, op, position, tensor)

    _check_carries(graph)


def _check_carries(graph: OpGraph) -> None:
    """Every carry_in has its carry_out, and the other way round."""
    of_kind = {kind: _carries(graph, kind) for kind in ("carry_in", "carry_out")}
    for kind, other in (("carry_in", "carry_out"), ("carry_out", "carry_in")):
        lone = [op for key, op in of_kind[kind].items() if key not in of_kind[other]]
        if lone:
            raise ValueError(f"operator {min(lone)} ({kind}) has no {other}")


def _carries(graph: OpGraph, kind: str) -> dict[tuple[int | None, int], int]:
    """The operators of `kind` by loop and position."""
    return {(op.region, op.params["position"]): op.id for op in graph.ops if op.kind == kind}


def _check_seen(graph: OpGraph, op: OpNode, position: int, tensor: TensorInfo) -> None:
    """A value made inside a control region is read in there."""
    reader = set(graph.tree.path(graph.tree.reads_in(op.kind, op.region, position)))
    hidden = [
        r
        for r in graph.tree.path(graph.made_in(tensor))
        if graph.tree[r].kind != "remat" and r not in reader
    ]
    if hidden:
        raise ValueError(
            f"operator {op.id} ({op.kind}) reads tensor {tensor.id}, which is not seen outside its region"
        )
