"""Programs built by hand, and what they compute as symbols: the oracle of every rewrite."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from autopar.core.graph import OpNode, Phase, TensorInfo
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import Placement
from autopar.core.program import Compute, Instruction, Move, Role, ShardedProgram, Value
from autopar.core.regions import Region
from autopar.core.strategy import Strategy
from autopar.memory.account import Account, OpCost, accounted, lives_of

MESH = DeviceMesh.of({"x": 2, "y": 4})
WHOLE = Placement(((),))
SPLIT = Placement((("x",),))


def price(kind: str, axes: tuple[str, ...], size_bytes: int) -> float:
    """Latency for each axis, and bytes."""
    return 0.0 if kind in ("slice", "mask") else 1e-6 * len(axes) + size_bytes * 1e-9


def account(
    program: ShardedProgram,
    op_cost: OpCost,
    in_memory: Collection[int],
    donated: Sequence[int] = (),
    **held: Any,
) -> Account:
    """The account of `program`; arguments as of `lives_of`."""
    return accounted(program, op_cost, lives_of(program, in_memory, donated, **held))


class Builder:
    """Adds instructions one by one; values are numbered as they are made, a tensor for each operator's result."""

    def __init__(self, mesh: DeviceMesh = MESH) -> None:
        self.mesh = mesh
        self.values: dict[int, Value] = {}
        self.instructions: list[Instruction] = []
        self.inputs: list[int] = []

    def value(self, placement: Placement, tensor: TensorInfo | None = None, size: int = 8) -> int:
        number = len(self.values)
        self.values[number] = Value(
            number, tensor or TensorInfo(number, (size,), "float32", 4), placement
        )
        return number

    def input(self, placement: Placement = WHOLE, size: int = 8) -> int:
        self.inputs.append(self.value(placement, size=size))
        return self.inputs[-1]

    def compute(
        self,
        ins: Sequence[int],
        placement: Placement = WHOLE,
        *,
        kind: str = "dot_general",
        size: int = 8,
        region: int | None = None,
        phase: Phase = "forward",
        **of_op: Any,
    ) -> int:
        out = self.value(placement, size=size)
        tensors = tuple(self.values[v].tensor for v in ins)
        made = (self.values[out].tensor,)
        op = OpNode(
            len(self.instructions), kind, tensors, made, region=region, phase=phase, **of_op
        )
        strategy = Strategy(tuple(self.values[v].placement for v in ins), (placement,))
        self.instructions.append(Compute(op, strategy, tuple(ins), (out,)))
        return out

    def move(
        self,
        kind: Any,
        axes: tuple[str, ...],
        before: int,
        after: Placement,
        *,
        role: Role = "forward",
        **rest: Any,
    ) -> int:
        source = self.values[before]
        out = self.value(after, source.tensor)
        parts = (p.local_size(source.tensor.shape, self.mesh) for p in (source.placement, after))
        size = max(parts) * source.tensor.itemsize
        self.instructions.append(
            Move(kind, axes, (before,), (out,), size, price(kind, axes, size), role, **rest)
        )
        return out

    def all_reduce(self, value: int, *, role: Role = "forward", region: int | None = None) -> int:
        p = self.values[value].placement
        axes = self.mesh.sort(p.unreduced)
        return self.move("all_reduce", axes, value, Placement(p.dims), role=role, region=region)

    def reduce_scatter(self, value: int, *, role: Role = "forward") -> int:
        p = self.values[value].placement
        axes = self.mesh.sort(p.unreduced)
        return self.move(
            "reduce_scatter",
            axes,
            value,
            Placement((p.dims[0] + axes, *p.dims[1:])),
            role=role,
            dim=0,
        )

    def all_gather(self, value: int, *, role: Role = "forward") -> int:
        p = self.values[value].placement
        return self.move(
            "all_gather", p.dims[0], value, Placement(((), *p.dims[1:])), role=role, dim=0
        )

    def slice(self, value: int, axis: str, *, role: Role = "forward") -> int:
        p = self.values[value].placement
        return self.move(
            "slice", (axis,), value, Placement(((*p.dims[0], axis), *p.dims[1:])), role=role, dim=0
        )

    def program(self, outputs: Sequence[int], **rest: Any) -> ShardedProgram:
        parts = self.values, tuple(self.inputs), tuple(outputs), tuple(self.instructions)
        return ShardedProgram(self.mesh, *parts, **rest)


