"""lower: a graph and its plan in, a program whose changes of placement are still to be routed out."""

from __future__ import annotations

from dataclasses import dataclass, field

from autopar.core.dataflow import Copy, Dataflow
from autopar.core.graph import OpGraph, OpNode, TensorInfo
from autopar.core.placement import Placement
from autopar.core.plan import Stage
from autopar.passes.program import Compute, Convert, Instruction, ShardedProgram, Value


def lower(graph: OpGraph, flow: Dataflow, stage: Stage) -> ShardedProgram:
    """The program of `stage`.

    A stored copy is made right after its tensor, every other change of placement right before its first use. One
    that was made before, in the same phase and in a region that is still open, is used again.
    """
    return _Lowering(graph, flow, stage).program()


@dataclass(eq=False)
class _Lowering:
    """The state of one lowering: the values so far, by tensor and by copy."""

    graph: OpGraph
    flow: Dataflow
    stage: Stage
    values: dict[int, Value] = field(default_factory=dict[int, Value])
    instructions: list[Instruction] = field(default_factory=list[Instruction])
    made: dict[int, int] = field(default_factory=dict[int, int])
    copied: dict[int, int] = field(default_factory=dict[int, int])
    shared: dict[tuple[object, ...], int] = field(default_factory=dict[tuple[object, ...], int])

    def __post_init__(self) -> None:
        self._by_op: dict[int, dict[int, int | None]] = {}
        self._by_output: dict[int, int | None] = {}
        for use, copy in self.flow.source.items():
            if use.op is None:
                self._by_output[use.position] = copy
            else:
                self._by_op.setdefault(use.op, {})[use.position] = copy

    def program(self) -> ShardedProgram:
        graph, stage = self.graph, self.stage
        for tensor, placement in zip(graph.inputs, stage.inputs, strict=True):
            self.made[tensor.id] = self._value(tensor, placement)
        inputs = tuple(self.made[tensor.id] for tensor in graph.inputs)
        starting: dict[int, list[Copy]] = {}
        for copy in self.flow.copies:
            if not copy.stored:
                starting.setdefault(copy.start, []).append(copy)
        stored = {copy.tensor.id: copy for copy in self.flow.copies if copy.stored}
        for op in graph.ops:
            for copy in starting.get(op.id, ()):
                self._copy(copy, op)
            self._compute(op)
            for tensor in op.outs:
                if tensor.id in stored:
                    self._copy(stored[tensor.id], op)
        outputs = tuple(self._output(position) for position in range(len(graph.outputs)))
        return ShardedProgram(stage.mesh, self.values, inputs, outputs, tuple(self.instructions), graph.regions)

    def _value(self, tensor: TensorInfo, placement: Placement) -> int:
        value = Value(len(self.values), tensor, placement)
        self.values[value.id] = value
        return value.id

    def _read(self, tensor: TensorInfo, copy: int | None) -> int:
        if tensor.literal is not None and tensor.id not in self.made:
            self.made[tensor.id] = self._value(tensor, Placement(()))
        return self.made[tensor.id] if copy is None else self.copied[copy]

    def _convert(self, value: int, placement: Placement, op: OpNode | None) -> int:
        before = self.values[value]
        if before.placement == placement:
            return value
        where = (op.phase, op.region) if op else ("forward", None)
        keys = [(value, placement, *where)] + ([(value, placement, where[0], None)] if where[1] is not None else [])
        for key in keys:
            if key in self.shared:
                return self.shared[key]
        after = self._value(before.tensor, placement)
        self.shared[keys[0]] = after
        self.instructions.append(Convert(value, after, op))
        return after

    def _copy(self, copy: Copy, op: OpNode) -> None:
        source = self._read(copy.tensor, copy.source)
        self.copied[copy.id] = self._convert(source, self.stage.copies[copy.id], op)

    def _compute(self, op: OpNode) -> None:
        strategy = self.stage.strategies[op.id]
        sources = self._sources(op)
        ins = tuple(
            self._convert(self._read(tensor, copy), placement, op)
            for tensor, copy, placement in zip(op.ins, sources, strategy.ins, strict=True)
        )
        outs = tuple(self._value(tensor, placement) for tensor, placement in zip(op.outs, strategy.outs, strict=True))
        self.made.update((tensor.id, value) for tensor, value in zip(op.outs, outs, strict=True))
        self.instructions.append(Compute(op, strategy, ins, outs))

    def _sources(self, op: OpNode) -> list[int | None]:
        by_position = self._by_op.get(op.id, {})
        return [by_position.get(position) for position in range(len(op.ins))]

    def _output(self, position: int) -> int:
        tensor = self.graph.outputs[position]
        value = self._read(tensor, self._by_output.get(position))
        producer = self.graph.producers.get(tensor.id)
        if tensor.literal is not None:
            return value
        return self._convert(value, self.stage.outputs[position], _outside(producer))


def _outside(producer: OpNode | None) -> OpNode | None:
    """The operator that a result's redistribution is reported under; it runs after every region."""
    if producer is None or producer.region is None:
        return producer
    return OpNode(producer.id, producer.kind, producer.ins, producer.outs, source=producer.source, phase=producer.phase)
