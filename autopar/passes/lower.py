"""lower: a graph and its plan in, a program whose changes of placement are still to be routed out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autopar.core.dataflow import Copy, Dataflow
from autopar.core.graph import OpGraph, OpNode, TensorInfo
from autopar.core.placement import Placement
from autopar.core.plan import Stage
from autopar.core.program import Compute, Convert, ShardedProgram, Value
from autopar.core.regions import ENTERING
from autopar.core.strategy import Strategy
from autopar.passes.blocks import Blocks

_NO_COPIES: Mapping[int, int] = {}
_SCALAR = Placement(())


def lower(graph: OpGraph, flow: Dataflow, stage: Stage) -> ShardedProgram:
    """The program of `stage`.

    A stored copy is made right after its tensor, every other change of placement right before its first use, before
    the loop if that is in one that its tensor is not in. One that was made before, in the same phase and in a region
    around, is used again.
    """
    return _Lowering(graph, flow, stage).program()


@dataclass(eq=False)
class _Lowering:
    """The state of one lowering: the values so far, by tensor and by copy.

    Placements are numbered, so that comparing them takes no time: by value in `numbers`, by their ids in `by_id`.
    `placed` are the numbers of the values' placements, `sides` those of a strategy's operands and results, by its id.
    """

    graph: OpGraph
    flow: Dataflow
    stage: Stage
    values: dict[int, Value] = field(default_factory=dict[int, Value])
    placed: list[int] = field(default_factory=list[int])
    numbers: dict[Placement, int] = field(default_factory=dict[Placement, int])
    by_id: dict[int, int] = field(default_factory=dict[int, int])
    sides: dict[int, tuple[list[int], list[int]]] = field(
        default_factory=dict[int, tuple[list[int], list[int]]]
    )
    made: dict[int, int] = field(default_factory=dict[int, int])
    copied: dict[int, int] = field(default_factory=dict[int, int])
    shared: dict[tuple[object, ...], int] = field(default_factory=dict[tuple[object, ...], int])
    region_of: list[int | None] = field(default_factory=list["int | None"])

    def __post_init__(self) -> None:
        self.blocks = Blocks(self.graph.tree)
        self.by_op = self.flow.by_op

    def program(self) -> ShardedProgram:
        graph = self.graph
        stage = self.stage
        for tensor, placement in zip(graph.inputs, stage.inputs, strict=True):
            self.made[tensor.id] = self._value(tensor, placement, self._number(placement), None)

        inputs = tuple(self.made[tensor.id] for tensor in graph.inputs)
        starting: dict[int, list[Copy]] = {}
        for copy in self.flow.copies:
            if not copy.stored:
                starting.setdefault(copy.start, []).append(copy)

        stored = {copy.tensor.id: copy for copy in self.flow.copies if copy.stored}
        for op, strategy in zip(graph.ops, stage.strategies, strict=True):
            if op.id in starting:
                for copy in starting[op.id]:
                    self._copy(copy, op, self._stands_in(op, copy.uses[0].position))
            self._compute(op, strategy)
            for tensor in op.outs:
                if tensor.id in stored:
                    self._copy(stored[tensor.id], op, stored[tensor.id].region)

        outputs = tuple(self._output(position) for position in range(len(graph.outputs)))
        instructions = tuple(self.blocks.root.flat())
        return ShardedProgram(stage.mesh, self.values, inputs, outputs, instructions, graph.regions)

    def _number(self, placement: Placement) -> int:
        known = self.by_id.get(id(placement))
        if known is None:
            known = self.by_id[id(placement)] = self.numbers.setdefault(
                placement, len(self.numbers)
            )
        return known

    def _sides(self, strategy: Strategy) -> tuple[list[int], list[int]]:
        ins, outs = (
            [self._number(placement) for placement in side]
            for side in (strategy.ins, strategy.outs)
        )
        self.sides[id(strategy)] = ins, outs
        return ins, outs

    def _value(
        self, tensor: TensorInfo, placement: Placement, number: int, region: int | None
    ) -> int:
        value = len(self.placed)
        self.values[value] = Value(value, tensor, placement)
        self.placed.append(number)
        self.region_of.append(region)
        return value

    def _read(self, tensor: TensorInfo, copy: int | None) -> int:
        if tensor.literal is not None and tensor.id not in self.made:
            self.made[tensor.id] = self._value(tensor, _SCALAR, self._number(_SCALAR), None)
        return self.made[tensor.id] if copy is None else self.copied[copy]

    def _stands_in(self, op: OpNode, position: int) -> int | None:
        """The region before whose instructions, or among them, operand `position` must be ready."""
        return (
            op.region
            if op.kind in ENTERING
            else self.graph.tree.reads_in(op.kind, op.region, position)
        )

    def _operand(self, op: OpNode, position: int, value: int, placement: Placement) -> int:
        """`value` in the `placement` in which `op` wants it."""
        reader = self.graph.tree.reads_in(op.kind, op.region, position)
        site = self.graph.tree.site(self.region_of[value], reader)
        return self._convert(value, placement, op, site, self._stands_in(op, position))

    def _convert(
        self,
        value: int,
        placement: Placement,
        op: OpNode | None,
        site: int | None,
        before_block: int | None,
    ) -> int:
        """`value` in `placement`, converted in region `site`, for `op`: before the block that holds `before_block`."""
        number = self._number(placement)
        if self.placed[value] == number:
            return value
        phase = op.phase if op else "forward"
        for region in (*self.graph.tree.path(site), None):
            if (value, number, phase, region) in self.shared:
                return self.shared[value, number, phase, region]
        after = self._value(self.values[value].tensor, placement, number, site)
        self.shared[value, number, phase, site] = after
        self.blocks.place(Convert(value, after, op, site), site, before_block)
        return after

    def _copy(self, copy: Copy, op: OpNode, before_block: int | None) -> None:
        source = self._read(copy.tensor, copy.source)
        placement = self.stage.copies[copy.id]
        self.copied[copy.id] = self._convert(source, placement, op, copy.region, before_block)

    def _compute(self, op: OpNode, strategy: Strategy) -> None:
        wanted, left = self.sides.get(id(strategy)) or self._sides(strategy)
        made = self.made
        placed = self.placed
        region = op.region
        ins = [made.get(tensor.id, -1) for tensor in op.ins]
        copies = self.by_op.get(op.id, _NO_COPIES)
        if copies:
            for position, copy in copies.items():
                ins[position] = self.copied[copy]

        if -1 in ins or [placed[value] for value in ins] != wanted:
            ins = self._operands(op, strategy, copies)

        made_in = None if region is None else self.graph.tree.made_in(op.kind, region)
        first = len(placed)
        if len(op.outs) == 1 == len(left):
            made[op.outs[0].id] = self._value(op.outs[0], strategy.outs[0], left[0], made_in)
            outs = (first,)
        else:
            for tensor, placement, number in zip(op.outs, strategy.outs, left, strict=True):
                made[tensor.id] = self._value(tensor, placement, number, made_in)
            outs = tuple(range(first, len(placed)))

        self.blocks.append(Compute(op, strategy, tuple(ins), outs), region)

    def _operands(self, op: OpNode, strategy: Strategy, copies: Mapping[int, int]) -> list[int]:
        """The operands of `op` as its strategy wants them; those that are not so yet are converted, one by one."""
        ins: list[int] = []
        for position, (tensor, placement) in enumerate(zip(op.ins, strategy.ins, strict=True)):
            value = self._read(tensor, copies.get(position))
            is_placed = self.placed[value] == self._number(placement)
            ins.append(value if is_placed else self._operand(op, position, value, placement))
        return ins

    def _output(self, position: int) -> int:
        tensor = self.graph.outputs[position]
        value = self._read(tensor, self.flow.by_output.get(position))
        if tensor.literal is not None:
            return value
        producer = self.graph.producers.get(tensor.id)
        return self._convert(value, self.stage.outputs[position], producer, None, None)
