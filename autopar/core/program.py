"""ShardedProgram: local operators and moves between devices, as an explicit list. What is priced is what runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autopar.core.graph import OpNode, TensorInfo
from autopar.core.manual import KINDS as MANUAL
from autopar.core.mesh import DeviceMesh
from autopar.core.placement import LOCAL_KINDS, Placement, StepKind
from autopar.core.regions import BOUNDARY, Region, RegionTree
from autopar.core.strategy import Hop, Strategy

_UNFOLLOWED = frozenset({"core_map", "pallas_call", "pallas_kernel"}) | BOUNDARY
_LOWERED_TO_LOOPS = frozenset({"regularized_incomplete_beta"})
"""What JAX lowers to a loop whose first carry it does not mark as varying, so that its own check refuses it."""
REDUCTIONS = frozenset({"all_reduce", "reduce_scatter"})
"""The moves that add up what is unreduced."""
FUSED_KINDS = ("all_reduce", "reduce_scatter", "all_gather")
"""The moves that may be of several values at once (a bucket)."""
Role = Literal["forward", "backward", "mirror", "redistribution", "exchange"]


class Value(NamedTuple):
    """One tensor in one placement. Values are numbered; a literal is a value that nothing produces."""

    id: int
    tensor: TensorInfo
    placement: Placement


class Compute(NamedTuple):
    """An operator run on the local shards of its operands.

    `exchanges` are the collectives that it runs inside, as its strategy says, with their prices.
    """

    op: OpNode
    strategy: Strategy
    ins: tuple[int, ...]
    outs: tuple[int, ...]
    exchanges: tuple[Move, ...] = ()

    @property
    def region(self) -> int | None:
        """The innermost region that holds the operator."""
        return self.op.region

    def in_shapes(self, mesh: DeviceMesh) -> list[tuple[int, ...]]:
        """What a device has of its operands."""
        placed = zip(self.op.ins, self.strategy.ins, strict=True)
        return [placement.local_shape(tensor.shape, mesh) for tensor, placement in placed]


class Convert(NamedTuple):
    """A change of placement that is still to be routed, in `region`.

    `op` is the operator it was made for: source and phase.
    """

    before: int
    after: int
    op: OpNode | None
    region: int | None = None

    @property
    def ins(self) -> tuple[int, ...]:
        """The value read."""
        return (self.before,)

    @property
    def outs(self) -> tuple[int, ...]:
        """The value made."""
        return (self.after,)


class Move(NamedTuple):
    """One redistribution step on one value, or one of `FUSED_KINDS` on several (a bucket).

    `size_bytes` is what one device holds of all operands, before or after, whichever is larger; `time_s` the price of
    one run.
    `source` is the user's line that it serves, `reason` says why in words. A bucket has no `dim`: its tensors are
    split or joined where their placements say (`changed_dim`).

    An operator's exchange is a Move of role "exchange", which is no instruction: it reads an operand (or makes a
    result), makes the results, and says by `hop` to whom a permute goes. What it sends in each of its `rounds` has one
    price, that of all of them: what they take longer than the operator's computing beside them.
    """

    kind: StepKind
    axes: tuple[str, ...]
    ins: tuple[int, ...]
    outs: tuple[int, ...]
    size_bytes: int
    time_s: float
    role: Role
    dim: int | None = None
    to_dim: int | None = None
    region: int | None = None
    source: str = ""
    reason: str = ""
    hop: Hop | None = None
    rounds: int = 0

    @property
    def is_collective(self) -> bool:
        """Whether something crosses a link."""
        return self.kind not in LOCAL_KINDS


Instruction = Compute | Convert | Move
Ints = NDArray[np.intp]


class Links(NamedTuple):
    """Which instructions, by position, read and make which values, in the order of the program.

    Value read[n] is read by reader[n], made[n] made by maker[n]. All values are below `end`.
    """

    read: Ints
    reader: Ints
    made: Ints
    maker: Ints
    end: int


def changed_dim(before: Placement, after: Placement) -> int | None:
    """The first dim that is split over other axes in `after`; None if all are split alike."""
    pairs = enumerate(zip(before.dims, after.dims, strict=True))
    return next((dim for dim, (old, new) in pairs if old != new), None)


@dataclass(frozen=True, eq=False)
class ShardedProgram:
    """A program for every device of `mesh`.

    Invariants: see `verify`.
    """

    mesh: DeviceMesh
    values: Mapping[int, Value]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    instructions: tuple[Instruction, ...]
    regions: tuple[Region, ...] = ()

    @cached_property
    def tree(self) -> RegionTree:
        """The regions, and what lies in which."""
        return RegionTree(self.regions)

    def runs(self, instruction: Instruction) -> float:
        """How often an instruction runs in one call, on average: more than once in a loop."""
        return self.tree.weight(instruction.region)

    @property
    def collectives(self) -> tuple[Move, ...]:
        """The moves that cross a link, those inside operators included, in program order."""
        moves = (
            (i,) if isinstance(i, Move) else i.exchanges
            for i in self.instructions
            if not isinstance(i, Convert)
        )
        return tuple(move for some in moves for move in some if move.is_collective)

    @property
    def proves_replication(self) -> bool:
        """Whether JAX's own check of replication can follow the program.

        Three things are right but beyond it: a permute that changes over which axes a value is replicated; a bucket of
        values that are replicated over different axes (its result counts as varying wherever one does); and what cannot
        be looked into: what a user splits by hand, a kernel that is called anew, a
        loop in a function treated as one operator, or of JAX's own making, which knows nothing of how what it carries
        varies.
        """
        checked = all(_is_checked(i.op) for i in self.instructions if isinstance(i, Compute))
        return checked and all(
            self._is_followed(move) for move in self.collectives if move.role != "exchange"
        )

    def _is_followed(self, move: Move) -> bool:
        before, after = (
            [self.values[v].placement.varying_axes for v in ids] for ids in (move.ins, move.outs)
        )
        return before == after if move.kind == "permute" else len(set(before)) == 1

    def with_instructions(
        self, instructions: tuple[Instruction, ...], values: Mapping[int, Value] | None = None
    ) -> ShardedProgram:
        """The program with other instructions, and with further values."""
        return replace(
            self,
            instructions=instructions,
            values={**self.values, **values} if values else self.values,
        )

    @cached_property
    def links(self) -> Links:
        """What is read and made by whom, as arrays."""
        read, reader = _linked([i.ins for i in self.instructions])
        made, maker = _linked([i.outs for i in self.instructions])
        largest = max(
            max(self.values, default=-1), int(read.max(initial=-1)), int(made.max(initial=-1))
        )
        return Links(read, reader, made, maker, largest + 1)

    def local_bytes(self, value: int) -> int:
        """What one device holds of a value."""
        return self._sizes[value]

    def device_bytes(self, value: int) -> int:
        """What of it lies in the memory of the device: nothing of what is on the host."""
        return 0 if self.values[value].tensor.on_host else self._sizes[value]

    @cached_property
    def _sizes(self) -> Mapping[int, int]:
        """What one device holds of each value, in bytes; worked out once for values that lie alike."""
        known: dict[tuple[tuple[int, ...], int, int], int] = {}
        found: dict[int, int] = {}
        for number, value in self.values.items():
            tensor = value.tensor
            placement = value.placement
            key = tensor.shape, tensor.itemsize, id(placement)
            if key not in known:
                known[key] = placement.local_size(tensor.shape, self.mesh) * tensor.itemsize
            found[number] = known[key]
        return found

    def __str__(self) -> str:
        return "\n".join(_line(self, i) for i in self.instructions)


def _linked(sides: list[tuple[int, ...]]) -> tuple[Ints, Ints]:
    """The values of all sides, and the side that each is of."""
    lengths = np.fromiter(map(len, sides), np.intp, len(sides))
    values = np.fromiter(chain.from_iterable(sides), np.intp, int(lengths.sum()))
    return values, np.repeat(np.arange(len(sides)), lengths)


def _is_checked(op: OpNode) -> bool:
    """Whether JAX's check can look into the operator."""
    if op.body is not None and any(
        inner.kind in _UNFOLLOWED or not _is_checked(inner) for inner in op.body.ops
    ):
        return False
    if op.kind in MANUAL or op.kind == "pallas_kernel":
        return False
    return op.kind not in _LOWERED_TO_LOOPS and (
        op.kind != "shard_map" or bool(op.params["proves"])
    )


