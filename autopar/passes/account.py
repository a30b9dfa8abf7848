"""account: what a program costs in time and memory, read off its instructions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

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
    largest first.
    """

    compute_time_s: float
    communication_time_s: float
    peak_memory_bytes: int
    peak_at: int
    peak_values: tuple[int, ...]

    @property
    def step_time_s(self) -> float:
        """The price of the program: nothing overlaps."""
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
    computes = [i for i in program.instructions if isinstance(i, Compute)]
    moves = [i for i in program.instructions if isinstance(i, Move)]
    compute = sum(program.runs(i) * op_cost(i.op, i.strategy) for i in computes)
    exchanging = sum(program.runs(i) * move.time_s for i in computes for move in i.exchanges)
    moving = sum(program.runs(i) * i.time_s for i in moves) + exchanging
    peak, peak_at, alive = _peak(program, in_memory, donated, recomputed, workspace)
    return Account(compute, moving, peak, peak_at, alive)


def _peak(
    program: ShardedProgram,
    in_memory: Collection[int],
    donated: Sequence[int],
    recomputed: Collection[int],
    workspace: Workspace,
) -> tuple[int, int, tuple[int, ...]]:
    """The largest sum of bytes held, where it is reached and by what.

    Arguments and results have memory of their own from beginning to end, as XLA allocates them; a result takes that
    of a donated argument of its type. Any other value lives from the instruction that makes it to its last use, one
    that stays in registers takes nothing but keeps its operands alive until it is used. The results of a bucket are
    parts of its flat buffer.
    """
    registers = _registers(program, in_memory)
    last = _last_uses(program, registers, _anew(program, recomputed))
    fixed = {*program.inputs, *program.outputs}
    size = {value: 0 if value in registers else program.local_bytes(value) for value in program.values}
    born: dict[int, int] = {}
    gone: dict[int, int] = {}  # value -> when: twice the instruction's position, one more for behind it
    leaving: dict[int, list[int]] = {}
    for value, position in last.items():
        leaving.setdefault(position, []).append(value)
    begins = _begins(program)
    now = sum(size[v] for v in (*program.inputs, *program.outputs)) - _taken_over(program, donated)
    peak, peak_at = now, -1

    def leave(position: int, values: Iterable[int], behind: bool) -> int:
        freed = 0
        for value in values:
            if value in born and value not in gone and last.get(value, position) <= position:
                gone[value] = 2 * position + behind
                freed += size[value]
        return freed

    for position, instruction in enumerate(program.instructions):
        if isinstance(instruction, Compute) and instruction.op.kind in BOUNDARY:
            now -= leave(position, leaving.get(position, ()), behind=False)
        for value in begins.get(position, ()):
            if value not in fixed:
                born[value] = position
                now += size[value]
        extra = _beside(instruction, size, workspace)
        if now + extra > peak:
            peak, peak_at = now + extra, position
        now -= leave(position, (*leaving.get(position, ()), *instruction.outs), behind=True)
    held = fixed.union(v for v, start in born.items() if start <= peak_at and gone.get(v, inf) > 2 * peak_at)
    return peak, peak_at, tuple(sorted((v for v in held if size[v]), key=lambda v: (-size[v], v)))


def _begins(program: ShardedProgram) -> Mapping[int, Sequence[int]]:
    """The values whose memory is taken at each instruction: a scan's stack before its first round."""
    if not program.regions:
        return {position: instruction.outs for position, instruction in enumerate(program.instructions)}
    found: dict[int, list[int]] = {}
    spans = _spans(program)
    for position, instruction in enumerate(program.instructions):
        is_stack = isinstance(instruction, Compute) and instruction.op.kind == "scan_stack"
        first = spans[instruction.region][0] if is_stack and instruction.region is not None else position
        found.setdefault(first, []).extend(instruction.outs)
    return found


def _spans(program: ShardedProgram) -> dict[int, tuple[int, int]]:
    """The first and the last instruction of each region that has any."""
    found: dict[int, tuple[int, int]] = {}
    for position, instruction in enumerate(program.instructions) if program.regions else ():
        for region in program.tree.path(instruction.region):
            found[region] = (found.get(region, (position, position))[0], position)
    return found


def _beside(instruction: Instruction, size: Mapping[int, int], workspace: Workspace) -> int:
    """The bytes held while an instruction runs besides its operands and results.

    A move that splits or joins a dim other than the first works on a copy in which that dim comes first. An operator
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
    if isinstance(instruction, Move) and instruction.is_collective and (instruction.dim or instruction.to_dim):
        return instruction.size_bytes
    return 0


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


def _registers(program: ShardedProgram, in_memory: Collection[int]) -> set[int]:
    """The values that never reach memory: fused into the one operator that reads them."""
    kept = set(program.inputs) | set(program.outputs)
    made = (v for i in program.instructions if isinstance(i, Compute) for v in i.outs)
    found = {v for v in made if v not in kept and program.values[v].tensor.id not in in_memory}
    read = Counter(v for i in program.instructions for v in i.ins if v in found)
    moved = {v for i in program.instructions if not isinstance(i, Compute) for v in i.ins}
    return {v for v in found if read[v] == 1 and v not in moved}


def _anew(program: ShardedProgram, recomputed: Collection[int]) -> set[int]:
    """The values that a compiler may compute in each reader rather than keep, all of them being operators."""
    moved = {value for i in program.instructions if not isinstance(i, Compute) for value in i.ins}
    kept = moved.union(program.inputs, program.outputs)
    return {v for i in program.instructions for v in i.outs if program.values[v].tensor.id in recomputed} - kept


def _last_uses(program: ShardedProgram, registers: set[int], anew: set[int]) -> dict[int, int]:
    """The last instruction that may read each value: also through those in registers or computed anew.

    A loop reads what was made before it until its last round. The memory of a carry becomes that of its last value.
    """
    tree, spans = program.tree, _spans(program)
    made_in = {v: _made_in(program, i) for i in program.instructions for v in i.outs} if spans else {}
    last: dict[int, int] = {}
    through = registers | anew
    for position in range(len(program.instructions) - 1, -1, -1):
        instruction = program.instructions[position]
        until = position
        for value in instruction.outs:
            if value in through:
                until = max(until, last.get(value, position))
        for operand, value in enumerate(instruction.ins):
            loop = tree.loop_around(made_in.get(value), _read_in(program, instruction, operand)) if spans else None
            stop = until if loop is None else max(until, spans[loop][1])
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
