"""account: what a program costs in time and memory, read off its instructions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from autopar.core.graph import OpNode
from autopar.core.regions import BOUNDARY
from autopar.core.strategy import Strategy
from autopar.passes.program import Compute, Instruction, Move, ShardedProgram

OpCost = Callable[[OpNode, Strategy], float]
Workspace = Callable[[OpNode, Sequence[int]], int]


def no_workspace(_op: OpNode, _in_bytes: Sequence[int]) -> int:
    """The workspace of operators that need none."""
    return 0


@dataclass(frozen=True)
class Account:
    """Seconds of computing and of communicating, one after the other, and the peak of one device's memory.

    `peak_at` is the position of the instruction at which the peak is reached, `peak_values` what is alive there,
    largest first. `held_bytes` is what is held while each instruction runs. `set_aside_bytes` is what the compiler is
    predicted to set aside, where it is known (`passes.compiled`); the peak is at least that.
    """

    compute_time_s: float
    communication_time_s: float
    peak_memory_bytes: int
    peak_at: int
    peak_values: tuple[int, ...]
    held_bytes: tuple[int, ...] = field(default=(), repr=False)
    set_aside_bytes: int | None = None

    @property
    def serial_time_s(self) -> float:
        """The price of the program where nothing overlaps; `passes.schedule` says what it is where something does."""
        return self.compute_time_s + self.communication_time_s


def account(
    program: ShardedProgram,
    op_cost: OpCost,
    in_memory: Collection[int],
    donated: Sequence[int] = (),
    *,
    recomputed: Collection[int] = (),
    workspace: Workspace = no_workspace,
) -> Account:
    """The account of `program`.

    Args:
      program: routed (no Convert left).
      op_cost: seconds of an operator under a strategy.
      in_memory: ids of the tensors that reach memory (`price.work.materialised`).
      donated: positions of the inputs whose memory outputs may take.
      recomputed: ids of tensors that each reader may compute anew (`price.work.recomputed`).
      workspace: bytes that an operator takes while it runs, given the local bytes of its operands.
    """
    compute = 0.0
    moving = 0.0
    exchanging = 0.0
    for i in program.instructions:
        if isinstance(i, Compute):
            runs = 1.0 if i.op.region is None else program.runs(i)
            compute += runs * op_cost(i.op, i.strategy)
            exchanging += sum(runs * move.time_s for move in i.exchanges) if i.exchanges else 0
        elif isinstance(i, Move):
            moving += program.runs(i) * i.time_s
    peak, peak_at, alive, held = _peak(program, in_memory, donated, recomputed, workspace)
    return Account(compute, moving + exchanging, peak, peak_at, alive, held)


def _peak(
    program: ShardedProgram,
    in_memory: Collection[int],
    donated: Sequence[int],
    recomputed: Collection[int],
    workspace: Workspace,
) -> tuple[int, int, tuple[int, ...], tuple[int, ...]]:
    """The largest sum of bytes held, where it is reached and by what; what is held while each instruction runs.

    Arguments and results have memory of their own from beginning to end, as XLA allocates them; a result takes that
    of a donated argument of its type. Any other value lives from the instruction that makes it to its last use, one
    that stays in registers takes nothing but keeps its operands alive until it is used. The results of a bucket are
    parts of its flat buffer.
    """
    moved = {value for i in program.instructions if not isinstance(i, Compute) for value in i.ins}
    registers = _registers(program, in_memory, moved)
    last = _last_uses(program, registers, _anew(program, recomputed))
    size = {value: 0 if value in registers else program.local_bytes(value) for value in program.values}
    before = sum(size[v] for v in (*program.inputs, *program.outputs)) - _taken_over(program, donated)
    spans = _alive(program, last)
    change = [0] * (len(program.instructions) + 1)
    for value, (start, stop) in spans.items():
        change[start] += size[value]
        change[stop] -= size[value]
    now, peak, peak_at = before, before, -1
    profile: list[int] = []
    for position, instruction in enumerate(program.instructions):
        now += change[position]
        held = now + _beside(instruction, size, workspace)
        profile.append(held)
        if held > peak:
            peak, peak_at = held, position
    alive = {v for v, (start, stop) in spans.items() if start <= peak_at < stop}.union(program.inputs, program.outputs)
    return peak, peak_at, tuple(sorted((v for v in alive if size[v]), key=lambda v: (-size[v], v))), tuple(profile)


def _alive(program: ShardedProgram, last: Mapping[int, int]) -> dict[int, tuple[int, int]]:
    """When the memory of each value is taken and free again (first <= position < second), but of inputs and outputs.

    It is free behind the last use, where that enters or leaves a region before its own results are there.
    """
    fixed = {*program.inputs, *program.outputs}
    begins = _begins(program)
    found: dict[int, tuple[int, int]] = {}
    for position, instruction in enumerate(program.instructions):
        for value in instruction.outs:
            if value in fixed:
                continue
            stop = last.get(value, position)
            if stop <= position:
                stop = position + 1
            elif not _ends_first(program.instructions[stop]):
                stop += 1
            found[value] = begins.get(value, position), stop
    return found


def _ends_first(instruction: Instruction) -> bool:
    """Whether the memory of operands is free before that of the results is taken."""
    return isinstance(instruction, Compute) and instruction.op.kind in BOUNDARY


def _begins(program: ShardedProgram) -> Mapping[int, int]:
    """When the memory of a scan's stacks is taken: before the first round."""
    spans = _spans(program)
    stacks = _of_kind(program, "scan_stack").values() if spans else ()
    return {value: spans[i.region][0] for i in stacks if i.region is not None for value in i.outs}


