"""account: what a program costs in time and memory, read off its instructions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from autopar.core.graph import OpNode
from autopar.core.manual import BORDERS
from autopar.core.mesh import DeviceMesh
from autopar.core.program import Compute, Instruction, Ints, Move, ShardedProgram
from autopar.core.regions import AROUND, BOUNDARY, LOOPS
from autopar.core.strategy import Strategy
from autopar.memory.in_place import in_arguments, own_results, written_over
from autopar.memory.kept_between import kept_between
from autopar.memory.scheduled import joined, made_first, until_late, widened_bytes
from autopar.ops.before_loops import Awaited, made_before
from autopar.ops.exchanged import joined_bytes, lengthening, sent_bytes, turns
from autopar.ops.fusion import PLAIN, Fusing
from autopar.ops.holding import AS_WRITTEN, Holding
from autopar.ops.traits import is_fusible

Bools = NDArray[np.bool_]

OpCost = Callable[[OpNode, Strategy], float]
Workspace = Callable[[OpNode, Sequence[int], Sequence[Sequence[int]]], int]


def no_workspace(_op: OpNode, _in_bytes: Sequence[int], _in_shapes: Sequence[Sequence[int]]) -> int:
    """The workspace of operators that need none."""
    return 0


@dataclass(frozen=True)
class Account:
    """Seconds of computing, local moves included, and of communicating, one after the other; one device's peak memory.

    `peak_at` is the position of the instruction at which the peak is reached, `peak_values` what is alive there,
    largest first. `held_bytes` is what is held while each instruction runs. `set_aside_bytes` is what the compiler is
    expected to set aside, where it is known; the peak is at least the most that this may be, but for what a library of
    products holds (`Backend.shared_workspace_bytes`). `in_flight_bytes` of the peak are for collectives that run beside
    whole rounds of a loop (`passes.double_buffer`).
    """

    compute_time_s: float
    communication_time_s: float
    peak_memory_bytes: int
    peak_at: int
    peak_values: tuple[int, ...]
    held_bytes: tuple[int, ...] = field(default=(), repr=False)
    set_aside_bytes: int | None = None
    in_flight_bytes: int = 0

    @property
    def serial_time_s(self) -> float:
        """The price of the program where nothing overlaps; `passes.schedule` says what it is where something does."""
        return self.compute_time_s + self.communication_time_s


@dataclass(frozen=True, eq=False)
class Lives:
    """When a device holds what.

    Arguments and results have memory of their own from beginning to end, as XLA allocates them; a result takes that
    of a donated argument of its type: of results `taken_bytes` lie so. Value values[n] lives at the instructions
    start[n] <= position < stop[n]; those of `fixed`, inputs then outputs, are always there. `size` are the bytes of
    every value, by its number: 0 of what stays in registers or is another under another name. `beside` is what each
    instruction holds besides operands and results.
    """

    values: Ints
    start: Ints
    stop: Ints
    size: NDArray[np.int64]
    beside: NDArray[np.int64]
    fixed: tuple[int, ...]
    taken_bytes: int

    @property
    def fixed_bytes(self) -> int:
        """What arguments and results take."""
        return int(self.size[[*self.fixed]].sum()) - self.taken_bytes

    def held(self, which: Bools | None = None) -> NDArray[np.int64]:
        """The bytes of the values made, or of those of `values` that `which` marks, at each instruction."""
        marked = slice(None) if which is None else which
        values = self.values[marked]
        change = np.zeros(len(self.beside) + 1, dtype=np.int64)
        np.add.at(change, self.start[marked], self.size[values])
        np.subtract.at(change, self.stop[marked], self.size[values])
        return np.cumsum(change[:-1])


def accounted(program: ShardedProgram, op_cost: OpCost, lives: Lives) -> Account:
    """The account of `program`, whose values have these `lives`; `op_cost` has the seconds of an operator."""
    compute = 0.0
    moving = 0.0
    exchanging = 0.0
    for i in program.instructions:
        if isinstance(i, Compute):
            runs = 1.0 if i.op.region is None else program.runs(i)
            compute += runs * op_cost(i.op, i.strategy)
            exchanging += sum(runs * move.time_s for move in i.exchanges) if i.exchanges else 0
        elif isinstance(i, Move) and i.is_collective:
            moving += program.runs(i) * i.time_s
        elif isinstance(i, Move):
            compute += program.runs(i) * i.time_s

    peak, peak_at, alive, held = _peak(lives)
    return Account(compute, moving + exchanging, peak, peak_at, alive, held)


def lives_of(
    program: ShardedProgram,
    in_memory: Collection[int],
    donated: Sequence[int] = (),
    *,
    recomputed: Collection[int] = (),
    workspace: Workspace = no_workspace,
    holding: Holding = AS_WRITTEN,
    fusing: Fusing = PLAIN,
) -> Lives:
    """When a device holds what while it runs `program`.

    A value lives from the instruction that makes it to its last use; one that stays in registers takes nothing but
    keeps its operands alive until it is used. The results of a bucket are parts of its flat buffer. What is written
    over another value takes its memory (`memory.in_place`).

    Args:
      program: routed (no Convert left).
      in_memory: ids of the tensors that reach memory (`ops.fusion.materialised`).
      donated: positions of the inputs whose memory outputs may take.
      recomputed: ids of tensors that each reader may compute anew (`ops.fusion.recomputed`).
      workspace: bytes that an operator takes while it runs, given the local bytes and shapes of its operands.
      holding: what the compiler holds otherwise.
      fusing: what it fuses in functions kept as operators.
    """
    registers = _registers(program, in_memory)
    aliases, early = _other_names(program, registers)
    through = registers | aliases | _anew(program, recomputed)
    equal = joined(program) if holding.joins_equal else {}
    loops = made_before(program).values() if holding.gradients_late else ()
    awaited = [*chain.from_iterable(loops)]
    last, over = _last_uses(program, through, donated, holding, equal, awaited)
    size = np.zeros(program.links.end, dtype=np.int64)
    size[[*program.values]] = [*map(program.device_bytes, program.values)]
    size[registers | aliases | early] = 0
    size[[*equal]] = 0
    size[in_arguments(program, over, donated)] = 0

    sizes: list[int] = size.tolist()
    beside = np.array(
        [_beside(program.mesh, one, sizes, workspace) for one in program.instructions],
        dtype=np.int64,
    )
    if holding.widens_operands:
        beside += widened_bytes(program)
    if holding.joins_equal:
        beside += kept_between(program, fusing)

    begins = dict.fromkeys(made_first(program), 0) if holding.zeros_first else dict[int, int]()
    begins |= {one.value: one.since for one in awaited}
    return Lives(
        *_alive(program, last, over, begins),
        size,
        beside,
        (*program.inputs, *program.outputs),
        _taken_over(program, donated),
    )


def _peak(
    lives: Lives,
) -> tuple[int, int, tuple[int, ...], tuple[int, ...]]:
    """The largest sum of bytes held, where it is reached and by what; what is held while each instruction runs."""
    before = lives.fixed_bytes
    held = before + lives.held() + lives.beside
    peak_at = int(held.argmax()) if held.max(initial=before) > before else -1
    peak = before if peak_at < 0 else int(held[peak_at])
    is_alive = (lives.start <= peak_at) & (peak_at < lives.stop)
    alive = {*lives.values[is_alive].tolist(), *lives.fixed}
    sizes: list[int] = lives.size.tolist()

    return (
        peak,
        peak_at,
        tuple(sorted((v for v in alive if sizes[v]), key=lambda v: (-sizes[v], v))),
        (*held.tolist(),),
    )


def _alive(
    program: ShardedProgram, last: Ints, over: Mapping[int, int], earlier: Mapping[int, int]
) -> tuple[Ints, Ints, Ints]:
    """Values that are made, and when the memory of each is taken and free again (first <= position < second).

    Those of inputs and outputs are left out; `earlier` says of some from when they are there. Memory is free behind
    the last use, where that enters or leaves a region or writes `over` it before its own results are there.
    """
    links = program.links
    others = ~_marked(links.end, (*program.inputs, *program.outputs))[links.made]
    values = links.made[others]
    start = links.maker[others]
    stop = np.maximum(last[values], start)
    stop += (stop == start) | ~(
        _ends_first(program)[stop] | _marked(links.end, [*over.values()])[values]
    )
    begins = {**_begins(program), **earlier}
    if begins:
        start = np.array(
            [begins.get(v, n) for v, n in zip(values.tolist(), start.tolist(), strict=True)]
        )

    return values, start, stop


def _ends_first(program: ShardedProgram) -> Bools:
    """Whether the memory of an instruction's operands is free before that of its results is taken."""
    if not program.regions:
        return np.zeros(len(program.instructions), dtype=np.bool_)
    return np.array(
        [isinstance(i, Compute) and i.op.kind in BOUNDARY for i in program.instructions],
        dtype=np.bool_,
    )