def meaning(program: ShardedProgram) -> list[object]:
    """What every output is, as a term of operators on inputs: moves leave a value as it is, but for its placement."""
    terms: dict[int, object] = {
        v.id: v.tensor.literal for v in program.values.values() if v.tensor.literal is not None
    }
    terms |= {value: ("input", value) for value in program.inputs}
    for instruction in program.instructions:
        for position, value in enumerate(instruction.outs):
            if isinstance(instruction, Compute):
                found = (
                    instruction.op.kind,
                    instruction.op.id,
                    *(terms[v] for v in instruction.ins),
                )
                terms[value] = found
            else:
                terms[value] = terms[instruction.ins[position]]
    return [(terms[value], program.values[value].placement) for value in program.outputs]


def without(program: ShardedProgram, move: Move) -> ShardedProgram:
    """`program` that uses what `move` reads in place of what it makes."""
    renamed = dict(zip(move.outs, move.ins, strict=True))

    def read(values: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(renamed.get(value, value) for value in values)

    rest = (i._replace(ins=read(i.ins)) for i in program.instructions if i is not move)
    return replace(program, instructions=tuple(rest), outputs=read(program.outputs))


PLACEMENTS = [
    Placement(((),), ("x",)),
    Placement(((),), ("y",)),
    Placement((("y",),), ("x",)),
    WHOLE,
]


@st.composite
def programs(draw: st.DrawFn) -> ShardedProgram:
    """Random programs of operators and reductions, forward, then backward, then update; some results are gathered."""
    build = Builder()
    ready = [build.input() for _ in range(2)]
    pending: list[int] = []
    phases: list[Phase] = ["forward"] * 4 + ["backward"] * 5 + ["update"] * 4
    for phase in phases[: draw(st.integers(2, len(phases)))]:
        if pending and draw(st.booleans()):
            value = pending.pop(draw(st.integers(0, len(pending) - 1)))
            role: Role = "mirror" if phase != "forward" else "forward"
            reduce = build.reduce_scatter if draw(st.booleans()) else build.all_reduce
            ready.append(reduce(value, role=role))
        whole = [v for v in ready if build.values[v].placement == WHOLE]
        if whole and draw(st.booleans()):
            ready.append(build.slice(draw(st.sampled_from(whole)), draw(st.sampled_from("xy"))))
        ins = draw(st.lists(st.sampled_from(ready), min_size=1, max_size=2))
        placement, size = draw(st.sampled_from(PLACEMENTS)), draw(st.sampled_from([8, 16]))
        kind = draw(st.sampled_from(["dot_general", "add"]))
        out = build.compute(ins, placement, kind=kind, phase=phase, size=size)
        (pending if build.values[out].placement.unreduced else ready).append(out)
    ready += [build.all_reduce(value, role="mirror") for value in pending]
    outputs = draw(st.lists(st.sampled_from(ready), min_size=1, max_size=4))
    split = [v for v in dict.fromkeys(outputs) if build.values[v].placement.dims[0]]
    gathered = {v: build.all_gather(v) for v in split if draw(st.booleans())}
    program = build.program([gathered.get(v, v) for v in outputs])
    last = len(program.instructions)
    cuts = st.integers(0, last) | st.sampled_from([last // 2, last - 1, last])
    return in_regions(program, *sorted(draw(st.tuples(cuts, cuts, cuts, cuts))))


def in_regions(
    program: ShardedProgram, start: int, inner_start: int, inner_end: int, end: int
) -> ShardedProgram:
    """`program` with its instructions from `start` to `end` in a region, and some of these in one within that."""

    def inside(instruction: Instruction, region: int) -> Instruction:
        if isinstance(instruction, Move):
            return instruction._replace(region=region)
        return instruction._replace(op=replace(instruction.op, region=region))

    instructions = [
        inside(i, 1 if inner_start <= n < inner_end else 0) if start <= n < end else i
        for n, i in enumerate(program.instructions)
    ]
    return replace(
        program,
        instructions=tuple(instructions),
        regions=(Region(0, "remat"), Region(1, "remat", parent=0)),
    )