def _spans(program: ShardedProgram) -> dict[int, tuple[int, int]]:
    """The first and the last instruction of each region that has any."""
    found: dict[int, tuple[int, int]] = {}
    for position, instruction in enumerate(program.instructions) if program.regions else ():
        for region in program.tree.path(instruction.region):
            found[region] = (found.get(region, (position, position))[0], position)
    return found


def _beside(instruction: Instruction, size: Mapping[int, int], workspace: Workspace) -> int:
    """The bytes held while an instruction runs besides its operands and results.

    A move that splits or joins a dim other than the first works on a copy in which that dim comes first, and one of
    several tensors on a copy of them side by side (all-reduced, that copy is where the results are). An operator
    that exchanges holds what it sends and receives, and a copy of an operand for every group of devices it is
    lengthened over.
    """
    if isinstance(instruction, Compute):
        held = workspace(instruction.op, [size[value] for value in instruction.ins])
        if not instruction.exchanges:
            return held
        copies = {(value, move.axes) for move in instruction.exchanges for value in move.ins}
        copied = sum(size[value] for value, _ in copies if value in instruction.ins)
        return held + copied + 2 * sum(move.size_bytes for move in instruction.exchanges)
    if not isinstance(instruction, Move) or not instruction.is_collective:
        return 0
    is_packed = len(instruction.ins) > 1 and instruction.kind != "all_reduce"
    return instruction.size_bytes if instruction.dim or instruction.to_dim or is_packed else 0


def _taken_over(program: ShardedProgram, donated: Sequence[int]) -> int:
    """The bytes of the outputs that lie in the memory of a donated input of their shape, type and placement."""

    def kind(value: int) -> tuple[object, ...]:
        v = program.values[value]
        return v.tensor.shape, v.tensor.dtype, v.placement

    offered = Counter(kind(program.inputs[position]) for position in donated)
    taken = 0
    for value in program.outputs:
        if offered[kind(value)]:
            offered[kind(value)] -= 1
            taken += program.local_bytes(value)
    return taken


def _registers(program: ShardedProgram, in_memory: Collection[int], moved: set[int]) -> set[int]:
    """The values that never reach memory: fused into the one operator that reads them. `moved` are read by moves."""
    kept = moved.union(program.inputs, program.outputs)
    made = (v for i in program.instructions if isinstance(i, Compute) for v in i.outs)
    found = {v for v in made if v not in kept and program.values[v].tensor.id not in in_memory}
    read = Counter([v for i in program.instructions for v in i.ins if v in found])
    return {v for v in found if read[v] == 1}


def _anew(program: ShardedProgram, recomputed: Collection[int]) -> set[int]:
    """The values made by operators that a compiler may compute in each reader rather than keep.

    One that a move reads is written for that, but its other readers may compute it anew all the same. What a move makes
    is kept.
    """
    fixed = {*program.inputs, *program.outputs}
    made = {v for i in program.instructions if isinstance(i, Compute) for v in i.outs}
    return {v for v in made if program.values[v].tensor.id in recomputed} - fixed


def _last_uses(program: ShardedProgram, registers: set[int], anew: set[int]) -> dict[int, int]:
    """The last instruction that may read each value: also through those in registers or computed anew.

    A loop reads what was made before it until its last round. The memory of a carry becomes that of its last value.
    """
    tree, spans = program.tree, _spans(program)
    made_in = {v: _made_in(program, i) for i in program.instructions for v in i.outs} if spans else {}

    def behind_loops(instruction: Instruction, operand: int, until: int) -> int:
        loop = tree.loop_around(made_in.get(instruction.ins[operand]), _read_in(program, instruction, operand))
        return until if loop is None else max(until, spans[loop][1])

    last: dict[int, int] = {}
    through = registers | anew
    for position in range(len(program.instructions) - 1, -1, -1):
        instruction = program.instructions[position]
        until = position
        for value in instruction.outs:
            if value in through:
                until = max(until, last.get(value, position))
        for operand, value in enumerate(instruction.ins):
            stop = behind_loops(instruction, operand, until) if spans else until
            if stop > last.get(value, -1):
                last[value] = stop
    if not spans:
        return last
    entering = {(i.region, i.op.params["position"]): i.outs[0] for i in _of_kind(program, "carry_in").values()}
    for position, leaving in _of_kind(program, "carry_out").items():
        last[entering[leaving.region, leaving.op.params["position"]]] = position
    return last


def _of_kind(program: ShardedProgram, kind: str) -> dict[int, Compute]:
    found = enumerate(program.instructions)
    return {position: i for position, i in found if isinstance(i, Compute) and i.op.kind == kind}


def _made_in(program: ShardedProgram, instruction: Instruction) -> int | None:
    kind = instruction.op.kind if isinstance(instruction, Compute) else ""
    return program.tree.made_in(kind, instruction.region)


def _read_in(program: ShardedProgram, instruction: Instruction, operand: int) -> int | None:
    kind = instruction.op.kind if isinstance(instruction, Compute) else ""
    return program.tree.reads_on_in(kind, instruction.region, operand)