def _begins(program: ShardedProgram) -> Mapping[int, int]:
    """When the memory of a scan's stacks is taken: before the first round."""
    spans = _spans(program)
    stacks = _of_kind(program, "scan_stack").values() if spans else ()
    return {value: spans[i.region][0] for i in stacks if i.region is not None for value in i.outs}


def _spans(program: ShardedProgram) -> dict[int, tuple[int, int]]:
    """The first and the last instruction of each region that has any; nothing where no region is a loop."""
    found: dict[int, tuple[int, int]] = {}
    has_loops = any(region.kind in LOOPS for region in program.regions)
    for position, instruction in enumerate(program.instructions) if has_loops else ():
        for region in program.tree.path(instruction.region):
            found[region] = (found.get(region, (position, position))[0], position)
    return found


def _beside(
    mesh: DeviceMesh, instruction: Instruction, size: Sequence[int], workspace: Workspace
) -> int:
    """The bytes held while an instruction runs besides its operands and results.

    A move that splits or joins a dim other than the first works on a copy in which that dim comes first, and one of
    several tensors on a copy of them side by side (all-reduced, that copy is where the results are). An operator
    that exchanges holds what it sends and receives, and a copy of an operand for every group of devices it is
    lengthened over, if it is.
    """
    if isinstance(instruction, Compute):
        op = instruction.op
        strategy = instruction.strategy
        shapes = instruction.in_shapes(mesh)
        held = workspace(op, [size[value] for value in instruction.ins], shapes)
        if not instruction.exchanges:
            return held
        if op.body is not None:
            held //= turns(strategy) + 1

        beside = lengthening(op, strategy, mesh)
        copies = {
            (instruction.ins[e.tensor], e.axes) for e in beside if e.tensor < len(instruction.ins)
        }
        return (
            held
            + sum(size[value] for value, _ in copies)
            + sent_bytes(op, instruction.exchanges)
            + (joined_bytes(op, strategy, mesh) if turns(strategy) else 0)
        )

    if not isinstance(instruction, Move) or not instruction.is_collective:
        return 0

    is_packed = len(instruction.ins) > 1 and instruction.kind != "all_reduce"
    return instruction.size_bytes if instruction.dim or instruction.to_dim or is_packed else 0