def _line(program: ShardedProgram, instruction: Instruction) -> str:
    def show(ids: tuple[int, ...]) -> str:
        values = [program.values[v] for v in ids]
        return ", ".join(
            repr(v.tensor.literal)
            if v.tensor.literal is not None
            else f"%{v.id}:{v.tensor.dtype}{list(v.tensor.shape)}{v.placement}"
            for v in values
        )

    outs = show(instruction.outs)
    ins = show(instruction.ins)
    indent = "  " * len(program.tree.path(instruction.region))
    if isinstance(instruction, Compute):
        inside = "".join(f", {_exchange(move)}" for move in instruction.exchanges)
        return f"{indent}{outs} = {instruction.op.kind} {ins}  # {instruction.op.source}{inside}"

    if isinstance(instruction, Convert):
        return f"{indent}{outs} = convert {ins}"

    tail = f"{instruction.role}, {instruction.size_bytes} bytes, {instruction.time_s:.3g} s, {instruction.source}"
    return f"{indent}{outs} = {instruction.kind}[{','.join(instruction.axes)}] {ins}  # {tail}"


def _exchange(move: Move) -> str:
    often = f" in {move.rounds} rounds" if move.rounds else ""
    return f"{move.kind}[{','.join(move.axes)}] {move.hop or ''} {move.size_bytes} bytes {move.time_s:.3g} s{often}"
