"""fuse_collectives: independent all-reduces over the same axes become one, in buckets; so do scatters and gathers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from autopar.core.graph import OpNode
from autopar.core.placement import Kind, StepKind
from autopar.core.program import REDUCTIONS, Compute, Instruction, Move, Role, ShardedProgram
from autopar.cost.buckets import BUCKET_BYTES, SHARD_BUCKET_BYTES
from autopar.ops.traits import is_cast_or_rearrangement
from autopar.redistribute.step import PackPrice, StepPrice, no_pack


@dataclass(frozen=True)
class BucketKey:
    """What the collectives of a bucket have in common; `combine` is how they reduce."""

    kind: StepKind
    axes: tuple[str, ...]
    combine: Kind
    dtype: str
    region: int | None


@dataclass(frozen=True)
class FuseCollectives:
    """Takes up each all-reduce once its operand is there, delays collectives to the first use of any result in their
    bucket, and runs the bucket as one.

    In buckets come all-reduces, reduce-scatters, and the all-gathers of what the function returns: other gathers would
    hold whole tensors before they are needed. A bucket holds what has the same `BucketKey`; one that reaches
    `bucket_bytes` is closed, one of scatters or gathers, which holds whole tensors beside their shards, at
    `shard_bucket_bytes`. A collective that needs a result of its own bucket closes it first. What the update does with
    a reduced gradient, its casts, views and further moves wait for those that are still to be reduced; a further
    reduction, as of a shard over other axes, waits for the bucket that it reads alone. A bucket of several costs
    `price`, what its moves cost beside their collectives, and `pack`.
    """

    price: StepPrice
    bucket_bytes: int = BUCKET_BYTES
    shard_bucket_bytes: int = SHARD_BUCKET_BYTES
    pack: PackPrice = no_pack
    name: str = "fuse_collectives"

    def apply(self, program: ShardedProgram) -> ShardedProgram:
        """`program` with its collectives in buckets, each priced as one."""
        program = _early(program)
        state = _Buckets(self, program)
        rest = _units(program)
        while rest:
            waiting: list[tuple[Instruction, ...]] = []
            late: set[int] = set()
            for unit in rest:
                if (late or state.pending) and state.waits(unit, late):
                    if not state.follows(unit, late):
                        waiting.append(unit)
                    late.update(value for i in unit for value in (*i.outs, *_order(i)))
                else:
                    for instruction in unit:
                        state.run(instruction)
            state.enter(None)  # a region that comes last ends before the buckets outside it
            state.finish()
            rest = waiting

        return program.with_instructions(tuple(state.done))

    def key(self, program: ShardedProgram, move: Move) -> BucketKey:
        """What a move of `program` has in common with all that may be in its bucket."""
        value = program.values[move.ins[0]]
        return BucketKey(
            move.kind, move.axes, value.placement.kind, value.tensor.dtype, move.region
        )

    def buckets(self, moves: Sequence[Move]) -> list[Move]:
        """`moves` in buckets of those in a row that cost less together."""
        found = [self._alone(moves[0])]
        for move in moves[1:]:
            alone = self._alone(move)
            together = (*found[-1].moves, move)
            both = self._bucket(together, found[-1].beside_s + alone.beside_s)
            if both.time_s <= found[-1].time_s + move.time_s:
                found[-1] = both
            else:
                found.append(alone)

        return [_as_one(bucket) for bucket in found]

    def fused(self, moves: Sequence[Move]) -> Move:
        """The bucket of `moves` as one move, of the role that most of its bytes have."""
        beside_s = sum(self._alone(move).beside_s for move in moves)
        return _as_one(self._bucket(tuple(moves), beside_s))

    def _alone(self, move: Move) -> _Bucket:
        collective_s = self.price(move.kind, move.axes, move.size_bytes)
        return _Bucket((move,), max(0.0, move.time_s - collective_s), move.time_s)

    def _bucket(self, moves: tuple[Move, ...], beside_s: float) -> _Bucket:
        kind = moves[0].kind
        axes = moves[0].axes
        sizes = [move.size_bytes for move in moves]
        packed_s = self.pack(kind, axes, sizes)
        return _Bucket(moves, beside_s, self.price(kind, axes, sum(sizes)) + beside_s + packed_s)


@dataclass(frozen=True)
class _Bucket:
    """Moves that are one, what they do beside their collectives, such as copying in another order, and all seconds."""

    moves: tuple[Move, ...]
    beside_s: float
    time_s: float


def _as_one(bucket: _Bucket) -> Move:
    """A bucket as one move, of the role that most of its bytes have."""
    moves = bucket.moves
    if len(moves) == 1:
        return moves[0]

    roles: Counter[Role] = Counter()
    for move in moves:
        roles[move.role] += move.size_bytes

    return moves[0]._replace(
        ins=tuple(v for move in moves for v in move.ins),
        outs=tuple(v for move in moves for v in move.outs),
        dim=None,
        size_bytes=sum(move.size_bytes for move in moves),
        time_s=bucket.time_s,
        role=max(roles, key=lambda role: roles[role]),
        source=", ".join(dict.fromkeys(move.source for move in moves)),
        reason=f"bucket of {len(moves)} {moves[0].kind.replace('_', '-')}s",
    )


def _early(program: ShardedProgram) -> ShardedProgram:
    """Every all-reduce right behind what makes its operand, if that is in its region.

    Not scatters: the Problem counts what they read as held until they are asked for, and must not count too much.
    """
    sums = [
        i
        for i in program.instructions
        if isinstance(i, Move) and i.kind == "all_reduce" and len(i.ins) == 1
    ]
    if not sums:
        return program

    summed = {i.ins[0] for i in sums}
    made_in = {
        v: i.region for i in program.instructions if not summed.isdisjoint(i.outs) for v in i.outs
    }
    reductions = {i.ins[0]: i for i in sums if made_in.get(i.ins[0], -1) == i.region}
    moved = set(map(id, reductions.values()))
    done: list[Instruction] = []
    for instruction in program.instructions:
        if id(instruction) in moved:
            continue
        done.append(instruction)
        following = [] if reductions.keys().isdisjoint(instruction.outs) else [instruction]
        while following:
            following = [reductions[v] for i in following for v in i.outs if v in reductions]
            done += following

    return program.with_instructions(tuple(done))


def _order(instruction: Instruction) -> tuple[int, ...]:
    """A value of their own, -1, that ordered effects read and make: they keep their order."""
    return (-1,) if isinstance(instruction, Compute) and instruction.op.effect == "ordered" else ()


def _reads(instruction: Instruction, values: set[int]) -> bool:
    """Whether the instruction reads one of `values`, or comes in order behind what makes it."""
    return bool(values) and not (
        values.isdisjoint(instruction.ins) and values.isdisjoint(_order(instruction))
    )


def _is_late(op: OpNode) -> bool:
    """Whether what the operator does with a gradient can wait: nothing in the backward pass needs it."""
    return op.phase == "update" or is_cast_or_rearrangement(op)


def _units(program: ShardedProgram) -> list[tuple[Instruction, ...]]:
    """The instructions one by one, those of an outermost region together: a region is never torn apart."""
    if not program.regions:
        return [(instruction,) for instruction in program.instructions]

    outermost = _outermost(program)

    def unit(numbered: tuple[int, Instruction]) -> tuple[str, int]:
        position, instruction = numbered
        region = instruction.region
        return ("instruction", position) if region is None else ("region", outermost[region])

    return [
        tuple(i for _, i in members)
        for _, members in groupby(enumerate(program.instructions), key=unit)
    ]


def _outermost(program: ShardedProgram) -> dict[int, int]:
    """The outermost region around each."""
    return {region.id: program.tree.path(region.id)[-1] for region in program.regions}


@dataclass(eq=False)
class _Buckets:
    """The open buckets, which of them will make a value, and what is reduced further then."""

    fuse: FuseCollectives
    program: ShardedProgram
    done: list[Instruction] = field(default_factory=list[Instruction])
    open: dict[BucketKey, list[Move]] = field(default_factory=dict[BucketKey, list[Move]])
    held_bytes: dict[BucketKey, int] = field(default_factory=dict[BucketKey, int])
    pending: dict[int, BucketKey] = field(default_factory=dict[int, BucketKey])
    following: dict[int, Move] = field(default_factory=dict[int, Move])
    region: int | None = None

    def waits(self, unit: tuple[Instruction, ...], late: set[int]) -> bool:
        """Whether some instruction of the unit may wait, or comes behind what does: what makes the values `late`."""
        for instruction in unit:  # noqa: SIM110 - a generator for every instruction takes as long as the rest
            if _reads(instruction, late) or self.may_wait(instruction):
                return True
        return False

    def may_wait(self, instruction: Instruction) -> bool:
        """Whether it is the update's, a view or a move, and reads a gradient that is still to be reduced."""
        if self.pending.keys().isdisjoint(instruction.ins) or instruction.region is not None:
            return False
        if isinstance(instruction, Compute) and not _is_late(instruction.op):
            return False
        read = [(value, self.pending[value]) for value in instruction.ins if value in self.pending]
        return any(
            move.role == "mirror" and value in move.outs
            for value, key in read
            for move in self.open[key]
        )

    def follows(self, unit: tuple[Instruction, ...], late: set[int]) -> bool:
        """Takes up a unit that reduces further what a bucket is to make, once that is closed."""
        one = unit[0]
        if not (isinstance(one, Move) and one.kind in REDUCTIONS and self.may_wait(one)):
            return False
        (value,) = one.ins
        if value in late or value in self.following:
            return False
        self.following[value] = one
        return True

    def run(self, instruction: Instruction) -> None:
        """Takes up the next instruction, after the buckets that it reads from."""
        if instruction.region != self.region:
            self.enter(instruction.region)
        if self.pending and not self.pending.keys().isdisjoint(instruction.ins):
            self.flush_for(instruction.ins)
        if isinstance(instruction, Move) and self.is_fused(instruction):
            self.add(instruction)
        else:
            self.done.append(instruction)

    def is_fused(self, move: Move) -> bool:
        """Whether the move goes into a bucket."""
        return move.kind in REDUCTIONS or (
            move.kind == "all_gather" and not self.outputs.isdisjoint(move.outs)
        )

    def add(self, move: Move) -> None:
        key = self.fuse.key(self.program, move)
        most = self.fuse.bucket_bytes if move.kind == "all_reduce" else self.fuse.shard_bucket_bytes
        self.open.setdefault(key, []).append(move)
        self.held_bytes[key] = self.held_bytes.get(key, 0) + move.size_bytes
        self.pending.update(dict.fromkeys(move.outs, key))
        if self.held_bytes[key] >= most:
            self._close(key)

    def flush_for(self, values: tuple[int, ...]) -> None:
        for value in values:
            if value in self.pending:
                self._close(self.pending[value])

    def finish(self) -> None:
        """Closes all, those first that something follows."""
        while self.pending:
            self.flush_for(tuple(self.following) or tuple(self.pending))

    def enter(self, region: int | None) -> None:
        """Closes what belongs to the region that is left, and what the outermost region that is entered will read."""
        self.region = region
        for key in [key for key in self.open if key.region is not None and key.region != region]:
            self._close(key)  # what follows is in no region: it closes none of these
        if region is not None:
            self.flush_for(self.reads[region])

    def __post_init__(self) -> None:
        self.outputs = frozenset(self.program.outputs)
        outermost = _outermost(self.program)
        reads: dict[int, list[int]] = {region: [] for region in outermost}
        for instruction in self.program.instructions if outermost else ():
            if instruction.region is not None:
                reads[outermost[instruction.region]] += instruction.ins
        self.reads = {region: tuple(reads[around]) for region, around in outermost.items()}

    def _close(self, key: BucketKey) -> None:
        moves = self.open.pop(key)
        del self.held_bytes[key]
        self.done += self.fuse.buckets(moves)
        for move in moves:
            for value in move.outs:
                del self.pending[value]

        for value in (value for move in moves for value in move.outs):
            if value in self.following:
                self.add(self.following.pop(value))