def _taken_over(program: ShardedProgram, donated: Sequence[int]) -> int:
    """The bytes of the outputs that lie in the memory of a donated input of their shape, type and placement."""
    own = Counter(own_results(program, donated))
    return sum(map(program.device_bytes, (Counter(program.outputs) - own).elements()))


def _registers(program: ShardedProgram, in_memory: Collection[int]) -> Bools:
    """The values that never reach memory: fused into the loop that reads them, also where that reads only a part.

    What other moves read is in memory.
    """
    links = program.links
    in_loops = _taken_in_loops(program)
    by_loops = _computes(program)
    by_loops[in_loops] = True
    found = _made_of(program, lambda tensor: tensor not in in_memory)
    found[links.read[~by_loops[links.reader]]] = False
    found &= np.bincount(links.read, minlength=links.end) > 0
    for position in in_loops:
        move = program.instructions[position]
        found[[*move.outs]] = found[[*move.ins]]
    return found


def _other_names(program: ShardedProgram, registers: Bools) -> tuple[Bools, Bools]:
    """The values that are others under another name, at the borders of what a user splits by hand (`ops.fusion`).

    First those that are what they are made of, which lives as long as they do; then those of which results are made,
    whose memory is there all along.
    """
    aliases = list[int]()
    early = list[int]()
    borders = [i for i in program.instructions if isinstance(i, Compute) and i.op.kind in BORDERS]
    readers: Counter[int] = Counter(program.links.read.tolist() if borders else ())
    fixed = {*program.inputs, *program.outputs}
    for border in borders:
        (before,) = border.ins
        (after,) = border.outs
        if registers[before]:
            continue
        if after not in program.outputs:
            aliases.append(after)
        elif before not in fixed and readers[before] == 1:
            early.append(before)

    return _marked(program.links.end, aliases), _marked(program.links.end, early)


def _anew(program: ShardedProgram, recomputed: Collection[int]) -> Bools:
    """The values made by operators that a compiler may compute in each reader rather than keep.

    One that a move reads is written for that, but its other readers may compute it anew all the same. What a move makes
    is kept.
    """
    return _made_of(program, lambda tensor: tensor in recomputed)


def _made_of(program: ShardedProgram, is_meant: Callable[[int], bool]) -> Bools:
    """The values that operators make of tensors of which, by id, something is true; but no inputs and outputs."""
    links = program.links
    made = links.made[_computes_values(program)[links.maker]].tolist()
    found = _marked(
        links.end, [value for value in made if is_meant(program.values[value].tensor.id)]
    )
    found[[*program.inputs, *program.outputs]] = False
    return found


def _taken_in_loops(program: ShardedProgram) -> list[int]:
    """The local moves, by position, that all readers of their part do in their loops (`cost.local_steps`)."""
    instructions = program.instructions
    links = program.links
    local = [p for p, i in enumerate(instructions) if isinstance(i, Move) and not i.is_collective]
    if not local:
        return []

    readers: dict[int, list[int]] = {
        value: [] for position in local for value in instructions[position].outs
    }
    for value, reader in zip(links.read.tolist(), links.reader.tolist(), strict=True):
        if value in readers:
            readers[value].append(reader)

    found: set[int] = set()
    for position in reversed(local):
        move = instructions[position]
        mine = [reader for value in move.outs for reader in readers[value]]
        is_taken = all(reader in found or _is_fusible(instructions[reader]) for reader in mine)
        is_near = all(instructions[reader].region == move.region for reader in mine)
        if (
            mine
            and is_taken
            and is_near
            and not any(value in program.outputs for value in move.outs)
        ):
            found.add(position)

    return sorted(found)


def _is_fusible(instruction: Instruction) -> bool:
    return isinstance(instruction, Compute) and is_fusible(instruction.op)


def _marked(count: int, values: Sequence[int]) -> Bools:
    found = np.zeros(count, dtype=np.bool_)
    found[[*values]] = True
    return found


def _computes(program: ShardedProgram) -> Bools:
    """Which instructions are operators."""
    return np.fromiter(
        [isinstance(i, Compute) for i in program.instructions], np.bool_, len(program.instructions)
    )


def _computes_values(program: ShardedProgram) -> Bools:
    """Which instructions are operators whose results are values of their own: not what a loop carries."""
    held = {"carry_in", *AROUND}
    found = [isinstance(i, Compute) and i.op.kind not in held for i in program.instructions]
    return np.array(found, dtype=np.bool_)


def _last_uses(
    program: ShardedProgram,
    through: Bools,
    donated: Sequence[int],
    holding: Holding,
    equal: Mapping[int, int],
    awaited: Iterable[Awaited],
) -> tuple[Ints, dict[int, int]]:
    """The last instruction that may read each value, also through those in registers or computed anew, -1 if none; and
    what is written over what.

    A loop reads what was made before it until its last round. The memory of a carry becomes that of its last value,
    unless that is written over it.
    """
    links = program.links
    spans = _spans(program)
    found = np.full(links.end, -1)
    again = _again(program, spans)
    np.maximum.at(found, links.read, np.maximum(links.reader, again))
    if holding.gradients_late:
        found = np.maximum(found, until_late(program, links.end, awaited))
    for later, first in equal.items():
        found[first] = max(found[first], found[later])
    last: list[int] = found.tolist()
    is_through: list[bool] = through.tolist()
    passing: list[int] = np.unique(links.maker[through[links.made]]).tolist()
    lent: set[int] = set()
    for position in reversed(passing):
        instruction = program.instructions[position]
        until = max([last[value] for value in instruction.outs if is_through[value]])
        for value in instruction.ins if until > position else ():
            if until >= last[value]:
                lent.add(value)
                last[value] = until

    lent.update(np.flatnonzero(through).tolist())
    over = written_over(program, last, lent, donated, holding.reduces_in_place)
    for position, leaving in _of_kind(program, "carry_out").items() if spans else ():
        if over[leaving.outs[0]] != leaving.ins[0]:
            last[over[leaving.outs[0]]] = position

    return np.array(last, dtype=np.intp), over


def _again(program: ShardedProgram, spans: Mapping[int, tuple[int, int]]) -> Ints:
    """For each reading (`Links`) the last instruction of the outermost loop that reads the value again; -1 if none."""
    if not spans:
        return np.full(len(program.links.read), -1)
    made_in = {v: _made_in(program, i) for i in program.instructions for v in i.outs}
    loops = [
        program.tree.loop_around(made_in.get(value), _read_in(program, instruction, operand))
        for instruction in program.instructions
        for operand, value in enumerate(instruction.ins)
    ]
    return np.array([-1 if loop is None else spans[loop][1] for loop in loops], dtype=np.intp)


def _of_kind(program: ShardedProgram, kind: str) -> dict[int, Compute]:
    found = enumerate(program.instructions)
    return {position: i for position, i in found if isinstance(i, Compute) and i.op.kind == kind}


def _made_in(program: ShardedProgram, instruction: Instruction) -> int | None:
    kind = instruction.op.kind if isinstance(instruction, Compute) else ""
    return program.tree.made_in(kind, instruction.region)


def _read_in(program: ShardedProgram, instruction: Instruction, operand: int) -> int | None:
    kind = instruction.op.kind if isinstance(instruction, Compute) else ""
    return program.tree.reads_on_in(kind, instruction.region, operand)
